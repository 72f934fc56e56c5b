#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/executable.h"
#include "backend/cpu/isa.h"
#include "base/error.h"

namespace tokamak {
namespace {

using cpu::KernelTable;

constexpr const char* kIntegerClass =
    "i32 dot per block of 32 (q6_k: times i8 scales), f32 fma by scale product in k order, one "
    "accumulator";
constexpr const char* kMinimumClass =
    "i32 dot per block of 32, f32 fma by scale product then fma of minimum by activation sum, in k "
    "order, one accumulator";
constexpr const char* kFloatClass = "f32 fma in k order, one accumulator; weights decoded to f32";

std::vector<KernelDesc> make_kernels() {
  std::vector<KernelDesc> out;
  auto add = [&](const char* name, std::string pattern, const char* numeric_class,
                 const char* layout = "", bool in_place = false) {
    out.push_back(
        {std::string("cpu.") + name, 1, std::move(pattern), layout, numeric_class, in_place});
  };
  for (const char* format : {"q4_0", "q8_0", "q6_k", "q5_0"})
    add((std::string("linear.") + format).c_str(), fmt::format("linear(q8a, {}, *)", format),
        kIntegerClass, "panel16");
  for (const char* format : {"q4_1", "q4_k", "q5_1", "q5_k"})
    add((std::string("linear.") + format).c_str(), fmt::format("linear(q8a, {}, *)", format),
        kMinimumClass, "panel16");
  add("linear.f32", "linear(f32, *, *)", kFloatClass, "panel16");
  add("embed", "embed(i32, *)", "decoded to f32", "panel16");
  add("quantize", "quantize(f32)", "q8a: scale = max / 127, nearest even");
  for (const char* op : {"rms_norm", "layer_norm", "softmax"})
    add(op, std::string(op) + (std::string_view(op) == "softmax" ? "(f32)" : "(f32, *, *)"),
        "f32, sums in 16 lanes and a fixed tree");
  add("rope", "rope(f32, i32, *)", "angles f64, rotation f32 fma");
  for (const char* op : {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos",
                         "tanh", "erf", "sigmoid", "relu", "silu", "gelu", "scale", "softcap"})
    add(op, std::string(op) + "(f32)", "f32 element-wise", "", true);
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum"})
    add(op, std::string(op) + "(f32, f32|f16|bf16)", "f32 element-wise", "", true);
  add("reshape", "reshape(f32|i32)", "exact");
  add("slice", "slice(f32|i32)", "exact");
  add("gather", "gather(f32|i32, i32)", "exact");
  add("transpose", "transpose(f32|i32)", "exact");
  add("broadcast", "broadcast(f32|i32)", "exact");
  add("concat", fmt::format("concat({0}, {0}, {0}, {0}, {0}, {0}, {0}, {0})", "f32|i32"), "exact");
  add("iota", "iota()", "exact");
  add("append", "append(*, *, i32, i32, f32, *, *, *, *, *, *, *)",
      "rounded to the plane's type, nearest even");
  add("attend", "attend(f32, *, *, i32, i32, i32, i32, i32, *)",
      "scores f32 fma over d, online softmax over tiles of 64 slots, segments of 256 merged in "
      "order");
  add("loop", "region.loop(...)", "that of its ops alone: the same kernels, tile by tile");
  // Regions: what may stand in front of the matrices; the matrices; what may follow them.
  const std::string element_wise =
      "neg abs exp log sqrt rsqrt square sin cos tanh erf sigmoid relu silu gelu scale softcap "
      "add sub mul div maximum minimum";
  const char* as_alone = "as the ops of the region";
  add("region.linears",
      "region.linears(rms_norm layer_norm quantize; linear; " + element_wise + " quantize)",
      as_alone, "panel16");
  add("region.rope_append", "region.rope_append(rms_norm layer_norm rope append)", as_alone);
  add("region.rows", "region.rows(" + element_wise + " rms_norm layer_norm softmax quantize)",
      as_alone);
  return out;
}

// Shares its threads with the executables; one of them runs at a time.
class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options)
      : table_(*cpu::choose_table()),
        pool_(std::make_shared<ThreadPool>(options.threads)),
        kernels_(make_kernels()) {}

  std::string_view name() const override { return "cpu"; }
  std::string isa() const override {
#if defined(__aarch64__)
    return std::string("aarch64+") + table_.name;
#elif defined(__x86_64__)
    return std::string("x86_64+") + table_.name;
#else
    return table_.name;
#endif
  }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    return std::make_unique<cpu::CpuExecutable>(plans, weights, options, table_, pool_);
  }
  std::string packing() const override { return cpu::packing_name(table_.style); }
  void pack_weights(const PlanSet& plans, const WeightSource& weights,
                    const PackSink& sink) override {
    std::vector<cpu::WeightUse> uses = cpu::weight_uses(plans);
    for (size_t i = 0; i < uses.size(); ++i) {
      const WeightEntry& entry = plans.weights[i];
      if (!entry.constant.empty()) continue;
      cpu::Weight w = cpu::load_weight_for(entry, uses[i], weights, table_, *pool_);
      sink(entry, cpu::packed_view(entry, w));
    }
  }

 private:
  const KernelTable& table_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<KernelDesc> kernels_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace tokamak
