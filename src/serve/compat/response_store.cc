#include "serve/compat/response_store.h"

#include <utility>

#include "base/json.h"

namespace tokamak::openai {
namespace {

// A key has no line breaks.
std::string stored_key(const std::string& tenant, const std::string& id) {
  return tenant + "\n" + id;
}

}  // namespace

void EventLog::add(std::string_view bytes, bool end) {
  std::lock_guard lock(mutex_);
  events_ += bytes;
  ended_ = end;
  std::erase_if(followers_, [](const http::ExchangePtr& follower) { return follower->gone(); });
  for (const http::ExchangePtr& follower : followers_)
    if (end)
      follower->finish(bytes);
    else
      follower->write(bytes);
  if (end) followers_.clear();
}

void EventLog::follow(const http::ExchangePtr& exchange, int64_t from) {
  constexpr std::string_view kEnd = "\n\n";  // of an event
  std::lock_guard lock(mutex_);
  size_t begin = 0;
  for (; from > 0 && begin < events_.size(); --from)
    begin = events_.find(kEnd, begin) + kEnd.size();
  http::StreamHead head;
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange->start_stream(std::move(head));
  std::string_view rest = std::string_view(events_).substr(begin);
  if (ended_) return exchange->finish(rest);
  exchange->write(rest);
  followers_.push_back(exchange);
}

size_t EventLog::bytes() const {
  std::lock_guard lock(mutex_);
  return events_.size();
}

ResponseStore::Stored::Stored(std::string k, Entry e) : key(std::move(k)), entry(std::move(e)) {
  for (const Value* part : {&entry.response, &entry.messages, &entry.items})
    bytes += dump_json(*part).size();
  if (entry.events != nullptr) bytes += entry.events->bytes();
}

void ResponseStore::put(const std::string& tenant, const std::string& id, Entry entry) {
  Stored stored(stored_key(tenant, id), std::move(entry));
  std::lock_guard lock(mutex_);
  add(std::move(stored));
}

bool ResponseStore::replace_running(const std::string& tenant, const std::string& id, Entry entry) {
  Stored stored(stored_key(tenant, id), std::move(entry));
  std::lock_guard lock(mutex_);
  auto found = places_.find(stored.key);
  if (found == places_.end() || !found->second->entry.running) return false;
  drop(found->second);
  add(std::move(stored));
  return true;
}

void ResponseStore::add(Stored stored) {
  if (stored.bytes > kMaxBytes) return;
  bytes_ += stored.bytes;
  recent_.push_front(std::move(stored));
  places_[recent_.front().key] = recent_.begin();
  while (recent_.size() > kMaxCount || bytes_ > kMaxBytes) drop(std::prev(recent_.end()));
}

std::optional<ResponseStore::Entry> ResponseStore::get(const std::string& tenant,
                                                       const std::string& id) {
  std::lock_guard lock(mutex_);
  auto found = places_.find(stored_key(tenant, id));
  if (found == places_.end()) return std::nullopt;
  recent_.splice(recent_.begin(), recent_, found->second);
  return recent_.front().entry;
}

bool ResponseStore::remove(const std::string& tenant, const std::string& id) {
  std::lock_guard lock(mutex_);
  auto found = places_.find(stored_key(tenant, id));
  if (found == places_.end()) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop(Place place) {
  bytes_ -= place->bytes;
  places_.erase(place->key);
  recent_.erase(place);
}

}  // namespace tokamak::openai
