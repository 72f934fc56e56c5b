#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/value_types.h"
#include "text/output/machines.h"
#include "text/output/mark.h"

namespace tokamak {
namespace {

constexpr size_t kMaxTaggedName = 256;

// JSON if it can be, otherwise a string. Some models write Python's constants. A value of a type
// that the parameter does not have is a string, if the parameter may be one.
std::string json_or_text(std::string_view text, uint32_t types) {
  const bool maybe_text = (types & grammar::kString) != 0;
  auto is = [&](uint32_t bits) { return !maybe_text || (types & bits) != 0; };
  if (text == "True" && is(grammar::kBoolean)) return "true";
  if (text == "False" && is(grammar::kBoolean)) return "false";
  if (text == "None" && is(grammar::kNull)) return "null";
  try {
    if (is(grammar::types_of(parse_json(text, "argument", {.max_depth = 64}))))
      return std::string(text);
  } catch (const Error&) {
  }
  return '"' + json_escaped(text) + '"';
}

class TaggedCall final : public CallMachine {
 public:
  TaggedCall(const TaggedSyntax& syntax, const ToolTypes& types) : syntax_(syntax), types_(types) {}

 protected:
  bool step(CallSink& sink) override {
    switch (where_) {
      case Where::kBegin:
        if (!skip_space() || !expect(syntax_.begin)) return false;
        held_.erase(0, syntax_.begin.size());
        where_ = Where::kName;
        return true;
      case Where::kName:
        return read_name(sink);
      case Where::kBetween:
        return read_between(sink);
      case Where::kKey:
        return read_key(sink);
      case Where::kBeforeValue:
        if (!skip_space() || !expect(syntax_.value)) return false;
        held_.erase(0, syntax_.value.size());
        where_ = Where::kValue;
        return true;
      default:
        return read_value(sink);
    }
  }

 private:
  enum class Where { kBegin, kName, kBetween, kKey, kBeforeValue, kValue };

  bool read_name(CallSink& sink) {
    size_t end = held_.find_first_of(syntax_.name_end);
    if (end == std::string::npos) return held_.size() > kMaxTaggedName ? bad() : false;
    std::string_view name = trimmed(std::string_view(held_).substr(0, end));
    if (name.empty() || name.size() > kMaxTaggedName || name.find_first_of("{}\"<") != name.npos)
      return bad();
    name_ = name;
    held_.erase(0, end + (held_[end] == '<' ? 0 : 1));
    // Without a mark before the name, only a parameter or the end shows that this is a call.
    if (!syntax_.begin.empty()) begin(sink);
    where_ = Where::kBetween;
    return true;
  }

  void begin(CallSink& sink) {
    if (std::exchange(begun_, true)) return;
    sink.begin(name_);
    sink.add("{");
  }

  bool read_between(CallSink& sink) {
    if (!skip_space()) return false;
    if (held_.starts_with(syntax_.key)) {
      held_.erase(0, syntax_.key.size());
      where_ = Where::kKey;
      return true;
    }
    if (held_.starts_with(syntax_.end)) {
      held_.erase(0, syntax_.end.size());
      begin(sink);
      sink.add("}");
      closed_ = syntax_.closes;
      return done();
    }
    if (syntax_.key.starts_with(held_) || syntax_.end.starts_with(held_)) return false;
    if (!begun_) return bad();
    sink.add("}");  // a mark is missing
    return done();
  }

  bool read_key(CallSink& sink) {
    size_t end = held_.find(syntax_.key_end);
    if (end == std::string::npos) return held_.size() > kMaxTaggedName ? bad() : false;
    key_ = trimmed(std::string_view(held_).substr(0, end));
    held_.erase(0, end + syntax_.key_end.size());
    begin(sink);
    sink.add(fmt::format("{}\"{}\": ", std::exchange(more_, true) ? ", " : "", json_escaped(key_)));
    value_types_ = types_.types(name_, key_);
    text_ = value_types_ == grammar::kString;
    fresh_ = true;
    where_ = syntax_.value.empty() ? Where::kValue : Where::kBeforeValue;
    return true;
  }

  // Text is passed on as it arrives, other values when they are complete.
  bool read_value(CallSink& sink) {
    if (fresh_) {
      if (held_.empty()) return false;
      if (syntax_.lines && held_[0] == '\n') held_.erase(0, 1);
      if (text_) sink.add("\"");
      fresh_ = false;
    }
    size_t end = held_.find(syntax_.value_end);
    if (end == std::string::npos) {
      if (!text_) return false;
      size_t keep = overlap(held_, syntax_.value_end);
      // A line break before the end is not part of the value.
      if (syntax_.lines && keep < held_.size() && held_[held_.size() - keep - 1] == '\n') ++keep;
      flush(sink, held_.size() - keep);
      return false;
    }
    size_t last = end > 0 && syntax_.lines && held_[end - 1] == '\n' ? end - 1 : end;
    if (text_) {
      flush(sink, last);
      sink.add("\"");
      held_.erase(0, end - last);
    } else {
      sink.add(json_or_text(std::string_view(held_).substr(0, last), value_types_));
      held_.erase(0, end);
    }
    held_.erase(0, syntax_.value_end.size());
    where_ = Where::kBetween;
    return true;
  }

  void flush(CallSink& sink, size_t size) {
    if (size > 0) sink.add(json_escaped(std::string_view(held_).substr(0, size)));
    held_.erase(0, size);
  }

  const TaggedSyntax syntax_;
  const ToolTypes& types_;
  Where where_ = Where::kBegin;
  std::string name_, key_;
  uint32_t value_types_ = grammar::kAllTypes;
  bool begun_ = false, more_ = false, text_ = false, fresh_ = false;
};

}  // namespace

std::unique_ptr<CallMachine> make_tagged_call(const TaggedSyntax& syntax, const ToolTypes& types) {
  return std::make_unique<TaggedCall>(syntax, types);
}

}  // namespace tokamak
