#pragma once
// Words already encoded. Direct-mapped, fixed size: a lookup is one cache line, and no input can
// make it grow or slow down.
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "text/flat_maps.h"

namespace tokamak {

class WordCache {
 public:
  static constexpr size_t kMaxWord = 22, kMaxIds = 10;

  // Appends the ids of `word`, or returns false.
  bool get(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() > kMaxWord || word.empty()) return false;
    const Entry& e = slots_[slot(word)];
    if (e.length != word.size() || std::memcmp(e.text, word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), e.ids, e.ids + e.count);
    return true;
  }
  void put(std::string_view word, const int32_t* ids, size_t count) {
    if (word.size() > kMaxWord || word.empty() || count > kMaxIds) return;
    Entry& e = slots_[slot(word)];
    e.length = static_cast<uint8_t>(word.size());
    e.count = static_cast<uint8_t>(count);
    std::memcpy(e.text, word.data(), word.size());
    std::memcpy(e.ids, ids, count * sizeof(int32_t));
  }

 private:
  struct alignas(64) Entry {
    uint8_t length = 0, count = 0;
    char text[kMaxWord];
    int32_t ids[kMaxIds];
  };
  static_assert(sizeof(Entry) == 64);
  size_t slot(std::string_view word) const { return hash_bytes(word) & (slots_.size() - 1); }
  std::vector<Entry> slots_ = std::vector<Entry>(size_t{1} << 15);
};

}  // namespace tokamak
