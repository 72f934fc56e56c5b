#include "text/chat_guard.h"

#include <algorithm>

namespace tokamak {
namespace {

// A printable letter without cases that neither templates nor normalizers change: U+A015.
constexpr std::string_view kLetter = "\xEA\x80\x95";

size_t longest_run(std::string_view text) {
  size_t longest = 0, run = 0, last = 0;
  for (size_t at = 0; (at = text.find(kLetter, at)) != std::string_view::npos;
       at += kLetter.size()) {
    run = run > 0 && at == last ? run + 1 : 1;
    last = at + kLetter.size();
    longest = std::max(longest, run);
  }
  return longest;
}

template <class F>
void for_each_string(Value& value, const F& f) {
  if (value.is_string()) {
    if (std::string text = f(value.as_string()); text != value.as_string())
      value = Value(std::move(text));
  } else if (value.is_array()) {
    for (Value& item : value.as_array()) for_each_string(item, f);
  } else if (value.is_object()) {
    for (auto& [key, member] : value.as_object()) {
      key = f(key);
      for_each_string(member, f);
    }
  }
}

}  // namespace

std::string guard_chat(Value& context, const Tokenizer& tokenizer) {
  size_t run = 0;
  auto each = [&](const auto& f) {
    for (const char* name : {"messages", "tools"})
      if (Value* value = context.find(name)) for_each_string(*value, f);
  };
  each([&](const std::string& text) {
    run = std::max(run, longest_run(text));
    return text;
  });
  std::string guard;
  for (size_t i = 0; i <= run; ++i) guard += kLetter;
  each([&](const std::string& text) { return tokenizer.guard(text, guard); });
  return guard;
}

std::string without_guard(std::string_view text, std::string_view guard) {
  std::string out;
  size_t done = 0;
  for (size_t at; !guard.empty() && (at = text.find(guard, done)) != std::string_view::npos;) {
    out.append(text, done, at - done);
    done = at + guard.size();
  }
  return out.append(text, done);
}

}  // namespace tokamak
