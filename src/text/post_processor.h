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

}  // namespace tokamak
