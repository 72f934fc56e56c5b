#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

struct CodeDeleter {
  void operator()(pcre2_code* c) const { pcre2_code_free(c); }
};
using CodePtr = std::unique_ptr<pcre2_code, CodeDeleter>;

struct CompileError {
  int code = 0;
  PCRE2_SIZE offset = 0;
};

CodePtr try_compile(std::string_view pcre, CompileError& error) {
  CodePtr code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error.code,
                             &error.offset, nullptr));
  if (code) pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without JIT it is slower
  return code;
}

CodePtr compile(const std::string& pcre, std::string_view original) {
  CompileError error;
  CodePtr code = try_compile(pcre, error);
  if (code) return code;
  PCRE2_UCHAR message[160];
  pcre2_get_error_message(error.code, message, sizeof message);
  fail(ErrorCode::kUnsupported, "regular expression {}: {} (at character {} of {})", original,
       reinterpret_cast<const char*>(message), error.offset, pcre);
}

// Match state besides the pattern; one per thread, shared by all patterns.
struct MatchWorkspace {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr);
  MatchWorkspace() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_heap_limit(context, 256 << 10);  // KiB
  }
  ~MatchWorkspace() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

MatchWorkspace& workspace() {
  thread_local MatchWorkspace w;
  return w;
}

constexpr size_t kWindow = size_t{64} << 10, kPart = size_t{16} << 10;

// Patterns for digits in groups of three, counted from the end of a run, look ahead over the rest
// of the run, which takes quadratic time. These variants are matched by hand.
enum class DigitGroups { kNone, kBeforeBoundary, kAny, kCuts };
constexpr std::pair<std::string_view, DigitGroups> kDigitGroups[] = {
    {R"(\d{1,3}(?=(?:\d{3})*\b))", DigitGroups::kBeforeBoundary},
    {R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", DigitGroups::kAny},
    {R"((?=(\d{3})+(?!\d)))", DigitGroups::kCuts}};

DigitGroups digit_groups(std::string_view pattern) {
  for (const auto& [text, kind] : kDigitGroups)
    if (text == pattern) return kind;
  return DigitGroups::kNone;
}

// \w outside of a class.
bool is_regex_word(char32_t c) {
  return (is_word(c) && c != 0x200C && c != 0x200D) || c == 0xB2 || c == 0xB3 || c == 0xB9 ||
         (c >= 0xBC && c <= 0xBE);
}

}  // namespace

