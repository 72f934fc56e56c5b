// Sampling: what turns rows of logits into tokens. Every op takes one row for each token to be
// chosen, with operands of its own (ops/sampling.h), so that requests with different settings share
// a step. The stages themselves are in sampling_rows.cc.
#include "ops/sampling.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/sampling_rows.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

// --- Types ---

void check_rows(const Rule& rule, const TensorType& x, const TensorType& operand,
                std::string_view what, int64_t columns) {
  rule.same(x.extent(0), "rows of x", operand.extent(0), what);
  if (columns > 0 && operand.extent(1) != SymExpr(columns))
    rule.fail("{} needs {} columns, not {}", what, columns, operand.extent(1).text());
}
void check_starts(const Rule& rule, const TensorType& x, size_t i, std::string_view what) {
  rule.same(x.extent(0) + 1, "rows of x + 1", rule.integers(i, what, 1).extent(0), what);
}
const TensorType& logits_of(const Rule& rule, size_t i = 0) {
  const TensorType& x = rule.plain(i, "x", 2);
  if (x.dtype != DType::kF32 || !x.extent(1).constant() || *x.extent(1).constant() < 1)
    rule.fail("x must be f32 with a known number of columns");
  return x;
}
// Operands params and keys from `at` on.
void check_settings(const Rule& rule, const TensorType& x, size_t at) {
  check_rows(rule, x, rule.values(at, "params", 2), "params", kSampleParams);
  check_rows(rule, x, rule.integers(at + 1, "keys", 2), "keys", kSampleKeys);
}
std::vector<Type> same_as(const TensorType& x) { return {Type::of({DType::kF32, x.dims})}; }

// The stages, for messages of their rules.
enum StageName : uint8_t {
  kPenalize,
  kRepeats,
  kStages,
  kTemper,
  kMinP,
  kTopK,
  kTypical,
  kTopP,
  kExclude,
  kSigma
};
constexpr std::string_view kStageNames[] = {
    "penalize_tokens", "penalize_repeats", "run_stages", "temper",      "keep_min_p",
    "keep_top_k",      "keep_typical",     "keep_top_p", "exclude_top", "keep_top_n_sigma"};

// x, params, keys
template <StageName name>
std::vector<Type> infer_stage(const InferContext& context) {
  Rule rule(kStageNames[name], context);
  const TensorType& x = logits_of(rule);
  check_settings(rule, x, 1);
  return same_as(x);
}
// x, params, keys, history, history_start, breakers, breaker_start, order
template <StageName name>
std::vector<Type> infer_history(const InferContext& context) {
  Rule rule(kStageNames[name], context);
  const TensorType& x = logits_of(rule);
  check_settings(rule, x, 1);
  rule.integers(3, "history", 1);
  check_starts(rule, x, 4, "history_start");
  if (rule.inputs() > 5) {
    rule.integers(5, "breakers", 1);
    check_starts(rule, x, 6, "breaker_start");
  }
  if (rule.inputs() > 7) check_rows(rule, x, rule.integers(7, "order", 2), "order", kSampleStages);
  return same_as(x);
}
std::vector<Type> infer_bias(const InferContext& context) {
  Rule rule("bias_tokens", context);
  const TensorType &x = logits_of(rule), &ids = rule.integers(1, "ids", 1),
                   &values = rule.values(2, "values", 1);
  rule.same(ids.extent(0), "ids", values.extent(0), "values");
  check_starts(rule, x, 3, "start");
  return same_as(x);
}
std::vector<Type> infer_allow(const InferContext& context) {
  Rule rule("allow_tokens", context);
  const TensorType &x = logits_of(rule), &masks = rule.integers(1, "masks", 2);
  rule.same(SymExpr((*x.extent(1).constant() + 31) / 32), "words of a row of x", masks.extent(1),
            "words of masks");
  check_rows(rule, x, rule.integers(2, "keys", 2), "keys", kSampleKeys);
  return same_as(x);
}
std::vector<Type> infer_choose(const InferContext& context) {
  Rule rule("choose_token", context);
  const TensorType &x = logits_of(rule), &logits = logits_of(rule, 1);
  rule.same(x.extent(0), "rows of x", logits.extent(0), "rows of logits");
  rule.same(x.extent(1), "columns of x", logits.extent(1), "columns of logits");
  check_settings(rule, x, 2);
  return one(DType::kI32, {x.dims[0]});
}
std::vector<Type> infer_logprobs(const InferContext& context) {
  Rule rule("token_logprobs", context);
  const TensorType &x = logits_of(rule), &ids = rule.integers(1, "ids", 1);
  rule.same(x.extent(0), "rows of x", ids.extent(0), "ids");
  check_rows(rule, x, rule.integers(2, "keys", 2), "keys", kSampleKeys);
  std::vector<Dim> tops = {x.dims[0], rule.integers(3, "ranks", 1).dims[0]};
  return {Type::of({DType::kF32, {x.dims[0]}}), Type::of({DType::kI32, tops}),
          Type::of({DType::kF32, tops})};
}

