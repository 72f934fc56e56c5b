#pragma once
// Two open-addressing tables for tokenizers: piece -> id, and pair of ids -> merge.
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak {

inline uint64_t mix64(uint64_t a, uint64_t b) {
  const auto product =
      static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15ULL) * (b ^ 0xD1B54A32D192ED03ULL);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::string_view text) {
  uint64_t hash = text.size();
  const char* p = text.data();
  size_t left = text.size();
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    hash = mix64(hash, word);
  }
  uint64_t word = 0;
  if (left) std::memcpy(&word, p, left);
  return mix64(hash, word);
}

// The caller owns the strings (a vector indexed by id), which must not move.
class PieceMap {
 public:
  void build(const std::vector<std::string>& pieces) {
    pieces_ = &pieces;
    table_.assign(std::bit_ceil(pieces.size() * 2 + 2), -1);
    for (size_t id = 0; id < pieces.size(); ++id)
      if (!pieces[id].empty()) insert(static_cast<int32_t>(id));
  }
  int32_t find(std::string_view piece) const {
    if (table_.empty()) return -1;
    const size_t mask = table_.size() - 1;
    for (size_t i = hash_bytes(piece) & mask; table_[i] >= 0; i = (i + 1) & mask)
      if ((*pieces_)[table_[i]] == piece) return table_[i];
    return -1;
  }

 private:
  void insert(int32_t id) {  // of equal pieces the last one wins
    const std::string& piece = (*pieces_)[id];
    const size_t mask = table_.size() - 1;
    size_t i = hash_bytes(piece) & mask;
    while (table_[i] >= 0 && (*pieces_)[table_[i]] != piece) i = (i + 1) & mask;
    table_[i] = id;
  }
  const std::vector<std::string>* pieces_ = nullptr;
  std::vector<int32_t> table_;
};

class MergeMap {
 public:
  struct Merge {
    uint32_t rank = kNone;
    int32_t result = -1;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void reserve(size_t count) { table_.assign(std::bit_ceil(count * 2 + 2), Slot{}); }
  void insert(int32_t left, int32_t right, Merge merge) {
    Slot& slot = table_[place(key(left, right))];
    slot.key = key(left, right);
    slot.merge = merge;
  }
  Merge find(int32_t left, int32_t right) const { return table_[place(key(left, right))].merge; }

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t k) const {
    const size_t mask = table_.size() - 1;
    size_t i = mix64(k, 0) & mask;
    while (table_[i].key != k && table_[i].key != UINT64_MAX) i = (i + 1) & mask;
    return i;
  }
  std::vector<Slot> table_ = std::vector<Slot>(2);
};

}  // namespace tokamak
