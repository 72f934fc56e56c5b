#pragma once
// Masks of the byte tokenizer as lists of tokens.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/client.h"

namespace tokamak {

inline constexpr int32_t kEnd = 257;  // ends an answer

inline std::vector<int32_t> allowed_after(TokenMask& mask, std::vector<int32_t> answer,
                                          std::vector<int32_t> drafts = {}) {
  std::vector<uint32_t> bits(mask_words(300), 0);
  mask.allow(0, answer, drafts, bits);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < 300; ++id)
    if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) ids.push_back(id);
  return ids;
}

inline std::vector<int32_t> ids_of(std::string_view text) {
  std::vector<int32_t> ids;
  for (unsigned char byte : text) ids.push_back(byte);
  return ids;
}
inline bool allows(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace tokamak
