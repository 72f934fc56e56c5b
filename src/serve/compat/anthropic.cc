// Anthropic's Messages API: requests, errors and routes. Answers: anthropic_shape.cc.
#include "serve/compat/anthropic.h"

#include <algorithm>

#include "base/json.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

[[noreturn]] void unknown_block(const std::string& param, const std::string& type) {
  bad_request(param + ".type", "unsupported_content_type",
              "Invalid '{}.type': content of type '{}' is not available; only text, tool_use, "
              "tool_result and thinking are.",
              param, type);
}

// A string, or a list of text blocks.
std::string read_text(const Value& value, const std::string& param) {
  if (value.is_string()) return value.as_string();
  if (!value.is_array()) wrong_type(param, "a string or an array of content blocks", value);
  std::string text;
  for (size_t i = 0; i < value.as_array().size(); ++i) {
    std::string name = fmt::format("{}[{}]", param, i);
    Fields block(value.as_array()[i], name);
    if (std::string type = block.require_string("type"); type != "text") unknown_block(name, type);
    text += (text.empty() ? "" : "\n") + block.require_string("text");
  }
  return text;
}

// One message of a user may hold results of tools, each of which is a message of its own, and text.
void add_user(const Value::Array& blocks, const std::string& param, Value& out) {
  std::string text;
  bool any = false;
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::string name = fmt::format("{}[{}]", param, i);
    Fields block(blocks[i], name);
    std::string type = block.require_string("type");
    if (type == "text") {
      text += (any ? "\n" : "") + block.require_string("text");
      any = true;
    } else if (type == "tool_result") {
      Value message = Value::object();
      message.set("role", "tool");
      message.set("tool_call_id", block.require_string("tool_use_id"));
      const Value* content = block.find("content");
      message.set("content", content == nullptr ? "" : read_text(*content, name + ".content"));
      out.push(std::move(message));
    } else {
      unknown_block(name, type);
    }
  }
  if (any || blocks.empty())
    out.push(Value::Object{{"role", "user"}, {"content", std::move(text)}});
}

void add_assistant(const Value::Array& blocks, const std::string& param, Value& out) {
  std::string text, thoughts;
  Value calls = Value::array();
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::string name = fmt::format("{}[{}]", param, i);
    Fields block(blocks[i], name);
    std::string type = block.require_string("type");
    if (type == "text") {
      text += (text.empty() ? "" : "\n") + block.require_string("text");
    } else if (type == "thinking") {
      thoughts += block.require_string("thinking");
    } else if (type == "tool_use") {
      const Value& input = block.require("input");
      if (!input.is_object()) wrong_type(name + ".input", "an object", input);
      Value function = Value::object();
      function.set("name", block.require_string("name"));
      function.set("arguments", dump_json(input));
      calls.push(Value::Object{{"id", block.require_string("id")},
                               {"type", "function"},
                               {"function", std::move(function)}});
    } else if (type != "redacted_thinking") {
      unknown_block(name, type);
    }
  }
  Value message = Value::object();
  message.set("role", "assistant");
  message.set("content", std::move(text));
  if (!thoughts.empty()) message.set("reasoning_content", std::move(thoughts));
  if (calls.size() > 0) message.set("tool_calls", std::move(calls));
  out.push(std::move(message));
}

Value read_anthropic_messages(Fields& fields) {
  Value out = Value::array();
  if (const Value* system = fields.find("system"))
    if (std::string text = read_text(*system, "system"); !text.empty())
      out.push(Value::Object{{"role", "system"}, {"content", std::move(text)}});
  const Value& list = fields.require("messages");
  if (!list.is_array()) wrong_type("messages", "an array", list);
  if (list.size() == 0)
    bad_request("messages", "empty_array", "Invalid 'messages': at least one message is required.");
  for (size_t i = 0; i < list.as_array().size(); ++i) {
    std::string param = fmt::format("messages[{}]", i);
    Fields message(list.as_array()[i], param);
    std::string role = message.require_string("role");
    if (role != "user" && role != "assistant")
      bad_request(param + ".role", "invalid_value",
                  "Invalid '{}.role': '{}'; use 'user' or 'assistant', and 'system' at the top "
                  "level.",
                  param, role);
    const Value& content = message.require("content");
    if (content.is_string())
      out.push(Value::Object{{"role", role}, {"content", content}});
    else if (!content.is_array())
      wrong_type(param + ".content", "a string or an array of content blocks", content);
    else if (role == "user")
      add_user(content.as_array(), param + ".content", out);
    else
      add_assistant(content.as_array(), param + ".content", out);
  }
  return out;
}

