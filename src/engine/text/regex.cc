#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"

namespace tokamak {
namespace {

struct CodeDeleter {
  void operator()(pcre2_code* c) const { pcre2_code_free(c); }
};
using CodePtr = std::unique_ptr<pcre2_code, CodeDeleter>;

CodePtr compile(const std::string& pcre, std::string_view original) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  CodePtr code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                             nullptr));
  if (!code) {
    PCRE2_UCHAR message[160];
    pcre2_get_error_message(error, message, sizeof message);
    fail(ErrorCode::kUnsupported, "regular expression {}: {} (at character {} of {})", original,
         reinterpret_cast<const char*>(message), offset, pcre);
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without JIT matching works, slower
  return code;
}

// What matching needs beside the pattern; one per thread, shared by all patterns.
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

}  // namespace

struct Regex::Code {
  std::string pattern;
  CodePtr fast;  // \s as PCRE2 has it
  mutable std::once_flag once;
  mutable CodePtr exact;      // U+180E is no space; compiled when a text has one
  std::string exact_pattern;  // empty when the pattern has no \s

  const pcre2_code* for_text(std::string_view text) const {
    if (exact_pattern.empty() || text.find("\xE1\xA0\x8E") == std::string_view::npos)
      return fast.get();
    std::call_once(once, [&] { exact = compile(exact_pattern, pattern); });
    return exact.get();
  }
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  code_->pattern = std::string(pattern);
  const std::string fast = regex_to_pcre(pattern, false);
  std::string exact = regex_to_pcre(pattern, true);
  code_->fast = compile(fast, pattern);
  if (exact != fast) code_->exact_pattern = std::move(exact);
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Scan::Scan(const Regex& regex, std::string_view text)
    : regex_(regex), code_(regex.code_->for_text(text)), text_(text) {
  // A match may take a few steps per character; patterns that take more than that are cut off.
  constexpr size_t kBase = 10'000'000, kPerByte = 16;
  pcre2_set_match_limit(workspace().context, static_cast<uint32_t>(std::min<size_t>(
                                                 kBase + kPerByte * text.size(), UINT32_MAX)));
}

bool Regex::Scan::next(Match& match) {
  MatchWorkspace& w = workspace();
  const auto* code = static_cast<const pcre2_code*>(code_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  while (pos_ <= text_.size()) {
    int rc = pcre2_match(code, subject, text_.size(), pos_, PCRE2_NO_UTF_CHECK, w.data, w.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code, subject, text_.size(), pos_, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w.data,
                       w.context);
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
    // Empty: go on behind the next character.
    const size_t at = match.begin;
    pos_ = at + 1;
    while (pos_ < text_.size() && (static_cast<unsigned char>(text_[pos_]) & 0xC0) == 0x80) ++pos_;
    if (at != last_end_) return true;
  }
  return false;
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
