#include "serve/call_mask.h"

#include <algorithm>

#include "base/error.h"
#include "serve/jump_forward.h"
#include "text/output/machines.h"
#include "text/output/mark.h"

namespace tokamak {
namespace {

using grammar::CallStart;

constexpr std::string_view kBlankAgain = " \t\r\n;";

// Keeps what may be the beginning of the mark. True: the text contained all of it.
bool reads_mark(std::string& tail, const std::string& bytes, std::string_view mark) {
  tail += bytes;
  if (tail.find(mark) != std::string::npos) {
    tail.clear();
    return true;
  }
  tail = tail.substr(tail.size() - overlap(tail, mark));
  return false;
}

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(first_solid(text));
  return text;
}

}  // namespace

CallMask::CallMask(CallMaskOptions options)
    : options_(std::move(options)),
      open_id_(options_.thinking == Thinking::kMaybe
                   ? options_.tokenizer->find_piece(options_.open_tag)
                   : -1) {
  const Tokenizer& tokenizer = *options_.tokenizer;
  const std::string_view last = options_.begin.start == CallStart::kName   ? "\n{"
                                : options_.begin.start == CallStart::kList ? "("
                                                                           : "{";
  if (has_mark()) marks_.push_back({options_.begin.mark, {}});
  for (const std::string& other : options_.begin.others) marks_.push_back({other, {}});
  for (Mark& mark : marks_) mark.crossing.resize(mark.text.size());
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab_size()); ++id) {
    std::string bytes = tokenizer.piece_bytes(id);
    if (has_mark())
      for (Mark& mark : marks_) add_crossing(mark, bytes, id);
    else if (bytes.find_first_of(last) != std::string::npos)
      starters_.emplace_back(id, std::move(bytes));
  }
  choices_.assign(static_cast<size_t>(options_.choices), start());
}

void CallMask::add_crossing(Mark& mark, const std::string& bytes, int32_t id) const {
  size_t last = bytes.find(mark.text.back());
  if (last == std::string::npos || last + 1 == bytes.size()) return;
  for (size_t k = 0; k < mark.text.size(); ++k) {
    std::string text = mark.text.substr(0, k) + bytes;
    size_t at = text.find(mark.text);
    if (at == std::string::npos || at + mark.text.size() >= text.size()) continue;
    const bool checked = at == 0 && mark.text == options_.begin.mark;
    (checked ? mark.crossing[k].checked : mark.crossing[k].forbidden).push_back(id);
  }
}

CallMask::Progress CallMask::start() const {
  const bool first = open_id_ >= 0 || !has_mark();
  Phase phase = options_.thinking == Thinking::kOpen ? Phase::kThinking
                : first                              ? Phase::kBegin
                                                     : Phase::kFree;
  return {.phase = phase, .matcher = grammar::Matcher(options_.grammar)};
}

// As the readers of calls (text/output) see it: NAME and a line break or a brace.
CallMask::Beginning CallMask::named_beginning(std::string_view text) const {
  size_t end = text.find_first_of("\n{");
  std::string_view name = bare_call_name(trimmed(text.substr(0, end)));
  const auto& names = options_.begin.names;
  if (end != text.npos)
    return std::find(names.begin(), names.end(), name) != names.end() ? Beginning::kCall
                                                                      : Beginning::kText;
  return may_be_name(text) ? Beginning::kMaybe : Beginning::kText;
}

// The text can become one of the names, perhaps with a namespace, a number and blanks.
bool CallMask::may_be_name(std::string_view text) const {
  for (const std::string& name : options_.begin.names)
    for (const std::string& form : {name, "functions." + name}) {
      if (form.starts_with(text)) return true;
      if (text.starts_with(form) &&
          text.find_first_not_of(":0123456789 \t\r", form.size()) == text.npos)
        return true;
    }
  return false;
}

// [NAME(
CallMask::Beginning CallMask::listed_beginning(std::string_view text) const {
  if (text[0] != '[') return Beginning::kText;
  text = without_blanks(text.substr(1));
  size_t end = text.find('(');
  const auto& names = options_.begin.names;
  if (end != text.npos)
    return std::find(names.begin(), names.end(), trimmed(text.substr(0, end))) != names.end()
               ? Beginning::kCall
               : Beginning::kText;
  return text.empty() || may_be_name(text) ? Beginning::kMaybe : Beginning::kText;
}

CallMask::Beginning CallMask::beginning_of(const Progress& p, const std::string& bytes) const {
  const std::string all = p.tail + bytes;
  std::string_view text = all;
  // Calls may have semicolons between them.
  text.remove_prefix(std::min(text.find_first_not_of(p.again ? kBlankAgain : kBlank), text.size()));
  for (const Mark& mark : marks_) {
    if (mark.text.starts_with(text)) return Beginning::kMaybe;
    if (text.starts_with(mark.text)) text = without_blanks(text.substr(mark.text.size()));
  }
  if (text.empty()) return Beginning::kMaybe;
  switch (options_.begin.start) {
    case CallStart::kName:
      return named_beginning(text);
    case CallStart::kList:
      return listed_beginning(text);
    default:
      return text[0] == '{' ? Beginning::kCall : Beginning::kText;
  }
}

