// Ops with a state per sequence: they read the state that the sequence's earlier tokens left,
// advance it row by row, and write it back. A sequence whose rows are its first begins with zeros,
// so a state is never cleared. The state is stored after every row, rounded to f32: a sequence has
// the same bits however its rows are divided among steps.
#include <cmath>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

enum Input : size_t { kState, kView, kQStart, kKvLen, kX };

// Calls run(first row, end, state of the sequence, whether it begins) for every sequence of the
// step. A sequence of length 0 is padding; rows of no sequence give 0.
template <class S, class F>
void for_sequences(const MeaningArgs<S>& args, F&& run) {
  const TensorRef<S>&q_start = args.in[kQStart].tensor, &kv_len = args.in[kKvLen].tensor;
  const StateRef<S>& state = args.out[0].state;
  const TensorRef<S>& y = args.out[1].tensor;
  const ViewRef& view = args.in[kView].view;
  int64_t rows = y.dims[0];
  for (int64_t i = 0, n = y.elements(); i < n; ++i) store(y, i, Wide<S>(0));
  for (int64_t b = 0; b < kv_len.dims[0]; ++b) {
    int64_t length = kv_len.i[b];
    if (length <= 0) continue;
    int64_t first = q_start.i[b], end = q_start.i[b + 1];
    TK_CHECK(first >= 0 && first <= end && end <= rows && length >= end - first,
             "sequence {} has the rows [{}, {}) of {} and length {}", b, first, end, rows, length);
    if (first == end) continue;
    int64_t at = view.table[b * view.stride];
    TK_CHECK(at >= 0 && at < state.slots, "sequence {} has no state", b);
    run(first, end, state.planes[0].data + at * state.planes[0].width, length == end - first);
  }
}

template <class S>
void causal_conv(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[kX].tensor, &w = args.in[kX + 1].tensor, &y = args.out[1].tensor;
  const TensorRef<S>* bias = args.in.size() > kX + 2 ? &args.in[kX + 2].tensor : nullptr;
  int64_t channels = x.dims[1], taps = w.dims[1], older = taps - 1;
  for_sequences(args, [&](int64_t first, int64_t end, S* state, bool begins) {
    if (begins) std::fill_n(state, older * channels, S(0));
    // Row r of the sequence, counted from its first row of this step; negative: in the state.
    auto row = [&](int64_t r) {
      return r < 0 ? state + (older + r) * channels : x.f + (first + r) * channels;
    };
    for (int64_t i = first; i < end; ++i)
      for (int64_t c = 0; c < channels; ++c) {
        Wide<S> sum = bias ? Wide<S>(bias->f[c]) : Wide<S>(0);
        for (int64_t j = 0; j < taps; ++j)
          sum += Wide<S>(w.f[c * taps + j]) * Wide<S>(row(i - first - older + j)[c]);
        store(y, i * channels + c, sum);
      }
    // In ascending order: a row of the state is only replaced by a later one.
    for (int64_t j = 0; j < older; ++j)
      std::copy_n(row(end - first - older + j), channels, state + j * channels);
  });
}

template <class S>
void ssm_scan(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[kX].tensor, &dt = args.in[kX + 1].tensor,
        &a = args.in[kX + 2].tensor, &in = args.in[kX + 3].tensor, &out = args.in[kX + 4].tensor,
        &y = args.out[1].tensor;
  int64_t heads = x.dims[1], width = x.dims[2], groups = in.dims[1], n = in.dims[2];
  int64_t each = a.dims.size() == 2 ? n : 1;  // decays of a head
  for_sequences(args, [&](int64_t first, int64_t end, S* state, bool begins) {
    if (begins) std::fill_n(state, heads * width * n, S(0));
    for (int64_t i = first; i < end; ++i)
      for (int64_t h = 0; h < heads; ++h) {
        double step = double(dt.f[i * heads + h]);
        double shared = each == 1 ? std::exp(step * double(a.f[h])) : 0;
        auto decay = [&](int64_t k) {
          return each == 1 ? shared : std::exp(step * double(a.f[h * each + k]));
        };
        const S* b = in.f + (i * groups + h / (heads / groups)) * n;
        const S* c = out.f + (i * groups + h / (heads / groups)) * n;
        for (int64_t p = 0; p < width; ++p) {
          S* s = state + (h * width + p) * n;
          double input = step * double(x.f[(i * heads + h) * width + p]);
          for (int64_t k = 0; k < n; ++k) s[k] = S(double(s[k]) * decay(k) + input * double(b[k]));
          store(y, (i * heads + h) * width + p, Wide<S>(dot(s, c, n)));
        }
      }
  });
}

