// Ollama's API: requests, errors and routes. Answers: ollama_shape.cc.
#include "serve/compat/ollama.h"

#include "base/json.h"
#include "base/sha256.h"
#include "serve/compat/fill_in.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

constexpr std::string_view kTag = ":latest";
constexpr std::string_view kApiVersion = "0.12.0";  // of Ollama's API; editors refuse old servers

// Ollama's clients add a tag to names that have none.
std::string plain_name(std::string name) {
  if (name.ends_with(kTag)) name.resize(name.size() - kTag.size());
  return name;
}

// Names of options here; those that concern loading or have no meaning here are ignored.
constexpr std::pair<const char*, const char*> kOptions[] = {
    {"temperature", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"typical_p", "typical_p"},
    {"mirostat", "mirostat"},
    {"mirostat_tau", "mirostat_tau"},
    {"mirostat_eta", "mirostat_eta"},
    {"seed", "seed"},
    {"stop", "stop"},
    {"repeat_penalty", "repetition_penalty"},
    {"repeat_last_n", "repeat_last_n"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"}};

void read_options(Fields& fields, Value& out) {
  out.set("max_tokens", -1);
  const Value* options = fields.find("options");
  if (options == nullptr) return;
  Fields inner(*options, "options");
  for (const auto& [name, own] : kOptions)
    if (const Value* value = inner.find(name)) out.set(own, *value);
  if (auto length = inner.integer("num_predict", -2, INT32_MAX); length && *length > 0)
    out.set("max_tokens", *length);
}

// "json" or a schema.
void read_format(Fields& fields, Value& out) {
  const Value* format = fields.find("format");
  if (format == nullptr || (format->is_string() && format->as_string().empty())) return;
  if (format->is_string() && format->as_string() == "json") {
    out.set("response_format", Value::Object{{"type", "json_object"}});
  } else if (format->is_object()) {
    Value schema = Value::Object{{"name", "format"}, {"schema", *format}};
    out.set("response_format",
            Value::Object{{"type", "json_schema"}, {"json_schema", std::move(schema)}});
  } else {
    bad_request("format", "invalid_value", "Invalid 'format': use \"json\" or a JSON schema.");
  }
}

void read_think(Fields& fields, Value& out) {
  const Value* think = fields.find("think");
  if (think == nullptr) return;
  if (think->is_bool())
    out.set("chat_template_kwargs", Value::Object{{"enable_thinking", *think}});
  else if (think->is_string())
    out.set("reasoning_effort", *think);
  else
    wrong_type("think", "a boolean or a string", *think);
}

Value read_call(const Value& value, const std::string& param) {
  Fields call(value, param);
  Fields function(call.require("function"), param + ".function");
  const std::string& name = function.require_string("name");
  const Value* arguments = function.find("arguments");
  std::string text = arguments == nullptr ? "{}" : dump_json(*arguments);
  Value out = Value::object();
  out.set("type", "function");
  out.set("function", Value::Object{{"name", name}, {"arguments", std::move(text)}});
  return out;
}

Value read_ollama_message(const Value& value, const std::string& param) {
  Fields fields(value, param);
  Value message = Value::object();
  message.set("role", fields.require("role"));
  message.set("content", fields.string("content").value_or(""));
  fields.refuse("images", "Images are not available.");
  if (auto text = fields.string("thinking")) message.set("reasoning_content", std::move(*text));
  if (auto name = fields.string("tool_name")) message.set("name", std::move(*name));
  if (auto id = fields.string("tool_call_id")) message.set("tool_call_id", std::move(*id));
  if (const auto* calls = fields.array("tool_calls"); calls != nullptr && !calls->empty()) {
    Value list = Value::array();
    for (size_t i = 0; i < calls->size(); ++i)
      list.push(read_call((*calls)[i], fmt::format("{}.tool_calls[{}]", param, i)));
    message.set("tool_calls", std::move(list));
  }
  return message;
}

// The fields that both routes have. Clients load a model by asking for nothing.
void read_common(Fields& fields, bool nothing, bool chat, const Api& api, Translated& out) {
  const std::string& name = fields.require_string("model");
  out.body.set("model", plain_name(name));
  out.clamp = true;
  const bool stream = fields.boolean("stream").value_or(true);
  out.body.set("stream", stream);
  read_options(fields, out.body);
  read_format(fields, out.body);
  read_think(fields, out.body);
  for (const char* field : {"logprobs", "top_logprobs"})
    if (const Value* value = fields.find(field)) out.body.set(field, *value);
  fields.ignore({"keep_alive", "template"});
  log_unknown_fields(fields.unknown());
  OllamaOptions options{chat, name};
  out.shape = [options](ShapeOptions shape, const Tokenizer& tokenizer) {
    return make_ollama_shape(std::move(shape), options, tokenizer);
  };
  if (nothing) out.answer = ollama_loaded(options, api.model_of(out.body)->created);
}

Translated translate_chat(const Value& body, const Api& api) {
  Fields fields(body);
  Translated out;
  out.body = Value::object();
  Value messages = Value::array();
  if (const auto* list = fields.array("messages"))
    for (size_t i = 0; i < list->size(); ++i)
      messages.push(read_ollama_message((*list)[i], fmt::format("messages[{}]", i)));
  const bool nothing = messages.size() == 0;
  out.body.set("messages", std::move(messages));
  if (const auto* tools = fields.array("tools"); tools != nullptr && !tools->empty())
    out.body.set("tools", Value(*tools));
  read_common(fields, nothing, true, api, out);
  return out;
}

Translated translate_generate(const Value& body, const Api& api) {
  Fields fields(body);
  Translated out;
  out.body = Value::object();
  std::string prompt = fields.string("prompt").value_or("");
  auto suffix = fields.string("suffix"), system = fields.string("system");
  const bool raw = fields.boolean("raw").value_or(false);
  fields.refuse("images", "Images are not available.");
  fields.refuse("context", "It is deprecated; use /api/chat with messages.");
  out.chat = !raw && !suffix;
  if (out.chat) {
    Value messages = Value::array();
    if (system && !system->empty())
      messages.push(Value::Object{{"role", "system"}, {"content", std::move(*system)}});
    messages.push(Value::Object{{"role", "user"}, {"content", prompt}});
    out.body.set("messages", std::move(messages));
  }
  read_common(fields, prompt.empty() && !suffix, false, api, out);
  if (raw && !suffix) out.body.set("prompt", std::move(prompt));
  if (suffix) out.body.set("prompt", fill_in_prompt(*api.model_of(out.body), prompt, *suffix));
  if (!out.chat) {  // another form of log-probabilities
    const bool wanted = out.body.get_bool("logprobs", false);
    int64_t top = out.body.get_int("top_logprobs", 0);
    Value plain = Value::object();
    for (auto& [key, value] : out.body.as_object())
      if (key != "logprobs" && key != "top_logprobs" && key != "chat_template_kwargs" &&
          key != "reasoning_effort")
        plain.set(key, std::move(value));
    if (wanted) plain.set("logprobs", top);
    out.body = std::move(plain);
  }
  return out;
}

// model: nullptr if it is not loaded.
Value details(const ServedModel* model) {
  const ModelFacts facts = model != nullptr ? model->facts : ModelFacts{};
  return Value::Object{{"parent_model", model != nullptr ? model->parent : ""},
                       {"format", facts.format},
                       {"family", facts.architecture},
                       {"families", Value::Array{facts.architecture}},
                       {"parameter_size", parameters_text(facts.parameters)},
                       {"quantization_level", facts.quantization}};
}

Value list_entry(const ModelRegistry::Listed& model) {
  Value entry = Value::object();
  entry.set("name", model.name + std::string(kTag));
  entry.set("model", model.name + std::string(kTag));
  entry.set("modified_at", utc_time(model.model != nullptr ? model.model->created : 0));
  entry.set("size",
            static_cast<int64_t>(model.model != nullptr ? model.model->client->memory().weights
                                                        : model.bytes));
  entry.set("digest", sha256_hex(model.name));  // `ollama list` reads the first 12 characters
  entry.set("details", details(model.model.get()));
  return entry;
}

http::Response list(const Api& api, bool loaded) {
  Value models = Value::array();
  for (const ModelRegistry::Listed& listed : api.known_models()) {
    const ServedModel* model = listed.model.get();
    if (loaded && model == nullptr) continue;
    Value entry = list_entry(listed);
    if (loaded) {
      entry.set("expires_at", utc_time(model->created + int64_t{100} * 365 * 86400));
      entry.set("size_vram", 0);
      entry.set("context_length", model->max_model_len);
    }
    models.push(std::move(entry));
  }
  return http::json_response(Value::Object{{"models", std::move(models)}});
}

http::Response show(const Api& api, const Value& body) {
  Fields fields(body);
  auto name = fields.string("model"), older = fields.string("name");
  if (!name && !older) fields.require("model");
  auto model = api.model(plain_name(name ? *name : *older));
  const std::string& chat = pick_chat_template(model->tokenizer->spec(), "", false);
  Value capabilities = Value::array();
  if (model->embedding.embeds()) capabilities.push("embedding");
  if (model->embedding.generates()) capabilities.push("completion");
  if (model->embedding.generates() && model->tool_format != nullptr) capabilities.push("tools");
  if (thought_marks_of(chat) != nullptr || is_harmony(chat)) capabilities.push("thinking");
  if (can_fill_in(*model->tokenizer)) capabilities.push("insert");
  const ModelFacts& facts = model->facts;
  const std::string name_of = facts.architecture.empty() ? "model" : facts.architecture;
  Value info = Value::object();
  info.set("general.architecture", name_of);
  info.set("general.basename", model->name);
  info.set("general.parameter_count", facts.parameters);
  info.set(name_of + ".context_length", model->max_model_len);
  info.set(name_of + ".embedding_length", facts.hidden);
  info.set(name_of + ".block_count", facts.layers);
  info.set(name_of + ".vocab_size", model->tokenizer->vocab_size());
  Value value = Value::object();
  value.set("modelfile", "FROM " + model->name);
  value.set("parameters", "");
  value.set("template", chat);
  value.set("license", "");
  value.set("details", details(model.get()));
  value.set("model_info", std::move(info));
  value.set("capabilities", std::move(capabilities));
  value.set("modified_at", utc_time(model->created));
  return http::json_response(value);
}

// Clients pull a model before they use it: one that is served is there already.
http::Response pull(const Api& api, const Value& body) {
  Fields fields(body);
  auto name = fields.string("model"), older = fields.string("name");
  if (!name && !older) fields.require("model");
  const std::string wanted = plain_name(name ? *name : *older);
  if (!api.serves(wanted))
    throw ApiError(404,
                   fmt::format("The model '{}' does not exist, and this server downloads none.",
                               printable(wanted)),
                   "model", "model_not_found");
  const Value success = Value::Object{{"status", "success"}};
  if (!fields.boolean("stream").value_or(true)) return http::json_response(success);
  http::Response response = http::json_response(Value::Object{{"status", "pulling manifest"}});
  response.content_type = "application/x-ndjson";
  response.body += "\n" + dump_json(success) + "\n";
  return response;
}

}  // namespace

Dialect ollama_dialect(bool chat, const Api& api) {
  return {[chat, &api](Value body, const http::Request&) {
            return chat ? translate_chat(body, api) : translate_generate(body, api);
          },
          flat_error};
}

void add_ollama_routes(Api& api, http::Router& router) {
  using http::Request;
  router.add("POST", "/api/chat", api.generator(ollama_dialect(true, api)));
  router.add("POST", "/api/generate", api.generator(ollama_dialect(false, api)));
  router.add("POST", "/api/show",
             api.with_json([&api](http::ExchangePtr exchange, const Value& body,
                                  uint64_t) { exchange->respond(show(api, body)); },
                           false, flat_error));
  router.add("POST", "/api/pull",
             api.with_json([&api](http::ExchangePtr exchange, const Value& body,
                                  uint64_t) { exchange->respond(pull(api, body)); },
                           false, flat_error));
  for (const char* path : {"/api/embed", "/api/embeddings"})
    router.add("POST", path, api.vectors(prepare_ollama_embed, flat_error, [](Value body) {
      if (const Value* name = body.find("model"); name != nullptr && name->is_string())
        body.set("model", plain_name(name->as_string()));
      return body;
    }));
  auto get = [&](const char* path, Api::Answer answer) {
    router.add("GET", path, api.quick(std::move(answer), false, flat_error));
  };
  get("/api/tags", [&api](const Request&) { return list(api, false); });
  get("/api/ps", [&api](const Request&) { return list(api, true); });
  get("/api/version", [&api](const Request&) {
    return http::json_response(
        Value::Object{{"version", kApiVersion}, {"tokamak", api.options().version}});
  });
}

}  // namespace tokamak::openai