bool CallMask::read_beginning(Progress& p, int32_t id, const std::string& bytes) const {
  const Beginning now = beginning_of(p, bytes);
  // Blanks and marks before a call are not part of it.
  if (p.tail.empty() && bytes.find_first_not_of(p.again ? kBlankAgain : kBlank) == bytes.npos)
    return true;
  const std::string text = p.tail + bytes;
  if (std::any_of(marks_.begin(), marks_.end(), [&](const Mark& m) { return m.text == text; })) {
    p.tail.clear();
    p.matcher = grammar::Matcher(options_.grammar);
    p.matches = true;
    return true;
  }
  const bool accepted = p.matches && now != Beginning::kText && p.matcher.accept(id);
  if (now == Beginning::kCall && !accepted) return false;
  p.matches = accepted;
  p.tail = now == Beginning::kMaybe ? text : "";
  p.phase = now == Beginning::kCall   ? Phase::kCall
            : now == Beginning::kText ? Phase::kText
                                      : Phase::kBegin;
  return true;
}

// Text outside of calls, in formats with a mark, or thoughts.
bool CallMask::read_free(Progress& p, int32_t id, const std::string& bytes) const {
  if (p.phase == Phase::kThinking) {
    if (reads_mark(p.tail, bytes, options_.close_tag))
      p.phase = has_mark() ? Phase::kFree : Phase::kBegin;
    return true;
  }
  const std::string& first = options_.begin.mark;
  const std::string text = p.tail + bytes;
  size_t kept = 0;
  for (const Mark& mark : marks_) {
    kept = std::max(kept, overlap(text, mark.text));
    if (text.find(mark.text) == text.npos) continue;
    const size_t begun = overlap(p.tail, mark.text);
    const auto& [checked, forbidden] = mark.crossing[begun];
    const bool crosses = std::binary_search(checked.begin(), checked.end(), id);
    if (std::binary_search(forbidden.begin(), forbidden.end(), id)) return false;
    grammar::Matcher matcher(options_.grammar, crosses ? first.substr(0, begun) : first);
    if (crosses && !matcher.accept(id)) return false;
    p.matcher = std::move(matcher);
    p.tail.clear();
    p.phase = Phase::kCall;
    return true;
  }
  p.tail = text.substr(text.size() - kept);
  p.phase = Phase::kFree;
  return true;
}

bool CallMask::read_call(Progress& p, int32_t id) const {
  if (!p.matcher.accept(id)) return false;
  if (!p.matcher.finished()) return true;
  // After calls without a mark more of them may follow, where the format has brackets.
  p.phase = has_mark()                                 ? Phase::kFree
            : options_.begin.start == CallStart::kName ? Phase::kText
                                                       : Phase::kBegin;
  p.matcher = grammar::Matcher(options_.grammar);
  p.matches = p.again = true;
  return true;
}

bool CallMask::read(Progress& p, int32_t id) const {
  const std::string bytes = options_.tokenizer->piece_bytes(id);
  if (p.phase == Phase::kCall) {
    if (!read_call(p, id)) return false;
  } else if (p.phase == Phase::kBegin && id == open_id_ && p.tail.empty() && !p.again) {
    p.phase = Phase::kThinking;
  } else if (p.phase == Phase::kBegin && !has_mark()) {
    if (!read_beginning(p, id, bytes)) return false;
  } else if (p.phase != Phase::kText) {
    if (!read_free(p, id, bytes)) return false;
  }
  p.ids.push_back(id);
  return true;
}

// Forbids those of the tokens that the grammar does not allow.
void CallMask::fill_call(grammar::Matcher& matcher, const std::vector<int32_t>& ids,
                         std::span<uint32_t> allowed) const {
  if (ids.empty()) return;
  std::vector<uint32_t> call(allowed.size(), 0);
  matcher.fill_mask(call);
  for (int32_t id : ids)
    if (auto word = static_cast<size_t>(id) / 32; word < call.size())
      allowed[word] &= call[word] | ~(1u << (id % 32));
}

void CallMask::fill(Progress& p, std::span<uint32_t> allowed) const {
  if (p.phase == Phase::kCall) {
    p.matcher.fill_mask(allowed);
    if (p.matcher.accepting())
      for (int32_t id : options_.end_ids)
        if (static_cast<size_t>(id) / 32 < allowed.size()) grammar::set_bit(allowed, id);
    return;
  }
  std::fill(allowed.begin(), allowed.end(), ~0u);
  if (has_mark() && p.phase != Phase::kThinking) {
    for (const Mark& mark : marks_) {
      const size_t begun = overlap(p.tail, mark.text);
      const auto& [checked, forbidden] = mark.crossing[begun];
      for (int32_t id : forbidden)
        if (static_cast<size_t>(id) / 32 < allowed.size()) grammar::clear_bit(allowed, id);
      if (checked.empty()) continue;
      grammar::Matcher matcher(options_.grammar, mark.text.substr(0, begun));
      fill_call(matcher, checked, allowed);
    }
  } else if (p.phase == Phase::kBegin) {
    std::vector<int32_t> calls;
    for (const auto& [id, bytes] : starters_)
      if (beginning_of(p, bytes) == Beginning::kCall) calls.push_back(id);
    if (p.matches) return fill_call(p.matcher, calls, allowed);
    for (int32_t id : calls)
      if (static_cast<size_t>(id) / 32 < allowed.size()) grammar::clear_bit(allowed, id);
  }
}

bool CallMask::ends_answer(const Progress&, int32_t id) const {
  return std::find(options_.end_ids.begin(), options_.end_ids.end(), id) != options_.end_ids.end();
}

// Errors are reported by the next call of allow().
void CallMask::force(int32_t choice, std::span<const int32_t> answer,
                     std::vector<int32_t>& forced) {
  try {
    Progress& p = follow(choice, answer);
    if (p.phase == Phase::kCall) append_forced_tokens(p.matcher, *options_.tokenizer, forced);
  } catch (const Error&) {
    forced.clear();
  }
}

}  // namespace tokamak
