#include "engine/draft/draft_planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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

int32_t DraftPlanner::branches_for(const Sequence& seq) const {
  if (!config_.tree_mask) return 1;
  int32_t wanted = seq.request->spec.draft_branches;
  return wanted < 0 ? config_.draft_branches : std::min(config_.draft_branches, wanted);
}

double DraftPlanner::rate(const Sequence& seq, int32_t strength) const {
  const DraftRecord::Rate& r = seq.draft.rates[static_cast<size_t>(strength)];
  Average all = average(strength);
  double weight = std::min(kMostPrior, all.accepted + all.rejected);
  return (r.accepted + weight * all.share()) / (r.accepted + r.rejected + weight);
}

// Fills chance_, and order_ and sorted_ with the likeliest first: a draft never precedes the one
// that it continues.
void DraftPlanner::estimate(const Sequence& seq, std::span<const DraftToken> drafts) {
  const double a = rate(seq, seq.draft.strength), b = branch_.share();
  chance_.clear();
  place_.assign(drafts.size() + 1, 0);  // branches of each draft so far
  for (const DraftToken& d : drafts) {
    double chance = d.parent < 0 ? 1 : chance_[static_cast<size_t>(d.parent)];
    int32_t branch = place_[static_cast<size_t>(d.parent + 1)]++;
    chance *= branch == 0 ? a : (1 - a) * b * std::pow(1 - b, branch - 1);
    chance_.push_back(chance);
  }
  order_.resize(drafts.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int32_t x, int32_t y) {
    double one = chance_[static_cast<size_t>(x)], other = chance_[static_cast<size_t>(y)];
    return one > other || (one == other && x < y);
  });
  sorted_.clear();
  for (int32_t i : order_) sorted_.push_back(chance_[static_cast<size_t>(i)]);
}

// The number of drafts that gives the most tokens per second; 0: no clear gain.
int32_t DraftPlanner::best_length(std::span<const double> chances) const {
  double tokens = tokens_, best = kClearGain * tokens_ / cost_.seconds(rows_);
  int32_t length = 0, counted = 0;
  for (int32_t k : kLengths) {
    if (k > std::ssize(chances)) break;
    for (; counted < k; ++counted) tokens += chances[static_cast<size_t>(counted)];
    double pace = tokens / cost_.seconds(rows_ + k);
    if (pace <= best) continue;
    best = pace;
    length = k;
  }
  return length;
}

int32_t DraftPlanner::worthwhile(Sequence& seq, int32_t strength, std::span<const double> chances) {
  auto most = static_cast<int32_t>(chances.size());
  if (!config_.adaptive_drafts || most == 0) return most;
  DraftRecord::Rate& r = seq.draft.rates[static_cast<size_t>(strength)];
  if (int32_t length = best_length(chances); length > 0) {
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
  ones_.assign(chances.size(), 1);
  if (++r.skipped < r.pause || best_length(ones_) == 0) return 0;
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
    if (drafter_->expensive()) {
      sorted_.clear();
      double a = rate(*s, 0), chance = 1;
      for (int32_t k = 0; k < most; ++k) sorted_.push_back(chance *= a);
      most = worthwhile(*s, 0, sorted_);
    }
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
    r.branches = branches_for(*s);
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
  size_t usable = 0, most_usable = r.tokens.size();
  if (config_.adaptive_drafts && r.founded > 0)
    most_usable = std::min(most_usable, static_cast<size_t>(r.founded));
  while (usable < most_usable && is_valid(r.tokens, usable)) ++usable;
  std::span<const DraftToken> drafts = std::span(r.tokens).first(usable);
  estimate(seq, drafts);
  // The branches of a model cost it nothing, and are not part of what it was asked for.
  const bool adds = drafter_->expensive() && config_.adaptive_drafts && r.branches > 1;
  const int64_t allowed = std::min<int64_t>(most, adds ? most_for(seq) : r.most);
  auto bound = static_cast<size_t>(std::clamp<int64_t>(allowed, 0, std::ssize(sorted_)));
  std::span<const double> chances = std::span(sorted_).first(bound);
  size_t length = bound;
  if (adds)
    length = std::min<size_t>(
        bound, static_cast<size_t>(std::max(best_length(chances), std::max(r.most, 0))));
  else if (!drafter_->expensive())
    length = static_cast<size_t>(worthwhile(seq, seq.draft.strength, chances));
  place_.assign(usable, -1);
  for (size_t i = 0; i < length; ++i) place_[static_cast<size_t>(order_[i])] = 0;
  seq.drafts.clear();
  for (size_t i = 0; i < usable; ++i) {
    if (place_[i] < 0) continue;
    place_[i] = static_cast<int32_t>(seq.drafts.size());
    DraftToken& d = seq.drafts.emplace_back(drafts[i]);
    if (d.parent >= 0) d.parent = place_[static_cast<size_t>(d.parent)];
    tokens_ += chance_[i];
  }
  rows_ += static_cast<int64_t>(length);
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
  note_rates(seq, last);
}

// Along the accepted path: the first draft that continues a token was accepted or not; if not, each
// branch beside it up to the accepted one.
void DraftPlanner::note_rates(Sequence& seq, int32_t last) {
  const auto& drafts = seq.drafts;
  place_.assign(drafts.size() + 1, -1);  // by token: the accepted draft that continues it
  for (int32_t d = last; d >= 0; d = drafts[static_cast<size_t>(d)].parent)
    place_[static_cast<size_t>(drafts[static_cast<size_t>(d)].parent + 1)] = d;
  double accepted = 0, rejected = 0, branches = 0, tried = 0;
  for (int32_t at = -1;;) {
    int32_t next = place_[static_cast<size_t>(at + 1)], before = 0;
    for (int32_t d = at + 1; d < std::ssize(drafts) && d != next; ++d)
      before += drafts[static_cast<size_t>(d)].parent == at;
    accepted += next >= 0 && before == 0;
    rejected += before > 0;
    branches += next >= 0 && before > 0;
    tried += before > 0 ? before - (next >= 0 ? 0 : 1) : 0;
    if (next < 0) break;
    at = next;
  }
  DraftRecord::Rate& r = seq.draft.rates[static_cast<size_t>(seq.draft.strength)];
  Average& all = average_[static_cast<size_t>(seq.draft.strength)];
  r.accepted = kKeepSequence * r.accepted + accepted;
  r.rejected = kKeepSequence * r.rejected + rejected;
  all.accepted = kKeepAverage * all.accepted + accepted;
  all.rejected = kKeepAverage * all.rejected + rejected;
  if (tried > 0) {
    branch_.accepted = kKeepAverage * branch_.accepted + branches;
    branch_.rejected = kKeepAverage * branch_.rejected + tried - branches;
  }
  if (r.off && rejected > 0) r.pause = std::min(2 * r.pause, kLongestPause);
}

void DraftPlanner::finish(const Sequence& seq) {
  if (drafter_ == nullptr || seq.request->beam) return;
  drafter_->finish(seq.order, seq.request->spec.cache_salt, seq.ids(), seq.prompt_length());
}

}  // namespace tokamak
