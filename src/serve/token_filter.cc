#include "serve/token_filter.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {

TokenFilter::TokenFilter(TokenFilterOptions options) : options_(std::move(options)) {
  base_.assign(mask_words(options_.vocab), options_.allowed.empty() ? ~0u : 0u);
  auto word = [&](int32_t id) -> uint32_t& { return base_[static_cast<size_t>(id) / 32]; };
  if (options_.allowed.empty() && options_.vocab % 32 != 0)
    base_.back() = (1u << (options_.vocab % 32)) - 1;
  for (int32_t id : options_.allowed) word(id) |= 1u << (id % 32);
  for (const std::vector<int32_t>& banned : options_.banned)
    if (banned.size() == 1) word(banned[0]) &= ~(1u << (banned[0] % 32));
}

void TokenFilter::allow(int32_t choice, std::span<const int32_t> answer,
                        std::span<const int32_t> drafts, std::span<uint32_t> allowed) {
  if (options_.grammar != nullptr)
    options_.grammar->allow(choice, answer, drafts, allowed);
  else
    std::fill(allowed.begin(), allowed.end(), ~0u);
  if (options_.grammar != nullptr) format_.assign(allowed.begin(), allowed.end());
  for (size_t i = 0; i < allowed.size(); ++i) allowed[i] &= i < base_.size() ? base_[i] : 0;
  size_t length = answer.size() + drafts.size();
  auto at = [&](size_t i) { return i < answer.size() ? answer[i] : drafts[i - answer.size()]; };
  for (const std::vector<int32_t>& banned : options_.banned) {
    size_t before = banned.size() - 1;
    if (before == 0 || before > length) continue;
    bool matches = true;
    for (size_t i = 0; i < before && matches; ++i) matches = at(length - before + i) == banned[i];
    auto last = static_cast<size_t>(banned.back());
    if (matches && last / 32 < allowed.size()) allowed[last / 32] &= ~(1u << (last % 32));
  }
  bool none = std::all_of(allowed.begin(), allowed.end(), [](uint32_t word) { return word == 0; });
  if (none && options_.grammar != nullptr)
    std::copy(format_.begin(), format_.end(), allowed.begin());
}

std::vector<std::vector<int32_t>> banned_sequences(const Tokenizer& tokenizer,
                                                   const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    fail(ErrorCode::kInvalidArgument, "the text is empty");
  std::string word = text.substr(text.find_first_not_of(' '));
  std::vector<std::vector<int32_t>> out;
  for (const std::string& form : {word, " " + word}) {
    std::vector<int32_t> ids =
        tokenizer.encode(form, {.add_special = false, .parse_special = false});
    if (!ids.empty() && std::find(out.begin(), out.end(), ids) == out.end())
      out.push_back(std::move(ids));
  }
  return out;
}

}  // namespace tokamak
