#include "backend/common/sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/common/logits_math.h"
#include "backend/common/rejection.h"
#include "base/error.h"

namespace tokamak {

namespace {

// Room for the phase's outputs and sequences after those of earlier phases.
void add_results(const SamplePhase& phase, StepResult& out) {
  auto first_output = static_cast<size_t>(phase.first_output),
       first_sequence = static_cast<size_t>(phase.first_sequence);
  if (first_output == 0) out.top.clear(), out.mirostat_mu.clear(), out.probabilities.clear();
  out.ids.resize(first_output);
  out.ids.resize(first_output + phase.inputs.out_rows.size(), -1);
  out.guesses.resize(first_output);
  out.guesses.resize(first_output + phase.inputs.out_rows.size(), -1);
  out.logprobs.resize(first_output);
  out.logprobs.resize(first_output + phase.inputs.out_rows.size(), 0.0f);
  out.failed.resize(first_sequence);
  out.failed.resize(first_sequence + phase.inputs.kv_len.size(), StepFailure::kNone);
  if (first_sequence > 0) return;
  out.path.clear();
  out.path_start.assign(1, 0);
}

bool keeps_more(const SampleRow& sample) {
  return sample.spec && sample.spec->min_keep > 1 && sample.spec->temperature > 0 &&
         (sample.mode == SampleRow::Mode::kSample || sample.mode == SampleRow::Mode::kDraft);
}

}  // namespace

void keep_sample_inputs(const StepInputs& from, StepInputs& to) {
  to.function = from.function;
  to.ids = from.ids;
  to.samples.assign(from.samples.begin(), from.samples.end());
  to.out_rows = from.out_rows;
  to.seq = from.seq;
  to.row = from.row;
  to.kv_len = from.kv_len;
}

Sampler::Sampler(int64_t vocab, int64_t max_rows, SampleFunction function)
    : vocab_(vocab),
      function_(std::move(function)),
      rows_(static_cast<size_t>(max_rows)),
      table_(vocab),
      mirostat_(vocab) {
  if (!function_) host_.emplace(vocab);
  tip_.reserve(static_cast<size_t>(max_rows));
}

uint64_t Sampler::bytes() const {
  uint64_t total =
      rows_.size() * sizeof(Row) + table_.bytes() + (host_ ? TokenChooser::bytes(vocab_) : 0);
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
    row.mirostat_mu = reset.mirostat_mu;
  }
}

void Sampler::resolve(std::vector<int32_t>& ids, const StepResult& earlier) const {
  for (int32_t& id : ids) {
    if (id >= 0) continue;
    if (is_output_id(id)) {
      auto output = static_cast<size_t>(output_of_id(id));
      TK_CHECK(output < earlier.ids.size(), "output {} belongs to no earlier phase", output);
      id = std::max(0, earlier.ids[output]);
      continue;
    }
    auto row = static_cast<size_t>(row_of_id(id));
    TK_CHECK(row < rows_.size() && rows_[row].last >= 0, "row {} has not chosen a token yet", row);
    id = rows_[row].last;
  }
}

void Sampler::finish(const SamplePhase& phase, const float* logits, StepResult& out,
                     std::span<const float> layer_logits) {
  const std::vector<SampleRow>& samples = phase.inputs.samples;
  logits = contrast(phase, logits, layer_logits);
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
  keep_sample_inputs(in, w.inputs);
  w.ids.assign(phase.ids.begin(), phase.ids.end());
  w.first_output = phase.first_output;
  w.first_sequence = phase.first_sequence;
  w.logits.clear();
  if (logits) w.logits.assign(logits, logits + std::ssize(in.samples) * vocab_);
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
    TK_CHECK(sample.mode == SampleRow::Mode::kHidden, "function {} returns no logits",
             phase.inputs.function);
  add_results(phase, out);
  out.path_start.resize(out.failed.size() + 1, out.path_start.back());
}