template <class S>
void gated_delta(const MeaningArgs<S>& args) {
  const TensorRef<S>&q = args.in[kX].tensor, &k = args.in[kX + 1].tensor,
        &v = args.in[kX + 2].tensor, &decay = args.in[kX + 3].tensor,
        &rate = args.in[kX + 4].tensor, &y = args.out[1].tensor;
  int64_t heads = v.dims[1], width = v.dims[2], groups = k.dims[1], n = k.dims[2];
  for_sequences(args, [&](int64_t first, int64_t end, S* state, bool begins) {
    if (begins) std::fill_n(state, heads * width * n, S(0));
    for (int64_t i = first; i < end; ++i)
      for (int64_t h = 0; h < heads; ++h) {
        double kept = std::exp(double(decay.f[i * heads + h]));
        int64_t vectors = (i * groups + h / (heads / groups)) * n;
        for (int64_t p = 0; p < width; ++p) {
          int64_t at = (i * heads + h) * width + p;
          S* s = state + (h * width + p) * n;
          double error = double(v.f[at]) - kept * double(dot(s, k.f + vectors, n));
          double change = double(rate.f[i * heads + h]) * error;
          for (int64_t j = 0; j < n; ++j)
            s[j] = S(double(s[j]) * kept + change * double(k.f[vectors + j]));
          store(y, at, Wide<S>(dot(s, q.f + vectors, n)));
        }
      }
  });
}

// The inputs that all of these ops have, and their state: one plane of f32 with these extents.
const std::string& check_sequences(const Rule& rule) {
  const std::string& state = rule.state(kState);
  rule.view(kView);
  rule.same(rule.integers(kQStart, "q_start", 1).extent(0), "q_start",
            rule.integers(kKvLen, "kv_len", 1).extent(0) + 1, "sequences + 1");
  return state;
}

void check_plane(const Rule& rule, const std::string& state, const std::vector<SymExpr>& extents) {
  if (!rule.knows_planes()) return;
  auto plane = rule.plane(state, 0);
  bool fits = plane && !rule.plane(state, 1) && plane->type->dtype == DType::kF32 &&
              plane->type->rank() == static_cast<int>(extents.size());
  std::string want;
  for (size_t i = 0; i < extents.size(); ++i) {
    fits = fits && plane->type->extent(static_cast<int>(i)) == extents[i];
    want += (i == 0 ? "" : ", ") + extents[i].text();
  }
  if (!fits) rule.fail("state {} must have one plane f32[{}]", state, want);
}

std::vector<Type> infer_conv(const InferContext& context) {
  Rule rule("causal_conv", context);
  const std::string& state = check_sequences(rule);
  const TensorType &x = rule.values(kX, "x", 2), &w = rule.values(kX + 1, "w", 2);
  rule.same(x.extent(1), "the channels of x", w.extent(0), "the rows of w");
  if (rule.inputs() > kX + 2)
    rule.same(x.extent(1), "the channels of x", rule.values(kX + 2, "bias", 1).extent(0), "bias");
  auto taps = w.extent(1).constant();
  if (!taps || *taps < 2) rule.fail("w must have at least 2 columns, got {}", w.extent(1).text());
  check_plane(rule, state, {*taps - 1, x.extent(1)});
  return {Type::state(state), Type::of({DType::kF32, x.dims})};
}

