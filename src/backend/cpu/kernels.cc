#include "backend/cpu/kernels.h"

#include <set>

#include "backend/cpu/cost.h"
#include "backend/cpu/pack.h"
#include "base/error.h"
#include "ops/op.h"

namespace tokamak::cpu {

std::unique_ptr<CpuOp> make_linear(const OpSite& site);
std::unique_ptr<CpuOp> make_embed(const OpSite& site);
std::unique_ptr<CpuOp> make_unary(const OpSite& site);
std::unique_ptr<CpuOp> make_binary(const OpSite& site);
std::unique_ptr<CpuOp> make_rms_norm(const OpSite& site);
std::unique_ptr<CpuOp> make_layer_norm(const OpSite& site);
std::unique_ptr<CpuOp> make_softmax(const OpSite& site);
std::unique_ptr<CpuOp> make_quantize(const OpSite& site);
std::unique_ptr<CpuOp> make_rope(const OpSite& site);
std::unique_ptr<CpuOp> make_reshape(const OpSite& site);
std::unique_ptr<CpuOp> make_slice(const OpSite& site);
std::unique_ptr<CpuOp> make_concat(const OpSite& site);
std::unique_ptr<CpuOp> make_gather(const OpSite& site);
std::unique_ptr<CpuOp> make_strided(const OpSite& site);
std::unique_ptr<CpuOp> make_iota(const OpSite& site);
std::unique_ptr<CpuOp> make_append(const OpSite& site);
std::unique_ptr<CpuOp> make_attend(const OpSite& site);
std::unique_ptr<CpuOp> make_attend_rows(const OpSite& site);
std::unique_ptr<CpuOp> make_mean_rows(const OpSite& site);
std::unique_ptr<CpuOp> make_loop(const OpSite& site);
std::unique_ptr<CpuOp> make_linears_region(const OpSite& site);
std::unique_ptr<CpuOp> make_rope_region(const OpSite& site);
std::unique_ptr<CpuOp> make_choose_tokens(const OpSite& site);
std::unique_ptr<CpuOp> make_token_logprobs(const OpSite& site);
std::unique_ptr<CpuOp> make_route(const OpSite& site);
std::unique_ptr<CpuOp> make_dispatch(const OpSite& site);
std::unique_ptr<CpuOp> make_grouped_linear(const OpSite& site);
std::unique_ptr<CpuOp> make_combine(const OpSite& site);
std::unique_ptr<CpuOp> make_head_linear(const OpSite& site);
std::unique_ptr<CpuOp> make_defined(const OpSite& site);

namespace {

constexpr const char* kIntegerClass =
    "i32 dot per block of 32 (q6_k: times i8 scales), f32 fma by scale product in k order, one "
    "accumulator";
constexpr const char* kMinimumClass =
    "i32 dot per block of 32, f32 fma by scale product then fma of minimum by activation sum, in k "
    "order, one accumulator";
constexpr const char* kDigitsClass =
    "f32 as three q8a digits, each with i32 dot per block of 32 and f32 fma by scale product in k "
    "order, added in order";
constexpr const char* kFloatClass = "f32 fma in k order, one accumulator; weights decoded to f32";
constexpr const char* kRowClass = "f32, sums in 16 lanes and a fixed tree";
constexpr const char* kElementClass = "f32 element-wise";

constexpr const char* kUnaryOps[] = {"neg",    "abs",  "exp",  "log",   "sqrt",   "rsqrt",
                                     "square", "sin",  "cos",  "tanh",  "erf",    "sigmoid",
                                     "relu",   "silu", "gelu", "scale", "softcap"};
constexpr const char* kBinaryOps[] = {"add", "sub", "mul", "div", "maximum", "minimum"};

// Types of matrices in a layout.
std::string weight_types(std::string_view layout) {
  std::string out;
  for (int i = 0; i < static_cast<int>(DType::kQ8A); ++i) {
    auto type = static_cast<DType>(i);
    if (is_integer(type) || matrix_layout(type) != layout) continue;
    out += out.empty() ? "" : "|";
    out += dtype_name(type);
  }
  return out;
}

// Kernels that read f32 rows exist once per layout of their matrix.
struct MatrixForm {
  const char* suffix;
  const char* layout;
  const char* numeric_class;
};
constexpr MatrixForm kMatrixForms[] = {{".quantized", kQuantPanels, kDigitsClass},
                                       {"", kFloatPanels, kFloatClass},
                                       {".rows", kFileRows, kFloatClass}};

class KernelList {
 public:
  std::vector<CpuKernel> make() {
    for (const char* format : {"q4_0", "q8_0", "q6_k", "q5_0"}) add_linear(format, kIntegerClass);
    for (const char* format : {"q4_1", "q4_k", "q5_1", "q5_k"}) add_linear(format, kMinimumClass);
    for (const MatrixForm& form : kMatrixForms) {
      add({.name = fmt::format("cpu.linear.f32{}", form.suffix),
           .pattern = "linear(f32, weight " + weight_types(form.layout) + ", weight *)",
           .weight_layout = form.layout,
           .numeric_class = form.numeric_class,
           .cost = matrix_cost},
          make_linear);
      add({.name = fmt::format("cpu.embed{}", form.suffix),
           .pattern = "embed(i32, weight " + weight_types(form.layout) + ")",
           .weight_layout = form.layout,
           .numeric_class = "decoded to f32",
           .cost = rows_cost},
          make_embed);
    }
    add_experts();
    add_rows();
    add_layout();
    add_states();
    add_sampling();
    add_regions();
    add_defined();
    return std::move(list_);
  }

