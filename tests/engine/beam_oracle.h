#pragma once
// A simple beam search: whole texts, no sharing, every continuation is examined.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "engine/client.h"

namespace tokamak {

struct OracleText {
  std::vector<int32_t> ids;  // of the answer
  double sum = 0, score = 0;
  Finish finish = Finish::kNone;
};

// Continuations of a round: as many as ensure that `beams` of them do not end the text.
inline size_t oracle_candidates(const RequestSpec& spec) {
  size_t each = 1 + std::max<size_t>(1, spec.stop_ids.size());
  return std::min<size_t>(each * static_cast<size_t>(spec.beams), 256);
}

// `best(prompt and answer)` gives the oracle_candidates() likeliest next tokens, best first.
inline std::vector<OracleText> beam_oracle(
    const RequestSpec& spec,
    const std::function<std::vector<TokenLogprob>(const std::vector<int32_t>&)>& best) {
  auto width = static_cast<size_t>(spec.beams);
  std::vector<OracleText> live(1), ended;
  int32_t min_tokens = spec.sample ? spec.sample->min_tokens : 0;
  auto ends = [&](int32_t id) {
    return std::find(spec.stop_ids.begin(), spec.stop_ids.end(), id) != spec.stop_ids.end();
  };
  auto better = [](const OracleText& a, const OracleText& b) { return a.score > b.score; };
  auto end = [&](OracleText t, size_t length, Finish how) {
    t.finish = how;
    t.score =
        t.sum / std::pow(static_cast<double>(length), static_cast<double>(spec.length_penalty));
    ended.push_back(t);
    std::sort(ended.begin(), ended.end(), better);
    if (ended.size() > width) ended.pop_back();
  };
  for (int32_t length = 1; length <= spec.max_tokens; ++length) {
    std::vector<OracleText> all;
    for (const OracleText& t : live) {
      std::vector<int32_t> ids = spec.prompt;
      ids.insert(ids.end(), t.ids.begin(), t.ids.end());
      for (const TokenLogprob& next : best(ids)) {
        if (length - 1 < min_tokens && ends(next.id)) continue;
        all.push_back(t);
        all.back().ids.push_back(next.id);
        all.back().sum += static_cast<double>(next.logprob);
      }
    }
    std::sort(all.begin(), all.end(),
              [](const OracleText& a, const OracleText& b) { return a.sum > b.sum; });
    if (all.size() > oracle_candidates(spec)) all.resize(oracle_candidates(spec));
    live.clear();
    for (size_t rank = 0; rank < all.size(); ++rank) {
      OracleText& t = all[rank];
      if (ends(t.ids.back())) {
        t.ids.pop_back();
        if (rank < width) end(t, static_cast<size_t>(length), Finish::kStop);
      } else if (length == spec.max_tokens) {
        if (rank < width) end(t, static_cast<size_t>(length), Finish::kLength);
      } else if (live.size() < width) {
        live.push_back(t);
      }
    }
    if (live.empty()) break;
    bool longest = spec.early_stopping == EarlyStopping::kNever && spec.length_penalty > 0;
    double most = live[0].sum / std::pow(static_cast<double>(longest ? spec.max_tokens : length),
                                         static_cast<double>(spec.length_penalty));
    bool first = spec.early_stopping == EarlyStopping::kTrue;
    if (ended.size() == width && (first || ended.back().score >= most)) break;
  }
  ended.resize(std::min(ended.size(), static_cast<size_t>(spec.n)));
  return ended;
}

}  // namespace tokamak