// Agents send tools of Anthropic's (web_search) beside their own: these are left out. Alone they
// are an error.
Value read_anthropic_tools(const Value::Array& list) {
  Value out = Value::array();
  const bool own = std::any_of(list.begin(), list.end(), [](const Value& tool) {
    return tool.is_object() && tool.has("input_schema");
  });
  for (size_t i = 0; i < list.size(); ++i) {
    std::string param = fmt::format("tools[{}]", i);
    Fields tool(list[i], param);
    if (std::string type = tool.string("type").value_or("custom"); type != "custom") {
      if (own) continue;
      unsupported(param + ".type", fmt::format("Tools of type '{}' are Anthropic's; only tools "
                                               "with an 'input_schema' are available.",
                                               type));
    }
    Value function = Value::object();
    function.set("name", tool.require_string("name"));
    if (auto text = tool.string("description")) function.set("description", std::move(*text));
    const Value& schema = tool.require("input_schema");
    if (!schema.is_object()) wrong_type(param + ".input_schema", "an object", schema);
    function.set("parameters", schema);
    out.push(Value::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_tool_choice(const Value& choice, Value& out) {
  Fields fields(choice, "tool_choice");
  std::string type = fields.require_string("type");
  if (type == "auto" || type == "none")
    out.set("tool_choice", type);
  else if (type == "any")
    out.set("tool_choice", "required");
  else if (type == "tool")
    out.set("tool_choice",
            Value::Object{{"type", "function"},
                          {"function", Value::Object{{"name", fields.require_string("name")}}}});
  else
    bad_request("tool_choice.type", "invalid_value",
                "Invalid 'tool_choice.type': use auto, any, tool or none.");
}

// {"type": "json_schema", "schema": ...}: `output_config.format`, or `output_format` in the beta.
void read_format(const Value& format, const char* param, Value& out) {
  Fields fields(format, param);
  if (fields.require_string("type") != "json_schema")
    bad_request(fields.name("type"), "invalid_value", "Invalid '{}': use json_schema.",
                fields.name("type"));
  Value schema = Value::Object{{"name", "format"}, {"schema", fields.require("schema")}};
  out.set("response_format",
          Value::Object{{"type", "json_schema"}, {"json_schema", std::move(schema)}});
}

void read_thinking(const Value& thinking, Value& out) {
  Fields fields(thinking, "thinking");
  std::string type = fields.require_string("type");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    bad_request("thinking.type", "invalid_value",
                "Invalid 'thinking.type': use enabled, adaptive or disabled.");
  out.set("chat_template_kwargs", Value::Object{{"enable_thinking", type != "disabled"}});
  if (auto budget = fields.integer("budget_tokens", 0, INT32_MAX); budget && type == "enabled")
    out.set("thinking_budget", *budget);
}

// The parts that count_tokens reads as well.
Value anthropic_chat(Fields& fields) {
  Value out = Value::object();
  if (auto model = fields.string("model")) out.set("model", std::move(*model));
  Value messages = read_anthropic_messages(fields);
  const Value& last = messages.as_array().back();
  // A last message of the assistant is the beginning of the answer.
  if (last.get_string("role", "") == "assistant" && !last.has("tool_calls") &&
      !last.get_string("content", "").empty()) {
    out.set("continue_final_message", true);
    out.set("add_generation_prompt", false);
  }
  out.set("messages", std::move(messages));
  const auto* tools = fields.array("tools");
  if (tools != nullptr && !tools->empty()) out.set("tools", read_anthropic_tools(*tools));
  if (const Value* choice = fields.find("tool_choice"); choice != nullptr && out.has("tools"))
    read_tool_choice(*choice, out);
  if (const Value* thinking = fields.find("thinking")) read_thinking(*thinking, out);
  if (const Value* format = fields.find("output_format"))
    read_format(*format, "output_format", out);
  if (const Value* config = fields.find("output_config")) {
    Fields inner(*config, "output_config");
    if (const Value* format = inner.find("format"))
      read_format(*format, "output_config.format", out);
    if (auto effort = inner.string("effort")) out.set("reasoning_effort", std::move(*effort));
  }
  return out;
}

Translated translate_anthropic(Value body, const http::Request&) {
  Fields fields(body);
  Translated out;
  out.clamp = true;
  out.body = anthropic_chat(fields);
  fields.require("max_tokens");
  out.body.set("max_tokens", *fields.integer("max_tokens", 1, INT32_MAX));
  if (const Value* stops = fields.find("stop_sequences")) {
    if (!stops->is_array()) wrong_type("stop_sequences", "an array", *stops);
    out.body.set("stop", *stops);
  }
  for (const char* name : {"temperature", "top_p", "top_k", "stream"})
    if (const Value* value = fields.find(name)) out.body.set(name, *value);
  fields.ignore({"metadata", "service_tier", "cache_control", "context_management", "betas"});
  fields.refuse("mcp_servers", "The server does not call other servers.");
  fields.refuse("container", "The server does not run code.");
  log_unknown_fields(fields.unknown());
  out.shape = [](ShapeOptions options, const Tokenizer&) {
    return make_anthropic_shape(std::move(options));
  };
  return out;
}

http::Response count_tokens(const Api& api, const Value& body) {
  Fields fields(body);
  return http::json_response(
      Value::Object{{"input_tokens", count_prompt(api, anthropic_chat(fields))}});
}

}  // namespace

http::Response anthropic_error(http::Response response) {
  std::string message;
  try {
    message = parse_json(response.body).at("error").get_string("message", "");
  } catch (const Error&) {
    message = response.body;
  }
  const char* type = "api_error";
  switch (response.status) {
    case 401:
      type = "authentication_error";
      break;
    case 403:
      type = "permission_error";
      break;
    case 404:
      type = "not_found_error";
      break;
    case 413:
      type = "request_too_large";
      break;
    case 429:
      type = "rate_limit_error";
      break;
    case 503:
      type = "overloaded_error";
      break;
    default:
      if (response.status < 500) type = "invalid_request_error";
  }
  Value body = Value::object();
  body.set("type", "error");
  body.set("error", Value::Object{{"type", type}, {"message", std::move(message)}});
  response.body = dump_json(body);
  return response;
}

Dialect anthropic_dialect() { return {translate_anthropic, anthropic_error}; }

void add_anthropic_routes(Api& api, http::Router& router) {
  router.add("POST", "/v1/messages", api.generator(anthropic_dialect()));
  router.add("POST", "/v1/messages/count_tokens",
             api.with_json([&api](http::ExchangePtr exchange, const Value& body,
                                  uint64_t) { exchange->respond(count_tokens(api, body)); },
                           false, anthropic_error));
}

}  // namespace tokamak::openai
