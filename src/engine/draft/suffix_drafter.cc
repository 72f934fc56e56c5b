#include "engine/draft/suffix_drafter.h"

#include <algorithm>
#include <utility>

namespace tokamak {
namespace {

constexpr size_t kMostSalts = 64;

}  // namespace

// Fills now_ and keeps the better of now_ and best_.
void SuffixDrafter::follow(const SuffixAutomaton& text, SuffixAutomaton::Match from, int32_t most) {
  now_.tokens.clear();
  now_.states.clear();
  now_.text = &text;
  now_.match = from.length;
  now_.score = 0;
  double bound = std::min<double>(most, options_.factor * from.length);
  double chance = 1;
  int32_t state = from.state;
  while (static_cast<double>(now_.tokens.size()) + 1 <= bound) {
    SuffixAutomaton::Follower next = text.likeliest(state);
    while (next.token < 0 && text.link(state) > SuffixAutomaton::kRoot) {
      state = text.link(state);  // the end of the text: go on from where it occurred before
      next = text.likeliest(state);
    }
    chance *= next.share;
    if (next.token < 0 || chance < options_.min_share) break;
    now_.tokens.push_back({next.token, static_cast<int32_t>(now_.tokens.size()) - 1});
    now_.states.push_back(state);
    now_.score += chance;
    state = next.state;
  }
  if (now_.score > best_.score) std::swap(now_, best_);
}

// What else followed the tokens of the proposal, and what most often followed that.
void SuffixDrafter::add_branches(DraftRequest& r) {
  double before = 1;  // chance of the tokens before
  for (size_t i = 0; i < best_.states.size(); ++i) {
    best_.text->followers(best_.states[i], static_cast<size_t>(r.branches), followers_);
    for (size_t f = 1; f < followers_.size(); ++f) {
      double chance = before * followers_[f].share;
      if (chance < options_.min_share) break;
      path_.assign(1, followers_[f].token);
      int32_t state = followers_[f].state;
      while (std::ssize(path_) < r.most) {
        SuffixAutomaton::Follower next = best_.text->likeliest(state);
        chance *= next.share;
        if (next.token < 0 || chance < options_.min_share) break;
        path_.push_back(next.token);
        state = next.state;
      }
      add_path(r, static_cast<int32_t>(i) - 1, path_);
    }
    before *= followers_.empty() ? 0 : followers_[0].share;
  }
}

void SuffixDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& r : requests) {
    SuffixAutomaton& own = running_[r.sequence];
    if (own.tokens() == 0) {
      for (int32_t id : r.prediction) own.append(id);
      own.begin_text();
    }
    for (size_t i = static_cast<size_t>(own.tokens()) - r.prediction.size(); i < r.ids.size(); ++i)
      own.append(r.ids[i]);
    if (follow_prediction(r)) continue;
    best_.tokens.clear();
    best_.states.clear();
    best_.match = 0;
    best_.score = 0;
    int32_t repeated = own.link(own.last());
    if (repeated > SuffixAutomaton::kRoot) follow(own, {repeated, own.length(repeated)}, r.most);
    if (auto it = answers_.find(r.salt); it != answers_.end()) {
      it->second.used = ++clock_;
      auto depth = std::min(r.ids.size(), static_cast<size_t>(options_.depth));
      for (const SuffixAutomaton* text : {&it->second.young, &it->second.old})
        follow(*text, text->match(r.ids.last(depth)), r.most);
    }
    r.tokens.assign(best_.tokens.begin(), best_.tokens.end());
    r.strength = match_strength(best_.match);
    if (r.branches > 1) add_branches(r);
  }
}

void SuffixDrafter::finish(uint64_t sequence, std::string_view salt, std::span<const int32_t> ids,
                           int32_t prompt_length) {
  running_.erase(sequence);
  auto answer = ids.subspan(static_cast<size_t>(prompt_length));
  if (answer.empty() || options_.answers == 0 || options_.answer_tokens == 0) return;
  auto it = answers_.find(salt);
  if (it == answers_.end()) it = answers_.emplace(std::string(salt), Answers()).first;
  Answers& a = it->second;
  a.used = ++clock_;
  if (2 * a.young.tokens() >= options_.answer_tokens || 2 * a.count >= options_.answers) {
    a.old = std::exchange(a.young, SuffixAutomaton());
    a.count = 0;
  }
  ++a.count;
  a.young.begin_text();
  for (int32_t id : answer) a.young.append(id);
  while (answers_.size() > kMostSalts ||
         (answers_.size() > 1 && kept_tokens() > options_.answer_tokens))
    drop_oldest();
}

int64_t SuffixDrafter::kept_tokens() const {
  int64_t tokens = 0;
  for (const auto& [salt, a] : answers_) tokens += a.young.tokens() + a.old.tokens();
  return tokens;
}

void SuffixDrafter::drop_oldest() {
  auto oldest =
      std::min_element(answers_.begin(), answers_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  answers_.erase(oldest);
}

}  // namespace tokamak