void Sampler::choose_all(const SamplePhase& phase, const float* logits, StepResult& out) {
  size_t rows = phase.inputs.out_rows.size();
  add_results(phase, out);
  tip_.assign(phase.inputs.kv_len.size(), -1);
  on_path_.assign(rows, 0);
  fill_table(phase, guide(phase, logits));
  if (function_) {
    function_(table_, tokens_);
  } else {
    auto most = static_cast<size_t>(table_.most_tops());
    tokens_.ids.resize(rows);
    tokens_.logprobs.resize(rows);
    tokens_.tops.resize(rows * most);
    tokens_.values.resize(rows * most);
    for (size_t r = 0; r < rows; ++r) {
      auto row = static_cast<int64_t>(r);
      tokens_.ids[r] = host_->choose(table_.args(), row);
      host_->report(table_.args(), row, tokens_.ids[r], table_.ranks(), tokens_.logprobs[r],
                    &tokens_.tops[r * most], &tokens_.values[r * most]);
    }
  }
  reject_drafts(phase, out);
  report_sampled(phase);
  for (size_t r = 0; r < rows; ++r) finish_row(phase, r, out);
  add_paths(phase, out);
}

const float* Sampler::contrast(const SamplePhase& phase, const float* logits,
                               std::span<const float> layer_logits) {
  const std::vector<SampleRow>& samples = phase.inputs.samples;
  auto vocab = static_cast<size_t>(vocab_);
  size_t at = 0;
  for (size_t r = 0; r < samples.size(); ++r) {
    size_t size = layer_rows(samples[r]) * vocab;
    if (size == 0) continue;
    TK_CHECK(logits != nullptr && at + size <= layer_logits.size(),
             "DoLa needs the layers' logits of output {}", r);
    if (at == 0) contrasted_.assign(logits, logits + samples.size() * vocab);
    contrast_row(layer_logits.subspan(at, size), std::span(contrasted_).subspan(r * vocab, vocab));
    at += size;
  }
  return at > 0 ? contrasted_.data() : logits;
}

const float* Sampler::guide(const SamplePhase& phase, const float* logits) {
  const std::vector<SampleRow>& samples = phase.inputs.samples;
  auto vocab = static_cast<size_t>(vocab_);
  bool copied = false;
  for (size_t r = 0; r < samples.size(); ++r) {
    if (samples[r].guide < 0) continue;
    TK_CHECK(logits != nullptr, "guidance needs the logits of output {}", r);
    if (!std::exchange(copied, true)) guided_.assign(logits, logits + samples.size() * vocab);
    auto row = [&](size_t i) { return std::span(logits + i * vocab, vocab); };
    guide_row(row(static_cast<size_t>(samples[r].guide)), samples[r].spec->guidance_scale,
              std::span(guided_).subspan(r * vocab, vocab));
  }
  return copied ? guided_.data() : logits;
}

// What the token that an output continues was drawn from; nullptr: not known.
const std::vector<float>* Sampler::drawn_from(const SamplePhase& phase, size_t r,
                                              const StepResult& out) const {
  const SampleRow& sample = phase.inputs.samples[r];
  if (sample.draft_probabilities) return sample.draft_probabilities.get();
  int32_t id = phase.inputs.ids[static_cast<size_t>(phase.inputs.out_rows[r])];
  if (!is_output_id(id)) return nullptr;
  for (const auto& [output, probabilities] : out.probabilities)
    if (output == output_of_id(id)) return &probabilities;
  return nullptr;
}

// Replaces the tokens of outputs whose next token was drafted with known probabilities. Where
// several drafts compete, or the probabilities are not known, the output keeps its own sample.
void Sampler::reject_drafts(const SamplePhase& phase, StepResult& out) {
  const std::vector<SampleRow>& samples = phase.inputs.samples;
  const SampleArgs& args = table_.args();
  if (args.logits == nullptr) return;
  for (size_t r = 0; r < samples.size(); ++r)
    if (samples[r].keep_probabilities) {
      out.probabilities.emplace_back(phase.first_output + static_cast<int32_t>(r),
                                     std::vector<float>());
      sample_distribution(args, static_cast<int64_t>(r), out.probabilities.back().second);
    }
  children_.assign(samples.size(), 0);
  for (const SampleRow& sample : samples)
    if (sample.parent >= 0) ++children_[static_cast<size_t>(sample.parent)];
  for (size_t r = 0; r < samples.size(); ++r) {
    if (samples[r].parent < 0 || !samples[r].spec->rejection) continue;
    auto before = static_cast<size_t>(samples[r].parent);
    const std::vector<float>* q = children_[before] == 1 ? drawn_from(phase, r, out) : nullptr;
    if (q == nullptr || std::ssize(*q) != vocab_ || tokens_.ids[before] < 0) continue;
    const SampleRow& sample = samples[before];
    sample_distribution(args, static_cast<int64_t>(before), probabilities_);
    if (probabilities_.empty()) continue;
    int32_t draft = phase.ids[static_cast<size_t>(phase.inputs.out_rows[r])];
    int32_t id = accept_or_replace(probabilities_, *q, draft, sample.spec->seed, sample.choice,
                                   sample.position);
    tokens_.ids[before] = id;
    if (sample.spec->top_logprobs < 0) continue;
    auto vocab = static_cast<size_t>(vocab_);
    std::span<const float> logits(args.logits + before * vocab, vocab);
    tokens_.logprobs[before] =
        static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) -
                           log_sum_exp(logits, finite_max(logits)));
  }
}