 private:
  using Make = std::unique_ptr<CpuOp> (*)(const OpSite&);

  void add(KernelDesc desc, Make make, bool region = false) {
    list_.push_back({std::move(desc), make, region});
  }
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
  void add_linear(const std::string& format, const char* numeric_class) {
    add({.name = "cpu.linear." + format,
         .pattern = fmt::format("linear(q8a, weight {}, weight *)", format),
         .weight_layout = kQuantPanels,
         .numeric_class = numeric_class,
         .cost = matrix_cost},
        make_linear);
  }
  // Products with a stack of matrices: each row as the kernels of linear compute it.
  void add_experts() {
    auto product = [&](const std::string& name, const std::string& operands, const char* layout,
                       const char* numeric_class) {
      add({.name = "cpu.grouped_linear." + name,
           .pattern = "grouped_linear(" + operands + ", i32, *)",
           .weight_layout = layout,
           .numeric_class = numeric_class,
           .cost = matrix_cost},
          make_grouped_linear);
      add({.name = "cpu.head_linear." + name,
           .pattern = "head_linear(" + operands + ")",
           .weight_layout = layout,
           .numeric_class = numeric_class,
           .cost = matrix_cost},
          make_head_linear);
    };
    for (const char* format : {"q4_0", "q8_0", "q6_k", "q5_0"})
      product(format, std::string("q8a, weight ") + format, kQuantPanels, kIntegerClass);
    for (const char* format : {"q4_1", "q4_k", "q5_1", "q5_k"})
      product(format, std::string("q8a, weight ") + format, kQuantPanels, kMinimumClass);
    for (const MatrixForm& form : kMatrixForms)
      product(std::string("f32") + form.suffix, "f32, weight " + weight_types(form.layout),
              form.layout, form.numeric_class);
    add("moe_route", "moe_route(f32, *)", "f64, rounded once", make_route);
    add("moe_dispatch", "moe_dispatch(f32, i32)", "exact", make_dispatch);
    add("moe_combine", "moe_combine(f32, i32, i32, f32)", "f64 in the order of experts",
        make_combine);
  }
  void add_rows() {
    add("quantize", "quantize(f32)", "q8a: scale = max / 127, nearest even", make_quantize);
    add("rms_norm", "rms_norm(f32, *, *)", kRowClass, make_rms_norm);
    add("layer_norm", "layer_norm(f32, *, *)", kRowClass, make_layer_norm);
    add("softmax", "softmax(f32)", kRowClass, make_softmax);
    add("rope", "rope(f32, i32, *)", "angles f64, rotation f32 fma", make_rope);
    for (const char* op : kUnaryOps)
      add(op, std::string(op) + "(f32)", kElementClass, make_unary, true);
    for (const char* op : kBinaryOps)
      add(op, std::string(op) + "(f32, f32|f16|bf16)", kElementClass, make_binary, true);
  }
  void add_layout() {
    add("reshape", "reshape(f32|i32)", "exact", make_reshape);
    add("slice", "slice(f32|i32)", "exact", make_slice);
    add("gather", "gather(f32|i32, i32)", "exact", make_gather);
    add("transpose", "transpose(f32|i32)", "exact", make_strided);
    add("broadcast", "broadcast(f32|i32)", "exact", make_strided);
    add("concat", "concat(f32|i32, *, *, *, *, *, *, *)", "exact", make_concat);
    add("iota", "iota()", "exact", make_iota);
  }
  void add_states() {
    add("append", "append(*, *, i32, i32, f32, *, *, *, *, *, *, *)",
        "rounded to the plane's type, nearest even", make_append);
    add({.name = "cpu.attend",
         .pattern = "attend(f32, *, *, i32, i32, i32, i32, i32, *, *)",
         .weight_layout = "",
         .numeric_class = "scores f32 fma over d, online softmax over tiles of 64 slots, segments "
                          "of 256 merged in order",
         .cost = attend_cost,
         .scratch = attend_scratch},
        make_attend);
    add({.name = "cpu.attend_rows",
         .pattern = "attend_rows(f32, f32, f32, i32)",
         .weight_layout = "",
         .numeric_class = "scores f32 fma over d, softmax in 16 lanes, values f32 fma in key order",
         .cost = attend_cost},
        make_attend_rows);
    add("mean_rows", "mean_rows(f32, i32, i32, i32)", "f32 sums in row order", make_mean_rows);
  }
  // One kernel from logits to tokens.
  void add_sampling() {
    std::string stages;
    for (const char* op : {"penalize_tokens", "penalize_repeats", "bias_tokens", "allow_tokens",
                           "run_stages", "keep_top_n_sigma", "temper", "keep_min_p", "keep_top_k",
                           "keep_typical", "keep_top_p", "exclude_top"}) {
      stages += std::string(stages.empty() ? "" : " ") + op;
    }
    add({.name = "cpu.choose_tokens",
         .pattern = "[" + stages + "] -> choose_token(f32, f32, f32, i32)",
         .weight_layout = "",
         .numeric_class = "",
         .cost = sample_cost},
        make_choose_tokens, true);
    add("token_logprobs", "token_logprobs(f32, i32, i32, i32)", "sums f64", make_token_logprobs);
  }
  // After all others: ops that no kernel takes alone. State ops have kernels.
  void add_defined() {
    std::set<std::string, std::less<>> taken;
    for (const CpuKernel& k : list_)
      if (KernelPattern p = parse_pattern(k.desc.pattern); !p.region) taken.insert(p.op);
    for (const OpDef* op : all_ops()) {
      if (taken.contains(op->name) || !op->f32 || op->tier == Tier::kStructural) continue;
      add({.name = fmt::format("cpu.defined.{}", op->name),
           .pattern = fmt::format("{}(...)", op->name),
           .weight_layout = "",
           .numeric_class = "as defined: f64, rounded once",
           .cost = defined_cost},
          make_defined);
    }
  }
  // Region kernels compute each op as its kernel alone does.
  void add_regions() {
    std::string element_wise;
    for (const char* op : kUnaryOps) element_wise += std::string(op) + " ";
    for (const char* op : kBinaryOps) element_wise += std::string(op) + " ";
    // All matrices of a region read the same packed activations.
    auto add_linears = [&](const char* name, const char* activations, const char* layout) {
      std::string operands = fmt::format("{}, weight {}", activations, weight_types(layout));
      add({.name = name,
           .pattern = "[rms_norm layer_norm quantize] -> linear(" + operands + ", weight *)+ -> [" +
                      element_wise + "quantize]",
           .weight_layout = layout,
           .numeric_class = "",
           .cost = linears_cost,
           .scratch = linears_scratch},
          make_linears_region, true);
    };
    add_linears("cpu.region.linears", "q8a|f32", kQuantPanels);
    add_linears("cpu.region.linears.float", "f32", kFloatPanels);
    add_linears("cpu.region.linears.rows", "f32", kFileRows);
    add({.name = "cpu.region.rope_append",
         .pattern =
             "[rms_norm layer_norm rope] -> append(*, *, i32, i32, f32, ...) with rope(1, 2)",
         .weight_layout = "",
         .numeric_class = "",
         .cost = rows_cost},
        make_rope_region, true);
    add({.name = "cpu.loop",
         .pattern = "loop",
         .weight_layout = "",
         .numeric_class = "",
         .cost = loop_cost},
        make_loop, true);
  }

