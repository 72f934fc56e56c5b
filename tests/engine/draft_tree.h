#pragma once
// Drafts of tests: random chains and trees in which some tokens are right.
#include <functional>
#include <vector>

#include "base/rng.h"
#include "engine/draft/drafter.h"

namespace tokamak {

// Chains in which token p of the text is wrong if p is a multiple of `wrong_every`.
class OracleDrafter final : public Drafter {
 public:
  using Next = std::function<std::vector<int32_t>(const DraftRequest& request, int32_t n)>;
  OracleDrafter(Next next, int64_t vocab, int64_t wrong_every)
      : next_(std::move(next)), vocab_(vocab), wrong_every_(wrong_every) {}

  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests)
      for (int32_t id : next_(r, r.most)) {
        auto parent = static_cast<int32_t>(r.tokens.size()) - 1;
        bool wrong = (std::ssize(r.ids) + parent + 1) % wrong_every_ == 0;
        r.tokens.push_back({static_cast<int32_t>((id + (wrong ? 1 : 0)) % vocab_), parent});
      }
  }

 private:
  Next next_;
  int64_t vocab_, wrong_every_;
};

// `next(ids, n)` gives up to n tokens that really follow.
class RandomDrafter final : public Drafter {
 public:
  using Next = std::function<std::vector<int32_t>(std::span<const int32_t> ids, int32_t n)>;
  RandomDrafter(Next next, int64_t vocab, bool trees, uint64_t seed)
      : next_(std::move(next)), vocab_(vocab), trees_(trees), rng_(seed) {}

  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) propose(r.ids, r.most, r.tokens);
  }
  void propose(std::span<const int32_t> ids, int32_t k, std::vector<DraftToken>& out) {
    auto n = static_cast<int32_t>(rng_.below(static_cast<uint64_t>(k) + 1));
    std::vector<int32_t> right = next_(ids, n);
    depth_.assign(1, 0);  // of right tokens: how many; -1: a wrong one is before it
    for (int32_t i = 0; i < n; ++i) {
      auto parent = static_cast<size_t>(i);  // in depth_, which has the known tokens first
      if (trees_ && rng_.below(2) == 0) parent = rng_.below(static_cast<uint64_t>(i) + 1);
      int32_t depth = depth_[parent];
      bool is_right = depth >= 0 && depth < std::ssize(right) && rng_.below(3) > 0;
      int32_t id = static_cast<int32_t>(rng_.below(static_cast<uint64_t>(vocab_)));
      if (depth >= 0 && depth < std::ssize(right)) {
        int32_t token = right[static_cast<size_t>(depth)];
        id = is_right ? token : static_cast<int32_t>((token + 1) % vocab_);
      }
      depth_.push_back(is_right ? depth + 1 : -1);
      out.push_back({id, static_cast<int32_t>(parent) - 1});
      branches += static_cast<int64_t>(parent) != i;
    }
  }
  int64_t branches = 0;  // proposed tokens that do not continue the one before them

 private:
  Next next_;
  int64_t vocab_;
  bool trees_;
  Rng rng_;
  std::vector<int32_t> depth_;
};

}  // namespace tokamak
