#pragma once
// What an engine may use and what its plans can take.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/client.h"
#include "plan/plan.h"

namespace tokamak {

struct EngineConfig {
  std::string model;
  int64_t vocab = 0;
  int64_t max_model_len = 0;       // longest prompt plus answer
  std::vector<GroupEntry> groups;  // of the PlanSet
  std::vector<int64_t> blocks;     // KV blocks per group

  int64_t max_num_seqs = 64;         // rows: sequences that run at a time
  int64_t max_batched_tokens = 512;  // token budget of a step
  int64_t max_out_rows = 64;         // rows of a step that may ask for logits
  int64_t max_queue = 4096;          // sequences that wait (a request has n of them)
  int max_in_flight = 1;             // steps submitted and not yet committed
  int max_step_failures = 3;         // failed steps in a row that a sequence survives

  int64_t decode_batch = 0;           // largest batch of the function "decode"; 0: there is none
  std::vector<int32_t> verify_sizes;  // k of the functions "verify<k>", ascending
  int32_t draft_tokens = 0;           // drafts asked of the drafter per sequence and step
};

// Limits from the PlanSet's symbols and plans; KV for `kv_tokens` tokens (0: one sequence of
// max_model_len per row, at most eight). max_model_len 0: the model's context.
EngineConfig default_engine_config(const PlanSet& plans, int64_t max_model_len = 0,
                                   int64_t kv_tokens = 0);

// Blocks per group that hold `tokens` tokens of KV. A window group gets no more than max_num_seqs
// sequences can hold in it when steps have at most max_batched_tokens; 0: no such bound is known.
std::vector<int64_t> kv_blocks_for(const PlanSet& plans, int64_t tokens, int64_t max_num_seqs = 0,
                                   int64_t max_batched_tokens = 0);

// Throws Error(kInvalidArgument) if the limits contradict each other.
void check_engine_config(const EngineConfig& config);

// Throws Error(kInvalidArgument) for a request that makes no sense, Error(kOutOfRange) for one that
// can never fit. A pure function: any thread.
void check_request(const EngineConfig& config, const RequestSpec& spec);

}  // namespace tokamak
