#pragma once
// The kernels of the backend: what each takes and costs (the plan names them), and what builds it.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cost.h"
#include "backend/cpu/exec.h"
#include "plan/plan.h"

namespace tokamak::cpu {

struct CpuKernel {
  KernelDesc desc;
  std::unique_ptr<CpuOp> (*make)(const OpSite& site);
  bool region = false;  // takes regions; else single ops
};
std::span<const CpuKernel> cpu_kernels();

// The list while it is built, preferred kernels first.
class KernelList {
 public:
  using Make = std::unique_ptr<CpuOp> (*)(const OpSite&);
  void add(KernelDesc desc, Make make, bool region = false) {
    list_.push_back({std::move(desc), make, region});
  }
  // An op of rows or elements, without weights in panels.
  void add(const std::string& name, std::string pattern, const char* numeric_class, Make make,
           bool in_place = false) {
    add({.name = "cpu." + name,
         .pattern = std::move(pattern),
         .weight_layout = "",
         .numeric_class = numeric_class,
         .in_place = in_place,
         .cost = rows_cost},
        make);
  }
  const std::vector<CpuKernel>& list() const { return list_; }

 private:
  std::vector<CpuKernel> list_;
};
// Each family of ops lists its kernels in the file that has them.
void add_linear_kernels(KernelList& list);
void add_expert_kernels(KernelList& list);
void add_lora_kernels(KernelList& list);
void add_row_kernels(KernelList& list);
void add_element_kernels(KernelList& list);
void add_layout_kernels(KernelList& list);
void add_append_kernels(KernelList& list);
void add_attend_kernels(KernelList& list);
void add_attend_latent_kernels(KernelList& list);
void add_attend_rows_kernels(KernelList& list);
void add_recurrent_kernels(KernelList& list);
void add_sample_kernels(KernelList& list);
std::string element_ops();  // names of the ops of add_element_kernels(), separated by spaces

// Formats of matrices that are multiplied with int8 activations, by the numeric class of the
// product.
inline constexpr const char* kIntegerFormats[] = {"q4_0",  "q8_0",   "q6_k", "q5_0", "iq4_nl",
                                                  "mxfp4", "iq4_xs", "q3_k", "tq2_0"};
inline constexpr const char* kMinimumFormats[] = {
    "q4_1", "q4_k", "q5_1", "q5_k", "int4_g32", "int4_g64", "int4_g128", "int8_g128", "q2_k"};

// Numeric classes of products.
inline constexpr const char* kIntegerClass =
    "i32 dot per block of 32 (q6_k, q3_k: times i8 scales), f32 fma by scale product in k order, "
    "one "
    "accumulator";
inline constexpr const char* kMinimumClass =
    "i32 dot per block of 32, f32 fma by scale product then fma of minimum by activation sum, in k "
    "order, one accumulator";
inline constexpr const char* kDigitsClass =
    "f32 as three q8a digits, each with i32 dot per block of 32 and f32 fma by scale product in k "
    "order, added in order";
inline constexpr const char* kFloatClass =
    "f32 fma in k order, one accumulator; weights decoded to f32";
inline constexpr const char* kBfloatClass =
    "f32 fma in k order, one accumulator; with level bf16 activations as two bf16 terms, each with "
    "bfmmla in k order, added at the end";
// Activations are bf16; the level decides how they are multiplied.
inline constexpr const char* kBfmmlaClass = "bf16 times bf16, bfmmla in k order, one accumulator";
inline constexpr const char* kRoundedFloatClass =
    "bf16 times f16, f32 fma in k order, one accumulator";
inline constexpr const char* kTileClass =
    "weights rounded to bf16 (f16: two terms) times bf16, tdpbf16ps in k order, one accumulator";

inline constexpr const char* kPairClass =
    "f32 as int16 in blocks of 128, i32 dot per block, f32 fma by scales in k order from the bias";

// Types of matrices in a layout, separated by '|'.
std::string weight_types(std::string_view layout);
// Kernels that read f32 rows exist once per layout of their matrix and numeric class.
struct MatrixForm {
  const char* suffix;
  const char* layout;
  const char* numeric_class;
  const char* types;  // nullptr: all of the layout
  std::string weights() const { return types ? types : weight_types(layout); }
};
inline constexpr MatrixForm kMatrixForms[] = {{".quantized", kQuantPanels, kDigitsClass, nullptr},
                                              {"", kFloatPanels, kFloatClass, "f32|f16"},
                                              {".bf16", kFloatPanels, kBfloatClass, "bf16"},
                                              {".rows", kFileRows, kFloatClass, nullptr}};

// The kernel that a plan asks for. Throws Error(kUnsupported) with both names when this program has
// none of that name and version.
const CpuKernel& planned_kernel(const KernelEntry& entry);

// Prepares a call; site.kernel is set by this. Throws Error(kUnsupported) when the kernel cannot do
// it or a weight is in another layout than it reads.
std::unique_ptr<CpuOp> make_op(const CpuKernel& kernel, OpSite site);

}  // namespace tokamak::cpu
