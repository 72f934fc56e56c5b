#pragma once
// What a backend can run, as data: which ops and regions a kernel takes, for which types, layouts
// and shapes, and what it costs. Can be listed without the device. The planner knows kernels by
// nothing else (compile/fuse/, compile/planner/), so a new kernel changes nothing there.
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/machine.h"
#include "tensor/dtype.h"

namespace tokamak {

struct PlanSet;  // plan/plan.h

// Text form of a pattern:
//   pattern  = ["[" ops "]" "->"] anchor ["->" "[" ops "]"] ["with" op "(" n {"," n} ")"]
//   anchor   = "*" | "loop" | op "(" [operand {"," operand}] ")" ["+"]
//   operand  = ["weight"] ("*" | dtype {"|" dtype}) | "..."
//   ops      = names of ops separated by spaces
// An anchor alone takes single nodes: "linear(q8a, q4_0|q4_1, *)"; "*" takes every op. Absent
// optional operands match; "..." matches any number of any type. With lists of ops the kernel takes
// regions: ops of the first list, in its order and each at most once, produce what the anchor
// reads; those of the second follow it, element by element. "+": several anchors that share their
// first operand. "with rope(1, 2)": also other nodes of that op; all of them share these operands
// and their attributes. "loop": no anchor, any region that Loop IR can express.
struct OperandPattern {
  bool weight = false;        // must be a weight of the model
  std::vector<DType> dtypes;  // empty: any
};
struct KernelPattern {
  enum class Anchor : uint8_t { kOp, kAny, kLoop };
  Anchor kind = Anchor::kOp;
  std::string op;  // kOp
  std::vector<OperandPattern> operands;
  bool open = false;     // "..."
  bool several = false;  // "+"
  std::vector<std::string> before, after;
  std::string companion;  // "with"
  std::vector<size_t> companion_shares;
  bool region = false;  // takes regions; else single nodes
  bool takes_before(std::string_view op) const;
  bool takes_after(std::string_view op) const;
};
KernelPattern parse_pattern(std::string_view text);  // Error(kInvalidArgument) with the text

// A condition on an extent of the anchor (or of the loop): m rows and n columns of its first
// output, k the last extent of its first operand.
struct ShapeGuard {
  char extent = 'm';
  int64_t lo = 0, hi = std::numeric_limits<int64_t>::max(), multiple = 1;
};

// What a kernel would have to do for a node or a region at one shape, for its cost function.
struct OpWork {
  enum class Part : uint8_t { kBefore, kAnchor, kAfter };
  std::string_view op;
  Part part = Part::kAnchor;
  double flops = 0;       // as the op defines them
  double vector_ops = 0;  // element-wise operations, weighted by how expensive the op's function is
  double elements = 0;    // of output 0
  double rows = 0;        // of operand 0
  double in_elements = 0;           // of operand 0
  double weight_bytes = 0;          // of its operands that are weights of rank 2 or more
  DType activations = DType::kF32;  // type of operand 0
  DType weights = DType::kF32;      // type of the operands that weight_bytes counts
};
struct ValueWork {
  double bytes = 0;
  bool weight = false;
  bool matrix = false;  // a weight of rank 2 or more: OpWork::weight_bytes counts it as well
};
struct KernelWork {
  std::vector<OpWork> ops;         // in order
  std::vector<ValueWork> in, out;  // every value that enters or leaves, once
  double inside_bytes = 0;         // of values that stay inside
  double inside_row_bytes = 0;     // of one row of all of them: what a tile keeps in cache
  double all_weight_bytes = 0;     // of the model: decides which level weights come from
  double m = 0, n = 0, k = 0;      // as in ShapeGuard
};
struct KernelDesc {
  std::string name;  // "cpu.linear.q4_0"
  int abi = 1;
  std::string pattern;
  // Packing of the operands that the pattern calls weights, from rank 2 on ("" = row-major); other
  // weights are row-major.
  std::string weight_layout;
  std::string numeric_class;  // "": that of its ops, each as its kernel alone computes it
  // Output 0 may alias input 0, or any input when all have its extents: each element is read before
  // it is written.
  bool in_place = false;
  std::vector<ShapeGuard> guard = {};  // all must hold
  // Types of the tensors that Loop IR around the anchor reads and writes; a quantised result that
  // `after` lists is allowed beside them, and weights may have any float type.
  std::vector<DType> loop_types = {DType::kF32};
  // Features that Backend::isa() must list, joined by '+' ("i8mm", "sm_90a"): on a machine that
  // lacks one the planner does not know the kernel.
  std::string needs = {};
  // Predicted seconds; null: roofline_cost.
  double (*cost)(const KernelDesc& kernel, const KernelWork& work,
                 const Machine& machine) = nullptr;
  // Bytes that a call needs beside its operands while it runs, at the largest shape of its plan;
  // null: none. Calls share them: an executable reserves PlanSet::scratch_bytes.
  uint64_t (*scratch)(const KernelWork& work) = nullptr;
  // Types in which it can store results of ops that leave the choice (attribute "out").
  std::vector<DType> out_types = {DType::kF32};
  // Regions: whether what is computed before an anchor may leave the region.
  bool before_leaves = true;
  // Regions are made for it only where the pass `fuse` is named: an executor for tests and tools.
  bool on_request = false;

  bool stores(DType type) const;
};
// Whether `isa` ("aarch64+dotprod+i8mm") lists every feature of `needs`.
bool isa_has(std::string_view isa, std::string_view needs);

// Seconds of one call: arithmetic, and traffic of every value that enters or leaves.
double roofline_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);
double kernel_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& machine);

// Whether a kernel for single nodes takes an op with operands of these types; `weight`: which of
// them are weights (empty: any).
bool kernel_matches(const KernelPattern& pattern, std::string_view op,
                    std::span<const DType> operands, std::span<const bool> weight = {});

// For Backend::load: throws Error(kUnsupported) naming kernel and backend when the plans use a
// kernel that is not among `kernels`, or another version of it.
void need_kernels(const PlanSet& set, std::span<const KernelDesc> kernels,
                  std::string_view backend);

}  // namespace tokamak
