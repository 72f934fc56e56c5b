#include "engine/draft/ngram_drafter.h"

#include <algorithm>
#include <functional>

namespace tokamak {
namespace {

constexpr int32_t kMeasured = 33;  // longer matches are not more likely to go on

constexpr size_t kMostMatches = 16;  // whose continuations make a tree

struct Match {
  size_t end = 0;  // tokens of the text up to and including the occurrence
  int32_t length = 0;
};

// How many tokens of the text before `end` equal the last ids, `most` at most.
int32_t match_length(std::span<const int32_t> text, size_t end, std::span<const int32_t> ids,
                     int32_t most) {
  auto bound = static_cast<int32_t>(std::min({end, ids.size(), static_cast<size_t>(most)}));
  int32_t length = 0;
  while (length < bound && text[end - 1 - static_cast<size_t>(length)] ==
                               ids[ids.size() - 1 - static_cast<size_t>(length)])
    ++length;
  return length;
}

// The longest occurrence of the last ids in the text, `longest` at most, that a token follows.
Match find_match(std::span<const int32_t> text, std::span<const int32_t> ids,
                 const NgramOptions& o) {
  Match best;
  for (size_t end = text.empty() ? 0 : text.size() - 1; end > 0; --end) {
    if (text[end - 1] != ids.back()) continue;
    int32_t length = match_length(text, end, ids, o.longest);
    if (length > best.length || (o.earliest && length == best.length)) best = {end, length};
    if (best.length == o.longest && !o.earliest) break;
  }
  return best;
}

}  // namespace

void add_path(DraftRequest& r, int32_t parent, std::span<const int32_t> ids) {
  for (int32_t id : ids) {
    int32_t same = -1, children = 0;
    for (int32_t i = parent + 1; i < std::ssize(r.tokens); ++i) {
      if (r.tokens[static_cast<size_t>(i)].parent != parent) continue;
      ++children;
      if (r.tokens[static_cast<size_t>(i)].id == id) same = i;
    }
    if (same < 0) {
      if (children >= r.branches || r.tokens.size() >= most_nodes(r)) return;
      same = static_cast<int32_t>(r.tokens.size());
      r.tokens.push_back({id, parent});
    }
    parent = same;
  }
}

bool follow_prediction(DraftRequest& r) {
  auto answer = r.ids.subspan(static_cast<size_t>(r.prompt_length));
  if (answer.size() >= r.prediction.size() ||
      !std::equal(answer.begin(), answer.end(), r.prediction.begin()))
    return false;
  auto rest = r.prediction.subspan(answer.size());
  auto count = std::min(static_cast<int32_t>(rest.size()), r.most);
  for (int32_t i = 0; i < count; ++i) r.tokens.push_back({rest[static_cast<size_t>(i)], i - 1});
  r.strength = kMostDraftStrengths - 1;
  return true;
}

// Other occurrences of the last ids, longer ones first, of equals the latest; where they go on
// differently they are branches.
void NgramDrafter::add_other_matches(DraftRequest& r, std::span<const int32_t> text) {
  matches_.clear();
  for (size_t end = text.size() - 1; end > 0; --end)
    if (text[end - 1] == r.ids.back())
      if (int32_t length = match_length(text, end, r.ids, options_.longest);
          length >= options_.shortest)
        matches_.emplace_back(length, end);
  std::sort(matches_.begin(), matches_.end(), std::greater<>());
  if (matches_.size() > kMostMatches) matches_.resize(kMostMatches);
  for (auto [length, end] : matches_)
    add_path(r, -1, text.subspan(end, std::min(text.size() - end, static_cast<size_t>(r.most))));
}

void NgramDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& r : requests) {
    if (r.ids.empty() || follow_prediction(r)) continue;
    std::span<const int32_t> text = r.ids;
    Match match = find_match(text, r.ids, options_);
    if (Match m = find_match(r.prediction, r.ids, options_); m.length >= match.length) {
      text = r.prediction;
      match = m;
    }
    if (match.length < options_.shortest) continue;
    r.strength = match_strength(match_length(text, match.end, r.ids, kMeasured));
    for (int32_t i = 0; i < r.most; ++i) {
      size_t at = match.end + static_cast<size_t>(i);
      // An occurrence that overlaps the end goes on with what was just proposed.
      bool own = text.data() == r.ids.data();
      if (at >= text.size() && !own) break;
      int32_t id = at < text.size() ? text[at] : r.tokens[at - text.size()].id;
      r.tokens.push_back({id, i - 1});
    }
    if (r.branches > 1) add_other_matches(r, text);
  }
}

}  // namespace tokamak
