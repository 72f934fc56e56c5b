// sdpa: attention over keys and values that are plain tensors (no state). The pass recognize
// creates it from softmax(q k^T) v.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

enum Input : size_t { kQuery, kKey, kValue, kBias };

template <class S>
void sdpa(const MeaningArgs<S>& args) {
  const TensorRef<S>&q = args.in[kQuery].tensor, &k = args.in[kKey].tensor,
        &v = args.in[kValue].tensor, &y = args.out[0].tensor;
  size_t rank = q.dims.size();
  int64_t t = q.dims[rank - 2], d = q.dims[rank - 1], s = k.dims[rank - 2], dv = v.dims[rank - 1];
  int64_t batches = product(q.dims, 0, rank - 2);
  double scale = args.attrs.at("scale").as_double();
  bool causal = args.attrs.get_int("causal", 0) != 0, biased = args.in.size() > kBias;
  std::vector<int64_t> score_dims(q.dims.begin(), q.dims.end());
  score_dims.back() = s;
  BroadcastWalk bias(score_dims, biased ? args.in[kBias].tensor.dims : std::span<const int64_t>());
  std::vector<double> power(static_cast<size_t>(s)), sum(static_cast<size_t>(dv));
  for (int64_t row = 0; row < batches * t; ++row) {
    const S *query = q.f + row * d, *keys = k.f + row / t * s * d, *values = v.f + row / t * s * dv;
    // A row sees the keys up to its own position; the last row has the position of the last key.
    int64_t seen = causal ? std::clamp<int64_t>(row % t + s - t + 1, 0, s) : s;
    double peak = -INFINITY, total = 0;
    for (int64_t j = 0; j < s; ++j, bias.next()) {
      if (j >= seen) continue;
      double score = double(dot(query, keys + j * d, d)) * scale;
      if (biased) score += double(args.in[kBias].tensor.f[bias.offset()]);
      power[static_cast<size_t>(j)] = score;
      peak = std::isnan(score) || score > peak ? score : peak;
    }
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t j = 0; j < seen; ++j) {
      double p = std::exp(power[static_cast<size_t>(j)] - peak);
      total += p;
      for (int64_t i = 0; i < dv; ++i)
        sum[static_cast<size_t>(i)] += p * double(values[j * dv + i]);
    }
    for (int64_t i = 0; i < dv; ++i)
      store(y, row * dv + i, seen == 0 ? 0.0 : sum[static_cast<size_t>(i)] / total);
  }
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("sdpa", context);
  const TensorType &q = rule.values(kQuery, "q"), &k = rule.values(kKey, "k", q.rank()),
                   &v = rule.values(kValue, "v", q.rank());
  if (q.rank() < 2) rule.fail("q needs two axes, got {}", q.text());
  for (int i = 0; i + 2 < q.rank(); ++i) {
    rule.same(q.extent(i), "an extent of q", k.extent(i), "that of k");
    rule.same(q.extent(i), "an extent of q", v.extent(i), "that of v");
  }
  rule.same(q.extent(-1), "the width of q", k.extent(-1), "that of k");
  rule.same(k.extent(-2), "the keys", v.extent(-2), "the values");
  if (auto n = k.extent(-2).constant(); n && *n == 0) rule.fail("there are no keys");
  std::vector<Dim> scores = q.dims;
  scores.back() = k.dims[k.dims.size() - 2];
  if (rule.inputs() > kBias) {
    std::vector<Dim> all = broadcast_dims(rule, scores, rule.values(kBias, "bias").dims);
    if (all.size() != scores.size()) rule.fail("the bias has more axes than the scores");
    for (size_t i = 0; i < all.size(); ++i)
      rule.same(all[i].extent, "an extent of the bias", scores[i].extent, "that of the scores");
  }
  if (!rule.attrs().at("scale").is_number()) rule.fail("scale must be a number");
  std::vector<Dim> dims = q.dims;
  dims.back() = v.dims.back();
  return one(DType::kF32, std::move(dims));
}

SymExpr flops(std::span<const Type> in, std::span<const Type> out) {
  return (in[kQuery].tensor.elements() + out[0].tensor.elements()) * in[kKey].tensor.extent(-2) * 2;
}

}  // namespace

std::vector<OpDef> sdpa_ops() {
  return {{.name = "sdpa",
           .tier = Tier::kComposite,
           .min_inputs = 3,
           .max_inputs = 4,
           .infer = infer,
           .f32 = sdpa<float>,
           .f64 = sdpa<double>,
           .traced = sdpa<Traced>,
           .attr_names = {"scale", "causal"},
           .required_attrs = 1,
           .storage = true,
           .flops = flops,
           .doc = "softmax(scale * q k^T + bias) v over plain tensors",
           .dots = true}};
}

}  // namespace tokamak
