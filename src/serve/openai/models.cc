// Models by name: which one a request means, how they are listed, and how an administrator loads
// and unloads them while the server runs.
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

Value card(const ServedModel& model) {
  Value value = Value::object();
  value.set("id", model.name);
  value.set("object", "model");
  value.set("created", model.created);
  value.set("owned_by", "tokamak");
  value.set("root", model.parent.empty() ? model.name : model.parent);
  value.set("parent", model.parent.empty() ? Value() : Value(model.parent));
  value.set("max_model_len", model.max_model_len);
  if (model.tokenizer != nullptr && model.client != nullptr)  // as in llama.cpp
    value.set("meta",
              Value::Object{{"n_vocab", model.tokenizer->vocab_size()},
                            {"n_ctx", model.max_model_len},
                            {"n_embd", model.facts.hidden},
                            {"n_params", model.facts.parameters},
                            {"size", static_cast<int64_t>(model.client->memory().weights)}});
  return value;
}

const char* state_name(ModelRegistry::State state) {
  using State = ModelRegistry::State;
  return state == State::kLoaded ? "loaded" : state == State::kLoading ? "loading" : "unloaded";
}

Value card(const ModelRegistry::Listed& listed, bool with_state) {
  ServedModel named;
  named.name = listed.name;
  Value value = card(listed.model != nullptr ? *listed.model : named);
  if (listed.model == nullptr) value.set("max_model_len", Value());
  if (with_state) value.set("status", Value::Object{{"value", state_name(listed.state)}});
  return value;
}

}  // namespace

std::shared_ptr<const ServedModel> Api::model(const std::string& name) const {
  if (name.empty() || registry_->has(name)) return registry_->get(name);
  {
    std::lock_guard lock(adapters_mutex_);
    if (auto it = adapters_.find(name); it != adapters_.end()) return it->second;
  }
  throw ApiError(404, fmt::format("The model '{}' does not exist.", name), "model",
                 "model_not_found");
}

bool Api::serves(const std::string& name) const {
  if (registry_->has(name)) return true;
  std::lock_guard lock(adapters_mutex_);
  return adapters_.contains(name);
}

std::shared_ptr<const ServedModel> Api::loaded_model(const std::string& name) const {
  if (!registry_->has(name)) return model(name);
  auto found = registry_->find(name).model;
  if (found == nullptr)
    bad_request("model", "model_not_loaded", "The model '{}' is not loaded.", name);
  return found;
}

std::shared_ptr<const ServedModel> Api::model_of(const Value& body) const {
  return with_scales(model(Fields(body).string("model").value_or("")), body.find("lora"));
}

http::Response Api::list_models() const {
  Value list = Value::array();
  for (const auto& listed : registry_->list()) list.push(card(listed, registry_->can_unload()));
  {
    std::lock_guard lock(adapters_mutex_);
    for (const auto& [name, model] : adapters_) list.push(card(*model));
  }
  Value value = Value::object();
  value.set("object", "list");
  value.set("data", std::move(list));
  return http::json_response(value);
}

http::Response Api::one_model(const std::string& name) const {
  if (registry_->has(name))
    return http::json_response(card(registry_->find(name), registry_->can_unload()));
  return http::json_response(card(*model(name)));
}

// Needed even where no API key is: these routes read files.
void Api::need_admin(const http::Request& request) const {
  if (admin_.empty())
    throw ApiError(403, "Nothing can be loaded at run time: start the server with --admin-key.", "",
                   "not_enabled");
  if (admin_.find(key_of(request)) == nullptr)
    throw ApiError(401, "This route needs the administrator's key.", "", "invalid_api_key");
}

void Api::need_admin_and_loading(const http::Request& request) const {
  need_admin(request);
  if (!registry_->can_unload())
    throw ApiError(403,
                   "The models of this server stay loaded: start it with --max-loaded-models, "
                   "--model-memory or --unload-idle.",
                   "", "not_enabled");
}

// Answers when the model is loaded.
void Api::load_model(const http::ExchangePtr& exchange, const Value& body) {
  Fields fields(body);
  model(fields.require_string("model"));  // not loaded: this handler is called again when it is
  exchange->respond(http::json_response(Value::Object{{"success", true}}));
}

http::Response Api::unload_model(const Value& body) {
  Fields fields(body);
  const std::string& name = fields.require_string("model");
  if (!registry_->has(name)) model(name);  // 404
  registry_->unload(name);
  return http::json_response(Value::Object{{"success", true}});
}

void Api::add_model_routes(http::Router& router) {
  for (std::string base : {"/v1", ""}) {
    router.add("POST", base + "/models/load",
               with_json([this](http::ExchangePtr exchange, const Value& body, uint64_t) {
                 need_admin_and_loading(exchange->request());
                 load_model(exchange, body);
               }));
    router.add("POST", base + "/models/unload",
               with_json([this](http::ExchangePtr exchange, const Value& body, uint64_t) {
                 need_admin_and_loading(exchange->request());
                 exchange->respond(unload_model(body));
               }));
  }
}

}  // namespace tokamak::openai
