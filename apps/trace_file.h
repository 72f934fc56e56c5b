#pragma once
// Reads published traces of requests.
#include <filesystem>
#include <vector>

#include "engine/replay.h"

namespace tokamak {

// The format follows from the extension:
//   .csv    Azure LLM inference: TIMESTAMP,ContextTokens,GeneratedTokens
//   .jsonl  Mooncake: {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}
// Sorted by arrival, the first at time 0; at most `most` requests (0: all). Throws Error(kCorrupt)
// naming the line.
std::vector<TraceRequest> load_trace(const std::filesystem::path& path, int64_t most = 0);

}  // namespace tokamak
