#pragma once
// The ids that a tokenizer adds around a text: BOS, EOS, [CLS] ... [SEP].
#include <cstdint>
#include <vector>

#include "base/value.h"

namespace tokamak {

inline constexpr int32_t kTextPlace = -1;  // where the ids of the text go

// The post-processors of a tokenizer.json, for one text, as a list of ids with kTextPlace in it.
// Throws Error(kUnsupported / kInvalidArgument).
std::vector<int32_t> make_frame(const Value& post_processor);

inline constexpr int32_t kSecondPlace = -2;  // where the ids of the second text of a pair go

// The same for a pair of texts. `second`: the entry from which on tokens are in the second segment;
// 0: they are all in the first. A post-processor that does not say how texts are paired (those of
// GGUF files) gives the frame of the first text followed by that of the second without its
// beginning; with `doubled`, a second separator precedes it (XLM-R).
struct PairFrame {
  std::vector<int32_t> ids;
  size_t second = 0;
};
PairFrame make_pair_frame(const Value& post_processor, bool doubled);

}  // namespace tokamak
