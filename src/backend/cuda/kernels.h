#pragma once
// The kernels of this backend for the planner, and how a planned call becomes launches.
#include <span>
#include <vector>

#include "backend/cuda/blas.h"
#include "backend/cuda/kv_pool.h"
#include "backend/cuda/launch.h"
#include "plan/kernel_desc.h"
#include "plan/plan.h"

namespace tokamak::cuda {

// An argument of a call at one shape.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;
  DeviceAddress address = 0;  // 0: states and views
  uint32_t index = 0;         // of states and views
  int64_t elements() const;
  int64_t last() const { return dims.empty() ? 1 : dims.back(); }
  int64_t rows() const { return last() == 0 ? 0 : elements() / last(); }
  template <class T = void>
  T* as() const {
    return reinterpret_cast<T*>(address);
  }
};

// What a step knows beyond the shapes of its tensors.
struct StepView {
  std::vector<ViewArgs> views;  // by group
  int64_t segments = 1;         // of kSegment keys: none of the step's sequences has more
  // Each sequence's rows are its last tokens, in order: a row sees the keys up to its slot.
  bool causal = false;
  // The step is causal and so is its mask: it need not be read.
  bool plain_mask = false;
};

// Memory that calls share: each is done with it when the next one starts.
struct Scratch {
  DeviceAddress address = 0;
  size_t bytes = 0;
};

constexpr int64_t kCounters = 16384;
// What else calls may use.
struct Libraries {
  Blas* blas = nullptr;   // null: absent
  int hopper_blocks = 0;  // multiprocessors of a GPU that runs kernels of sm_90a; 0: it does not
  DeviceAddress counters = 0;  // [kCounters] of 32 bits, zero before and after each launch
  DeviceAddress table = 0;     // of decode attention, kept from call to call
};
size_t kept_bytes(int multiprocessors);  // of the counters and the table

struct CallSite {
  const KernelCall& call;
  std::vector<Tensor> in, out;
  const KvPool& kv;
  const StepView& step;
  Scratch scratch;
  Libraries libraries = {};
  bool has(size_t input) const { return input < in.size(); }
};

// Appends the launches of a call. Throws Error(kUnsupported) with the call's label.
using Emit = void (*)(const CallSite& site, LaunchList& list);

struct CudaKernel {
  KernelDesc desc;
  Emit emit;
};
std::span<const CudaKernel> cuda_kernels();
// The kernel that a plan names; Error(kUnsupported) if this program lacks it.
const CudaKernel& planned_kernel(const KernelEntry& entry);

// Scratch that the calls of these plans ask for at most.
size_t scratch_bytes(const PlanSet& plans);
size_t linear_bytes(const PlanSet& plans, const KernelCall& call);  // of linear
size_t combine_bytes(int64_t entries);                              // of moe_combine
size_t split_bytes(int64_t rows, int64_t k);  // rows in three pieces, for tensor cores

// With more rows than these, weights that are not bf16 are rounded to it first, for tensor cores.
constexpr int64_t kDirectRows = 64;           // of a product by itself
int64_t direct_rows(DType weight);            // of a product of fused layers
bool is_expandable(DType weight);             // a type that this is done for
size_t expanded_bytes(int64_t n, int64_t k);  // of a matrix as bf16
void emit_expand(LaunchList& list, const Tensor& rows, DeviceAddress to);
// Scratch of such a product; 0: the matrix is too large, and is read as it is.
size_t expansion_bytes(int64_t rows, int64_t n, int64_t k);

// One per family of ops: emit_*.cc.
void emit_unary(const CallSite& site, LaunchList& list);
void emit_binary(const CallSite& site, LaunchList& list);
void emit_copy(const CallSite& site, LaunchList& list);
void emit_gather(const CallSite& site, LaunchList& list);
// Rows of an embedding table, where no call of a plan asks for them.
void emit_embedding(LaunchList& list, const KvPool& kv, const WeightEntry& table,
                    DeviceAddress table_at, DeviceAddress ids, const Tensor& rows);
void emit_iota(const CallSite& site, LaunchList& list);
void emit_norm(const CallSite& site, LaunchList& list);
void emit_rope(const CallSite& site, LaunchList& list);
void emit_quantize(const CallSite& site, LaunchList& list);
void emit_linear(const CallSite& site, LaunchList& list);
void emit_append(const CallSite& site, LaunchList& list);
void emit_attend(const CallSite& site, LaunchList& list);
// The table of decode attention for a step, if the list does not make it yet. Attention may overlap
// with earlier launches if one that does not lies between.
void emit_attention_table(LaunchList& list, const Libraries& libraries, const int32_t* lengths,
                          int64_t batch, int64_t kv_heads);
void emit_latent(const CallSite& site, LaunchList& list);
void emit_route(const CallSite& site, LaunchList& list);
void emit_dispatch(const CallSite& site, LaunchList& list);
void emit_grouped(const CallSite& site, LaunchList& list);
void emit_combine(const CallSite& site, LaunchList& list);
void emit_heads(const CallSite& site, LaunchList& list);
void emit_conv(const CallSite& site, LaunchList& list);
void emit_ssm_scan(const CallSite& site, LaunchList& list);
void emit_gated_delta(const CallSite& site, LaunchList& list);
void emit_lora(const CallSite& site, LaunchList& list);
// A matrix w[heads, n, k] per head: the first k of each head of x to the first n of each head of y.
struct HeadProducts {
  const Tensor &x, &w, &y;
  int64_t rows, x_head, y_head;  // from one head to the next
};
void emit_head_products(const HeadProducts& products, LaunchList& list);
void add_strided_copy(LaunchList& list, const CopyArgs& args);

// Names that ops and kernels have in common.
std::span<const char* const> unary_op_names();
std::span<const char* const> binary_op_names();

}  // namespace tokamak::cuda
