#pragma once
// What a prepared call works with: arguments resolved to memory, the step, the threads and their
// scratch.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/kernel_table.h"
#include "backend/cpu/kv_store.h"
#include "backend/cpu/weight_store.h"
#include "base/thread_pool.h"
#include "base/value.h"
#include "plan/step.h"
#include "tensor/dtype.h"
#include "tensor/sym.h"

namespace tokamak::cpu {

constexpr int kMaxRank = 6;

// An argument of a call in the current step. Which of data, weight and index matters depends on the
// argument's kind.
struct Tensor {
  void* data = nullptr;            // arena, input, or the row-major values of a weight
  const Weight* weight = nullptr;  // set for weights
  uint32_t index = 0;              // state or group
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t dims[kMaxRank] = {};

  float* f32() const { return static_cast<float*>(data); }
  int32_t* i32() const { return static_cast<int32_t*>(data); }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  int64_t last() const { return rank == 0 ? 1 : dims[rank - 1]; }
  int64_t rows() const { return last() == 0 ? 0 : elements() / last(); }
};

struct StepContext {
  ThreadPool& pool;
  const KernelTable& kernels;
  KvStore& kv;
  const StepInputs* step = nullptr;
  std::span<const int64_t> symbols = {};  // values of the plan set's symbols
  uint64_t number = 0;  // counts steps: what was computed once per step is recognised by it
  uint8_t* scratch = nullptr;
  int64_t scratch_bytes = 0;  // per thread
  uint8_t* shared_scratch = nullptr;
  uint8_t* thread_scratch(int thread) const { return scratch + thread * scratch_bytes; }
};

// One kind of operation, prepared for one call: attributes are read once, at load. Owned by the
// executable; run() neither allocates nor throws in normal operation.
class RopeAngles;

// How an op rotates: its angles, and which of its inputs they are made of.
struct RopeUse {
  std::shared_ptr<RopeAngles> angles;
  uint32_t positions = 1, frequencies = 2;
};

class Op {
 public:
  virtual ~Op() = default;
  virtual void run(const Tensor* in, const Tensor* out, StepContext& context) = 0;
  virtual int64_t scratch_bytes() const { return 0; }  // per thread
  virtual int64_t shared_bytes() const { return 0; }   // scratch that all threads see
  virtual uint64_t own_bytes() const { return 0; }     // held beside the scratch
  virtual RopeUse* rope_use() { return nullptr; }      // of ops that rotate
};

// What ops are prepared from.
struct OpSite {
  std::string_view op;
  const Value& attrs;
  const std::vector<Tensor>& in;  // extents are the plan's upper bounds
  const std::vector<Tensor>& out;
  const KernelTable& kernels;
  const KvStore& kv;
  int threads;
  std::string_view label;
  std::span<const SymbolDecl> symbols = {};  // of the plan set
};

// nullptr when the family does not know the op.
std::unique_ptr<Op> make_linear_op(const OpSite& site);
std::unique_ptr<Op> make_elementwise_op(const OpSite& site);
std::unique_ptr<Op> make_row_op(const OpSite& site);
std::unique_ptr<Op> make_layout_op(const OpSite& site);
std::unique_ptr<Op> make_state_op(const OpSite& site);
std::unique_ptr<Op> make_attend_op(const OpSite& site);
std::unique_ptr<Op> make_region_op(const OpSite& site);
std::unique_ptr<Op> make_loop_op(const OpSite& site);

// The kernel of an element-wise op of one value; run is nullptr when there is none.
struct UnaryKernel {
  void (*run)(const float* x, float* out, int64_t n, float parameter) = nullptr;
  float parameter = 0;
};
UnaryKernel find_unary(const KernelTable& kernels, std::string_view op, const Value& attrs);

// One row of a state's plane: converted to the plane's type and spread into its panels. `scratch`
// holds 4 bytes per value of the row.
void store_plane_row(const KernelTable& kernels, const KvPlane& plane, int64_t block, int64_t token,
                     const float* x, uint8_t* scratch);

// Elements of light work below which forking costs more than it gains.
constexpr int64_t kLightGrain = 16384;

}  // namespace tokamak::cpu
