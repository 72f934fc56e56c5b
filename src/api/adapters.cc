#include "api/adapters.h"

#include <algorithm>
#include <filesystem>

#include "api/open.h"
#include "base/error.h"
#include "compile/adapters.h"
#include "compile/import/import_model.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultRank = 16;

}  // namespace

bool wants_adapters(const OpenOptions& o) {
  return o.enable_adapters || !o.adapters.empty() || o.max_adapters > 0 || o.max_adapter_rank > 0;
}

AdapterHost::AdapterHost(const OpenOptions& o) {
  if (is_bundle(o.model))
    fail(
        ErrorCode::kUnsupported,
        "{}: a bundle has no slots for adapters; open the model file itself, or compile the bundle "
        "with --merge-adapter",
        o.model);
  config_ = import_model(o.model).config;
  std::vector<ImportedAdapter> found;
  for (const auto& [name, path] : o.adapters) {
    found.push_back(import_adapter(path, config_));
    rank_ = std::max(rank_, found.back().rank);
  }
  rank_ = o.max_adapter_rank > 0 ? o.max_adapter_rank : std::max(rank_, kDefaultRank);
  slots_ = o.max_adapters > 0 ? o.max_adapters
                              : std::max<int64_t>(kDefaultAdapters, std::ssize(o.adapters));
  for (size_t i = 0; i < found.size(); ++i)
    add(make_adapter(o.adapters[i].first, o.adapters[i].second, found[i], rank_));
}

void AdapterHost::set_plans(const PlanSet& plans) {
  matrices_.clear();
  for (const WeightEntry& entry : plans.weights)
    if (is_adapter_weight(entry)) matrices_.push_back(entry.name);
  std::sort(matrices_.begin(), matrices_.end());
  for (const auto& adapter : list()) check_targets(adapter->name, *adapter);
}

void AdapterHost::check_targets(const std::string& path, const Adapter& adapter) const {
  for (const std::string& name : adapter.tensors.names())
    if (!std::binary_search(matrices_.begin(), matrices_.end(), name))
      fail(ErrorCode::kUnsupported,
           "{}: changes {}, which adapters beside the model cannot; merge it with --merge-adapter",
           path, name.substr(kAdapterWeights.size()));
}

std::shared_ptr<const Adapter> AdapterHost::open(const std::string& name,
                                                 const std::string& path) const {
  auto adapter = make_adapter(name, path, import_adapter(path, config_), rank_);
  check_targets(path, *adapter);
  return adapter;
}

void AdapterHost::add(std::shared_ptr<const Adapter> adapter) {
  if (adapter->name.empty()) fail(ErrorCode::kInvalidArgument, "the name of an adapter is empty");
  std::lock_guard lock(mutex_);
  std::string name = adapter->name;
  if (!list_.emplace(name, std::move(adapter)).second)
    fail(ErrorCode::kInvalidArgument, "an adapter named {} is loaded already", name);
}

void AdapterHost::remove(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (list_.erase(name) == 0) fail(ErrorCode::kNotFound, "there is no adapter named {}", name);
}

std::shared_ptr<const Adapter> AdapterHost::find(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto it = list_.find(name);
  if (it == list_.end()) fail(ErrorCode::kNotFound, "there is no adapter named {}", name);
  return it->second;
}

std::vector<std::shared_ptr<const Adapter>> AdapterHost::list() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Adapter>> out;
  for (const auto& [name, adapter] : list_) out.push_back(adapter);
  return out;
}

std::string adapter_inside(const std::string& folder, const std::string& path) {
  std::error_code ec;
  fs::path root = fs::canonical(folder, ec);
  if (ec) fail(ErrorCode::kNotFound, "{}: {}", folder, ec.message());
  auto inside = [&](const fs::path& p) {
    auto [at, unused] = std::mismatch(root.begin(), root.end(), p.begin(), p.end());
    return at == root.end();
  };
  // Nothing outside is looked at: not even whether it exists.
  fs::path asked = (root / path).lexically_normal();
  if (!inside(asked))
    fail(ErrorCode::kInvalidArgument, "{}: adapters are loaded from the server's folder only",
         path);
  fs::path found = fs::canonical(asked, ec);
  if (ec) fail(ErrorCode::kNotFound, "{}: no such adapter", path);
  bool all = inside(found);
  for (const fs::path& file : adapter_files(found)) {
    fs::path real = fs::weakly_canonical(file, ec);
    all = all && !ec && inside(real);
  }
  if (!all)
    fail(ErrorCode::kInvalidArgument, "{}: adapters are loaded from the server's folder only",
         path);
  return found.string();
}

}  // namespace tokamak
