// The general case of sampling: the stages that a row names, one after the other, over a list of
// candidates. Costs a few passes over the remaining vocabulary.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/common/logits_math.h"
#include "backend/common/token_chooser.h"

namespace tokamak {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr SampleStage kDefaultOrder[] = {
    SampleStage::kPenalties,   SampleStage::kDry,  SampleStage::kTopNSigma,
    SampleStage::kTemperature, SampleStage::kMinP, SampleStage::kTopK,
    SampleStage::kTypical,     SampleStage::kTopP, SampleStage::kXtc,
};

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

// DRY. matches_[k] is how many tokens before position n - k agree with the end of the history (the
// Z function of the reversed history): the token at n - k continued a repetition of that length.
void TokenChooser::find_repeats(const Settings& s) {
  repeats_.clear();
  if (s.dry_multiplier <= 0) return;
  std::span<const int32_t> ids = s.history;
  if (s.dry_last_n >= 0 && ids.size() > static_cast<size_t>(s.dry_last_n))
    ids = ids.last(static_cast<size_t>(s.dry_last_n));
  auto n = static_cast<int32_t>(ids.size());
  int32_t reach = 0;  // no repetition reaches across a breaker
  while (reach < n && !contains(s.dry_breakers, ids[static_cast<size_t>(n - 1 - reach)])) ++reach;
  if (reach < s.dry_allowed_length || reach == 0) return;
  auto from_end = [&](int32_t i) { return ids[static_cast<size_t>(n - 1 - i)]; };
  matches_.assign(static_cast<size_t>(n), 0);
  for (int32_t i = 1, left = 0, right = 0; i < n; ++i) {
    int32_t same = i < right ? std::min(right - i, matches_[static_cast<size_t>(i - left)]) : 0;
    while (i + same < n && from_end(same) == from_end(i + same)) ++same;
    if (i + same > right) left = i, right = i + same;
    matches_[static_cast<size_t>(i)] = same;
  }
  if (++stamp_ == 0) {
    std::fill(counts_.begin(), counts_.end(), Count{});
    stamp_ = 1;
  }
  auto most = static_cast<int32_t>(88.7f / std::log(std::max(s.dry_base, 1.000001f)));
  for (int32_t i = 1; i < n; ++i) {  // the longest match of each token
    int32_t length = std::min(matches_[static_cast<size_t>(i)], reach);
    Count& longest = counts_[static_cast<size_t>(from_end(i - 1))];
    if (longest.stamp != stamp_) longest = {stamp_, 0};
    longest.in_output = std::max(longest.in_output, length);
  }
  for (int32_t id : ids) {
    Count& longest = counts_[static_cast<size_t>(id)];
    if (longest.stamp != stamp_) continue;  // done already, or the end of the history
    longest.stamp = stamp_ - 1;
    int32_t over = longest.in_output - s.dry_allowed_length;
    if (over < 0 || longest.in_output == 0 || contains(s.dry_breakers, id)) continue;
    repeats_.push_back(
        {id, s.dry_multiplier * std::pow(s.dry_base, static_cast<float>(std::min(over, most)))});
  }
}

void TokenChooser::discourage_repeats(const Settings& s) {
  find_repeats(s);
  for (const Repeat& r : repeats_) scratch_[static_cast<size_t>(r.id)] -= r.penalty;
}

std::span<const TokenChooser::Repeat> TokenChooser::repeats(const SampleArgs& args, int64_t row) {
  find_repeats(settings(args, row));
  return repeats_;
}

void TokenChooser::refresh() {
  for (Candidate& c : candidates_) c.logit = scratch_[static_cast<size_t>(c.id)];
}

double TokenChooser::candidate_mass(float peak) {
  double total = 0;
  for (const Candidate& c : candidates_) total += static_cast<double>(fast_exp(c.logit - peak));
  return total;
}

// Those whose surprise is closest to the distribution's entropy, until they hold typical_p of it.
void TokenChooser::keep_typical(const Settings& s) {
  float peak = std::min_element(candidates_.begin(), candidates_.end())->logit;
  double total = candidate_mass(peak), entropy = 0;
  auto log_p = [&](const Candidate& c) {
    return static_cast<double>(c.logit) - static_cast<double>(peak) - std::log(total);
  };
  for (const Candidate& c : candidates_) entropy -= std::exp(log_p(c)) * log_p(c);
  surprise_.clear();
  for (size_t i = 0; i < candidates_.size(); ++i)
    surprise_.emplace_back(static_cast<float>(std::abs(-log_p(candidates_[i]) - entropy)),
                           static_cast<int32_t>(i));
  std::sort(surprise_.begin(), surprise_.end());
  double mass = 0;
  size_t kept = 0;
  while (kept < surprise_.size() &&
         (mass <= static_cast<double>(s.typical_p) || static_cast<int64_t>(kept) < s.min_keep))
    mass += std::exp(log_p(candidates_[static_cast<size_t>(surprise_[kept++].second)]));
  surprise_.resize(kept);
  std::sort(surprise_.begin(), surprise_.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t i = 0; i < kept; ++i)
    candidates_[i] = candidates_[static_cast<size_t>(surprise_[i].second)];
  candidates_.resize(kept);
}

// XTC. The draw is keyed like the noise.
void TokenChooser::exclude_top(const Settings& s) {
  if (s.xtc_threshold > 0.5f || keyed_draw(s.seed, s.choice, s.position) >= s.xtc_probability)
    return;
  float peak = std::min_element(candidates_.begin(), candidates_.end())->logit;
  double least = static_cast<double>(s.xtc_threshold) * candidate_mass(peak);
  auto reaches = [&](const Candidate& c) {
    return static_cast<double>(fast_exp(c.logit - peak)) >= least;
  };
  const Candidate* last = nullptr;  // the least likely of those that reach it
  for (const Candidate& c : candidates_)
    if (reaches(c) && (last == nullptr || *last < c)) last = &c;
  if (last == nullptr) return;
  if (s.min_keep > 1 && std::count_if(candidates_.begin(), candidates_.end(), reaches) - 1 >
                            std::ssize(candidates_) - s.min_keep)
    return;
  Candidate keep = *last;
  std::erase_if(candidates_, [&](const Candidate& c) { return reaches(c) && c.id != keep.id; });
}

// Sums in double: the bound is that of the op.
void TokenChooser::keep_top_n_sigma(float n) {
  double sum = 0, squares = 0, count = static_cast<double>(candidates_.size());
  auto peak = static_cast<double>(std::min_element(candidates_.begin(), candidates_.end())->logit);
  for (const Candidate& c : candidates_) sum += static_cast<double>(c.logit);
  for (const Candidate& c : candidates_) {
    double distance = static_cast<double>(c.logit) - sum / count;
    squares += distance * distance;
  }
  double bound = peak - static_cast<double>(n) * std::sqrt(squares / count);
  std::erase_if(candidates_,
                [&](const Candidate& c) { return static_cast<double>(c.logit) < bound; });
}

// Dynamic temperature, as the op temper defines it.
float TokenChooser::temperature_of(const Settings& s) {
  if (s.dynatemp_range <= 0 || candidates_.size() < 2) return s.temperature;
  auto peak = static_cast<double>(std::min_element(candidates_.begin(), candidates_.end())->logit);
  double total = 0, entropy = 0;
  auto weight = [&](const Candidate& c) { return std::exp(static_cast<double>(c.logit) - peak); };
  for (const Candidate& c : candidates_) total += weight(c);
  for (const Candidate& c : candidates_)
    if (double p = weight(c) / total; p > 0) entropy -= p * std::log(p);
  auto temperature = static_cast<double>(s.temperature),
       range = static_cast<double>(s.dynatemp_range);
  double low = std::max(0.0, temperature - range), high = temperature + range;
  double share =
      std::pow(std::max(0.0, entropy / std::log(static_cast<double>(candidates_.size()))),
               static_cast<double>(s.dynatemp_exponent));
  return std::max(static_cast<float>(low + (high - low) * share), kLeastTemperature);
}

// The best candidates stay where a filter leaves fewer than min_keep.
template <class Filter>
void TokenChooser::keep_enough(const Settings& s, Filter filter) {
  if (s.min_keep <= 1) return filter();
  std::vector<Candidate> before = candidates_;
  filter();
  if (std::ssize(candidates_) >= s.min_keep) return;
  candidates_ = std::move(before);
  keep_best(static_cast<size_t>(s.min_keep));
}

void TokenChooser::run_stage(SampleStage stage, const Settings& s) {
  auto peak = [&] { return std::min_element(candidates_.begin(), candidates_.end())->logit; };
  switch (stage) {
    case SampleStage::kPenalties:
      penalize(s);
      return refresh();
    case SampleStage::kDry:
      discourage_repeats(s);
      return refresh();
    case SampleStage::kTemperature:
      for (float t = temperature_of(s); float& x : scratch_) x /= t;
      return refresh();
    case SampleStage::kTopK:
      if (s.top_k > 0) keep_best(static_cast<size_t>(s.top_k));
      return;
    case SampleStage::kTypical:
      if (s.typical_p < 1) keep_typical(s);
      return;
    case SampleStage::kTopP:
      if (float best = peak(); s.top_p < 1)
        keep_enough(s, [&] { keep_top_p(s.top_p, 1.0f, best, candidate_mass(best)); });
      return;
    case SampleStage::kMinP:
      if (float bound = peak() + std::log(std::min(s.min_p, 1.0f)); s.min_p > 0)
        keep_enough(s, [&] {
          std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < bound; });
        });
      return;
    case SampleStage::kXtc:
      if (s.xtc_probability > 0) exclude_top(s);
      return;
    case SampleStage::kTopNSigma:
      if (s.top_n_sigma > 0) keep_top_n_sigma(s.top_n_sigma);
      return;
  }
}

int32_t TokenChooser::choose_staged(const Settings& s, std::span<const float> logits) {
  SampleStage stages[kSampleStages];
  std::span<const SampleStage> order = kDefaultOrder;
  if (s.order.empty()) {
    auto adjusted = adjust(s, logits);
    if (adjusted.data() != scratch_.data())
      std::copy(adjusted.begin(), adjusted.end(), scratch_.begin());
    order = order.subspan(2);  // penalties and DRY are done
  } else {
    std::transform(s.order.begin(), s.order.end(), stages,
                   [](int32_t stage) { return static_cast<SampleStage>(stage); });
    order = std::span(stages).first(s.order.size());
    std::copy(logits.begin(), logits.end(), scratch_.begin());
    bias(s);
  }
  collect(scratch_, kLowest);
  if (candidates_.empty()) return kTokenNotAllowed;
  bool greedy = s.temperature <= 0;
  for (SampleStage stage : order)
    if (!greedy || stage == SampleStage::kPenalties || stage == SampleStage::kDry)
      run_stage(stage, s);
  auto best = *std::min_element(candidates_.begin(), candidates_.end());
  return greedy ? best.id : draw(s, 1.0f, best.logit);
}

}  // namespace tokamak
