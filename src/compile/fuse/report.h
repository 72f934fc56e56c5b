#pragma once
// What the fusion planner decided and why, as plain data: for logs, `explain` and tests. Times are
// predictions of the cost model at the shapes named in `shapes`; where there are several, they are
// averages over them.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tokamak {

struct FusedRegion {
  std::string function;  // "step", "decode"
  std::string id;        // the region node's name; the label of its call in a plan of `function`
  std::string body;      // the function of the module that is its meaning
  std::string kernel;    // that was proposed for it; a plan may choose another for its shapes
  std::vector<std::string> ops;  // in order: "rms_norm blk.0.attn_norm"
  std::string why;               // one line: what the rule saw and what it saves
  // Bytes that have to move (every input and output once), and the same for its ops one by one.
  double bytes = 0, unfused_bytes = 0;
  double flops = 0;
  double seconds = 0, unfused_seconds = 0;
  double saved() const { return unfused_seconds - seconds; }
};

// An edge between two kernels that stayed apart.
struct NotFused {
  std::string function;
  std::string producer, consumer;  // names as in FusedRegion::id, or "op name" of a single node
  std::string reason;              // a word of kReasons
  std::string detail;              // the same in a sentence, with numbers
  double saving = 0;  // seconds that fusing would have saved; 0 when it is not possible
  double bytes = 0;   // traffic of this edge
};

// What a plan chose for one call, and what else would have run it.
inline constexpr const char* kOpByOp = "op by op";
struct KernelChoice {
  std::string function;
  size_t plan = 0;     // of the plan set
  std::string call;    // label
  std::string group;   // calls that PlanRequest::forced decides together
  std::string kernel;  // chosen; kOpByOp where a region is cheaper as its nodes
  double seconds = 0;  // predicted at the largest shape of the plan
  struct Loser {
    std::string kernel;
    double seconds = 0;  // 0: not predicted
    std::string reason;  // "slower", "guard m <= 16", "numeric class", "layout panel16"
  };
  std::vector<Loser> losers;
};

// A plan whose kernels were measured (compile/autotune.h).
struct TunedPlan {
  std::string function;
  size_t plan = 0;  // of the plan set
  size_t trials = 0;
  double seconds_before = 0, seconds_after = 0;  // of a step; equal: the prediction was the best
  std::vector<std::string> changes;              // "region.ffn: op by op instead of cpu.loop"
};

// Launches of many calls that could run a plan: what the plan names, in its order, then the others.
struct LaunchChoice {
  size_t plan = 0;           // of the plan set
  double calls_seconds = 0;  // predicted for the calls one by one
  struct Option {
    std::string kernel, steps;
    double seconds = 0;  // 0: not predicted
    std::string reason;  // why the plan does not name it; empty: it does
  };
  std::vector<Option> options;
};

// Reasons a NotFused gives.
//   no_kernel      the backend has no kernel for the pair
//   barrier        the consumer needs rows that other threads produce
//   between        another kernel uses the producer's result to make what the consumer needs
//   shape          rows of the two do not match
//   dtype          an element type that the kernel does not take
//   state          order of reads and writes of a state
//   frame          the value is a result of the function
//   guard          the kernel does not take such shapes
//   size           the region would have more ops than allowed
//   cost           possible, but predicted to be slower
//   other_choice   possible, but the best cover uses the ops otherwise
struct FusionReport {
  std::string machine;  // name of the machine description
  std::map<std::string, std::vector<std::map<std::string, int64_t>>> shapes;  // per function
  std::vector<FusedRegion> regions;
  std::vector<NotFused> not_fused;
  std::vector<KernelChoice> choices;        // where there was more than one kernel
  std::vector<LaunchChoice> launches;       // where the backend lists any
  std::vector<TunedPlan> tuned;             // with CompileOptions::autotune
  std::vector<std::string> plan_functions;  // per plan: the function it was made from, step_many
  // Per function: predicted time of everything, before and after; calls, before and after.
  struct Total {
    double seconds_before = 0, seconds_after = 0;
    double bytes_before = 0, bytes_after = 0;
    size_t calls_before = 0, calls_after = 0;
    size_t candidates = 0, states = 0;  // regions looked at; states of the search
    bool exact = true;                  // false: a part was too wide and was covered greedily
  };
  std::map<std::string, Total> totals;
};

// Adds what `from` says about its functions, replacing what `into` said about them.
void merge_reports(FusionReport& into, FusionReport from);
std::string fusion_report_text(const FusionReport& report);

}  // namespace tokamak
