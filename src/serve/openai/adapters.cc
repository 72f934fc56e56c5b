// Models by name, and adapters, which are models to clients: they are listed beside the model that
// they change, a request's model field chooses one, and an administrator loads and unloads them
// while the server runs.
#include "base/log.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

// The engine of a model, with an adapter for every request. Requests that run keep the adapter
// after it was unloaded.
class AdapterClient final : public Client {
 public:
  AdapterClient(std::shared_ptr<Client> base, std::shared_ptr<const Adapter> adapter)
      : base_(std::move(base)), adapter_(std::move(adapter)) {}
  RequestId submit(RequestSpec spec, Sink sink) override {
    spec.adapter = adapter_;
    return base_->submit(std::move(spec), std::move(sink));
  }
  void cancel(RequestId id) override { base_->cancel(id); }
  void stop_at(RequestId id, int32_t choice, int32_t position) override {
    base_->stop_at(id, choice, position);
  }
  EngineInfo info() const override { return base_->info(); }
  EngineStats stats() const override { return base_->stats(); }
  EngineMemory memory() const override { return base_->memory(); }

 private:
  std::shared_ptr<Client> base_;
  std::shared_ptr<const Adapter> adapter_;
};

Value card(const ServedModel& model) {
  Value value = Value::object();
  value.set("id", model.name);
  value.set("object", "model");
  value.set("created", model.created);
  value.set("owned_by", "tokamak");
  value.set("root", model.parent.empty() ? model.name : model.parent);
  value.set("parent", model.parent.empty() ? Value() : Value(model.parent));
  value.set("max_model_len", model.max_model_len);
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

std::shared_ptr<const ServedModel> Api::model_of(const Value& body) const {
  return model(Fields(body).string("model").value_or(""));
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

void Api::add_adapter(const ServedModel& base, std::shared_ptr<const Adapter> adapter,
                      bool replace) {
  auto model = std::make_shared<ServedModel>(base);
  model->name = adapter->name;
  model->aliases.clear();
  model->parent = base.name;
  model->created = unix_seconds();
  model->client = std::make_shared<AdapterClient>(base.client, std::move(adapter));
  if (registry_->has(model->name))
    bad_request("lora_name", "invalid_value", "'{}' is the name of a model.", model->name);
  std::lock_guard lock(adapters_mutex_);
  auto& place = adapters_[model->name];
  if (place && !replace)
    bad_request("lora_name", "invalid_value",
                "The adapter '{}' is loaded already; unload it first, or set 'load_inplace'.",
                model->name);
  place = std::move(model);
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

http::Response Api::load_adapter(const Value& body) {
  Fields fields(body);
  auto text = [&](const char* name) {
    const std::string& value = fields.require_string(name);
    if (value.empty()) bad_request(name, "invalid_value", "'{}' is empty.", name);
    return value;
  };
  std::string name = text("lora_name"), path = text("lora_path");
  bool replace = fields.boolean("load_inplace").value_or(false);
  const auto first = registry_->get("");
  const ServedModel& base = *first;
  if (!base.open_adapter)
    throw ApiError(403, "Adapters are not enabled: start the server with --enable-lora.", "",
                   "not_enabled");
  std::shared_ptr<const Adapter> adapter;
  try {
    adapter = base.open_adapter(name, path);
  } catch (const Error& e) {
    throw ApiError(e.code() == ErrorCode::kNotFound ? 404 : 400, e.what(), "lora_path",
                   "invalid_adapter");
  }
  log::info("adapter {}: rank {}, {} bytes, from {}", name, adapter->rank, adapter->bytes, path);
  add_adapter(base, std::move(adapter), replace);
  return http::json_response(Value::Object{
      {"status", "ok"},
      {"message", fmt::format("Success: LoRA adapter '{}' added successfully.", name)}});
}

http::Response Api::unload_adapter(const Value& body) {
  Fields fields(body);
  const std::string& name = fields.require_string("lora_name");
  {
    std::lock_guard lock(adapters_mutex_);
    if (adapters_.erase(name) == 0)
      throw ApiError(404, fmt::format("The adapter '{}' does not exist.", name), "lora_name",
                     "model_not_found");
  }
  log::info("adapter {} is unloaded", name);
  return http::json_response(Value::Object{
      {"status", "ok"},
      {"message", fmt::format("Success: LoRA adapter '{}' removed successfully.", name)}});
}

void Api::add_adapter_routes(http::Router& router) {
  auto add = [&](const char* path, http::Response (Api::*method)(const Value&)) {
    router.add("POST", path,
               with_json([this, method](http::ExchangePtr exchange, const Value& body, uint64_t) {
                 need_admin(exchange->request());
                 exchange->respond((this->*method)(body));
               }));
  };
  add("/v1/load_lora_adapter", &Api::load_adapter);
  add("/v1/unload_lora_adapter", &Api::unload_adapter);
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
