#include "serve/grammar_mask.h"

#include <algorithm>

#include "base/error.h"
#include "serve/jump_forward.h"

namespace tokamak {
namespace {

constexpr size_t kMaxGap = 4;  // tokens of white space after the thinking

bool only_space(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

std::vector<int32_t> grammar_end_ids(const Tokenizer& tokenizer,
                                     const std::vector<int32_t>& stop_ids) {
  std::vector<int32_t> ids = tokenizer.spec().eog_ids;
  if (tokenizer.eos_id() >= 0) ids.push_back(tokenizer.eos_id());
  for (int32_t id : stop_ids)
    if (tokenizer.is_special(id)) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty())
    fail(ErrorCode::kUnsupported,
         "the model has no end-of-text token, which constrained output needs");
  return ids;
}

GrammarMask::GrammarMask(GrammarMaskOptions options)
    : options_(std::move(options)),
      open_id_(options_.thinking == Thinking::kMaybe
                   ? options_.tokenizer->find_piece(options_.open_tag)
                   : -1) {
  choices_.assign(static_cast<size_t>(options_.choices), start());
  if (options_.thinking == Thinking::kNone) return;
  const Tokenizer& tokenizer = *options_.tokenizer;
  for (std::string_view space : {"\n", "\n\n"})
    for (int32_t id : tokenizer.encode(space, {.add_special = false})) gap_ids_.push_back(id);
  auto count = static_cast<int32_t>(tokenizer.vocab_size());
  thinking_mask_.resize(static_cast<size_t>(count + 31) / 32);
  for (int32_t id = 0; id < count; ++id)
    if (!tokenizer.is_eog(id)) grammar::set_bit(thinking_mask_, id);
  for (int32_t id : options_.end_ids)
    if (id < count) grammar::clear_bit(thinking_mask_, id);
}

GrammarMask::Progress GrammarMask::start() const {
  Phase phase = options_.thinking == Thinking::kOpen ? Phase::kThinking
                : open_id_ >= 0                      ? Phase::kBegin
                                                     : Phase::kText;
  return {.phase = phase, .matcher = grammar::Matcher(options_.grammar)};
}

void GrammarMask::think(Progress& p, int32_t id) const {
  p.tail += options_.tokenizer->piece_bytes(id);
  if (size_t at = p.tail.find(options_.close_tag); at != std::string::npos) {
    if (!only_space(std::string_view(p.tail).substr(at + options_.close_tag.size())))
      fail(ErrorCode::kUnsupported, "a token contains text after {}", options_.close_tag);
    p.phase = Phase::kGap;
    p.tail.clear();
  } else if (p.tail.size() >= options_.close_tag.size()) {
    p.tail.erase(0, p.tail.size() - options_.close_tag.size() + 1);
  }
}

bool GrammarMask::read(Progress& p, int32_t id) const {
  bool opens = p.phase == Phase::kBegin && id == open_id_;
  if (opens || p.phase == Phase::kThinking) {
    p.phase = Phase::kThinking;
    think(p, id);
  } else if (p.phase == Phase::kGap && p.gap < kMaxGap &&
             only_space(options_.tokenizer->piece_bytes(id))) {
    ++p.gap;
  } else {
    if (!p.matcher.accept(id)) return false;
    p.phase = Phase::kText;
  }
  p.ids.push_back(id);
  if (p.matcher.size() == 0) p.before = p.ids.size();
  return true;
}

bool GrammarMask::rewind(Progress& p, size_t count) const {
  if (count <= p.before) return false;
  p.matcher.rollback(p.ids.size() - count);
  p.ids.resize(count);
  return true;
}

bool GrammarMask::ends_answer(const Progress&, int32_t id) const {
  return std::find(options_.end_ids.begin(), options_.end_ids.end(), id) != options_.end_ids.end();
}

void GrammarMask::fill(Progress& p, std::span<uint32_t> allowed) const {
  auto bits = static_cast<int32_t>(allowed.size() * 32);
  if (p.phase == Phase::kThinking) {
    std::copy_n(thinking_mask_.begin(), std::min(thinking_mask_.size(), allowed.size()),
                allowed.begin());
    return;
  }
  p.matcher.fill_mask(allowed);
  if (p.phase == Phase::kBegin && open_id_ < bits) grammar::set_bit(allowed, open_id_);
  if (p.phase == Phase::kGap && p.gap < kMaxGap)
    for (int32_t id : gap_ids_)
      if (id < bits) grammar::set_bit(allowed, id);
  if (!p.matcher.accepting()) return;
  bool early = static_cast<int32_t>(p.ids.size()) < options_.min_tokens;
  if (early && std::any_of(allowed.begin(), allowed.end(), [](uint32_t w) { return w != 0; }))
    return;
  for (int32_t id : options_.end_ids)
    if (id < bits) grammar::set_bit(allowed, id);
}

// Errors are reported by the next call of allow().
void GrammarMask::force(int32_t choice, std::span<const int32_t> answer,
                        std::vector<int32_t>& forced) {
  try {
    Progress& p = follow(choice, answer);
    if (p.phase != Phase::kText) return;
    append_forced_tokens(p.matcher, *options_.tokenizer, forced);
    // The end of the text is forced too, if nothing else may follow.
    int32_t end = options_.tokenizer->eos_id();
    if (!ends_answer(p, end)) return;
    Progress ahead = p;
    for (int32_t id : forced)
      if (!read(ahead, id)) return;
    if (ahead.matcher.finished()) forced.push_back(end);
  } catch (const Error&) {
    forced.clear();
  }
}

}  // namespace tokamak
