#pragma once
// The adapters of a loaded model (docs/adapters.md).
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "compile/import/model_config.h"
#include "plan/adapter.h"

namespace tokamak {

struct OpenOptions;

// Slots and rank that the options ask for, before the model is compiled. Reads the adapters that
// the options name, so that one that does not fit is reported before anything is loaded. Owner:
// LoadedModel, and front ends that open adapters later. Thread-safe.
class AdapterHost {
 public:
  // Throws Error when an adapter cannot be used.
  explicit AdapterHost(const OpenOptions& options);

  int64_t slots() const { return slots_; }
  int64_t rank() const { return rank_; }
  // After the model is compiled: adapters may change the matrices of these plans.
  void set_plans(const PlanSet& plans);

  // Reads an adapter; it is not added to the list.
  std::shared_ptr<const Adapter> open(const std::string& name, const std::string& path) const;

  // The list. add throws Error(kInvalidArgument) for a name that exists, remove and find
  // Error(kNotFound) for one that does not.
  void add(std::shared_ptr<const Adapter> adapter);
  void remove(const std::string& name);
  std::shared_ptr<const Adapter> find(const std::string& name) const;
  std::vector<std::shared_ptr<const Adapter>> list() const;

 private:
  void check_targets(const std::string& path, const Adapter& adapter) const;

  ModelConfig config_;
  int64_t slots_ = 0, rank_ = 0;
  std::vector<std::string> matrices_;  // that adapters may change, sorted
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Adapter>> list_;
};

// Whether requests of a model with these options may choose adapters.
bool wants_adapters(const OpenOptions& options);

// The path of an adapter inside `folder`, links resolved. Throws Error(kInvalidArgument) for a
// path, or a file of the adapter, that lies outside.
std::string adapter_inside(const std::string& folder, const std::string& path);

}  // namespace tokamak
