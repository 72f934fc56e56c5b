#pragma once
// Limits and policies of an engine.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/client.h"
#include "engine/step_report.h"
#include "plan/plan.h"

namespace tokamak {

// Which waiting sequence starts first.
enum class SchedPolicy : uint8_t {
  kFcfs,      // first come, first served
  kPriority,  // RequestSpec::priority, then arrival; preempts running ones of lower priority
  kCache,     // longest cached prefix; a sequence is passed over starvation_bound times at most
  kFair,      // the tenant that was served the fewest tokens
};
// When a sequence may start.
enum class KvPolicy : uint8_t {
  kMaxUtilization,     // if its known tokens fit; if blocks run out, the last one is preempted
  kGuaranteedNoEvict,  // if all running sequences fit up to their last token
};
// How steps are composed. Continuous is the default; the others are baselines for comparison.
enum class Batching : uint8_t {
  kContinuous,    // decodes first, then prompts, up to the token budget
  kPrefillFirst,  // while there are prompts, steps have nothing else
  kStatic,        // a batch runs to its end before the next one starts
};
// From the names on the command line: fcfs priority cache fair, guaranteed-no-evict
// max-utilization, continuous prefill-first static. Throw Error(kInvalidArgument) with the list of
// names.
SchedPolicy parse_sched_policy(std::string_view name);
KvPolicy parse_kv_policy(std::string_view name);
Batching parse_batching(std::string_view name);

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
  int max_step_failures = 3;         // a sequence ends after more failed steps without progress

  SchedPolicy policy = SchedPolicy::kFcfs;
  KvPolicy kv_policy = KvPolicy::kMaxUtilization;
  Batching batching = Batching::kContinuous;
  bool prefix_cache = true;  // keep and share the blocks of finished and running sequences
  bool recurrent =
      false;  // the model has states per sequence: they cannot be shared or rolled back
  bool chunked_prefill = true;  // off: a prompt that fits into a step is not split
  int64_t vector_width = 0;     // of what pooling requests get; 0: the plans have no vectors
  bool encoder = false;         // prompts are computed whole, and there is no next token
  bool pool_first = false;      // a vector is that of the first row; else of the last
  bool segments = false;        // the plans read the segment of every token
  int64_t adapter_slots = 0;    // adapters that running sequences can use; 0: the plans take none
  int starvation_bound = 64;    // of SchedPolicy::kCache
  Nanos tpot_target = 0;  // steps with decodes are kept this short, others to 1 s; 0: no target
  // Steps in which a streamed answer decodes: at most this many times a step without prompts (or 10
  // ms) instead of tpot_target. 0: no such limit; it needs a target.
  double stream_pace = 0;
  std::function<void(const StepReport&)> on_step;  // after every step, on the engine's thread

  int64_t decode_batch = 0;           // largest batch of the function "decode"; 0: there is none
  std::vector<int32_t> verify_sizes;  // k of the functions "verify<k>", ascending
  int32_t draft_tokens = 0;           // most drafts per sequence and step
  int32_t draft_branches = 1;         // most that continue the same token; needs tree_mask
  bool adaptive_drafts = false;       // draft only as many as pay (draft/draft_planner.h)
  int64_t draft_max_sequences = 0;    // no drafts in steps that decode more; 0: no such bound
  bool exits = false;                 // the plans have kExitFunction
  int64_t layers = 0,
          layer_rows = 0;  // of kLayersFunction: layers, rows of a step; 0: no such plan
  bool tree_mask = false;  // the plans read a mask, so drafts may be trees
};

// Limits from the PlanSet's symbols and plans; KV for `kv_tokens` tokens (0: one sequence of
// max_model_len per row, at most eight). max_model_len 0: the model's context.
EngineConfig default_engine_config(const PlanSet& plans, int64_t max_model_len = 0,
                                   int64_t kv_tokens = 0);

// Blocks per group for `tokens` tokens of KV. A group with a window gets at most what max_num_seqs
// sequences can use when steps have at most max_batched_tokens tokens; 0: no such bound is known.
std::vector<int64_t> kv_blocks_for(const PlanSet& plans, int64_t tokens, int64_t max_num_seqs = 0,
                                   int64_t max_batched_tokens = 0);

// Throws Error(kInvalidArgument) if the limits contradict each other.
void check_engine_config(const EngineConfig& config);

// Throws Error(kInvalidArgument) for an invalid request and Error(kOutOfRange) for one that can
// never fit. A pure function: any thread.
void check_request(const EngineConfig& config, const RequestSpec& spec);

}  // namespace tokamak
