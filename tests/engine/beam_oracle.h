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

// `best(prompt and answer)` gives the 2 * beams likeliest next tokens, best first.
inline std::vector<OracleText> beam_oracle(
    const RequestSpec& spec,
    const std::function<std::vector<TokenLogprob>(const std::vector<int32_t>&)>& best) {
  auto width = static_cast<size_t>(spec.beams);
  std::vector<OracleText> live(1), ended;
  int32_t min_tokens = spec.sample ? spec.sample->min_tokens : 0;
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
        all.push_back(t);
        all.back().ids.push_back(next.id);
        all.back().sum += static_cast<double>(next.logprob);
      }
    }
    std::sort(all.begin(), all.end(),
              [](const OracleText& a, const OracleText& b) { return a.sum > b.sum; });
    if (all.size() > 2 * width) all.resize(2 * width);
    live.clear();
    for (size_t rank = 0; rank < all.size(); ++rank) {
      OracleText& t = all[rank];
      bool stop = length - 1 >= min_tokens && std::find(spec.stop_ids.begin(), spec.stop_ids.end(),
                                                        t.ids.back()) != spec.stop_ids.end();
      if (stop && rank < width) {
        t.ids.pop_back();
        end(t, static_cast<size_t>(length), Finish::kStop);
      } else if (!stop && live.size() < width) {
        live.push_back(t);
      }
    }
    if (live.empty()) break;
    double most = live[0].sum /
                  std::pow(static_cast<double>(length), static_cast<double>(spec.length_penalty));
    if (length == spec.max_tokens) {
      for (const OracleText& t : live) end(t, static_cast<size_t>(length), Finish::kLength);
    } else if (ended.size() == width && (spec.early_stopping || ended.back().score >= most)) {
      break;
    }
  }
  ended.resize(std::min(ended.size(), static_cast<size_t>(spec.n)));
  return ended;
}

}  // namespace tokamak
