#include "engine/draft/lookahead_drafter.h"

#include <algorithm>

namespace tokamak {
namespace {

constexpr size_t kMostFirstTokens = 8192;  // of a pool; then it starts again

}  // namespace

void LookaheadDrafter::add_ngram(Text& text, std::span<const int32_t> tokens) const {
  if (text.pool.size() >= kMostFirstTokens && !text.pool.contains(tokens[0])) text.pool.clear();
  std::vector<int32_t>& list = text.pool[tokens[0]];
  std::span<const int32_t> rest = tokens.subspan(1);
  auto size = std::ssize(rest);
  for (auto at = list.begin(); at != list.end(); at += size)
    if (std::equal(rest.begin(), rest.end(), at)) {
      list.erase(at, at + size);
      break;
    }
  if (std::ssize(list) >= options_.candidates * size) list.erase(list.begin(), list.begin() + size);
  list.insert(list.end(), rest.begin(), rest.end());
}

void LookaheadDrafter::read_text(Text& text, std::span<const int32_t> ids) const {
  auto n = static_cast<size_t>(options_.ngram);
  for (size_t end = std::max(text.read + 1, n); end <= ids.size(); ++end)
    add_ngram(text, ids.subspan(end - n, n));
  text.read = ids.size();
}

void LookaheadDrafter::propose(DraftRequest& r, const Text& text) const {
  auto add = [&](int32_t id) {
    r.tokens.push_back({id, static_cast<int32_t>(r.tokens.size()) - 1});
  };
  if (auto it = text.pool.find(r.ids.back()); it != text.pool.end()) {
    r.strength = 1;
    auto count = std::min<std::ptrdiff_t>(options_.ngram - 1, r.most);
    r.founded = static_cast<int32_t>(count);
    for (auto id = it->second.end() - (options_.ngram - 1); count > 0; --count) add(*id++);
  }
  // Positions without a guess begin with tokens of the text; any would do.
  auto most = std::min<size_t>(static_cast<size_t>(r.most),
                               r.tokens.size() + static_cast<size_t>(options_.window));
  for (size_t at = r.tokens.size(); at < most; ++at) {
    bool guessed = at < text.window.size() && text.window[at] >= 0;
    add(guessed ? text.window[at] : r.ids[(r.ids.size() * 31 + at * 17) % r.ids.size()]);
  }
}

void LookaheadDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& r : requests) {
    Text& text = texts_[r.sequence];
    read_text(text, r.ids);
    propose(r, text);
  }
}

void LookaheadDrafter::verified(uint64_t sequence, std::span<const DraftToken> drafts,
                                std::span<const int32_t> choices, int32_t accepted) {
  Text& text = texts_[sequence];
  auto n = static_cast<size_t>(options_.ngram), first = static_cast<size_t>(accepted) + 1;
  // n - 1 drafts, and what the model chose after them.
  for (size_t i = std::max(first, n - 1); i < choices.size(); ++i) {
    if (choices[i] < 0) continue;
    ngram_.clear();
    for (size_t d = i + 1 - n; d < i; ++d) ngram_.push_back(drafts[d].id);
    ngram_.push_back(choices[i]);
    add_ngram(text, ngram_);
  }
  text.window.assign(choices.begin() + std::min(std::ssize(choices), std::ptrdiff_t{accepted} + 1),
                     choices.end());
}

void LookaheadDrafter::finish(uint64_t sequence, std::string_view, std::span<const int32_t>,
                              int32_t) {
  texts_.erase(sequence);
}

}  // namespace tokamak