// Replaces log-probabilities by those that the tokens were chosen with. Tokens that the stages
// removed are not reported.
void Sampler::report_sampled(const SamplePhase& phase) {
  const std::vector<SampleRow>& samples = phase.inputs.samples;
  auto most = static_cast<size_t>(table_.most_tops());
  for (size_t r = 0; r < samples.size(); ++r) {
    const SampleSpec* spec = samples[r].spec.get();
    if (spec == nullptr || !spec->report_sampled || spec->top_logprobs < 0) continue;
    if (samples[r].mode != SampleRow::Mode::kSample || tokens_.ids[r] < 0) continue;
    TK_CHECK(table_.args().logits != nullptr, "probabilities after sampling need logits");
    sample_distribution(table_.args(), static_cast<int64_t>(r), probabilities_);
    if (probabilities_.empty()) continue;
    auto log_of = [&](int32_t id) { return std::log(probabilities_[static_cast<size_t>(id)]); };
    tokens_.logprobs[r] = log_of(tokens_.ids[r]);
    ranked_.clear();
    for (int32_t id = 0; id < static_cast<int32_t>(vocab_); ++id)
      if (probabilities_[static_cast<size_t>(id)] > 0) ranked_.push_back(id);
    size_t kept = std::min({ranked_.size(), most, static_cast<size_t>(spec->top_logprobs)});
    std::partial_sort(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(kept),
                      ranked_.end(), [&](int32_t a, int32_t b) {
                        float pa = probabilities_[static_cast<size_t>(a)],
                              pb = probabilities_[static_cast<size_t>(b)];
                        return pa != pb ? pa > pb : a < b;
                      });
    for (size_t k = 0; k < most; ++k) {
      tokens_.tops[r * most + k] = k < kept ? ranked_[k] : -1;
      tokens_.values[r * most + k] = k < kept ? log_of(ranked_[k]) : 0.0f;
    }
  }
}

void Sampler::fill_table(const SamplePhase& phase, const float* logits) {
  table_.clear();
  size_t words = mask_words(vocab_);
  for (size_t r = 0; r < phase.inputs.samples.size(); ++r) {
    const SampleRow& sample = phase.inputs.samples[r];
    auto b = static_cast<size_t>(phase.inputs.seq[static_cast<size_t>(phase.inputs.out_rows[r])]);
    const Row& row = rows_[static_cast<size_t>(phase.inputs.row[b])];
    auto mask = sample.masked ? std::span(waiting_.masks).subspan(r * words, words)
                              : std::span<const uint32_t>();
    if (Mirostat::applies(sample))
      mask = mirostat_mask(sample, r, row, logits, mask);
    else if (keeps_more(sample))
      mask = min_keep_mask(phase, r, row, logits, mask);
    table_.add(sample, history_of(phase, r, row), row.prompt_tokens, mask);
  }
  table_.finish(logits);
}

// The op choose_token has no such bound: the token is chosen here, and is the only one left there.
std::span<const uint32_t> Sampler::min_keep_mask(const SamplePhase& phase, size_t r, const Row& row,
                                                 const float* logits,
                                                 std::span<const uint32_t> mask) {
  TK_CHECK(logits != nullptr, "min_keep needs logits");
  const SampleRow& sample = phase.inputs.samples[r];
  if (!keeper_) keeper_ = std::make_unique<TokenChooser>(vocab_);
  SampleTable one(vocab_);
  one.clear();
  one.add(sample, history_of(phase, r, row), row.prompt_tokens, mask);
  one.finish(logits + r * static_cast<size_t>(vocab_));
  SampleArgs args = one.args();
  args.min_keep = sample.spec->min_keep;
  int32_t id = keeper_->choose(args, 0);
  if (id < 0) return mask;  // the step says why
  kept_.assign(mask_words(vocab_), 0);
  kept_[static_cast<size_t>(id) / 32] = 1u << (id % 32);
  return kept_;
}

