#include "backend/cpu/kernels.h"

#include <set>

#include "backend/cpu/pack.h"
#include "base/error.h"
#include "ops/op.h"

namespace tokamak::cpu {

std::unique_ptr<CpuOp> make_loop(const OpSite& site);
std::unique_ptr<CpuOp> make_linears_region(const OpSite& site);
std::unique_ptr<CpuOp> make_rope_region(const OpSite& site);
std::unique_ptr<CpuOp> make_defined(const OpSite& site);

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

namespace {

// After all others: ops that no kernel takes alone. State ops have kernels.
void add_defined_kernels(KernelList& list) {
  std::set<std::string, std::less<>> taken;
  for (const CpuKernel& k : list.list())
    if (KernelPattern p = parse_pattern(k.desc.pattern); !p.region) taken.insert(p.op);
  auto add = [&](std::string name, std::string pattern) {
    list.add({.name = "cpu.defined." + std::move(name),
              .pattern = std::move(pattern),
              .weight_layout = "",
              .numeric_class = "as defined: f64, rounded once",
              .cost = defined_cost},
             make_defined);
  };
  for (const OpDef* op : all_ops())
    if (!taken.contains(op->name) && op->f32 && op->tier != Tier::kStructural)
      add(std::string(op->name), fmt::format("{}(...)", op->name));
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum"})  // of integers
    add(fmt::format("{}.i32", op), fmt::format("{}(i32, i32)", op));
  for (const char* op : {"reduce_sum", "reduce_max", "reduce_mean"})  // of weights and other types
    add(op, fmt::format("{}(...)", op));
}

// Region kernels compute each op as its kernel alone does.
void add_region_kernels(KernelList& list) {
  // All matrices of a region read the same packed activations.
  auto add_linears = [&](const std::string& name, const char* activations, const char* layout,
                         const std::string& types, const char* needs = "") {
    list.add({.name = name,
              .pattern = fmt::format("[rms_norm layer_norm quantize] -> linear({}, weight {}, "
                                     "weight *)+ -> [{} quantize]",
                                     activations, types, element_ops()),
              .weight_layout = layout,
              .numeric_class = "",
              .needs = needs,
              .cost = linears_cost,
              .scratch = linears_scratch},
             make_linears_region, true);
  };
  add_linears("cpu.region.linears", "q8a|bf16|f32", kQuantPanels, weight_types(kQuantPanels));
  add_linears("cpu.region.linears.float", "bf16|f32", kFloatPanels, "f32|f16");
  add_linears("cpu.region.linears.bf16", "bf16|f32", kFloatPanels, "bf16");
  for (const char* isa : {"avx512", "amx"})
    add_linears(fmt::format("cpu.region.linears.{}.int16", isa), "f32", kPairPanels, "int16_g128",
                isa);
  add_linears("cpu.region.linears.rows", "f32", kFileRows, weight_types(kFileRows));
  list.add(
      {.name = "cpu.region.rope_append",
       .pattern = "[rms_norm layer_norm rope] -> append(*, *, i32, i32, f32, ...) with rope(1, 2)",
       .weight_layout = "",
       .numeric_class = "",
       .cost = rows_cost,
       .before_leaves = false},
      make_rope_region, true);
  list.add({.name = "cpu.loop",
            .pattern = "loop",
            .weight_layout = "",
            .numeric_class = "",
            .cost = loop_cost},
           make_loop, true);
}

std::vector<CpuKernel> make_list() {
  KernelList list;
  add_linear_kernels(list);
  add_expert_kernels(list);
  add_lora_kernels(list);
  add_row_kernels(list);
  add_element_kernels(list);
  add_layout_kernels(list);
  add_append_kernels(list);
  add_attend_kernels(list);
  add_attend_latent_kernels(list);
  add_attend_rows_kernels(list);
  add_recurrent_kernels(list);
  add_sample_kernels(list);
  add_region_kernels(list);
  add_defined_kernels(list);
  return list.list();
}

}  // namespace

std::span<const CpuKernel> cpu_kernels() {
  static const std::vector<CpuKernel> list = make_list();
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