// --- Meaning ---

template <class S>
Logits read_row(const TensorRef<S>& x, int64_t r) {
  int64_t n = row_length(x);
  return Logits(x.f + r * n, x.f + (r + 1) * n);
}
template <class S>
void write_row(const TensorRef<S>& y, int64_t r, const Logits& x) {
  for (size_t i = 0; i < x.size(); ++i) store(y, r * std::ssize(x) + static_cast<int64_t>(i), x[i]);
}
template <class S>
std::span<const int32_t> int_row(const TensorRef<S>& t, int64_t r) {
  int64_t n = row_length(t);
  return {t.i + r * n, static_cast<size_t>(n)};
}
// Row r of a list of lists; ids outside the vocabulary are an error.
template <class S>
std::span<const int32_t> list_row(const TensorRef<S>& list, const TensorRef<S>& start, int64_t r,
                                  int64_t vocab) {
  int64_t begin = start.i[r], end = start.i[r + 1];
  if (begin < 0 || begin > end || end > list.elements())
    fail_infer("sampling", "entries {} to {} of a list of {}", begin, end, list.elements());
  std::span<const int32_t> out(list.i + begin, static_cast<size_t>(end - begin));
  for (int32_t id : out)
    if (id < 0 || id >= vocab)
      fail_infer("sampling", "token {} is not in the vocabulary of {}", id, vocab);
  return out;
}

// The operands of row r, as many as the op has.
template <class S>
struct RowOperands {
  RowOperands(const MeaningArgs<S>& args, int64_t r, size_t params_at = 1) {
    const TensorRef<S>& p = args.in[params_at].tensor;
    int64_t vocab = row_length(args.in[0].tensor);
    numbers.assign(p.f + r * kSampleParams, p.f + (r + 1) * kSampleParams);
    row.params = numbers;
    row.keys = int_row(args.in[params_at + 1].tensor, r);
    if (args.in.size() > 4 && params_at == 1)
      row.history = list_row(args.in[3].tensor, args.in[4].tensor, r, vocab);
    if (args.in.size() > 6) row.breakers = list_row(args.in[5].tensor, args.in[6].tensor, r, vocab);
  }
  std::vector<double> numbers;
  SamplingRow row;
};

template <class S, void (*stage)(Logits&, const SamplingRow&)>
void run_stage(const MeaningArgs<S>& args) {
  const TensorRef<S>& x = args.in[0].tensor;
  for (int64_t r = 0; r < row_count(x); ++r) {
    Logits row = read_row(x, r);
    stage(row, RowOperands<S>(args, r).row);
    write_row(args.out[0].tensor, r, row);
  }
}

template <class S>
void run_stages(const MeaningArgs<S>& args) {
  const TensorRef<S>& x = args.in[0].tensor;
  for (int64_t r = 0; r < row_count(x); ++r) {
    Logits row = read_row(x, r);
    stages_row(row, RowOperands<S>(args, r).row, int_row(args.in[7].tensor, r));
    write_row(args.out[0].tensor, r, row);
  }
}

template <class S>
void bias_tokens(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &ids = args.in[1].tensor;
  for (int64_t r = 0; r < row_count(x); ++r) {
    Logits row = read_row(x, r);
    std::span<const int32_t> mine = list_row(ids, args.in[3].tensor, r, row_length(x));
    for (const int32_t& id : mine)
      row[static_cast<size_t>(id)] += static_cast<double>(args.in[2].tensor.f[&id - ids.i]);
    write_row(args.out[0].tensor, r, row);
  }
}

template <class S>
void allow_tokens(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &masks = args.in[1].tensor;
  for (int64_t r = 0; r < row_count(x); ++r) {
    Logits row = read_row(x, r);
    int32_t mask = int_row(args.in[2].tensor, r)[kKeyMask];
    if (mask >= masks.dims[0]) fail_infer("allow_tokens", "mask {} of {}", mask, masks.dims[0]);
    if (mask >= 0) {
      std::span<const int32_t> words = int_row(masks, mask);
      for (size_t i = 0; i < row.size(); ++i)
        if ((static_cast<uint32_t>(words[i / 32]) >> (i % 32) & 1) == 0)
          row[i] = -std::numeric_limits<double>::infinity();
    }
    write_row(args.out[0].tensor, r, row);
  }
}

