#pragma once
// llama.cpp's slots: the last text of each, as a prefix of the cache that can be kept in a file.
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "engine/client.h"
#include "engine/kv/kv_cache.h"

namespace tokamak {

// Owned by EngineCore, engine thread only. A slot takes no memory of the cache: its blocks may be
// evicted like all others.
class Slots {
 public:
  void note(int32_t slot, std::string_view salt, std::span<const int32_t> ids);  // a text ended

  // What the cache still has of the slot's text, in whole blocks. No step may be in flight.
  SavedPrefix save(int32_t slot, std::string_view salt, KvCache& kv, Executable& executable);
  // Puts it into the cache, as if it had been computed. Throws Error(kCorrupt) if it does not have
  // the size of these tokens, Error(kResourceExhausted) if there is no room.
  void restore(int32_t slot, std::string_view salt, const SavedPrefix& saved, KvCache& kv,
               Executable& executable);
  // Forgets the slot's text as far as no other one shares it. Returns its length.
  int64_t erase(int32_t slot, std::string_view salt, KvCache& kv);

 private:
  struct Text {
    std::string salt;
    std::vector<int32_t> ids;
  };
  const Text& text(int32_t slot, std::string_view salt) const;
  std::map<int32_t, Text> texts_;
};

}  // namespace tokamak
