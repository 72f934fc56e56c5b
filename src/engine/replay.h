#pragma once
// Runs a trace of requests through the whole engine on the null backend, under virtual time.
#include <cstdint>
#include <string>
#include <vector>

#include "backend/null/roofline.h"
#include "engine/config.h"
#include "engine/stats.h"

namespace tokamak {

struct TraceRequest {
  Nanos arrival = 0;
  int64_t input = 0, output = 0;  // tokens
  // Content of the prompt, kTraceBlock tokens per id: requests that begin with the same ids share a
  // prefix. Empty: the prompt is shared with no other request.
  std::vector<int64_t> block_ids;
};
constexpr int64_t kTraceBlock = 512;  // tokens per block id of a trace

// What the roofline and the engine need to know about a model.
struct ReplayModel {
  double parameters = 8e9;  // two bytes each
  int64_t kv_bytes_per_token = 131072;
  int64_t vocab = 128256;
  int64_t block_size = 16;
};

struct ReplayOptions {
  EngineConfig engine;  // limits and policies; model, groups and blocks are filled in
  ReplayModel model;
  Machine machine;
  int64_t kv_tokens = 1 << 20;
  double speed = 1;         // factor on the rate of arrivals
  bool check_steps = true;  // the null backend checks every step
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0, max = 0, mean = 0;
};

struct ReplayReport {
  int64_t requests = 0, failed = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  double seconds = 0;         // virtual, from the first arrival to the last token
  double device_seconds = 0;  // of them: while a step was running
  double hit_rate = 0;        // prompt tokens that were not computed
  double ideal_hit_rate = 0;  // with a cache of unlimited size
  Percentiles ttft, tpot, itl, e2e;
  double sequences_per_step = 0, tokens_per_step = 0;
  EngineStats stats;
};

// Single-threaded. Memory is proportional to the requests that are in the engine at the same time.
ReplayReport replay_trace(const std::vector<TraceRequest>& trace, const ReplayOptions& options);

// `values` may be in any order; they are sorted.
Percentiles percentiles(std::vector<float>& values);

}  // namespace tokamak
