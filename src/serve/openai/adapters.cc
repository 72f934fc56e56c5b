// Adapters, which are models to clients: they are listed beside the model that they change, a
// request's model field chooses one, and an administrator loads and unloads them while the server
// runs.
#include "base/log.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

// The engine of a model, with an adapter for every request. Requests that run keep the adapter
// after it was unloaded.
class AdapterClient final : public ForwardingClient {
 public:
  AdapterClient(std::shared_ptr<Client> base, std::shared_ptr<const Adapter> adapter)
      : ForwardingClient(std::move(base)), adapter_(std::move(adapter)) {}
  RequestId submit(RequestSpec spec, Sink sink) override {
    spec.adapter = adapter_;
    return inner_->submit(std::move(spec), std::move(sink));
  }

 private:
  std::shared_ptr<const Adapter> adapter_;
};

}  // namespace

std::shared_ptr<Client> with_adapter(std::shared_ptr<Client> base,
                                     std::shared_ptr<const Adapter> adapter) {
  return std::make_shared<AdapterClient>(std::move(base), std::move(adapter));
}

void Api::add_adapter(const ServedModel& base, std::shared_ptr<const Adapter> adapter,
                      bool replace) {
  auto model = std::make_shared<ServedModel>(base);
  model->name = adapter->name;
  model->aliases.clear();
  model->parent = base.name;
  model->created = unix_seconds();
  model->adapter = adapter;
  model->client = with_adapter(base.client, std::move(adapter));
  if (registry_->has(model->name))
    bad_request("lora_name", "invalid_value", "'{}' is the name of a model.", model->name);
  std::lock_guard lock(adapters_mutex_);
  sums_.clear();  // a replaced adapter is no longer needed
  auto& place = adapters_[model->name];
  if (place && !replace)
    bad_request("lora_name", "invalid_value",
                "The adapter '{}' is loaded already; unload it first, or set 'load_inplace'.",
                model->name);
  place = std::move(model);
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
    sums_.clear();
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
}

}  // namespace tokamak::openai
