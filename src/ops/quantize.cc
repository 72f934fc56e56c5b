// quantize: activations to blocks of 32 int8 values with a common scale (q8a), or each to bf16. The
// interpreter's tensor holds the decoded values, so that consumers see the quantisation error.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

constexpr int64_t kBlock = 32;

template <class S>
void quantize(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &y = args.out[0].tensor;
  if (args.attrs.get_string("format", "q8a") == "bf16") {
    for (int64_t i = 0, n = y.elements(); i < n; ++i)
      y.f[i] = round_to_dtype(DType::kBF16, static_cast<double>(x.f[i]));
    return;
  }
  for (int64_t at = 0; at < y.elements(); at += kBlock) {
    using V = Stored<S>;
    V peak = 0;
    for (int64_t j = 0; j < kBlock; ++j) peak = std::max(peak, std::abs(V(x.f[at + j])));
    V scale = peak / V(127);  // not wider: the format stores the scale
    for (int64_t j = 0; j < kBlock; ++j) {
      V value = x.f[at + j];
      y.f[at + j] = scale == 0 ? V(0) : std::nearbyint(value / scale) * scale;
    }
  }
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("quantize", context);
  const TensorType& x = rule.values(0, "x");
  std::string format = rule.attrs().get_string("format", "q8a");
  if (format == "bf16") return one(DType::kBF16, x.dims);
  if (format != "q8a") rule.fail("unknown format \"{}\": use q8a or bf16", format);
  if (x.rank() < 1) rule.fail("x needs an axis");
  auto k = x.extent(-1).constant();
  if (!k || *k % kBlock != 0)
    rule.fail("the last extent {} is not a multiple of {}", x.extent(-1).text(), kBlock);
  return one(DType::kQ8A, x.dims);
}

SymExpr flops(std::span<const Type>, std::span<const Type> out) {
  return out[0].tensor.elements() * 3;
}

}  // namespace

std::vector<OpDef> quantize_ops() {
  return {{.name = "quantize",
           .tier = Tier::kComposite,
           .min_inputs = 1,
           .max_inputs = 1,
           .infer = infer,
           .f32 = quantize<float>,
           .f64 = quantize<double>,
           .traced = quantize<Traced>,
           .attr_names = {"format"},
           .ragged = true,
           .flops = flops,
           .doc = "blocks of 32 int8 values with a scale each, or bf16",
           .element_ops = 8,
           .loop = {LoopForm::Kind::kEncode}}};
}

}  // namespace tokamak
