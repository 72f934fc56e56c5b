// OpenAI's Responses API: requests and routes. Answers: responses_shape.cc.
#include "serve/compat/responses.h"

#include <algorithm>

#include "serve/compat/background.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "serve/openai/list_page.h"

namespace tokamak::openai {
namespace {

std::string read_parts(const Value& content, const std::string& param) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) wrong_type(param, "a string or an array of content parts", content);
  std::string text;
  for (size_t i = 0; i < content.as_array().size(); ++i) {
    std::string name = fmt::format("{}[{}]", param, i);
    Fields part(content.as_array()[i], name);
    std::string type = part.require_string("type");
    if (i > 0) text += '\n';
    if (type == "input_text" || type == "output_text" || type == "text")
      text += part.require_string("text");
    else if (type == "refusal")
      text += part.string("refusal").value_or("");
    else
      bad_request(name + ".type", "unsupported_content_type",
                  "Invalid '{}.type': content of type '{}' is not available; only text is.", name,
                  type);
  }
  return text;
}

// Calls belong to the assistant's message before them.
Value& assistant_before(Value& messages) {
  Value::Array& list = messages.as_array();
  if (list.empty() || list.back().get_string("role", "") != "assistant")
    list.push_back(Value::Object{{"role", "assistant"}, {"content", ""}});
  return list.back();
}

void add_call(Fields& item, Value& messages) {
  Value function = Value::object();
  function.set("name", item.require_string("name"));
  function.set("arguments", item.require_string("arguments"));
  Value call = Value::object();
  call.set("id", item.require_string("call_id"));
  call.set("type", "function");
  call.set("function", std::move(function));
  Value& message = assistant_before(messages);
  if (!message.has("tool_calls")) message.set("tool_calls", Value::array());
  message.find("tool_calls")->push(std::move(call));
}

void add_item(const Value& value, const std::string& param, Value& messages) {
  Fields item(value, param);
  std::string type = item.string("type").value_or("message");
  if (type == "message") {
    Value message = Value::object();
    message.set("role", item.require_string("role"));
    message.set("content", read_parts(item.require("content"), param + ".content"));
    messages.push(std::move(message));
  } else if (type == "function_call") {
    add_call(item, messages);
  } else if (type == "function_call_output") {
    Value message = Value::object();
    message.set("role", "tool");
    message.set("tool_call_id", item.require_string("call_id"));
    message.set("content", read_parts(item.require("output"), param + ".output"));
    messages.push(std::move(message));
  } else if (type == "reasoning") {
    std::string text;
    if (const auto* parts = item.array("content"))
      for (const Value& part : *parts)
        if (part.is_object()) text += part.get_string("text", "");
    if (!text.empty())
      messages.push(Value::Object{
          {"role", "assistant"}, {"content", ""}, {"reasoning_content", std::move(text)}});
  } else {
    bad_request(param + ".type", "unsupported_item",
                "Invalid '{}.type': items of type '{}' are not available; only message, "
                "function_call, function_call_output and reasoning are.",
                param, type);
  }
}

void add_input(Fields& fields, Value& messages) {
  const Value& input = fields.require("input");
  if (input.is_string()) {
    messages.push(Value::Object{{"role", "user"}, {"content", input}});
    return;
  }
  if (!input.is_array()) wrong_type("input", "a string or an array of items", input);
  if (input.size() == 0 && messages.size() == 0)
    bad_request("input", "empty_array",
                "Invalid 'input': empty array. Expected at least one item.");
  for (size_t i = 0; i < input.as_array().size(); ++i)
    add_item(input.as_array()[i], fmt::format("input[{}]", i), messages);
}

const char* item_prefix(std::string_view item_type) {
  return item_type == "function_call"          ? "fc_"
         : item_type == "function_call_output" ? "fco_"
         : item_type == "reasoning"            ? "rs_"
                                               : "msg_";
}

