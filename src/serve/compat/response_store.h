#pragma once
// Answers of the Responses API that clients may refer to.
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "serve/http/message.h"

namespace tokamak::openai {

// The events of a streamed answer that is computed in the background: kept, and passed on to the
// clients that follow it. Thread-safe.
class EventLog {
 public:
  void add(std::string_view bytes, bool end);
  // Sends the events from number `from` on, also those to come.
  void follow(const http::ExchangePtr& exchange, int64_t from);
  size_t bytes() const;

 private:
  mutable std::mutex mutex_;
  std::string events_;
  bool ended_ = false;
  std::vector<http::ExchangePtr> followers_;
};

// Owner: the routes. Thread-safe. In memory only; the least recently used answers are forgotten
// beyond kMaxCount answers or kMaxBytes bytes.
class ResponseStore {
 public:
  static constexpr size_t kMaxCount = 1000, kMaxBytes = size_t{64} << 20;

  struct Entry {
    Value response;
    Value messages;  // the conversation up to and with this answer, as in a chat request
    Value items;     // what the answer was made from, as items with ids
    bool background = false;
    bool running = false;              // in the background: it has not ended
    std::shared_ptr<EventLog> events;  // in the background and streamed
  };
  // tenant: only the client with the same key finds it.
  void put(const std::string& tenant, const std::string& id, Entry entry);
  // The same, but only in the place of one that is running: false if that one was deleted or has
  // ended.
  bool replace_running(const std::string& tenant, const std::string& id, Entry entry);
  std::optional<Entry> get(const std::string& tenant, const std::string& id);
  bool remove(const std::string& tenant, const std::string& id);

 private:
  struct Stored {
    Stored(std::string key, Entry entry);
    std::string key;
    Entry entry;
    size_t bytes = 0;
  };
  using Place = std::list<Stored>::iterator;
  void add(Stored stored);  // with the mutex
  void drop(Place place);

  std::mutex mutex_;
  std::list<Stored> recent_;  // most recently used first
  std::map<std::string, Place> places_;
  size_t bytes_ = 0;
};

}  // namespace tokamak::openai
