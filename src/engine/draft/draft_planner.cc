#include "engine/draft/draft_planner.h"

#include <algorithm>
#include <utility>

namespace tokamak {
namespace {

constexpr double kClearGain = 1.02;     // tokens per second, against no drafts
constexpr double kMostPrior = 3;        // weight of the average, in drafts
constexpr double kKeepSequence = 0.9;   // weight of the past, per verified proposal
constexpr double kKeepAverage = 0.995;  //
constexpr int32_t kFirstPause = 16;     // proposals that are not used before the next attempt
constexpr int32_t kLongestPause = 128;
// Numbers of drafts to choose from. Few, so that what a step with them takes is soon known; with
// one decode they fill steps of 2, 3, 4, 6, 8, 12 ... rows, which kernels multiply in groups.
constexpr int32_t kLengths[] = {1, 2, 3, 5, 7, 11, 15, 23, 31};

}  // namespace

bool DraftPlanner::drafts(const Sequence& seq) const {
  // Mirostat's state follows from the tokens chosen before.
  return drafter_ != nullptr && !seq.request->beam && seq.request->spec.draft_tokens != 0 &&
         seq.sample().mirostat == 0;
}

int32_t DraftPlanner::most_for(const Sequence& seq) const {
  int32_t most = std::min(config_.draft_tokens, seq.limit - seq.generated() - 1);
  int32_t wanted = seq.request->spec.draft_tokens;
  return wanted < 0 ? most : std::min(most, wanted);
}

// What all sequences showed. A stronger proposal is no less likely to be right, so neighbours whose
// averages say otherwise share one (isotonic regression): a strength that is seldom seen has little
// evidence of its own.
DraftPlanner::Average DraftPlanner::average(int32_t strength) const {
  struct Pool {
    Average average;
    int32_t last;  // strength
  };
  std::array<Pool, kMostDraftStrengths> pools;
  size_t count = 0;
  for (int32_t s = 0; s < drafter_->strengths(); ++s) {
    Pool pool = {average_[static_cast<size_t>(s)], s};
    for (; count > 0 && pools[count - 1].average.share() > pool.average.share(); --count) {
      pool.average.accepted += pools[count - 1].average.accepted;
      pool.average.rejected += pools[count - 1].average.rejected;
    }
    pools[count++] = pool;
  }
  return std::find_if(pools.begin(), pools.end(), [&](const Pool& p) { return strength <= p.last; })
      ->average;
}

double DraftPlanner::rate(const Sequence& seq, int32_t strength) const {
  const DraftRecord::Rate& r = seq.draft.rates[static_cast<size_t>(strength)];
  Average all = average(strength);
  double weight = std::min(kMostPrior, all.accepted + all.rejected);
  return (r.accepted + weight * all.share()) / (r.accepted + r.rejected + weight);
}

// The number of drafts, each accepted with probability `a`, that gives the most tokens per second;
// 0: no clear gain.
int32_t DraftPlanner::best_length(double a, int32_t most) const {
  double chance = 1, tokens = tokens_, best = kClearGain * tokens_ / cost_.seconds(rows_);
  int32_t length = 0, counted = 0;
  for (int32_t k : kLengths) {
    if (k > most) break;
    for (; counted < k; ++counted) tokens += chance *= a;
    double pace = tokens / cost_.seconds(rows_ + k);
    if (pace <= best) continue;
    best = pace;
    length = k;
  }
  return length;
}

int32_t DraftPlanner::worthwhile(Sequence& seq, int32_t strength, int32_t most) {
  if (!config_.adaptive_drafts || most <= 0) return most;
  DraftRecord::Rate& r = seq.draft.rates[static_cast<size_t>(strength)];
  if (int32_t length = best_length(rate(seq, strength), most); length > 0) {
    r.off = false;
    r.skipped = 0;
    r.pause = kFirstPause;
    return length;
  }
  if (!r.off) {
    r.off = true;
    ++stats_.draft_fallbacks;
  }
  // Try again after a while, unless even drafts that are all accepted would not pay.
  if (++r.skipped < r.pause || best_length(1, most) == 0) return 0;
  r.skipped = 0;
  return 1;
}

void DraftPlanner::propose(std::span<Sequence* const> running, int64_t spare) {
  asked_.clear();
  int64_t decodes = 0;
  for (Sequence* s : running) {
    s->draft.asked = -1;
    decodes += s->schedulable() == 1;
  }
  if (drafter_ == nullptr || spare <= 0) return;
  if (config_.draft_max_sequences > 0 && decodes > config_.draft_max_sequences) return;
  rows_ = decodes;
  tokens_ = static_cast<double>(decodes);
  for (Sequence* s : running) {
    if (s->schedulable() != 1 || s->pending > 0 || s->in_flight > 0 || !drafts(*s)) continue;
    auto most = static_cast<int32_t>(std::min<int64_t>(most_for(*s), spare));
    if (drafter_->expensive()) most = worthwhile(*s, 0, most);
    if (most <= 0) continue;
    if (requests_.size() == asked_.size()) requests_.emplace_back();
    DraftRequest& r = requests_[asked_.size()];
    r.sequence = s->order;
    r.ids = s->ids();
    r.prompt_length = s->prompt_length();
    r.prediction = s->request->spec.prediction;
    r.choice = s->choice;
    r.sample = &s->request->spec.sample;
    r.salt = s->request->spec.cache_salt;
    r.most = most;
    r.tokens.clear();
    r.strength = r.founded = 0;
    s->draft.asked = static_cast<int32_t>(asked_.size());
    asked_.push_back(s);
  }
  if (!asked_.empty()) drafter_->propose(std::span(requests_).first(asked_.size()));
}

void DraftPlanner::assign(Sequence& seq, int64_t most) {
  int32_t index = std::exchange(seq.draft.asked, -1);
  if (index < 0) return;
  DraftRequest& r = requests_[static_cast<size_t>(index)];
  seq.draft.strength = std::clamp(r.strength, 0, drafter_->strengths() - 1);
  auto bound = std::min<int64_t>({most, r.most, std::ssize(r.tokens)});
  if (config_.adaptive_drafts && r.founded > 0) bound = std::min<int64_t>(bound, r.founded);
  auto length = static_cast<int32_t>(std::max<int64_t>(0, bound));
  if (length > 0 && !drafter_->expensive()) length = worthwhile(seq, seq.draft.strength, length);
  int32_t kept = 0;
  while (kept < length && is_valid(r.tokens, static_cast<size_t>(kept))) ++kept;
  seq.drafts.assign(r.tokens.begin(), r.tokens.begin() + kept);
  double a = rate(seq, seq.draft.strength), chance = 1;
  for (int32_t k = 0; k < kept; ++k) {
    chance *= a;
    tokens_ += chance;
  }
  rows_ += kept;
}

bool DraftPlanner::is_valid(const std::vector<DraftToken>& drafts, size_t at) const {
  const DraftToken& d = drafts[at];
  auto last = static_cast<int32_t>(at) - 1;
  bool chain = d.parent == last, tree = d.parent >= -1 && d.parent <= last;
  bool by_step = d.id == kDraftedByStep;
  if (by_step != (drafts[0].id == kDraftedByStep)) return false;
  if (by_step) return config_.exits && chain;
  return d.id >= 0 && d.id < config_.vocab && (config_.tree_mask ? tree : chain);
}

void DraftPlanner::observe(int64_t rows, Nanos duration) {
  if (drafter_ != nullptr) cost_.observe(rows, seconds(duration));
}

void DraftPlanner::note_accepted(Sequence& seq, int32_t last, int32_t accepted,
                                 std::span<const int32_t> choices) {
  drafter_->verified(seq.order, seq.drafts, choices, accepted);
  auto drafted = static_cast<int32_t>(seq.drafts.size());
  ++stats_.drafts;
  stats_.draft_tokens += drafted;
  stats_.draft_accepted += accepted;
  for (int32_t i = 0; i < std::min(accepted, EngineStats::kDraftPositions); ++i)
    ++stats_.draft_accepted_at[static_cast<size_t>(i)];
  seq.draft.drafted += drafted;
  seq.draft.accepted += accepted;
  bool rejected = std::any_of(seq.drafts.begin(), seq.drafts.end(),
                              [&](const DraftToken& d) { return d.parent == last; });
  DraftRecord::Rate& r = seq.draft.rates[static_cast<size_t>(seq.draft.strength)];
  Average& all = average_[static_cast<size_t>(seq.draft.strength)];
  r.accepted = kKeepSequence * r.accepted + accepted;
  r.rejected = kKeepSequence * r.rejected + (rejected ? 1 : 0);
  all.accepted = kKeepAverage * all.accepted + accepted;
  all.rejected = kKeepAverage * all.rejected + (rejected ? 1 : 0);
  if (r.off && rejected) r.pause = std::min(2 * r.pause, kLongestPause);
}

void DraftPlanner::finish(const Sequence& seq) {
  if (drafter_ == nullptr || seq.request->beam) return;
  drafter_->finish(seq.order, seq.request->spec.cache_salt, seq.ids(), seq.prompt_length());
}

}  // namespace tokamak
