#pragma once
// The part that all token masks share: an answer is read token by token, and a step's drafts after
// it.
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/client.h"

namespace tokamak {

// `Progress` is the state after some tokens of one choice; its member `ids` has these tokens.
template <class Progress>
class AnswerMask : public TokenMask {
 public:
  void allow(int32_t choice, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> allowed) final {
    Progress& p = follow(choice, answer);
    if (drafts.empty()) return fill(p, allowed);
    Progress ahead = p;
    for (int32_t id : drafts) {
      // The answer ends here. What follows is not kept, but a row without any token fails.
      if (ends_answer(ahead, id)) return std::fill(allowed.begin(), allowed.end(), ~0u);
      if (!read(ahead, id)) return;
    }
    fill(ahead, allowed);
  }

 protected:
  virtual Progress start() const = 0;
  virtual bool read(Progress& p, int32_t id) const = 0;  // false: the token was not allowed
  virtual void fill(Progress& p, std::span<uint32_t> allowed) const = 0;
  virtual bool ends_answer(const Progress& p, int32_t id) const = 0;
  // Back to the first `count` tokens, of more. False: that is not possible.
  virtual bool rewind(Progress&, size_t) const { return false; }

  // The answer only grows, except that a failed step may take its last tokens back.
  Progress& follow(int32_t choice, std::span<const int32_t> answer) {
    Progress& p = choices_[static_cast<size_t>(choice)];
    size_t common = std::min(p.ids.size(), answer.size());
    if (common > 0 && p.ids[common - 1] != answer[common - 1])
      common = static_cast<size_t>(
          std::mismatch(p.ids.begin(), p.ids.end(), answer.begin(), answer.end()).first -
          p.ids.begin());
    if (common < p.ids.size() && !rewind(p, common)) p = start();
    for (size_t i = p.ids.size(); i < answer.size(); ++i)
      if (!read(p, answer[i]))
        fail(ErrorCode::kInternal, "token {} of the answer does not follow the grammar", answer[i]);
    return p;
  }

  std::vector<Progress> choices_;
};

}  // namespace tokamak