// Adds a request's input as items that have an id, as a client may list them.
void list_input(const Value& input, Value& out) {
  auto add = [&](Value item) {
    if (!item.has("type")) item.set("type", "message");
    if (const Value* id = item.find("id"); id == nullptr || !id->is_string())
      item.set("id", new_id(item_prefix(item.get_string("type", ""))));
    const Value* content = item.find("content");
    if (content != nullptr && content->is_string()) {
      bool own = item.get_string("role", "") == "assistant";
      item.set("content", Value::Array{Value::Object{{"type", own ? "output_text" : "input_text"},
                                                     {"text", *content}}});
    }
    out.push(std::move(item));
  };
  if (input.is_string()) add(Value::Object{{"role", "user"}, {"content", input}});
  if (input.is_array())
    for (const Value& item : input.as_array()) add(item);
}

bool is_function(const Value& tool) {
  const Value* type = tool.is_object() ? tool.find("type") : nullptr;
  return type != nullptr && *type == Value("function");
}

// Agents send tools that OpenAI's servers run (web_search) beside their functions: these are left
// out, and the response lists the others. Alone they are an error.
Value read_response_tools(const Value::Array& list) {
  Value out = Value::array();
  const bool functions = std::any_of(list.begin(), list.end(), is_function);
  for (size_t i = 0; i < list.size(); ++i) {
    std::string param = fmt::format("tools[{}]", i);
    Fields tool(list[i], param);
    if (std::string type = tool.require_string("type"); type != "function") {
      if (functions) continue;
      unsupported(param + ".type",
                  fmt::format("Tools of type '{}' are not available; only functions are.", type));
    }
    Value function = Value::object();
    function.set("name", tool.require_string("name"));
    for (const char* name : {"description", "parameters", "strict"})
      if (const Value* value = tool.find(name)) function.set(name, *value);
    out.push(Value::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_text_format(Fields& fields, Value& out) {
  const Value* text = fields.find("text");
  if (text == nullptr) return;
  Fields inner(*text, "text");
  const Value* format = inner.find("format");
  if (format == nullptr) return;
  Fields given(*format, "text.format");
  std::string type = given.require_string("type");
  Value own = Value::Object{{"type", type}};
  if (type == "json_schema") {
    Value schema = Value::object();
    for (const char* name : {"name", "description", "schema", "strict"})
      if (const Value* value = given.find(name)) schema.set(name, *value);
    own.set("json_schema", std::move(schema));
  }
  out.set("response_format", std::move(own));
}

void read_choice(const Value& choice, Value& out) {
  if (!choice.is_object()) {
    out.set("tool_choice", choice);
    return;
  }
  Fields fields(choice, "tool_choice");
  const std::string type = fields.require_string("type");
  if (type == "allowed_tools") {
    out.set("tool_choice", choice);
    return;
  }
  if (type != "function")
    unsupported("tool_choice", fmt::format("Type '{}' is not available.", type));
  out.set("tool_choice",
          Value::Object{{"type", "function"},
                        {"function", Value::Object{{"name", fields.require_string("name")}}}});
}

void read_rest(Fields& fields, Value& out) {
  if (auto length = fields.integer("max_output_tokens", 1, INT32_MAX))
    out.set("max_tokens", *length);
  for (const char* name :
       {"model", "temperature", "top_p", "stream", "user", "seed", "top_k", "min_p", "stop",
        "chat_template_kwargs", "reasoning_budget", "return_progress", "timings_per_token"})
    if (const Value* value = fields.find(name)) out.set(name, *value);
  if (const auto* tools = fields.array("tools"); tools != nullptr && !tools->empty()) {
    out.set("tools", read_response_tools(*tools));
    if (const Value* choice = fields.find("tool_choice")) read_choice(*choice, out);
  }
  if (const Value* reasoning = fields.find("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    if (auto effort = inner.string("effort")) out.set("reasoning_effort", std::move(*effort));
  }
  read_text_format(fields, out);
  bool scores = false;
  if (const auto* include = fields.array("include"))
    for (const Value& name : *include)
      scores = scores || (name.is_string() && name.as_string() == "message.output_text.logprobs");
  auto top = fields.integer("top_logprobs", 0, 20);
  if (scores || top.value_or(0) > 0) {
    out.set("logprobs", true);
    out.set("top_logprobs", top.value_or(0));
  }
  fields.refuse("conversation", "Use 'previous_response_id'.");
  fields.refuse("prompt", "The server stores no prompts.");
  fields.ignore({"metadata", "parallel_tool_calls", "truncation", "service_tier", "tool_choice",
                 "max_tool_calls", "safety_identifier", "prompt_cache_key", "stream_options"});
}

// Members of the response that repeat the request.
Value echo_of(const Value& body) {
  Value out = Value::object();
  auto set = [&](const char* name, Value fallback) {
    const Value* value = body.find(name);
    out.set(name, value == nullptr || value->is_null() ? std::move(fallback) : *value);
  };
  set("background", false);
  set("instructions", {});
  set("max_output_tokens", {});
  set("metadata", Value::object());
  set("parallel_tool_calls", true);
  set("previous_response_id", {});
  set("reasoning", Value::Object{{"effort", Value()}, {"summary", Value()}});
  set("store", true);
  set("temperature", {});
  set("text", Value::Object{{"format", Value::Object{{"type", "text"}}}});
  set("tool_choice", "auto");
  Value tools = Value::array();
  if (const Value* given = body.find("tools"); given != nullptr && given->is_array())
    for (const Value& tool : given->as_array())
      if (is_function(tool)) tools.push(tool);
  out.set("tools", std::move(tools));
  set("top_p", {});
  set("truncation", "disabled");
  set("user", {});
  return out;
}

// The conversation so far, for an answer that continues one.
ResponseStore::Entry previous_of(Fields& fields, const std::string& tenant, ResponseStore& store) {
  ResponseStore::Entry found;
  found.messages = found.items = Value::array();
  auto id = fields.string("previous_response_id");
  if (!id) return found;
  auto entry = store.get(tenant, *id);
  if (!entry)
    bad_request("previous_response_id", "previous_response_not_found",
                "Previous response with id '{}' not found.", id->substr(0, 64));
  if (std::string status = entry->response.get_string("status", "");
      status != "completed" && status != "incomplete")
    bad_request("previous_response_id", "invalid_value",
                "Previous response with id '{}' cannot be continued: its status is '{}'.", *id,
                status);
  found.messages = std::move(entry->messages);
  found.items = std::move(entry->items);
  for (const Value& item : entry->response.at("output").as_array()) found.items.push(item);
  return found;
}

bool reads_background(Fields& fields, bool keeps) {
  if (!fields.boolean("background").value_or(false)) return false;
  if (!keeps)
    bad_request("background", "invalid_value",
                "Invalid 'background': the answer must be stored; leave out 'store'.");
  return true;
}

Translated translate_responses(const Value& body, Api& api, const std::string& tenant,
                               const std::shared_ptr<ResponseStore>& store) {
  Fields fields(body);
  Translated out;
  out.clamp = true;
  out.body = Value::object();
  ResponseStore::Entry entry = previous_of(fields, tenant, *store);
  add_input(fields, entry.messages);
  Value messages = Value::array();
  if (auto text = fields.string("instructions"); text && !text->empty())
    messages.push(Value::Object{{"role", "system"}, {"content", std::move(*text)}});
  for (const Value& message : entry.messages.as_array()) messages.push(message);
  out.body.set("messages", std::move(messages));
  const bool keeps = fields.boolean("store").value_or(true);
  entry.background = reads_background(fields, keeps);
  read_rest(fields, out.body);
  log_unknown_fields(fields.unknown());
  ResponsesOptions options;
  options.id = new_id("resp_");
  options.echo = echo_of(body);
  if (keeps) list_input(fields.require("input"), entry.items);
  if (entry.background) {
    if (fields.boolean("stream").value_or(false)) entry.events = std::make_shared<EventLog>();
    auto own = std::make_shared<BackgroundAnswer>(api, store, tenant, options.id, entry);
    out.detach = [own](const Shape& shape) { return own->detach(shape); };
    options.started = [own] { own->start(); };
    options.failed = [own](const std::string& why) { own->fail(why); };
  }
  if (keeps)
    options.keep = [store, tenant, id = options.id, entry = std::move(entry)](
                       const Value& response, const Value::Array& output) mutable {
      entry.response = response;
      for (const Value& message : output) entry.messages.push(message);
      if (entry.background)
        store->replace_running(tenant, id, std::move(entry));
      else
        store->put(tenant, id, std::move(entry));
    };
  out.shape = [options = std::move(options)](ShapeOptions shape, const Tokenizer& tokenizer) {
    return make_responses_shape(std::move(shape), options, tokenizer);
  };
  return out;
}

// A page of what a response was made from: the newest first, unless ?order=asc.
Value input_items(Value::Array items, const http::Request& request) {
  const std::string order = request.query_value("order");
  if (order != "" && order != "asc" && order != "desc")
    bad_request("order", "invalid_value", "Invalid 'order': expected 'asc' or 'desc'.");
  if (order != "asc") std::reverse(items.begin(), items.end());
  std::vector<std::string> ids;
  for (const Value& item : items) ids.push_back(item.at("id").as_string());
  const PageRange page = page_range(ids, request, 20, 100);
  auto at = [&](size_t i) { return items.begin() + static_cast<std::ptrdiff_t>(i); };
  return list_page(Value::Array(at(page.begin), at(page.end)), page.end < items.size());
}

}  // namespace

void add_responses_routes(Api& api, http::Router& router) {
  using http::Request;
  auto store = std::make_shared<ResponseStore>();
  for (std::string base : {"/v1", ""}) {
    Dialect dialect;
    dialect.translate = [&api, store](Value body, const Request& request) {
      return translate_responses(body, api, api.tenant_of(request), store);
    };
    router.add("POST", base + "/responses", api.generator(std::move(dialect)));
    router.add(
        "POST", base + "/responses/input_tokens",
        api.with_json([&api, store](http::ExchangePtr exchange, const Value& body, uint64_t) {
          Translated chat =
              translate_responses(body, api, api.tenant_of(exchange->request()), store);
          exchange->respond(
              http::json_response(Value::Object{{"object", "response.input_tokens"},
                                                {"input_tokens", count_prompt(api, chat.body)}}));
        }));
    router.add(
        "GET", base + "/responses/{id...}/input_items",
        api.quick([&api, store](const Request& request) {
          auto entry = store->get(api.tenant_of(request), request.parameter);
          if (!entry) response_not_found(request.parameter);
          return http::json_response(input_items(std::move(entry->items.as_array()), request));
        }));
    router.add("GET", base + "/responses/{id...}",
               api.direct([&api, store](const http::ExchangePtr& exchange) {
                 send_response(api, *store, exchange);
               }));
    router.add("POST", base + "/responses/{id...}/cancel",
               api.quick([&api, store](const Request& request) {
                 return http::json_response(cancel_response(api, *store, request));
               }));
    router.add("DELETE", base + "/responses/{id...}",
               api.quick([&api, store](const Request& request) {
                 const std::string tenant = api.tenant_of(request), &id = request.parameter;
                 auto entry = store->get(tenant, id);
                 if (!entry || !store->remove(tenant, id)) response_not_found(id);
                 if (entry->running) api.abort(tenant, id);
                 return http::json_response(
                     Value::Object{{"id", id}, {"object", "response.deleted"}, {"deleted", true}});
               }));
  }
}

}  // namespace tokamak::openai
