#include "backend/cuda/kernels.h"

#include "backend/cuda/cost.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr const char* kFloats = "f32|f16|bf16";
constexpr const char* kRowBlocks = "q8_0|q4_0|q4_1|q5_0|q5_1|q4_k|q5_k|q6_k";  // of tables
constexpr const char* kBlocks = "q8_0|q4_0|q4_1|q5_0|q5_1|q4_k|q5_k|q6_k|mxfp4";
constexpr const char* kRowClass = "f32, sums over 512 threads by a fixed tree";
constexpr const char* kElementClass = "f32 element-wise, rounded once";

class KernelList {
 public:
  std::vector<CudaKernel> make() {
    add_linear();
    add_rows();
    add_copies();
    add_states();
    add_experts();
    add_recurrent();
    return std::move(list_);
  }

 private:
  void add(const std::string& name, std::string pattern, const char* numeric_class, Emit emit,
           decltype(KernelDesc::cost) cost = rows_cost) {
    list_.push_back({{.name = "cuda." + name,
                      .pattern = std::move(pattern),
                      .weight_layout = "",
                      .numeric_class = numeric_class,
                      .cost = cost,
                      .out_types = {DType::kF32, DType::kF16, DType::kBF16}},
                     emit});
  }

  void add_linear() {
    add("linear.bytes", "linear(q8a, weight q8_0|q4_0, weight *)",
        "i32 dot of 8, f32 fma by scale product, k over 32 lanes by a fixed tree; more than 64 "
        "rows where cuBLASLt is installed: both rounded to bf16",
        emit_linear, linear_cost);
    add("linear", fmt::format("linear({}, weight bf16, weight *)", kFloats),
        "x in three bf16 pieces, mma over k in 8 parts", emit_linear, linear_cost);
    add("linear.f16", "linear(f16, weight f16, weight *)", "f32 sums in the library's order",
        emit_linear, linear_cost);
    add("linear.decoded",
        fmt::format("linear({0}, weight f32|f16|{1}, weight *)", kFloats, kBlocks),
        "f32 fma, k over 32 lanes by a fixed tree, weights decoded to f32; more than 64 rows of "
        "bf16 where cuBLASLt is installed: weights rounded to bf16",
        emit_linear, decoded_cost);
    add("embed", fmt::format("embed(i32, weight {}|{})", kFloats, kRowBlocks), "decoded to f32",
        emit_gather, gather_cost);
  }
  void add_rows() {
    add("quantize", fmt::format("quantize({})", kFloats), "q8a: scale = max / 127, nearest even",
        emit_quantize);
    for (const char* op : {"rms_norm", "layer_norm"})
      add(op, fmt::format("{}({}, *, *)", op, kFloats), kRowClass, emit_norm);
    add("softmax", fmt::format("softmax({})", kFloats), kRowClass, emit_norm);
    add("rope", fmt::format("rope({}, i32, *)", kFloats), "f64, rounded once", emit_rope);
    for (const char* op : unary_op_names())
      add(op, fmt::format("{}({})", op, kFloats), kElementClass, emit_unary);
    for (const char* op : binary_op_names())
      add(op, fmt::format("{0}({1}, {1})", op, kFloats), kElementClass, emit_binary);
  }
  void add_copies() {
    for (const char* op : {"reshape", "transpose", "broadcast", "slice", "cast"})
      add(op, fmt::format("{}({}|i32)", op, kFloats), "exact", emit_copy);
    add("concat", fmt::format("concat({}|i32, ...)", kFloats), "exact", emit_copy);
    add("gather", fmt::format("gather({}|i32, i32)", kFloats), "exact", emit_gather);
    add("iota", "iota()", "exact", emit_iota);
  }
  void add_states() {
    add("append", fmt::format("append(*, *, i32, i32, {}, ...)", kFloats),
        "rounded to the plane's type, nearest even", emit_append);
    const char* attention =
        "f32, online softmax over tiles of 32 keys, segments of 128 merged in order";
    add("attend", fmt::format("attend({}, *, *, i32, i32, i32, i32, i32, *, *, *)", kFloats),
        attention, emit_attend, attend_cost);
    for (const char* mask : {"", "i32, "})
      add(*mask ? "attend_latent.mask" : "attend_latent",
          fmt::format("attend_latent({0}, *, *, i32, i32, i32, i32, i32, {1}weight {0}|{2}, weight "
                      "{0}|{2})",
                      kFloats, mask, kBlocks),
          attention, emit_latent, attend_cost);
  }
  void add_experts() {
    const char* numbers =
        "bf16 weights and values: mma over k in 8 parts; others: f32 fma, k over 32 lanes by a "
        "fixed tree, weights decoded to f32";
    add("moe_route", fmt::format("moe_route({0}, {0})", kFloats), "f64, rounded once", emit_route);
    add("moe_dispatch", fmt::format("moe_dispatch({}, i32)", kFloats), "exact", emit_dispatch);
    add("grouped_linear.bytes", "grouped_linear(q8a, weight q8_0|q4_0, i32, weight *)",
        "i32 dot of 8, f32 fma by scale product, k over 32 lanes by a fixed tree", emit_grouped,
        linear_cost);
    add("grouped_linear",
        fmt::format("grouped_linear({0}, weight {0}|{1}, i32, weight *)", kFloats, kBlocks),
        numbers, emit_grouped, linear_cost);
    add("head_linear", fmt::format("head_linear({0}, weight {0}|{1})", kFloats, kBlocks), numbers,
        emit_heads, linear_cost);
    add("moe_combine", fmt::format("moe_combine({0}, i32, i32, {0})", kFloats),
        "f32 fma in the order of the experts", emit_combine);
  }
  void add_recurrent() {
    add("causal_conv", fmt::format("causal_conv(*, *, i32, i32, {0}, {0}, {0})", kFloats),
        "f32 fma in the order of the taps", emit_conv);
    const char* scan =
        "f32, sums over 32 lanes by a fixed tree, state f32 after every row; bf16 vectors and many "
        "rows: mma over chunks of 64 rows, states as two bf16 pieces";
    add("ssm_scan", fmt::format("ssm_scan(*, *, i32, i32, {0}, {0}, {0}, {0}, {0})", kFloats), scan,
        emit_ssm_scan);
    add("gated_delta", fmt::format("gated_delta(*, *, i32, i32, {0}, {0}, {0}, {0}, {0})", kFloats),
        scan, emit_gated_delta);
    add("lora", fmt::format("lora({0}, weight {0}, weight {0}, i32)", kFloats),
        "f64 sums, k over 32 lanes by a fixed tree, rounded once", emit_lora);
  }

  std::vector<CudaKernel> list_;
};

}  // namespace

std::span<const CudaKernel> cuda_kernels() {
  static const std::vector<CudaKernel> list = KernelList().make();
  return list;
}

const CudaKernel& planned_kernel(const KernelEntry& entry) {
  for (const CudaKernel& k : cuda_kernels())
    if (k.desc.name == entry.name && k.desc.abi == entry.abi) return k;
  fail(ErrorCode::kUnsupported,
       "the plan asks for {} (version {}), which the cuda backend of this program does not have: "
       "compile the model again",
       entry.name, entry.abi);
}

}  // namespace tokamak::cuda