struct Regex::Code {
  std::string pattern;
  DigitGroups digits = DigitGroups::kNone;
  CodePtr code;
  // PCRE2's tables lack new characters, so the text is matched with stand-ins for them if the
  // pattern has classes. Characters that the pattern names stay, also those with a stand-in that it
  // names: for them the classes are those of PCRE2's tables ([\x{200B}\s] matches U+180E).
  RegexCharacters characters;
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  code_->pattern = std::string(pattern);
  code_->digits = digit_groups(pattern);
  code_->characters = regex_characters(pattern);
  code_->code = compile(regex_to_pcre(pattern), pattern);
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Scan::Scan(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {
  const RegexCharacters& characters = regex.code_->characters;
  if (characters.classes && with_known_characters(text, characters.named, known_)) text_ = known_;
  // A match may take a few steps per character; patterns that take more are aborted.
  constexpr size_t kBase = 10'000'000, kPerByte = 16;
  pcre2_set_match_limit(workspace().context, static_cast<uint32_t>(std::min<size_t>(
                                                 kBase + kPerByte * text.size(), UINT32_MAX)));
}

bool Regex::Scan::next_digits(Match& match) {
  const DigitGroups kind = regex_.code_->digits;
  const auto is_digit = [&](char32_t c) {
    return kind == DigitGroups::kAny ? is_numeric(c) : is_decimal_digit(c);
  };
  while (pos_ < text_.size()) {
    if (pos_ >= run_end_) {  // find the next run
      const Utf8Char first = utf8_decode(text_, pos_);
      if (!is_digit(first.cp)) {
        pos_ += first.length;
        continue;
      }
      run_end_ = pos_;
      run_left_ = 0;
      Utf8Char c = first;
      do {
        run_end_ += c.length;
        ++run_left_;
        c = run_end_ < text_.size() ? utf8_decode(text_, run_end_) : Utf8Char{};
      } while (run_end_ < text_.size() && is_digit(c.cp));
      if (kind == DigitGroups::kBeforeBoundary && run_end_ < text_.size() && is_regex_word(c.cp)) {
        pos_ = run_end_;
        continue;
      }
    }
    const size_t group = run_left_ % 3 == 0 ? 3 : run_left_ % 3, begin = pos_;
    for (size_t i = 0; i < group; ++i) pos_ += utf8_decode(text_, pos_).length;
    run_left_ -= group;
    match = {begin, kind == DigitGroups::kCuts ? begin : pos_};
    if (kind != DigitGroups::kCuts || group == 3) return true;
  }
  return false;
}

// The start of the character at or before `at`.
size_t Regex::Scan::window_end(size_t at) const {
  if (at >= text_.size()) return text_.size();
  while (at > pos_ + 1 && is_utf8_continuation(text_[at])) --at;
  return at;
}

bool Regex::Scan::next(Match& match) {
  if (regex_.code_->digits != DigitGroups::kNone) return next_digits(match);
  MatchWorkspace& w = workspace();
  const pcre2_code* code = regex_.code_->code.get();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  while (pos_ <= text_.size()) {
    const auto match_in = [&](size_t size, uint32_t options) {
      return pcre2_match(code, subject, size, pos_, PCRE2_NO_UTF_CHECK | options, w.data,
                         w.context);
    };
    size_t seen = window_ == 0 ? text_.size() : window_end(pos_ + window_);
    int rc = PCRE2_ERROR_NOMATCH;
    // Alternatives that look ahead to the end of a long run take quadratic time; a match that ends
    // well
    // inside a part of the text does not need to look beyond that part.
    if (window_ == 0 && text_.size() - pos_ > kWindow) {
      const size_t part = window_end(pos_ + kPart);
      rc = match_in(part, 0);
      if (rc >= 0 && pcre2_get_ovector_pointer(w.data)[1] + 64 > part) rc = PCRE2_ERROR_NOMATCH;
    }
    if (rc < 0) rc = match_in(seen, 0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match_in(seen, PCRE2_NO_JIT);
    if (window_ == 0 && (rc == PCRE2_ERROR_HEAPLIMIT || rc == PCRE2_ERROR_MATCHLIMIT ||
                         rc == PCRE2_ERROR_DEPTHLIMIT)) {
      // A word of megabytes with a pattern that records every step: matched in pieces from here on.
      window_ = kWindow;
      continue;
    }
    if (rc == PCRE2_ERROR_NOMATCH && seen < text_.size()) {
      pos_ = seen;
      continue;
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0)
      fail(ErrorCode::kInvalidArgument,
           "regular expression {} takes too long on this text (PCRE2 error {})",
           regex_.code_->pattern, rc);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(w.data);
    match = {range[0], std::max(range[0], range[1])};
    if (match.end > match.begin) {
      pos_ = last_end_ = match.end;
      return true;
    }
    // Empty match: continue after the next character.
    const size_t at = match.begin;
    pos_ = at + 1;
    while (pos_ < text_.size() && (static_cast<unsigned char>(text_[pos_]) & 0xC0) == 0x80) ++pos_;
    if (at != last_end_) return true;
  }
  return false;
}

bool regex_property(std::string_view name, std::vector<CharRange>& out) {
  for (char c : name)
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != ':') return false;
  CompileError error;
  const CodePtr code = try_compile(fmt::format("\\p{{{}}}+", name), error);
  if (!code) return false;
  // Planes whose characters are alike have one of them, and one of the two at their end.
  const auto sparse = [](char32_t c) { return c >= 0x40000 && c >> 16 != 14; };
  const auto last_like = [&](char32_t c) {
    return !sparse(c) ? c : (c & 0xFFFF) == 0 ? c + 0xFFFD : c + 1;
  };
  std::string all;
  for (char32_t c = 0; c <= 0x10FFFF; c = c == 0xD7FF ? 0xE000 : last_like(c) + 1)
    utf8_append(all, c);
  MatchWorkspace& w = workspace();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(all.data());
  for (size_t pos = 0; pos < all.size();) {
    if (pcre2_match(code.get(), subject, all.size(), pos, PCRE2_NO_UTF_CHECK, w.data, nullptr) < 0)
      break;
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(w.data);
    size_t last = pos = range[1];
    do --last;
    while (is_utf8_continuation(all[last]));
    out.push_back({utf8_decode(all, range[0]).cp, last_like(utf8_decode(all, last).cp)});
  }
  return true;
}

std::string regex_escape(std::string_view literal) {
  std::string out;
  for (char c : literal) {
    if (std::string_view("\\^$.|?*+()[]{}#-&~ ").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace tokamak