std::span<const uint32_t> Sampler::mirostat_mask(const SampleRow& sample, size_t r, const Row& row,
                                                 const float* logits,
                                                 std::span<const uint32_t> mask) {
  TK_CHECK(logits != nullptr && sample.parent < 0, "Mirostat needs logits, and no drafts");
  float mu = Mirostat::bound(*sample.spec, row.mirostat_mu);
  auto vocab = static_cast<size_t>(vocab_);
  auto left = mirostat_.filter(sample, mu, {logits + r * vocab, vocab}, mask);
  mirostat_totals_.resize(std::max(mirostat_totals_.size(), r + 1));
  mirostat_totals_[r] = mirostat_.log_total();
  return left;
}

// An output that continues drafted tokens counts only if they are accepted, so they are its
// history.
std::span<const int32_t> Sampler::history_of(const SamplePhase& phase, size_t r, const Row& row) {
  const std::vector<SampleRow>& samples = phase.inputs.samples;
  const SampleRow& sample = samples[r];
  if (!sample.spec || !sample.spec->needs_history()) return {};
  if (sample.parent < 0) return row.ids;
  drafted_.clear();
  for (auto at = static_cast<int32_t>(r); samples[static_cast<size_t>(at)].parent >= 0;
       at = samples[static_cast<size_t>(at)].parent)
    drafted_.push_back(
        phase.ids[static_cast<size_t>(phase.inputs.out_rows[static_cast<size_t>(at)])]);
  drafted_.insert(drafted_.end(), row.ids.rbegin(), row.ids.rend());
  std::reverse(drafted_.begin(), drafted_.end());
  return drafted_;
}

// The row continues what its sequence has accepted so far.
bool Sampler::holds(const SamplePhase& phase, size_t r, const StepResult& out) const {
  int32_t parent = phase.inputs.samples[r].parent, row = phase.inputs.out_rows[r];
  int32_t tip = tip_[static_cast<size_t>(phase.inputs.seq[static_cast<size_t>(row)])];
  if (parent == -1) return tip == -1;
  return parent == tip && out.ids[static_cast<size_t>(phase.first_output + parent)] ==
                              phase.ids[static_cast<size_t>(row)];
}

void Sampler::finish_row(const SamplePhase& phase, size_t r, StepResult& out) {
  const SampleRow& sample = phase.inputs.samples[r];
  auto b = static_cast<size_t>(phase.inputs.seq[static_cast<size_t>(phase.inputs.out_rows[r])]);
  size_t to = static_cast<size_t>(phase.first_output) + r;
  StepFailure& failed = out.failed[static_cast<size_t>(phase.first_sequence) + b];
  if (sample.mode == SampleRow::Mode::kHidden) return;
  bool draft = sample.parent >= 0 && !holds(phase, r, out);
  if (draft) out.guesses[to] = tokens_.ids[r];
  if (draft || failed != StepFailure::kNone) return;  // a drafted token that was not chosen
  int32_t id = tokens_.ids[r];
  if (id < 0) {
    failed = id == kTokenNotFinite ? StepFailure::kNotFinite : StepFailure::kNothingAllowed;
    return;
  }
  out.ids[to] = id;
  out.logprobs[to] = tokens_.logprobs[r];
  auto most = static_cast<size_t>(table_.most_tops());
  for (size_t k = r * most; k < (r + 1) * most && tokens_.tops[k] >= 0; ++k)
    out.top.emplace_back(static_cast<int32_t>(to),
                         TokenLogprob{tokens_.tops[k], tokens_.values[k]});
  if (sample.mode != SampleRow::Mode::kSample || !holds(phase, r, out)) return;
  tip_[b] = static_cast<int32_t>(r);
  on_path_[r] = 1;
  Row& row = rows_[static_cast<size_t>(phase.inputs.row[b])];
  row.last = id;
  if (sample.spec->needs_history()) row.ids.push_back(id);
  if (!Mirostat::applies(sample)) return;
  float mu = Mirostat::bound(*sample.spec, row.mirostat_mu);
  auto vocab = static_cast<size_t>(vocab_);
  row.mirostat_mu = mirostat_.after(sample, mu, {table_.args().logits + r * vocab, vocab}, id,
                                    mirostat_totals_[r]);
  out.mirostat_mu.resize(std::max(out.mirostat_mu.size(), to + 1), 0.0f);
  out.mirostat_mu[to] = row.mirostat_mu;
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

}  // namespace tokamak
