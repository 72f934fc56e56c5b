// The sampler's bookkeeping: rows, histories, paths, masks and log-probabilities. Choosing is in
// sampler_choose.cc.
#include "backend/common/sampler.h"

#include <algorithm>
#include <cmath>

#include "backend/common/logits_math.h"
#include "base/error.h"

namespace tokamak {

namespace {

// Only filters that choose() knows, in its order.
bool is_plain(const SampleSpec& spec) {
  return spec.order.empty() && spec.typical_p >= 1.0f && spec.xtc_probability <= 0;
}

// Room for the phase's outputs and sequences after those of earlier phases.
void add_results(const SamplePhase& phase, StepResult& out) {
  auto first_output = static_cast<size_t>(phase.first_output),
       first_sequence = static_cast<size_t>(phase.first_sequence);
  if (first_output == 0) out.top.clear();
  out.ids.resize(first_output);
  out.ids.resize(first_output + phase.inputs.out_rows.size(), -1);
  out.logprobs.resize(first_output);
  out.logprobs.resize(first_output + phase.inputs.out_rows.size(), 0.0f);
  out.failed.resize(first_sequence);
  out.failed.resize(first_sequence + phase.inputs.kv_len.size(), StepFailure::kNone);
  if (first_sequence > 0) return;
  out.path.clear();
  out.path_start.assign(1, 0);
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
  tip_.reserve(static_cast<size_t>(max_rows));
}

uint64_t Sampler::bytes() const {
  uint64_t total = scratch_.size() * 4 + maxima_.size() * 8 +
                   candidates_.capacity() * sizeof(Candidate) + counts_.size() * sizeof(Count) +
                   surprise_.capacity() * 8 + matches_.capacity() * 4 + rows_.size() * sizeof(Row);
  for (const Row& row : rows_) total += row.ids.capacity() * sizeof(int32_t);
  return total;
}

void Sampler::begin(const StepInputs& step) {
  waiting_.active = false;
  for (const RowReset& reset : step.resets) {
    Row& row = rows_[static_cast<size_t>(reset.row)];
    row.last = reset.ids.empty() ? -1 : reset.ids.back();
    row.prompt_tokens = reset.prompt_tokens;
    row.ids.assign(reset.ids.begin(), reset.ids.end());
  }
}

void Sampler::resolve(std::vector<int32_t>& ids, const StepResult& earlier) const {
  for (int32_t& id : ids) {
    if (id >= 0) continue;
    if (is_output_id(id)) {
      auto output = static_cast<size_t>(output_of_id(id));
      TK_CHECK(output < earlier.ids.size() && earlier.ids[output] >= 0,
               "output {} has not chosen a token", output);
      id = earlier.ids[output];
      continue;
    }
    auto row = static_cast<size_t>(row_of_id(id));
    TK_CHECK(row < rows_.size() && rows_[row].last >= 0, "row {} has not chosen a token yet", row);
    id = rows_[row].last;
  }
}

void Sampler::finish(const SamplePhase& phase, const float* logits, StepResult& out) {
  const std::vector<SampleRow>& samples = phase.inputs.samples;
  bool masked = std::any_of(samples.begin(), samples.end(),
                            [](const SampleRow& sample) { return sample.masked; });
  if (masked)
    keep(phase, logits);
  else
    choose_all(phase, logits, out);
}

void Sampler::keep(const SamplePhase& phase, const float* logits) {
  const StepInputs& in = phase.inputs;
  Waiting& w = waiting_;
  w.active = true;
  w.inputs.samples.assign(in.samples.begin(), in.samples.end());
  w.inputs.out_rows = in.out_rows;
  w.inputs.seq = in.seq;
  w.inputs.row = in.row;
  w.inputs.kv_len = in.kv_len;
  w.ids.assign(phase.ids.begin(), phase.ids.end());
  w.first_output = phase.first_output;
  w.first_sequence = phase.first_sequence;
  w.logits.assign(logits, logits + std::ssize(in.samples) * vocab_);
  w.masks.assign(in.samples.size() * mask_words(vocab_), 0);
}

void Sampler::set_mask(int32_t output, std::span<const uint32_t> allowed) {
  int64_t r = output - waiting_.first_output;
  bool masked = waiting_.active && r >= 0 && r < std::ssize(waiting_.inputs.samples) &&
                waiting_.inputs.samples[static_cast<size_t>(r)].masked;
  if (!masked || allowed.size() != mask_words(vocab_))
    fail(ErrorCode::kInternal, "a mask of {} words for output {}, which {}", allowed.size(), output,
         masked ? fmt::format("needs {}", mask_words(vocab_)) : "is not masked");
  std::copy(allowed.begin(), allowed.end(), waiting_.masks.begin() + r * std::ssize(allowed));
}

void Sampler::complete(StepResult& out) {
  if (!waiting_.active) return;
  choose_all({waiting_.inputs, waiting_.ids, waiting_.first_output, waiting_.first_sequence},
             waiting_.logits.data(), out);
  waiting_.active = false;
}

void Sampler::skip(const SamplePhase& phase, StepResult& out) {
  for (const SampleRow& sample : phase.inputs.samples)
    TK_CHECK(sample.mode == SampleRow::Mode::kHidden, "{} has no logits", phase.inputs.function);
  add_results(phase, out);
  out.path_start.resize(out.failed.size() + 1, out.path_start.back());
}

void Sampler::choose_all(const SamplePhase& phase, const float* logits, StepResult& out) {
  size_t rows = phase.inputs.out_rows.size();
  add_results(phase, out);
  tip_.assign(phase.inputs.kv_len.size(), -1);
  on_path_.assign(rows, 0);
  for (size_t r = 0; r < rows; ++r)
    finish_row(phase, r, {logits + static_cast<int64_t>(r) * vocab_, static_cast<size_t>(vocab_)},
               out);
  add_paths(phase, out);
}

// The row continues what its sequence has accepted so far.
bool Sampler::holds(const SamplePhase& phase, size_t r, const StepResult& out) const {
  int32_t parent = phase.inputs.samples[r].parent, row = phase.inputs.out_rows[r];
  int32_t tip = tip_[static_cast<size_t>(phase.inputs.seq[static_cast<size_t>(row)])];
  if (parent == -1) return tip == -1;
  return parent == tip && out.ids[static_cast<size_t>(phase.first_output + parent)] ==
                              phase.ids[static_cast<size_t>(row)];
}

void Sampler::finish_row(const SamplePhase& phase, size_t r, std::span<const float> logits,
                         StepResult& out) {
  const SampleRow& sample = phase.inputs.samples[r];
  auto b = static_cast<size_t>(phase.inputs.seq[static_cast<size_t>(phase.inputs.out_rows[r])]);
  size_t to = static_cast<size_t>(phase.first_output) + r;
  StepFailure& failed = out.failed[static_cast<size_t>(phase.first_sequence) + b];
  if (sample.mode == SampleRow::Mode::kHidden) return;
  bool draft = sample.parent >= 0 && !holds(phase, r, out);
  if (draft || failed != StepFailure::kNone) return;  // a drafted token that was not chosen
  float peak = finite_max(logits);
  if (std::isnan(peak)) {
    failed = StepFailure::kNotFinite;
    return;
  }
  if (sample.mode == SampleRow::Mode::kScore)
    out.ids[to] = sample.target;
  else
    choose_row(phase, r, logits, out);
  if (out.ids[to] < 0) {
    failed = StepFailure::kNothingAllowed;
    return;
  }
  if (sample.mode == SampleRow::Mode::kScore || sample.spec->top_logprobs >= 0)
    report(sample, to, logits, peak, out);
}

// The chosen id, or -1 if the mask allows none.
void Sampler::choose_row(const SamplePhase& phase, size_t r, std::span<const float> logits,
                         StepResult& out) {
  const SampleRow& sample = phase.inputs.samples[r];
  auto b = static_cast<size_t>(phase.inputs.seq[static_cast<size_t>(phase.inputs.out_rows[r])]);
  Row& row = rows_[static_cast<size_t>(phase.inputs.row[b])];
  size_t words = mask_words(vocab_);
  mask_ = sample.masked ? std::span(waiting_.masks).subspan(r * words, words)
                        : std::span<const uint32_t>();
  int32_t id = is_plain(*sample.spec) ? choose(sample, adjust(sample, row, logits))
                                      : choose_staged(sample, row, logits);
  if (sample.masked && !allows(id)) return;
  out.ids[static_cast<size_t>(phase.first_output) + r] = id;
  if (sample.mode != SampleRow::Mode::kSample || !holds(phase, r, out)) return;
  tip_[b] = static_cast<int32_t>(r);
  on_path_[r] = 1;
  row.last = id;
  if (sample.spec->needs_history()) row.ids.push_back(id);
}

bool Sampler::allows(int32_t id) const {
  auto i = static_cast<size_t>(id);
  return (mask_[i / 32] >> (i % 32) & 1) != 0;
}

// Outputs of a sequence stay in their order, wherever they are in the step.
void Sampler::add_paths(const SamplePhase& phase, StepResult& out) {
  auto sequence = [&](size_t r) {
    return static_cast<size_t>(phase.first_sequence +
                               phase.inputs.seq[static_cast<size_t>(phase.inputs.out_rows[r])]);
  };
  size_t sequences = phase.inputs.kv_len.size(), first = out.path_start.size() - 1;
  int32_t begin = out.path_start[first];
  out.path_start.resize(first + 1 + sequences, 0);
  for (size_t r = 0; r < on_path_.size(); ++r)
    if (on_path_[r]) ++out.path_start[sequence(r) + 1];
  for (size_t b = first; b < first + sequences; ++b) out.path_start[b + 1] += out.path_start[b];
  out.path.resize(static_cast<size_t>(out.path_start.back()));
  // path_start[b] serves as the place of the next output of b, and is put back afterwards.
  for (size_t r = 0; r < on_path_.size(); ++r)
    if (on_path_[r])
      out.path[static_cast<size_t>(out.path_start[sequence(r)]++)] =
          phase.first_output + static_cast<int32_t>(r);
  for (size_t b = first + sequences; b > first; --b) out.path_start[b] = out.path_start[b - 1];
  out.path_start[first] = begin;
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
