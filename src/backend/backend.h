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
#include "plan/plan.h"
#include "plan/step.h"
#include "plan/weight_source.h"

namespace tokamak {

// When the calls of steps began and ended, for tools. Filled by the thread that submits.
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

// A loaded model on a device. One thread calls submit and collect, in submission order.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual int max_in_flight() const { return 1; }
  virtual Ticket submit(const StepInputs& step) = 0;  // may return before the step has run
  virtual void collect(Ticket ticket,
                       StepResult& out) = 0;  // waits; throws Error when the step failed
  virtual const MemoryLedger& memory() const = 0;
  // Which plans ran how often; read by the thread that submits.
  virtual const DispatchStats& dispatch() const {
    static const DispatchStats kNone;
    return kNone;
  }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // "cpu", "ref", "null"
  virtual std::string isa() const = 0;        // "aarch64+dotprod+i8mm"; part of numerics_id
  virtual std::span<const KernelDesc> kernels() const = 0;  // preferred first
  virtual StorageWish storage() const { return {}; }        // read by the pass choose-storage
  virtual std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                           const LoadOptions& options) = 0;

  // For bundles. packing() names the byte layout of packed weights; empty: rows, which every
  // backend reads. pack_weights() gives the packed form of each weight in turn, valid during the
  // call.
  virtual std::string packing() const { return {}; }
  using PackSink = std::function<void(const WeightEntry& entry, const PackedWeight& packed)>;
  virtual void pack_weights(const PlanSet&, const WeightSource&, const PackSink&) {
    fail(ErrorCode::kUnsupported, "backend {} has no weights to pack", name());
  }
};

struct BackendOptions {
  int threads = 0;           // 0: all cores
  std::string machine_file;  // null: roofline description
  uint64_t null_seed = 0;    // null: what its hash tokens depend on
};
// "cpu", "ref" or "null"; throws Error(kInvalidArgument) listing the names.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options = {});

}  // namespace tokamak
