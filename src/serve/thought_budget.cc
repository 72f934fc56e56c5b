#include "serve/thought_budget.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "text/grammar/matcher.h"

namespace tokamak {
namespace {

constexpr size_t kLongestCut = 3;  // bytes of an incomplete character

std::vector<int32_t> forced_ids(const ThoughtBudgetOptions& options) {
  EncodeOptions encode;
  encode.add_special = false;
  return options.tokenizer->encode(options.forced, encode);
}

// True: the text contains the tag. Otherwise keeps what may be its beginning.
bool reads_tag(std::string& tail, std::string_view bytes, std::string_view tag) {
  tail += bytes;
  if (tail.find(tag) != std::string::npos) return true;
  size_t keep = std::min(tail.size(), tag.size() - 1);
  while (keep > 0 && !std::string_view(tail).ends_with(tag.substr(0, keep))) --keep;
  tail.erase(0, tail.size() - keep);
  return false;
}

// The bytes at the end that begin a character and do not finish it.
std::string incomplete_character(std::string_view text) {
  for (size_t n = 1; n <= std::min(text.size(), kLongestCut); ++n) {
    const auto lead = static_cast<unsigned char>(text[text.size() - n]);
    if ((lead & 0xc0) == 0x80) continue;
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return length > n ? std::string(text.substr(text.size() - n)) : "";
  }
  return "";
}

}  // namespace

ThoughtBudget::ThoughtBudget(ThoughtBudgetOptions options)
    : options_(std::move(options)), end_(forced_ids(options_)) {
  choices_.assign(static_cast<size_t>(options_.choices), start());
}

ThoughtBudget::Progress ThoughtBudget::start() const {
  Progress p;
  p.phase = options_.thinking == Thinking::kOpen ? Phase::kThinking : Phase::kBefore;
  return p;
}

bool ThoughtBudget::spent(const Progress& p) const {
  if (p.phase == Phase::kForced) return true;
  return p.phase == Phase::kThinking && p.thoughts >= options_.tokens && p.cut.empty();
}

size_t ThoughtBudget::begun(const std::string& tail) const {
  std::string text;
  for (size_t n = 0; n < end_.size() && text.size() < tail.size(); ++n) {
    text += options_.tokenizer->piece_bytes(end_[n]);
    if (text == tail) return n + 1;
  }
  return 0;
}

void ThoughtBudget::read(Progress& p, int32_t id) const {
  p.ids.push_back(id);
  if (p.phase == Phase::kAfter) return;
  if (spent(p)) {
    p.phase = ++p.forced == end_.size() ? Phase::kAfter : Phase::kForced;
    if (p.phase == Phase::kAfter && options_.again) p = {.thoughts = p.thoughts, .ids = p.ids};
    return;
  }
  const std::string bytes = options_.tokenizer->piece_bytes(id);
  if (p.phase == Phase::kThinking) {
    if (reads_tag(p.tail, bytes, options_.close_tag)) {
      p.phase = options_.again ? Phase::kBefore : Phase::kAfter;
      p.tail.clear();
    } else {
      ++p.thoughts;
      p.cut = incomplete_character(p.cut + bytes);
      p.forced = p.thoughts >= options_.tokens ? begun(p.tail) : 0;
    }
    return;
  }
  // Before thoughts. Without `again`, an answer that begins with another text has none.
  if (reads_tag(p.tail, bytes, options_.open_tag)) {
    p.phase = Phase::kThinking;
    p.tail.clear();
  } else if (!options_.again && p.tail.empty() &&
             bytes.find_first_not_of(" \t\r\n") != std::string::npos) {
    p.phase = Phase::kAfter;
  }
}

// The answer only grows, except that a failed step may take its last tokens back.
void ThoughtBudget::follow(Progress& p, std::span<const int32_t> answer) const {
  const bool grown =
      p.ids.size() <= answer.size() && std::equal(p.ids.begin(), p.ids.end(), answer.begin());
  if (!grown) p = start();
  for (size_t i = p.ids.size(); i < answer.size(); ++i) read(p, answer[i]);
}

// A row of a step comes after those that it continues, so that mostly one draft is left to read.
const ThoughtBudget::Progress& ThoughtBudget::after_drafts(const Progress& p,
                                                           std::span<const int32_t> drafts) {
  size_t begin = p.ids.size(), read_before = ahead_.ids.size();
  bool continues = read_before > begin && read_before <= begin + drafts.size() &&
                   std::equal(p.ids.begin(), p.ids.end(), ahead_.ids.begin()) &&
                   std::equal(ahead_.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                              ahead_.ids.end(), drafts.begin());
  if (!continues) ahead_ = p;
  for (int32_t id : drafts.subspan(ahead_.ids.size() - begin)) read(ahead_, id);
  return ahead_;
}

void ThoughtBudget::allow(int32_t choice, std::span<const int32_t> answer,
                          std::span<const int32_t> drafts, std::span<uint32_t> allowed) {
  Progress& p = choices_[static_cast<size_t>(choice)];
  follow(p, answer);
  const Progress& now = drafts.empty() ? p : after_drafts(p, drafts);
  if (spent(now)) {
    const auto next = static_cast<size_t>(end_[now.forced]);
    if (next / 32 < allowed.size()) grammar::set_bit(allowed, end_[now.forced]);
  } else if (options_.inner != nullptr) {
    options_.inner->allow(choice, answer, drafts, allowed);
  } else {
    std::fill(allowed.begin(), allowed.end(), ~0u);
  }
}

void ThoughtBudget::force(int32_t choice, std::span<const int32_t> answer,
                          std::vector<int32_t>& forced) {
  Progress& p = choices_[static_cast<size_t>(choice)];
  follow(p, answer);
  if (spent(p))
    forced.insert(forced.end(), end_.begin() + static_cast<std::ptrdiff_t>(p.forced), end_.end());
  else if (options_.inner != nullptr)
    options_.inner->force(choice, answer, forced);
}

}  // namespace tokamak