  std::vector<CpuKernel> list_;
};

}  // namespace

std::span<const CpuKernel> cpu_kernels() {
  static const std::vector<CpuKernel> list = KernelList().make();
  return list;
}

const CpuKernel& planned_kernel(const KernelEntry& entry) {
  const CpuKernel* found = nullptr;
  for (const CpuKernel& k : cpu_kernels())
    if (k.desc.name == entry.name) found = &k;
  if (!found)
    fail(ErrorCode::kUnsupported,
         "the plan asks for {} (version {}); the cpu backend of this program has no such kernel: "
         "compile the model again",
         entry.name, entry.abi);
  if (found->desc.abi != entry.abi)
    fail(ErrorCode::kUnsupported,
         "the plan asks for {} (version {}); this program has {} (version {}): compile the model "
         "again",
         entry.name, entry.abi, found->desc.name, found->desc.abi);
  return *found;
}

std::unique_ptr<CpuOp> make_op(const CpuKernel& kernel, OpSite site) {
  site.kernel = &kernel.desc;
  if (kernel.region != (site.region != nullptr))
    fail(ErrorCode::kUnsupported, "{}: {} takes {}, the plan gives it {}", site.label,
         kernel.desc.name, kernel.region ? "regions" : "single ops", site.op);
  // A matrix is read in the layout of the kernel; row-major weights, such as a bias, have data.
  for (const Tensor& t : site.in)
    if (t.weight && !t.data && t.weight->layout != kernel.desc.weight_layout)
      fail(ErrorCode::kUnsupported, "{}: {} reads weight {} {}, the plan has it in {}", site.label,
           kernel.desc.name, t.weight->name,
           kernel.desc.weight_layout.empty() ? "row-major"
                                             : "in layout " + kernel.desc.weight_layout,
           t.weight->layout);
  return kernel.make(site);
}

}  // namespace tokamak::cpu
