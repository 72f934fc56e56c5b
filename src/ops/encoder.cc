// Ops of encoders: attention among the rows of a sequence, without a state, and the mean of its
// rows.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

enum Input : size_t { kQuery, kKey, kValue, kQStart };

template <class S>
void attend_rows(const MeaningArgs<S>& args) {
  const TensorRef<S>&q = args.in[kQuery].tensor, &k = args.in[kKey].tensor,
        &v = args.in[kValue].tensor, &y = args.out[0].tensor, &starts = args.in[kQStart].tensor;
  int64_t heads = q.dims[1], d = q.dims[2], kv_heads = k.dims[1], dv = v.dims[2];
  double scale = args.attrs.at("scale").as_double();
  int64_t window = args.attrs.get_int("window", 0);
  std::vector<double> power, sum(static_cast<size_t>(dv));
  check_starts("attend_rows", starts, q.dims[0]);
  for (int64_t b = 0; b + 1 < starts.dims[0]; ++b) {
    int64_t first = starts.i[b], end = starts.i[b + 1];
    for (int64_t row = first; row < end; ++row) {
      int64_t from = window > 0 ? std::max(first, row - window) : first;
      int64_t to = window > 0 ? std::min(end, row + window + 1) : end;
      power.resize(static_cast<size_t>(to - from));
      for (int64_t h = 0; h < heads; ++h) {
        int64_t kv = h / (heads / kv_heads);
        double peak = -INFINITY, total = 0;
        for (int64_t j = from; j < to; ++j) {
          double score =
              double(dot(q.f + (row * heads + h) * d, k.f + (j * kv_heads + kv) * d, d)) * scale;
          power[static_cast<size_t>(j - from)] = score;
          peak = std::isnan(score) || score > peak ? score : peak;
        }
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t j = from; j < to; ++j) {
          double p = std::exp(power[static_cast<size_t>(j - from)] - peak);
          total += p;
          for (int64_t i = 0; i < dv; ++i)
            sum[static_cast<size_t>(i)] += p * double(v.f[(j * kv_heads + kv) * dv + i]);
        }
        for (int64_t i = 0; i < dv; ++i)
          store(y, (row * heads + h) * dv + i, sum[static_cast<size_t>(i)] / total);
      }
    }
  }
}

std::vector<Type> infer_attend(const InferContext& context) {
  Rule rule("attend_rows", context);
  const TensorType &q = rule.values(kQuery, "q", 3), &k = rule.values(kKey, "k", 3),
                   &v = rule.values(kValue, "v", 3);
  rule.integers(kQStart, "q_start", 1);
  rule.same(q.extent(0), "the rows of q", k.extent(0), "those of k");
  rule.same(q.extent(0), "the rows of q", v.extent(0), "those of v");
  rule.same(q.extent(2), "the width of q", k.extent(2), "that of k");
  rule.same(k.extent(1), "the heads of k", v.extent(1), "those of v");
  auto heads = q.extent(1).constant(), kv_heads = k.extent(1).constant();
  if (!heads || !kv_heads || *kv_heads < 1 || *heads % *kv_heads != 0)
    rule.fail("{} query heads are not a multiple of {} kv heads", q.extent(1).text(),
              k.extent(1).text());
  if (!rule.attrs().at("scale").is_number()) rule.fail("scale must be a number");
  if (rule.attrs().get_int("window", 0) < 0) rule.fail("window must not be negative");
  return one(DType::kF32, {q.dims[0], q.dims[1], v.dims[2]});
}

// Per visible row: their number is known only when the step runs.
SymExpr attend_flops(std::span<const Type> in, std::span<const Type> out) {
  return (in[kQuery].tensor.elements() + out[0].tensor.elements()) * 2;
}

template <class S>
void mean_rows(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &seq = args.in[1].tensor, &starts = args.in[2].tensor,
        &rows = args.in[3].tensor, &y = args.out[0].tensor;
  int64_t d = x.dims[1];
  check_starts("mean_rows", starts, x.dims[0]);
  for (int64_t r = 0; r < rows.dims[0]; ++r) {
    check_index("mean_rows", "row", rows.i[r], x.dims[0]);
    int64_t b = seq.i[rows.i[r]];
    check_index("mean_rows", "sequence", b, starts.dims[0] - 1);
    int64_t first = starts.i[b], end = starts.i[b + 1];
    for (int64_t i = 0; i < d; ++i) {
      double total = 0;
      for (int64_t row = first; row < end; ++row) total += double(x.f[row * d + i]);
      store(y, r * d + i, total / static_cast<double>(end - first));
    }
  }
}

std::vector<Type> infer_mean(const InferContext& context) {
  Rule rule("mean_rows", context);
  const TensorType& x = rule.values(0, "x", 2);
  rule.same(x.extent(0), "the rows of x", rule.integers(1, "seq", 1).extent(0), "seq");
  rule.integers(2, "q_start", 1);
  return one(DType::kF32, {rule.integers(3, "rows", 1).dims[0], x.dims[1]});
}

SymExpr mean_flops(std::span<const Type> in, std::span<const Type>) {
  return in[0].tensor.elements();
}

}  // namespace

std::vector<OpDef> encoder_ops() {
  return {{.name = "attend_rows",
           .tier = Tier::kComposite,
           .min_inputs = 4,
           .max_inputs = 4,
           .infer = infer_attend,
           .f32 = attend_rows<float>,
           .f64 = attend_rows<double>,
           .traced = attend_rows<Traced>,
           .attr_names = {"scale", "window"},
           .required_attrs = 1,
           .storage = true,
           .flops = attend_flops,
           .doc = "attention of every row over all rows of its sequence",
           .dots = true},
          {.name = "mean_rows",
           .tier = Tier::kComposite,
           .min_inputs = 4,
           .max_inputs = 4,
           .infer = infer_mean,
           .f32 = mean_rows<float>,
           .f64 = mean_rows<double>,
           .traced = mean_rows<Traced>,
           .storage = true,
           .flops = mean_flops,
           .doc = "the mean of the rows of a sequence"}};
}

}  // namespace tokamak
