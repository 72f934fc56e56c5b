#pragma once
// Traces of requests that others have published.
#include <filesystem>
#include <vector>

#include "engine/replay.h"

namespace tokamak {

// By the name's end:
//   .csv    Azure LLM inference: TIMESTAMP,ContextTokens,GeneratedTokens
//   .jsonl  Mooncake: {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}
// In the order of arrival, the first at time 0; `most` requests (0: all). Throws Error(kCorrupt)
// naming the line.
std::vector<TraceRequest> load_trace(const std::filesystem::path& path, int64_t most = 0);

}  // namespace tokamak
