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

// Blocks of a slot that are being saved or restored, a few between two steps, so that streams go
// on meanwhile. They are held until Slots::end().
struct SlotCopy {
  SequenceBlocks held;
  std::vector<int32_t> ids;
  std::vector<std::vector<int32_t>> blocks;  // by group
  uint64_t bytes = 0;                        // of all blocks
  size_t group = 0, done = 0;                // the next block
  uint64_t at = 0;                           // bytes before it
};

// Owned by EngineCore, engine thread only. A slot takes no memory of the cache: its blocks may be
// evicted like all others.
class Slots {
 public:
  void note(int32_t slot, std::string_view salt, std::span<const int32_t> ids);  // a text ended

  // What the cache still has of the slot's text, in whole blocks.
  SlotCopy begin_save(int32_t slot, std::string_view salt, KvCache& kv,
                      const Executable& executable);
  // Room for a prefix of the cache. Throws Error(kCorrupt) if it does not have the size of its
  // tokens, Error(kResourceExhausted) if there is no room.
  static SlotCopy begin_restore(std::string_view salt, const SavedPrefix& saved, KvCache& kv,
                                const Executable& executable);
  // Copies the next few blocks. False: there was none left. `bytes` has room for all.
  static bool save_some(SlotCopy& copy, Executable& executable, std::span<std::byte> bytes);
  static bool restore_some(SlotCopy& copy, Executable& executable,
                           std::span<const std::byte> bytes);
  static void end(SlotCopy& copy, KvCache& kv) { kv.release(copy.held); }
  // Restored blocks can be found as if they had been computed. Before end().
  void note_restored(int32_t slot, std::string_view salt, SlotCopy& copy, KvCache& kv);
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
