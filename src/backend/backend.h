#pragma once
// The backend contract. The engine never calls a kernel: it loads a PlanSet, submits steps and
// collects results.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "plan/dispatch.h"
#include "plan/kernel_desc.h"
#include "plan/launch_desc.h"
#include "plan/plan.h"
#include "plan/step.h"
#include "plan/step_trace.h"
#include "plan/weight_source.h"

namespace tokamak {

// When the calls of steps began and ended, for tools. Filled by the thread that calls submit.
struct CallProfile {
  struct Span {
    uint32_t plan, call;
    int64_t begin, end;  // nanoseconds of the steady clock
  };
  bool on = true;
  std::vector<Span> spans;
};

struct LoadOptions {
  std::vector<int64_t> blocks;                                  // KV blocks per group
  int64_t max_rows = 64;                                        // sequences that may be in flight
  std::function<void(uint64_t done, uint64_t total)> progress;  // bytes of weights; may be empty
  bool eager = false;  // a fresh buffer for every value of every step instead of the planned arena
  CallProfile* profile = nullptr;  // outlives the executable
};

// The types that a backend wants values stored in between ops: f32, f16 or bf16. Ops compute wide
// and round once, when they store. The type of the KV cache is chosen separately.
struct StorageWish {
  DType activations = DType::kF32;
  DType residual = DType::kF32;  // the sum that every layer adds to
  DType logits = DType::kF32;
  bool operator==(const StorageWish&) const = default;
};

using Ticket = uint64_t;

// Every byte the executable holds, exactly as allocated.
struct MemoryLedger {
  uint64_t weights = 0, kv = 0, arena = 0, scratch = 0, other = 0;
  uint64_t mapped = 0;  // of weights: pages of a file, which other processes share
  uint64_t arena_touched =
      0;  // end of what steps have used of the arena, where that is counted (ref)
  uint64_t total() const { return weights + kv + arena + scratch + other; }
};

// A loaded model on a device. One thread calls it. Steps and block transfers run in the order of
// their submission, and are collected (waited for) in that order.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual int max_in_flight() const { return 1; }  // steps
  // May return before the step has run. The inputs are not used after it returns.
  virtual Ticket submit(const StepInputs& step) = 0;
  // Waits for the step; throws Error when it failed.
  virtual void collect(Ticket ticket, StepResult& out) = 0;
  // The tokens that a masked output of a submitted step may choose: mask_words(vocab) words. Called
  // at any time before the step is collected; an output that has no mask by then fails as if its
  // mask were empty. Outputs of earlier phases cannot be masked.
  virtual void set_mask(Ticket, int32_t /*output*/, std::span<const uint32_t> /*allowed*/) {
    fail(ErrorCode::kUnsupported, "this backend cannot mask tokens");
  }
  // The token that an output of an earlier phase of a submitted step chose (0: none), for the masks
  // of the tokens that follow it. Waits for that phase.
  virtual int32_t drafted(Ticket, int32_t /*output*/) {
    fail(ErrorCode::kUnsupported, "this backend cannot mask tokens that follow its own drafts");
  }

  // The next step fills `trace`, which is complete when submit() returns; nullptr: it does not.
  // False: this backend does not run steps in submit().
  virtual bool trace_next(StepTrace* /*trace*/) { return false; }

  // Puts the matrices of an adapter (plan/adapter.h) into a slot, before the steps that are
  // submitted later; matrices that it does not have become zero.
  virtual void set_adapter(int32_t /*slot*/, const WeightSource& /*tensors*/) {
    fail(ErrorCode::kUnsupported, "this backend cannot hold adapters");
  }

  // KV blocks as bytes, block_bytes(group) for each, in the order of `blocks`. The layout is the
  // executable's own: another executable can read it if it was loaded from the same PlanSet by the
  // same backend. `bytes` must stay valid until wait() returns.
  virtual uint64_t block_bytes(uint32_t /*group*/) const { no_block_transfers(); }
  virtual Ticket read_blocks(uint32_t /*group*/, std::span<const int32_t> /*blocks*/,
                             std::span<std::byte> /*bytes*/) {
    no_block_transfers();
  }
  virtual Ticket write_blocks(uint32_t /*group*/, std::span<const int32_t> /*blocks*/,
                              std::span<const std::byte> /*bytes*/) {
    no_block_transfers();
  }
  virtual void wait(Ticket) { no_block_transfers(); }  // of read_blocks or write_blocks

  virtual const MemoryLedger& memory() const = 0;
  // Bytes of memory() that are reserved, but not resident in the host's memory. Any thread.
  virtual uint64_t untouched_bytes() const { return 0; }
  // How often each plan ran; read by the thread that calls submit.
  virtual const DispatchStats& dispatch() const {
    static const DispatchStats kNone;
    return kNone;
  }

 private:
  [[noreturn]] static void no_block_transfers() {
    fail(ErrorCode::kUnsupported, "this backend cannot read or write KV blocks");
  }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // "cpu", "cuda", "ref", "null"
  virtual std::string isa() const = 0;        // "aarch64+dotprod+i8mm"; part of numerics_id
  // What measured times depend on beside the ISA: the processor, the number of threads.
  virtual std::string measured_on() const { return {}; }
  virtual std::span<const KernelDesc> kernels() const = 0;             // preferred first
  virtual std::span<const LaunchDesc> launches() const { return {}; }  // of many calls at once
  virtual StorageWish storage() const { return {}; }  // read by the pass choose-storage
  // Decode steps of more sequences than this are padded to a few sizes (decode_guards()): for
  // backends that capture a step with its shape. 0: steps are never padded.
  virtual int64_t pads_decode_above() const { return 0; }
  // From this many rows on products of quantised weights are faster with bf16 activations than with
  // int8 ones; 0: never. Used by --activations mixed.
  virtual int64_t bf16_rows() const { return 0; }
  virtual std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                           const LoadOptions& options) = 0;

  // Bytes for the KV cache where the program may use this share of the device's memory.
  virtual uint64_t kv_bytes_within(const PlanSet&, double /*share*/) {
    fail(ErrorCode::kInvalidArgument, "backend {} has no device memory to share", name());
  }

  // For bundles. packing() names the byte layout of packed weights; empty: plain rows, which every
  // backend can read. pack_weights() passes the packed form of each weight to the sink; it is valid
  // during the call.
  virtual std::string packing() const { return {}; }
  using PackSink = std::function<void(const WeightEntry& entry, const PackedWeight& packed)>;
  virtual void pack_weights(const PlanSet&, const WeightSource&, const PackSink&) {
    fail(ErrorCode::kUnsupported, "backend {} has no weights to pack", name());
  }
};

struct BackendOptions {
  int threads = 0;           // 0: all cores
  std::string machine_file;  // null: roofline description
  uint64_t null_seed = 0;    // null: seed of its hash tokens
  bool fp8 = false;          // cuda: small decode steps read bf16 weights as FP8
};
// "cpu", "cuda", "ref" or "null"; throws Error(kInvalidArgument) listing the names.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options = {});

// What --backend auto means on this machine for a model of this size: cuda where a GPU has room for
// it, otherwise cpu.
struct AutoBackend {
  std::string name, reason;  // reason: one line for people
};
AutoBackend auto_backend(uint64_t model_bytes);

}  // namespace tokamak
