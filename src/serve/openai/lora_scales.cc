// Adapters as llama.cpp's clients use them: by number, several at once, each with a scale, for one
// request or for all requests that ask for the model itself.
#include <algorithm>
#include <cstddef>

#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

constexpr size_t kMostSums = 64;  // that are kept: equal requests share cached prompts
constexpr double kMostScale = 1000;

// [{"id": 0, "scale": 0.5}, ...] -> scales by the ids of the adapters; others have none.
std::map<uint64_t, float> read_scales(
    const Value& given, const std::string& param,
    const std::vector<std::shared_ptr<const ServedModel>>& adapters) {
  if (!given.is_array()) wrong_type(param, "an array", given);
  std::map<uint64_t, float> scales;
  for (const Value& entry : given.as_array()) {
    Fields fields(entry, param);
    if (adapters.empty())
      bad_request(param, "invalid_value", "The model has no adapters: see --lora-modules.");
    int64_t id =
        checked_integer(fields.name("id"), fields.require("id"), 0, std::ssize(adapters) - 1);
    fields.require("scale");
    scales[adapters[static_cast<size_t>(id)]->adapter->id] =
        static_cast<float>(*fields.number("scale", -kMostScale, kMostScale));
  }
  std::erase_if(scales, [](const auto& entry) { return entry.second == 0; });
  return scales;
}

std::shared_ptr<const Adapter> make_sum(
    const std::map<uint64_t, float>& scales, int64_t most_rank,
    const std::vector<std::shared_ptr<const ServedModel>>& adapters) {
  auto sum = std::make_shared<Adapter>();
  for (const auto& model : adapters) {
    auto scale = scales.find(model->adapter->id);
    if (scale == scales.end()) continue;
    sum->parts.emplace_back(model->adapter, scale->second);
    sum->name += fmt::format("{}{}*{}", sum->name.empty() ? "" : "+", model->name, scale->second);
    sum->rank += model->adapter->rank;
    sum->bytes += model->adapter->bytes;
  }
  if (sum->parts.size() == 1 && sum->parts[0].second == 1) return sum->parts[0].first;
  if (sum->rank > most_rank)
    bad_request("lora", "invalid_value",
                "The adapters together have rank {}; start the server with --max-lora-rank {}.",
                sum->rank, sum->rank);
  sum->id = next_adapter_id();
  return sum;
}

}  // namespace

// Those of one model, in the order in which they were loaded: their numbers.
std::vector<std::shared_ptr<const ServedModel>> Api::numbered_adapters(
    const std::string& parent) const {
  std::vector<std::shared_ptr<const ServedModel>> list;
  {
    std::lock_guard lock(adapters_mutex_);
    for (const auto& [name, model] : adapters_)
      if (model->parent == parent) list.push_back(model);
  }
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a->adapter->id < b->adapter->id; });
  return list;
}

std::shared_ptr<const ServedModel> Api::with_scales(std::shared_ptr<const ServedModel> model,
                                                    const Value* given) const {
  const bool asked = given != nullptr && !given->is_null();
  if (asked && !model->parent.empty())
    bad_request("lora", "invalid_value", "'{}' is an adapter: ask for the model '{}' with 'lora'.",
                model->name, model->parent);
  Scales scales;
  if (!asked) {
    std::lock_guard lock(adapters_mutex_);
    if (scales_.empty() || !model->parent.empty()) return model;
    scales = scales_;
  }
  auto adapters = numbered_adapters(model->name);
  if (asked) scales = read_scales(*given, "lora", adapters);
  std::erase_if(scales, [&](const auto& entry) {  // unloaded meanwhile, or of another model
    return std::none_of(adapters.begin(), adapters.end(),
                        [&](const auto& a) { return a->adapter->id == entry.first; });
  });
  if (scales.empty()) return model;
  auto changed = std::make_shared<ServedModel>(*model);
  std::lock_guard lock(adapters_mutex_);
  if (sums_.size() >= kMostSums) sums_.clear();
  auto& sum = sums_[scales];
  if (sum == nullptr) sum = make_sum(scales, model->adapter_rank, adapters);
  changed->client = with_adapter(model->client, sum);
  return changed;
}

http::Response Api::list_scales() const {
  Value list = Value::array();
  for (const auto& model : numbered_adapters(registry_->get("")->name)) {
    std::lock_guard lock(adapters_mutex_);
    auto scale = scales_.find(model->adapter->id);
    const double value = scale == scales_.end() ? 0 : static_cast<double>(scale->second);
    list.push(Value::Object{
        {"id", std::ssize(list.as_array())}, {"path", model->name}, {"scale", value}});
  }
  return http::json_response(list);
}

// Where keys are needed at all, the administrator's: it changes the answers of all clients.
http::Response Api::set_scales(const http::Request& request) {
  if (!keys_.empty() || !admin_.empty()) need_admin(request);
  const auto first = registry_->get("");
  const Value given = parse_any_body(request);
  Scales scales = read_scales(given, "body", numbered_adapters(first->name));
  with_scales(first, &given);  // throws if they do not fit together
  std::lock_guard lock(adapters_mutex_);
  scales_ = std::move(scales);
  return http::json_response(Value::Object{{"success", true}});
}

void Api::add_scale_routes(http::Router& router) {
  router.add("GET", "/lora-adapters",
             quick([this](const http::Request&) { return list_scales(); }));
  router.add("POST", "/lora-adapters",
             on_worker([this](const http::Request& request) { return set_scales(request); }));
}

}  // namespace tokamak::openai
