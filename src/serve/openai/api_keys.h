#pragma once
// The keys that clients may use, and the limits of each.
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace tokamak::openai {

struct ApiKey {
  std::string key;
  int64_t max_running = 0;  // generations at once; 0: no limit
  int64_t per_minute = 0;   // generations that start within a minute; 0: no limit
};

// Lines "KEY [running=N] [per-minute=N]"; empty lines and those that begin with # are skipped.
// Throws Error(kInvalidArgument) naming the line, but never the key.
std::vector<ApiKey> read_key_file(const std::string& path);

// Owner: the API. Thread-safe.
class ApiKeys {
 public:
  explicit ApiKeys(std::vector<ApiKey> keys) : keys_(std::move(keys)) {}

  bool empty() const { return keys_.empty(); }
  // nullptr: unknown. Takes the same time for every text of that length.
  const ApiKey* find(std::string_view given) const;
  // Counts a generation of this key as running until the result is destroyed; nullptr if the key
  // has no limits. Throws ApiError(429) at a limit.
  std::shared_ptr<void> admit(std::string_view given, Nanos now);

 private:
  struct Use {
    int64_t running = 0;
    std::deque<Nanos> started;  // within the last minute
  };
  const std::vector<ApiKey> keys_;
  std::mutex mutex_;
  std::map<const ApiKey*, std::shared_ptr<Use>> uses_;
};

}  // namespace tokamak::openai
