#include "text/output/call_scanner.h"

#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

CallScanner::State CallScanner::state() const {
  if (where_ == Where::kBad || (where_ == Where::kDone && !named_)) return State::kBad;
  return where_ == Where::kDone ? State::kDone : State::kReading;
}

size_t CallScanner::push(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (where_ == Where::kDone || where_ == Where::kBad) return i;
    put(text[i]);
    if (where_ == Where::kBad) return i;
  }
  return text.size();
}

std::string CallScanner::take_arguments() {
  if (where_ == Where::kDone && !sent_ && arguments_.empty()) arguments_ = "{}";
  sent_ = sent_ || !arguments_.empty();
  return std::exchange(arguments_, {});
}

bool CallScanner::ends_string(char c) {
  if (escaped_) return escaped_ = false;
  escaped_ = c == '\\';
  return c == '"';
}

bool CallScanner::unquote(std::string& out) const {
  try {
    out = parse_json(token_, "tool call").as_string();
    return true;
  } catch (const Error&) {
    return false;
  }
}

void CallScanner::put(char c) {
  if (where_ == Where::kInValue) return put_value(c);
  if (where_ == Where::kInKey) {
    token_ += c;
    if (ends_string(c)) where_ = unquote(key_) ? Where::kColon : Where::kBad;
    return;
  }
  if (is_json_space(c)) return;
  Where next = Where::kBad;
  switch (where_) {
    case Where::kBegin:
      if (c == '{') next = Where::kFirstKey;
      break;
    case Where::kFirstKey:
    case Where::kKey:
      if (c == '"') {
        token_ = c;
        next = Where::kInKey;
      } else if (c == '}' && where_ == Where::kFirstKey) {
        next = Where::kDone;
      }
      break;
    case Where::kColon:
      if (c == ':') next = Where::kValue;
      break;
    case Where::kValue:
      return begin_value(c);
    default:  // after a value
      next = c == ',' ? Where::kKey : c == '}' ? Where::kDone : Where::kBad;
  }
  where_ = next;
}

void CallScanner::begin_value(char c) {
  const bool scalar = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
  if (c != '"' && c != '{' && c != '[' && !scalar) {
    where_ = Where::kBad;
    return;
  }
  kind_ = c == '"' ? Kind::kString : scalar ? Kind::kScalar : Kind::kNested;
  where_ = Where::kInValue;
  token_.clear();
  depth_ = 0;
  streams_ = kind_ == Kind::kNested && is_arguments() && !argued_;
  in_string_ = false;
  put_value(c);
}

void CallScanner::put_value(char c) {
  if (kind_ == Kind::kScalar && (c == ',' || c == '}' || is_json_space(c))) {
    end_value();
    return put(c);
  }
  // Outside of strings it cannot be JSON: a tag that ends a broken call.
  if (!in_string_ && c == '<') {
    where_ = Where::kBad;
    return;
  }
  (streams_ ? arguments_ : token_) += c;
  if (in_string_) {
    in_string_ = !ends_string(c);
    if (!in_string_ && kind_ == Kind::kString) end_value();
    return;
  }
  in_string_ = c == '"';
  if (c == '{' || c == '[') ++depth_;
  if ((c == '}' || c == ']') && --depth_ == 0) end_value();
}

void CallScanner::end_value() {
  where_ = Where::kAfter;
  if (key_ == "name" || key_ == "tool_name") {
    named_ = kind_ == Kind::kString && unquote(name_);
    if (!named_) where_ = Where::kBad;
  } else if (is_arguments() && !argued_) {
    if (kind_ == Kind::kString && !unquote(arguments_)) where_ = Where::kBad;
    if (kind_ == Kind::kScalar && token_ != "null") arguments_ += token_;
    argued_ = true;
  }
  streams_ = false;
}

}  // namespace tokamak
