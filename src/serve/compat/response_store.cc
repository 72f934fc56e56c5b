#include "serve/compat/response_store.h"

#include "base/json.h"

namespace tokamak::openai {
namespace {

// A key has no line breaks.
std::string stored_key(const std::string& tenant, const std::string& id) {
  return tenant + "\n" + id;
}

}  // namespace

void ResponseStore::put(const std::string& tenant, const std::string& id, Entry entry) {
  Stored stored{stored_key(tenant, id), std::move(entry), 0};
  for (const Value* part : {&stored.entry.response, &stored.entry.messages, &stored.entry.items})
    stored.bytes += dump_json(*part).size();
  if (stored.bytes > kMaxBytes) return;
  std::lock_guard lock(mutex_);
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
