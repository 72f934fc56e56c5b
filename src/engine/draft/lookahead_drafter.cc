#include "engine/draft/lookahead_drafter.h"

#include <algorithm>
#include <utility>

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
  int32_t last = -1;  // of the chain
  if (auto it = text.pool.find(r.ids.back()); it != text.pool.end()) {
    r.strength = 1;
    auto count = std::min<std::ptrdiff_t>(options_.ngram - 1, r.most);
    std::span<const int32_t> list = it->second;
    auto size = static_cast<size_t>(options_.ngram - 1);
    // The latest n-gram first; others that begin with the same token are branches.
    for (size_t end = list.size(); end > 0; end -= size) {
      add_path(r, -1, list.subspan(end - size, static_cast<size_t>(count)));
      if (r.branches == 1) break;
    }
    r.founded = static_cast<int32_t>(r.tokens.size());
    last = r.founded > 0 ? static_cast<int32_t>(count) - 1 : -1;
  }
  // Positions without a guess begin with tokens of the text; any would do.
  auto first = static_cast<size_t>(last + 1);
  auto most =
      std::min<size_t>(static_cast<size_t>(r.most), first + static_cast<size_t>(options_.window));
  for (size_t at = first; at < most; ++at) {
    bool guessed = at < text.window.size() && text.window[at] >= 0;
    int32_t id = guessed ? text.window[at] : r.ids[(r.ids.size() * 31 + at * 17) % r.ids.size()];
    r.tokens.push_back({id, std::exchange(last, static_cast<int32_t>(r.tokens.size()))});
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
  auto n = static_cast<size_t>(options_.ngram);
  chain_.assign(1, choices.empty() ? -1 : choices[0]);  // what was chosen after each of its tokens
  for (int32_t i = 0, last = -1; i < std::ssize(drafts) && i + 1 < std::ssize(choices); ++i) {
    const int32_t chosen = choices[static_cast<size_t>(i) + 1];
    // n - 1 drafts, and what the model chose after them.
    ngram_.assign(1, chosen);
    for (int32_t d = i; d >= 0 && ngram_.size() < n; d = drafts[static_cast<size_t>(d)].parent)
      ngram_.push_back(drafts[static_cast<size_t>(d)].id);
    bool first_child = drafts[static_cast<size_t>(i)].parent == last;
    if (first_child) {
      chain_.push_back(chosen);
      last = i;
    }
    bool known = first_child && std::ssize(chain_) - 1 <= accepted;  // is read from the text
    if (chosen < 0 || ngram_.size() < n || known) continue;
    std::reverse(ngram_.begin(), ngram_.end());
    add_ngram(text, ngram_);
  }
  text.window.assign(chain_.begin() + std::min(std::ssize(chain_), std::ptrdiff_t{accepted} + 1),
                     chain_.end());
}

void LookaheadDrafter::finish(uint64_t sequence, std::string_view, std::span<const int32_t>,
                              int32_t) {
  texts_.erase(sequence);
}

}  // namespace tokamak
