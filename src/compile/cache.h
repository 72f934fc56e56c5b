#pragma once
// The compile cache: plans on disk, so that a model is compiled once per machine.
// Content-addressed: a key covers everything that the plans depend on, so an entry never gets
// stale, only unused.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compile/compiler.h"

namespace tokamak {

// What the plans of a module depend on: the graph, the options, the backend with its ISA and
// kernels, and this program.
std::string compile_key(const Module& module, const ModelConfig& config, const Backend& backend,
                        const CompileOptions& options);

struct CacheEntry {
  std::string key, model, backend;  // model and backend are empty when it cannot be read
  uint64_t bytes = 0;
  int64_t used = 0;            // unix seconds of the last use
  std::string error;           // why this program cannot use it; empty: it can
  bool other_version = false;  // written by another version of this program, which may use it
  bool damaged() const { return !error.empty() && !other_version; }
};

// A folder of entries that any number of processes may use at a time. Writers hold a lock and
// rename a complete, synced file into place; readers need no lock. A failing disk is never an error
// of the compilation: load() then finds nothing and store() logs a warning.
class CompileCache {
 public:
  static constexpr uint64_t kDefaultLimit = uint64_t{256} << 20;
  // $TOKAMAK_CACHE or ~/.cache/tokamak/compile; limit from $TOKAMAK_CACHE_LIMIT (bytes, or 64M,
  // 1G).
  // Without a home there is no folder, and nothing is kept.
  static CompileCache from_environment();
  // Removes temporary files of processes that were killed while they wrote.
  explicit CompileCache(std::filesystem::path folder, uint64_t limit = kDefaultLimit);

  // The plans under the key, checked; nullopt when there are none or they are damaged, which
  // removes them. A hit makes the entry the most recently used one.
  std::optional<PlanSet> load(const std::string& key) const;
  // Does not throw. Removes the least recently used entries when the folder exceeds the limit.
  void store(const std::string& key, const PlanSet& plans) const;
  // load(), or make() and store().
  PlanSet get(const std::string& key, const std::function<PlanSet()>& make) const;

  // Every entry, most recently used first; with `verify`, read and checked.
  std::vector<CacheEntry> entries(bool verify = false) const;
  // Removes everything; gives the number of entries. Throws Error(kUnavailable) when it cannot.
  size_t clear() const;
  size_t remove_damaged() const;
  const std::filesystem::path& folder() const { return folder_; }
  // Where `tokamak calibrate` keeps what it measured, for the planner; empty without a folder.
  std::filesystem::path machine_file(std::string_view backend) const;
  uint64_t limit() const { return limit_; }

 private:
  std::filesystem::path path_of(const std::string& key) const;
  void evict(const std::filesystem::path& keep) const;

  std::filesystem::path folder_;
  uint64_t limit_;
};

// The plans of a module, from the cache where it has them. A compilation that writes dumps or
// reports always runs. `cache` may be null.
PlanSet compile_cached(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& options, const CompileCache* cache);

}  // namespace tokamak
