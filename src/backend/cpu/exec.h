#pragma once
// What a prepared call works with: arguments resolved to memory, the step, the threads and their
// scratch.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/access.h"
#include "backend/cpu/kernel_table.h"
#include "backend/cpu/kv_store.h"
#include "backend/cpu/weight_store.h"
#include "base/thread_pool.h"
#include "base/value.h"
#include "plan/kernel_desc.h"
#include "plan/region.h"
#include "plan/step.h"
#include "tensor/dtype.h"
#include "tensor/sym.h"

namespace tokamak::cpu {

// The step as one thread sees it: each has its own copy.
struct StepContext {
  const KernelTable& kernels;
  KvStore& kv;
  int threads = 1, thread = 0;  // how many run the step, and which of them this is
  int stage = 0;                // of the call
  const StepInputs* step = nullptr;
  std::span<const int64_t> symbols = {};  // values of the plan set's symbols
  uint8_t* scratch = nullptr;
  int64_t scratch_bytes = 0;          // per thread
  uint8_t* shared_scratch = nullptr;  // PlanSet::scratch_bytes
  uint8_t* thread_scratch() const { return scratch + thread * scratch_bytes; }

  // This thread's part of [0, items).
  Part part(int64_t items, int64_t grain) const {
    return part_of_items(items, grain, thread, threads);
  }
};

class RopeAngles;

// How an op rotates: its angles, and which of its inputs they are computed from.
struct RopeUse {
  std::shared_ptr<RopeAngles> angles;
  uint32_t positions = 1, frequencies = 2;
  bool made_before = false;  // a call at the start of the plan makes the angles
};

// One kind of operation, prepared for one call: attributes are read once, at load. Owned by the
// executable. Every thread runs every call, its own part of it; what it touches in doing so it
// states in touch(), from which the schedule is made (schedule.h). run() neither allocates nor
// throws in normal operation and keeps nothing in the op.
class CpuOp {
 public:
  virtual ~CpuOp() = default;
  // Looks at new extents, before any thread runs.
  virtual void bind(const Tensor*, const Tensor*, const StepContext&) {}
  // Stages follow each other; what a thread does in one may need what others did in the one before.
  // Like the parts, they depend on extents and the number of threads alone, never on data.
  virtual int stages(const Tensor*, const Tensor*, const StepContext&) const { return 1; }
  virtual void run(const Tensor* in, const Tensor* out, const StepContext& context) const = 0;
  // What run() may read and write with these extents on context.thread in context.stage, except
  // weights and the thread's own scratch.
  virtual void touch(const Tensor* in, const Tensor* out, const StepContext& context,
                     AccessList& list) const = 0;
  virtual int64_t scratch_bytes() const { return 0; }  // per thread
  // Scratch that all threads see: at most KernelCall::scratch.
  virtual int64_t shared_bytes() const { return 0; }
  virtual uint64_t own_bytes() const { return 0; }  // on the heap, beside the scratch
  virtual RopeUse* rope_use() { return nullptr; }   // of ops that rotate
};

// What ops are prepared from.
struct OpSite {
  const KernelDesc* kernel;  // the planned one
  std::string_view op;
  const Value& attrs;
  const std::vector<Tensor>& in;  // extents are the plan's upper bounds
  const std::vector<Tensor>& out;
  const KernelTable& kernels;
  const KvStore& kv;
  int threads;
  std::string_view label;
  std::span<const SymbolDecl> symbols = {};  // of the plan set, with the plan's ranges
  const Region* region = nullptr;            // what a region computes; lives as long as the op
};

// The kernel of an element-wise op of one value; run is nullptr when there is none.
struct UnaryKernel {
  void (*run)(const float* x, float* out, int64_t n, float parameter) = nullptr;
  float parameter = 0;
};
UnaryKernel find_unary(const KernelTable& kernels, std::string_view op, const Value& attrs);

// Rows of the step and heads of a state. If the heads divide evenly among the threads, each thread
// takes its heads in all rows, as matrices and attention do; otherwise each takes some rows.
struct Cells {
  Part rows, heads;
  bool empty() const { return rows.empty() || heads.empty(); }
};
Cells cells_of(const StepContext& c, int64_t rows, int64_t heads, int64_t row_grain);

// Heads of one row of a state's plane: converted to the plane's type and spread into its panels. x
// is the whole row, `scratch` holds 4 bytes per value.
void store_plane_row(const KernelTable& kernels, const KvPlane& plane, int64_t block, int64_t token,
                     const float* x, Part heads, uint8_t* scratch);

// A row, or whole blocks of it, as the op `quantize` stores it: q8a or bf16.
inline void encode_activations(const KernelTable& kernels, DType type, const float* x, int64_t n,
                               void* to) {
  if (type == DType::kQ8A)
    kernels.quantize_row(x, n, to);
  else
    kernels.narrow[static_cast<int>(FType::kBF16)](x, to, n);
}

// Elements of light work that are worth a thread of their own.
constexpr int64_t kLightGrain = 16384;

}  // namespace tokamak::cpu
