#include "text/output/machines.h"
#include "text/output/mark.h"

namespace tokamak {
namespace {

constexpr size_t kMaxName = 256;

}  // namespace

std::string_view bare_call_name(std::string_view name) {
  constexpr std::string_view kSpace = "functions.";
  if (name.starts_with(kSpace)) name.remove_prefix(kSpace.size());
  size_t colon = name.rfind(':');
  if (colon != std::string_view::npos &&
      name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos)
    name = name.substr(0, colon);
  return name;
}

namespace {

class NamedCall final : public CallMachine {
 public:
  NamedCall(const NamedSyntax& syntax, const ToolTypes& types) : syntax_(syntax), types_(types) {}

 protected:
  bool step(CallSink& sink) override {
    switch (where_) {
      case Where::kName:
        return read_name(syntax_.separator);
      case Where::kKind:
        return read_name("\n");
      case Where::kBefore:
        return read_before(sink);
      default:
        return read_arguments(sink);
    }
  }

 private:
  enum class Where { kName, kKind, kBefore, kArguments };

  bool read_name(std::string_view separator) {
    // A name may also be followed by its arguments at once.
    const std::string_view ends[] = {separator, "{"};
    FoundMark found = find_mark(held_, std::span(ends, where_ == Where::kName ? 2 : 1));
    if (found.at == std::string_view::npos) return held_.size() > kMaxName ? bad() : false;
    std::string name(trimmed(std::string_view(held_).substr(0, found.at)));
    // [CALL_ID] may stand between name and arguments.
    if (size_t at = name.find("[CALL_ID]"); at != std::string::npos) name.resize(at);
    if (name.empty() || name.size() > kMaxName || name.find_first_of("<>\n\"") != name.npos)
      return bad();
    held_.erase(0, found.at + (found.mark == "{" ? 0 : found.mark.size()));
    // "function" is a kind of call in some versions: the name follows on a line of its own.
    if (where_ == Where::kName && name == "function" && found.mark != "{") {
      where_ = Where::kKind;
      return true;
    }
    id_ = name;
    name_ = bare_call_name(name);
    if (syntax_.known && !types_.has(name_)) return bad();
    where_ = Where::kBefore;
    return true;
  }

  bool read_before(CallSink& sink) {
    size_t brace = held_.find('{');
    std::string_view before = std::string_view(held_).substr(0, brace);
    if (before.find_first_not_of("`json \t\r\n") != std::string_view::npos) return bad();
    if (brace == std::string::npos) return held_.size() > kMaxName ? bad() : false;
    held_.erase(0, brace);
    where_ = Where::kArguments;
    sink.begin(name_, id_ == name_ ? "" : id_);
    return true;
  }

  bool read_arguments(CallSink& sink) {
    for (size_t i = 0; i < held_.size(); ++i) {
      const char c = held_[i];
      if (in_string_) {
        in_string_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
        continue;
      }
      in_string_ = c == '"';
      if (c == '{' || c == '[') ++depth_;
      // A mark that ends a broken call.
      if (c == '<' || ((c == '}' || c == ']') && --depth_ == 0)) {
        size_t end = i + (c == '<' ? 0 : 1);
        sink.add(std::string_view(held_).substr(0, end));
        held_.erase(0, end);
        return done();
      }
    }
    if (!held_.empty()) sink.add(held_);
    held_.clear();
    return false;
  }

  const NamedSyntax syntax_;
  const ToolTypes& types_;
  Where where_ = Where::kName;
  std::string id_, name_;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace

std::unique_ptr<CallMachine> make_named_call(const NamedSyntax& syntax, const ToolTypes& types) {
  return std::make_unique<NamedCall>(syntax, types);
}

}  // namespace tokamak