std::vector<Type> infer_scan(const InferContext& context) {
  Rule rule("ssm_scan", context);
  const std::string& state = check_sequences(rule);
  const TensorType &x = rule.values(kX, "x", 3), &dt = rule.values(kX + 1, "dt", 2),
                   &a = rule.values(kX + 2, "a"), &b = rule.values(kX + 3, "b", 3),
                   &c = rule.values(kX + 4, "c", 3);
  for (const TensorType* t : {&dt, &b, &c})
    rule.same(x.extent(0), "the rows of x", t->extent(0), "those of dt, b and c");
  rule.same(x.extent(1), "the heads of x", dt.extent(1), "those of dt");
  if (a.rank() != 1 && a.rank() != 2) rule.fail("a must have 1 or 2 axes, got {}", a.rank());
  rule.same(x.extent(1), "the heads of x", a.extent(0), "those of a");
  if (a.rank() == 2) rule.same(b.extent(2), "the last extent of b", a.extent(1), "that of a");
  for (int axis : {1, 2})
    rule.same(b.extent(axis), "the extents of b", c.extent(axis), "those of c");
  auto heads = x.extent(1).constant(), groups = b.extent(1).constant();
  if (!heads || !groups || *groups < 1 || *heads % *groups != 0)
    rule.fail("{} heads are not a multiple of {} groups", x.extent(1).text(), b.extent(1).text());
  check_plane(rule, state, {x.extent(1), x.extent(2), b.extent(2)});
  return {Type::state(state), Type::of({DType::kF32, x.dims})};
}

std::vector<Type> infer_delta(const InferContext& context) {
  Rule rule("gated_delta", context);
  const std::string& state = check_sequences(rule);
  const TensorType &q = rule.values(kX, "q", 3), &k = rule.values(kX + 1, "k", 3),
                   &v = rule.values(kX + 2, "v", 3), &decay = rule.values(kX + 3, "decay", 2),
                   &rate = rule.values(kX + 4, "rate", 2);
  for (int axis : {0, 1, 2})
    rule.same(q.extent(axis), "the extents of q", k.extent(axis), "those of k");
  rule.same(v.extent(0), "the rows of v", k.extent(0), "those of k");
  for (const TensorType* t : {&decay, &rate})
    for (int axis : {0, 1})
      rule.same(v.extent(axis), "rows and heads of v", t->extent(axis), "those of decay and rate");
  auto heads = v.extent(1).constant(), groups = k.extent(1).constant();
  if (!heads || !groups || *groups < 1 || *heads % *groups != 0)
    rule.fail("{} heads are not a multiple of {} groups", v.extent(1).text(), k.extent(1).text());
  check_plane(rule, state, {v.extent(1), v.extent(2), k.extent(2)});
  return {Type::state(state), Type::of({DType::kF32, v.dims})};
}

SymExpr conv_flops(std::span<const Type> in, std::span<const Type> out) {
  return out[1].tensor.elements() * in[kX + 1].tensor.extent(1) * 2;
}
SymExpr scan_flops(std::span<const Type> in, std::span<const Type> out) {
  return out[1].tensor.elements() * in[kX + 3].tensor.extent(2) * 5;
}
SymExpr delta_flops(std::span<const Type> in, std::span<const Type> out) {
  return out[1].tensor.elements() * in[kX].tensor.extent(2) * 7;
}

}  // namespace

std::vector<OpDef> recurrent_ops() {
  return {
      {.name = "causal_conv",
       .tier = Tier::kComposite,
       .min_inputs = 6,
       .max_inputs = 7,
       .infer = infer_conv,
       .f32 = causal_conv<float>,
       .f64 = causal_conv<double>,
       .traced = causal_conv<Traced>,
       .field = causal_conv<Field>,
       .writes_state = true,
       .recurrent = true,
       .flops = conv_flops,
       .doc = "convolution of each channel with its last inputs; the state holds the inputs",
       .element_ops = 8,
       .first_plane = kX},
      {.name = "ssm_scan",
       .tier = Tier::kComposite,
       .min_inputs = 9,
       .max_inputs = 9,
       .infer = infer_scan,
       .f32 = ssm_scan<float>,
       .f64 = ssm_scan<double>,
       .traced = ssm_scan<Traced>,
       .writes_state = true,
       .recurrent = true,
       .flops = scan_flops,
       .doc =
           "selective state space recurrence with one decay per head (Mamba-2) or number (Mamba)",
       .first_plane = kX},
      {.name = "gated_delta",
       .tier = Tier::kComposite,
       .min_inputs = 9,
       .max_inputs = 9,
       .infer = infer_delta,
       .f32 = gated_delta<float>,
       .f64 = gated_delta<double>,
       .traced = gated_delta<Traced>,
       .writes_state = true,
       .recurrent = true,
       .flops = delta_flops,
       .doc = "linear attention by the gated delta rule (Qwen3-Next)",
       .first_plane = kX}};
}

}  // namespace tokamak
