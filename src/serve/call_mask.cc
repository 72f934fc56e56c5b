#include "serve/call_mask.h"

#include <algorithm>

#include "base/error.h"
#include "serve/jump_forward.h"

namespace tokamak {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kLongestName = 256;

// Kimi's names: functions.NAME:3.
std::string_view stripped(std::string_view name) {
  while (!name.empty() && kBlanks.find(name.front()) != kBlanks.npos) name.remove_prefix(1);
  while (!name.empty() && kBlanks.find(name.back()) != kBlanks.npos) name.remove_suffix(1);
  constexpr std::string_view kSpace = "functions.";
  if (!name.starts_with(kSpace)) return name;
  name.remove_prefix(kSpace.size());
  return name.substr(0, name.rfind(':'));
}

// Bytes of the mark that the text ends with.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t k = std::min(text.size(), mark.size() - 1); k > 0; --k)
    if (text.ends_with(mark.substr(0, k))) return k;
  return 0;
}

// Keeps what may be the beginning of the mark. True: the text ended with all of it.
bool reads_mark(std::string& tail, const std::string& bytes, std::string_view mark) {
  tail += bytes;
  if (tail.find(mark) != std::string::npos) {
    tail.clear();
    return true;
  }
  tail = tail.substr(tail.size() - begun(tail, mark));
  return false;
}

}  // namespace

CallMask::CallMask(CallMaskOptions options)
    : options_(std::move(options)),
      open_id_(options_.thinking == Thinking::kMaybe
                   ? options_.tokenizer->find_piece(options_.open_tag)
                   : -1) {
  crossing_separators_.resize(options_.separators.size());
  const Tokenizer& tokenizer = *options_.tokenizer;
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab_size()); ++id) {
    const std::string bytes = tokenizer.piece_bytes(id);
    size_t first = options_.mark.empty() ? bytes.find_first_not_of(kBlanks) : std::string::npos;
    if (first != std::string::npos && bytes[first] == '{') braces_.push_back(id);
    add_crossing(crossing_, options_.mark, bytes, id);
    for (size_t i = 0; i < options_.separators.size(); ++i)
      add_crossing(crossing_separators_[i], options_.separators[i], bytes, id);
  }
  choices_.assign(static_cast<size_t>(options_.choices), start());
}

void CallMask::add_crossing(Crossing& to, const std::string& mark, const std::string& bytes,
                            int32_t id) {
  to.resize(std::max<size_t>(mark.size(), 1));
  size_t last = mark.empty() ? std::string::npos : bytes.find(mark.back());
  if (last == std::string::npos || last + 1 == bytes.size()) return;
  for (size_t k = 0; k < mark.size(); ++k) {
    std::string text = mark.substr(0, k) + bytes;
    size_t at = text.find(mark);
    if (at != std::string::npos && at + mark.size() < text.size()) to[k].push_back(id);
  }
}

CallMask::Progress CallMask::start() const {
  bool first = open_id_ >= 0 || options_.mark.empty();
  Phase phase = options_.thinking == Thinking::kOpen ? Phase::kThinking
                : first                              ? Phase::kBegin
                                                     : Phase::kFree;
  return {.phase = phase,
          .matcher = grammar::Matcher(options_.named.empty() ? options_.grammar
                                                             : options_.named[0].grammar)};
}

// Between the mark and the arguments.
void CallMask::read_name(Progress& p) const {
  std::string_view text = p.tail;
  size_t end = text.find(options_.separators[0]);
  if (end == text.npos) {
    if (text.size() <= kLongestName) return;
    p.phase = Phase::kFree;
    p.tail.clear();
    return;
  }
  std::string_view name = stripped(text.substr(0, end));
  auto known = [&] {
    return std::find_if(options_.named.begin(), options_.named.end(),
                        [&](const NamedCall& c) { return c.name == name; });
  };
  auto call = known();
  if (call == options_.named.end() && name == "function" && options_.separators.size() > 1) {
    text.remove_prefix(end + options_.separators[0].size());
    end = text.find(options_.separators[1]);
    if (end == text.npos && text.size() <= kLongestName) return;
    name = text.substr(0, end);
    call = known();
  }
  p.tail.clear();
  p.phase = call == options_.named.end() ? Phase::kFree : Phase::kCall;
  if (p.phase == Phase::kCall) p.matcher = grammar::Matcher(call->grammar);
}

// Text outside of calls.
void CallMask::read_free(Progress& p, int32_t id) const {
  std::string bytes = options_.tokenizer->piece_bytes(id);
  if (p.phase == Phase::kThinking) {
    if (reads_mark(p.tail, bytes, options_.close_tag))
      p.phase = options_.mark.empty() ? Phase::kBegin : Phase::kFree;
  } else if (p.phase == Phase::kBegin && id == open_id_) {
    p.phase = Phase::kThinking;
  } else if (!options_.mark.empty()) {
    const bool named = !options_.named.empty();
    if (!reads_mark(p.tail, bytes, options_.mark))
      p.phase = Phase::kFree;
    else
      p.phase = named ? Phase::kName : Phase::kCall;
    if (p.phase == Phase::kCall) p.matcher = grammar::Matcher(options_.grammar);
  } else if (bytes.find_first_not_of(kBlanks) != std::string::npos) {
    p.phase = Phase::kText;  // not a call, to the end
  }
}

bool CallMask::read(Progress& p, int32_t id) const {
  bool brace = p.phase == Phase::kBegin && options_.mark.empty() &&
               std::binary_search(braces_.begin(), braces_.end(), id);
  if (brace || p.phase == Phase::kCall) {
    if (!p.matcher.accept(id)) return false;
    Phase after = options_.mark.empty() ? Phase::kText : Phase::kFree;
    p.phase = p.matcher.finished() ? after : Phase::kCall;
  } else if (p.phase == Phase::kName) {
    p.tail += options_.tokenizer->piece_bytes(id);
    read_name(p);
  } else if (p.phase != Phase::kText) {
    read_free(p, id);
  }
  p.ids.push_back(id);
  return true;
}

void CallMask::remove(const std::vector<int32_t>& ids, std::span<uint32_t> allowed) const {
  for (int32_t id : ids)
    if (static_cast<size_t>(id) / 32 < allowed.size()) grammar::clear_bit(allowed, id);
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
  if (p.phase == Phase::kFree || (p.phase == Phase::kBegin && !options_.mark.empty()))
    remove(crossing_[begun(p.tail, options_.mark)], allowed);
  for (size_t i = 0; p.phase == Phase::kName && i < options_.separators.size(); ++i)
    remove(crossing_separators_[i][begun(p.tail, options_.separators[i])], allowed);
  if (p.phase != Phase::kBegin || !options_.mark.empty()) return;
  remove(braces_, allowed);
  std::vector<uint32_t> call(allowed.size(), 0);
  p.matcher.fill_mask(call);
  for (int32_t id : braces_)
    if (auto word = static_cast<size_t>(id) / 32; word < call.size())
      allowed[word] |= call[word] & (1u << (id % 32));
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