template <class S>
void choose_token(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &logits = args.in[1].tensor;
  for (int64_t r = 0; r < row_count(x); ++r) {
    RowOperands<S> operands(args, r, 2);
    int32_t& out = args.out[0].tensor.i[r];
    out = operands.row.keys[kKeyTarget];
    if (out == kTargetNone) {
      out = kTokenNone;
      continue;
    }
    Logits original = read_row(logits, r);
    bool finite =
        std::all_of(original.begin(), original.end(), [](double v) { return std::isfinite(v); });
    if (!finite)
      out = kTokenNotFinite;
    else if (out == kTargetChoose)
      out = choose_row(read_row(x, r), operands.row);
  }
}

template <class S>
void token_logprobs(const MeaningArgs<S>& args) {
  const TensorRef<S>&x = args.in[0].tensor, &ids = args.in[1].tensor, &ranks = args.in[3].tensor;
  const TensorRef<S>&logprob = args.out[0].tensor, &tops = args.out[1].tensor,
        &values = args.out[2].tensor;
  int64_t most = row_length(tops);
  for (int64_t r = 0; r < row_count(x); ++r) {
    store(logprob, r, 0.0);
    for (int64_t k = 0; k < most; ++k) {
      tops.i[r * most + k] = kTokenNone;
      store(values, r * most + k, 0.0);
    }
    int32_t wanted = int_row(args.in[2].tensor, r)[kKeyTops], id = ids.i[r];
    if (wanted < 0 || id < 0) continue;
    if (id >= row_length(x)) fail_infer("token_logprobs", "token {} of {}", id, row_length(x));
    Logits row = read_row(x, r);
    double peak = *std::max_element(row.begin(), row.end()), sum = 0;
    for (double v : row) sum += std::exp(v - peak);
    double total = peak + std::log(sum);
    store(logprob, r, row[static_cast<size_t>(id)] - total);
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    for (int64_t k = 0; k < most; ++k) {
      int64_t rank = ranks.i[k];
      if (rank < 0 || rank >= std::min(int64_t{wanted}, std::ssize(row))) continue;
      int32_t token = order[static_cast<size_t>(rank)];
      tops.i[r * most + k] = token;
      store(values, r * most + k, row[static_cast<size_t>(token)] - total);
    }
  }
}

OpDef sampling_op(std::string_view name, int inputs,
                  std::vector<Type> (*infer)(const InferContext&), Meaning<float> f32,
                  Meaning<double> f64, std::string_view doc) {
  return {.name = name,
          .tier = Tier::kPrimitive,
          .min_inputs = inputs,
          .max_inputs = inputs,
          .infer = infer,
          .f32 = f32,
          .f64 = f64,
          .doc = doc};
}

template <StageName name, void (*stage)(Logits&, const SamplingRow&)>
OpDef stage_op(int inputs, std::string_view doc) {
  return sampling_op(kStageNames[name], inputs,
                     inputs > 3 ? infer_history<name> : infer_stage<name>, run_stage<float, stage>,
                     run_stage<double, stage>, doc);
}

}  // namespace

std::vector<OpDef> sampling_ops() {
  OpDef choose =
      sampling_op("choose_token", 4, infer_choose, choose_token<float>, choose_token<double>,
                  "the largest logit, with keyed Gumbel noise unless greedy");
  choose.chooses = true;
  return {
      stage_op<kPenalize, penalize_row>(
          5, "repetition, presence and frequency penalties over the history"),
      stage_op<kRepeats, penalize_repeats_row>(7,
                                               "DRY: tokens that would extend a repetition lose"),
      sampling_op("bias_tokens", 4, infer_bias, bias_tokens<float>, bias_tokens<double>,
                  "adds numbers to single tokens"),
      sampling_op("allow_tokens", 3, infer_allow, allow_tokens<float>, allow_tokens<double>,
                  "removes tokens that a bit set does not hold"),
      sampling_op("run_stages", 8, infer_history<kStages>, run_stages<float>, run_stages<double>,
                  "the stages that a row names, in its order"),
      stage_op<kSigma, keep_top_n_sigma_row>(
          3, "removes tokens n standard deviations below the largest logit"),
      stage_op<kTemper, temper_row>(3, "divides by the temperature; greedy rows stay"),
      stage_op<kMinP, keep_min_p_row>(3,
                                      "removes tokens less likely than min_p times the likeliest"),
      stage_op<kTopK, keep_top_k_row>(3, "keeps the k likeliest tokens"),
      stage_op<kTypical, keep_typical_row>(3,
                                           "keeps tokens whose surprise is close to the entropy"),
      stage_op<kTopP, keep_top_p_row>(
          3, "keeps the likeliest tokens that hold top_p of the probability"),
      stage_op<kExclude, exclude_top_row>(3,
                                          "XTC: at random removes all likely tokens but the last"),
      std::move(choose),
      sampling_op("token_logprobs", 4, infer_logprobs, token_logprobs<float>,
                  token_logprobs<double>, "log-probabilities of tokens and of the best ones"),
  };
}

}  // namespace tokamak
