#pragma once
// Answers of the Responses API that clients may refer to.
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/value.h"

namespace tokamak::openai {

// Owner: the routes. Thread-safe. In memory only; the least recently used answers are forgotten
// beyond kMaxCount answers or kMaxBytes bytes.
class ResponseStore {
 public:
  static constexpr size_t kMaxCount = 1000, kMaxBytes = size_t{64} << 20;

  struct Entry {
    Value response;
    Value messages;  // the conversation up to and with this answer, as in a chat request
    Value items;     // what the answer was made from, as items with ids
  };
  // tenant: only the client with the same key finds it.
  void put(const std::string& tenant, const std::string& id, Entry entry);
  std::optional<Entry> get(const std::string& tenant, const std::string& id);
  bool remove(const std::string& tenant, const std::string& id);

 private:
  struct Stored {
    std::string key;
    Entry entry;
    size_t bytes = 0;
  };
  using Place = std::list<Stored>::iterator;
  void drop(Place place);

  std::mutex mutex_;
  std::list<Stored> recent_;  // most recently used first
  std::map<std::string, Place> places_;
  size_t bytes_ = 0;
};

}  // namespace tokamak::openai
