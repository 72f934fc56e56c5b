#pragma once
// The keys that clients may use, and the limits of each.
#include <atomic>
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

class Admission;

// Owner: the API. Thread-safe.
class ApiKeys {
 public:
  explicit ApiKeys(std::vector<ApiKey> keys) : keys_(std::move(keys)) {}

  bool empty() const { return keys_.empty(); }
  // nullptr: unknown. Takes the same time for every text of that length.
  const ApiKey* find(std::string_view given) const;
  // nullptr if the key has no limits. Throws ApiError(429) at a limit.
  std::shared_ptr<Admission> admit(std::string_view given, Nanos now);

 private:
  friend class Admission;
  struct Use {
    int64_t running = 0;
    std::deque<Nanos> started;  // within the last minute
  };
  const std::vector<ApiKey> keys_;
  std::mutex mutex_;
  std::map<const ApiKey*, std::shared_ptr<Use>> uses_;
};

// A generation of a key: counts as running while it exists, and towards the limit per minute unless
// it goes without having been accepted (a request that is refused).
class Admission {
 public:
  Admission(ApiKeys& keys, std::shared_ptr<ApiKeys::Use> use, Nanos start)
      : keys_(keys), use_(std::move(use)), start_(start) {}
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  void accept() { accepted_ = true; }

 private:
  ApiKeys& keys_;
  const std::shared_ptr<ApiKeys::Use> use_;
  const Nanos start_;
  std::atomic<bool> accepted_{false};
};

}  // namespace tokamak::openai
