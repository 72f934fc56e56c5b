#pragma once
// The part that all token masks share: an answer is read token by token, and a step's drafts after
// it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
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
    for (int32_t id : drafts.subspan(go_ahead(p, drafts))) {
      // The answer ends here. What follows is not kept, but a row without any token fails.
      if (ends_answer(*ahead_, id)) return std::fill(allowed.begin(), allowed.end(), ~0u);
      if (!read(*ahead_, id)) return;
    }
    fill(*ahead_, allowed);
  }

 protected:
  virtual Progress start() const = 0;
  // False, and nothing changes, if the token is not allowed.
  virtual bool read(Progress& p, int32_t id) const = 0;
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

 private:
  // Brings ahead_ to the answer and the drafts that it has in common with the row before; returns
  // their number. A row of a step comes after those that it continues, so that mostly one draft is
  // left to read.
  size_t go_ahead(const Progress& p, std::span<const int32_t> drafts) {
    size_t begin = p.ids.size();
    if (ahead_ && ahead_->ids.size() >= begin &&
        std::equal(p.ids.begin(), p.ids.end(), ahead_->ids.begin())) {
      auto known = std::span<const int32_t>(ahead_->ids).subspan(begin);
      auto common = static_cast<size_t>(
          std::mismatch(known.begin(), known.end(), drafts.begin(), drafts.end()).first -
          known.begin());
      if (common == known.size() || rewind(*ahead_, begin + common)) return common;
    }
    ahead_ = p;
    return 0;
  }

  std::optional<Progress> ahead_;  // the answer and drafts of the row before
};

}  // namespace tokamak
