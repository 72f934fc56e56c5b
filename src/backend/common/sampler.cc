// The sampler's bookkeeping: rows, histories, drafts and log-probabilities. Choosing is in
// sampler_choose.cc.
#include "backend/common/sampler.h"

#include <cmath>

#include "backend/common/logits_math.h"
#include "base/error.h"

namespace tokamak {

namespace {

// Only filters that choose() knows, in its order.
bool is_plain(const SampleSpec& spec) {
  return spec.order.empty() && spec.typical_p >= 1.0f && spec.xtc_probability <= 0;
}

}  // namespace

Sampler::Sampler(int64_t vocab, int64_t max_rows)
    : vocab_(vocab), rows_(static_cast<size_t>(max_rows)) {
  auto n = static_cast<size_t>(vocab);
  scratch_.resize(n);
  maxima_.resize((n + kRun - 1) / kRun);
  selected_.resize(maxima_.size());
  candidates_.reserve(n);
  surprise_.reserve(n);
  counts_.resize(n);
  drafting_.reserve(static_cast<size_t>(max_rows));
}

uint64_t Sampler::bytes() const {
  uint64_t total = scratch_.size() * 4 + maxima_.size() * 8 +
                   candidates_.capacity() * sizeof(Candidate) + counts_.size() * sizeof(Count) +
                   surprise_.capacity() * 8 + matches_.capacity() * 4 + rows_.size() * sizeof(Row);
  for (const Row& row : rows_) total += row.ids.capacity() * sizeof(int32_t);
  return total;
}

void Sampler::begin(const StepInputs& step, std::vector<int32_t>& ids_out) {
  for (const RowReset& reset : step.resets) {
    Row& row = rows_[static_cast<size_t>(reset.row)];
    row.last = reset.ids.empty() ? -1 : reset.ids.back();
    row.prompt_tokens = reset.prompt_tokens;
    row.ids.assign(reset.ids.begin(), reset.ids.end());
  }
  ids_out.assign(step.ids.begin(), step.ids.end());
  for (int32_t& id : ids_out) {
    if (id >= 0) continue;
    auto row = static_cast<size_t>(-1 - id);
    TK_CHECK(row < rows_.size() && rows_[row].last >= 0, "row {} has not chosen a token yet", row);
    id = rows_[row].last;
  }
}

void Sampler::finish(const StepInputs& step, const float* logits, StepResult& out) {
  size_t rows = step.out_rows.size(), sequences = step.kv_len.size();
  out.ids.assign(rows, -1);
  out.logprobs.assign(rows, 0.0f);
  out.accepted.assign(sequences, 0);
  out.failed.assign(sequences, 0);
  out.top.clear();
  drafting_.assign(sequences, 1);
  for (size_t r = 0; r < rows; ++r)
    finish_row(step, r, {logits + static_cast<int64_t>(r) * vocab_, static_cast<size_t>(vocab_)},
               out);
}

void Sampler::finish_row(const StepInputs& step, size_t r, std::span<const float> logits,
                         StepResult& out) {
  const SampleRow& sample = step.samples[r];
  auto b = static_cast<size_t>(step.seq[static_cast<size_t>(step.out_rows[r])]);
  if (sample.mode == SampleRow::Mode::kHidden) return;
  float peak = finite_max(logits);
  if (std::isnan(peak)) {
    out.failed[b] = 1;
    drafting_[b] = 0;
    return;
  }
  if (sample.mode == SampleRow::Mode::kScore) {
    out.ids[r] = sample.target;
    return report(sample, r, logits, peak, out);
  }
  Row& row = rows_[static_cast<size_t>(step.row[b])];
  out.ids[r] = is_plain(*sample.spec) ? choose(sample, adjust(sample, row, logits))
                                      : choose_staged(sample, row, logits);
  if (sample.spec->top_logprobs >= 0) report(sample, r, logits, peak, out);
  if (!drafting_[b]) return;
  ++out.accepted[b];
  row.last = out.ids[r];
  if (sample.spec->needs_history()) row.ids.push_back(row.last);
  drafting_[b] = out.ids[r] == sample.target;
}

// Log-probabilities under the model's own distribution, whatever the spec does to it.
void Sampler::report(const SampleRow& sample, size_t r, std::span<const float> logits, float peak,
                     StepResult& out) {
  double total = log_sum_exp(logits, peak);
  auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - total);
  };
  out.logprobs[r] = logprob(out.ids[r]);
  int64_t count = sample.spec ? std::min<int64_t>(sample.spec->top_logprobs, vocab_) : 0;
  if (count <= 0) return;
  collect(logits, top_k_bound(logits, count));
  keep_best(static_cast<size_t>(count));
  std::sort(candidates_.begin(), candidates_.end());
  for (const Candidate& c : candidates_)
    out.top.emplace_back(static_cast<int32_t>(r), TokenLogprob{c.id, logprob(c.id)});
}

}  // namespace tokamak
