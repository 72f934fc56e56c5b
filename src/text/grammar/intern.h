#pragma once
// A hash table of ids whose values are stored elsewhere.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tokamak::grammar {

// Owner: one automaton; one thread at a time.
class InternTable {
 public:
  // The id with this hash for which same(id) holds; otherwise `fresh`, which is added.
  template <class Same>
  uint32_t find_or_add(uint64_t hash, uint32_t fresh, Same&& same) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    size_t i = hash & (slots_.size() - 1);
    for (; slots_[i].id != kFree; i = (i + 1) & (slots_.size() - 1))
      if (slots_[i].hash == hash && same(slots_[i].id)) return slots_[i].id;
    slots_[i] = {hash, fresh};
    ++count_;
    return fresh;
  }
  size_t bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    uint64_t hash = 0;
    uint32_t id = kFree;
  };
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& s : old) {
      if (s.id == kFree) continue;
      size_t i = s.hash & (slots_.size() - 1);
      while (slots_[i].id != kFree) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = s;
    }
  }
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

inline uint64_t hash_words(const uint32_t* words, size_t count, uint64_t seed = 0) {
  uint64_t h = seed ^ (count * 0x9E3779B97F4A7C15ULL);
  for (size_t i = 0; i < count; ++i) {
    h = (h ^ words[i]) * 0xFF51AFD7ED558CCDULL;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace tokamak::grammar
