// rope: rotates pairs (j, j + r/2) of the first r values of each head by the angle pos *
// inv_freq[j].
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

template <class S>
void rope(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &pos = args.in[1].tensor, &inv_freq = args.in[2].tensor,
        &y = args.out[0].tensor;
  int64_t heads = x.dims[1], d = x.dims[2], half = inv_freq.dims[0];
  double scale = args.attrs.get_double("scale", 1.0);
  copy_values(static_cast<const S*>(x.f), y.f, y.elements());
  for (int64_t t = 0; t < x.dims[0]; ++t)
    for (int64_t j = 0; j < half; ++j) {
      double angle = double(pos.i[t]) * double(inv_freq.f[j]);
      double cosine = std::cos(angle) * scale, sine = std::sin(angle) * scale;
      for (int64_t h = 0; h < heads; ++h) {
        int64_t at = (t * heads + h) * d + j;
        double a = y.f[at], b = y.f[at + half];
        store(y, at, a * cosine - b * sine);
        store(y, at + half, b * cosine + a * sine);
      }
    }
  if (y.storage == DType::kF32) return;
  for (int64_t row = 0; row < x.dims[0] * heads; ++row)  // what is not rotated
    for (int64_t j = 2 * half; j < d; ++j) store(y, row * d + j, Wide<S>(y.f[row * d + j]));
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("rope", context);
  const TensorType &x = rule.values(0, "x", 3), &pos = rule.integers(1, "pos", 1),
                   &inv_freq = rule.values(2, "inv_freq", 1);
  rule.same(x.extent(0), "the rows of x", pos.extent(0), "the rows of pos");
  auto d = x.extent(2).constant(), half = inv_freq.extent(0).constant();
  if (!d || !half || 2 * *half > *d)
    rule.fail("{} frequencies do not fit heads of {}", inv_freq.extent(0).text(),
              x.extent(2).text());
  return one(DType::kF32, x.dims);
}

SymExpr flops(std::span<const Type> in, std::span<const Type>) {
  return in[0].tensor.extent(0) * in[0].tensor.extent(1) * in[2].tensor.extent(0) * 6;
}

}  // namespace

std::vector<OpDef> rope_ops() {
  return {{.name = "rope",
           .tier = Tier::kComposite,
           .min_inputs = 3,
           .max_inputs = 3,
           .infer = infer,
           .f32 = rope<float>,
           .f64 = rope<double>,
           .traced = rope<Traced>,
           .attr_names = {"scale"},
           .storage = true,
           .flops = flops,
           .doc = "rotary position embedding of split halves",
           .element_ops = 6}};
}

}  // namespace tokamak
