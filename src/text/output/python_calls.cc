#include <fmt/format.h>

#include <utility>

#include "text/output/machines.h"
#include "text/output/mark.h"

namespace tokamak {
namespace {

constexpr size_t kMaxPythonDepth = 64, kMaxPythonWord = 256;

bool is_python_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '+';
}

bool is_python_number(std::string_view text) {
  size_t i = text.starts_with('-') ? 1 : 0;
  auto digits = [&] {
    size_t from = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i > from;
  };
  size_t first = i;
  if (!digits() || (text[first] == '0' && i > first + 1)) return false;
  if (i < text.size() && text[i] == '.' && (++i, !digits())) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (!digits()) return false;
  }
  return i == text.size();
}

// The JSON of a Python constant or number; other words become strings.
std::string python_constant(std::string_view word) {
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null") return "null";
  return is_python_number(word) ? std::string(word) : '"' + json_escaped(word) + '"';
}

class PythonCalls final : public CallMachine {
 public:
  explicit PythonCalls(const ToolTypes& types) : types_(types) {}

 protected:
  bool step(CallSink& sink) override {
    if (where_ != Where::kString && !skip_space()) return false;
    switch (where_) {
      case Where::kStart:
        return held_[0] == '[' ? take(Where::kName) : bad();
      case Where::kName:
        return read_name();
      case Where::kArgument:
        return read_argument(sink);
      case Where::kValue:
        return read_value(sink);
      case Where::kString:
        return read_string(sink);
      case Where::kColon:
        if (held_[0] != ':') return bad();
        sink.add(": ");
        return take(Where::kValue);
      case Where::kAfterValue:
        return read_after(sink);
      default:  // after a call
        if (held_[0] == ',') return take(Where::kName);
        if (held_[0] != ']') return bad();
        take(Where::kName);
        return done();
    }
  }

 private:
  enum class Where {
    kStart,
    kName,
    kArgument,
    kValue,
    kString,
    kColon,
    kAfterValue,
    kAfterCall,
  };

  bool take(Where next) {
    held_.erase(0, 1);
    where_ = next;
    return true;
  }

  // A word and the character after it; false: not known yet, or bad.
  bool read_word() {
    size_t end = 0;
    while (end < held_.size() && is_python_word(held_[end])) ++end;
    if (end == held_.size()) return held_.size() > kMaxPythonWord ? bad() : false;
    if (end == 0 || end > kMaxPythonWord) return bad();
    word_ = held_.substr(0, end);
    held_.erase(0, end);
    return true;
  }

  bool read_name() {
    if (word_.empty() && !read_word()) return false;
    if (!skip_space()) return false;
    name_ = std::exchange(word_, {});
    if (held_[0] != '(' || !types_.has(name_)) return bad();
    begun_ = more_ = false;
    return take(Where::kArgument);
  }

  void begin(CallSink& sink) {
    if (std::exchange(begun_, true)) return;
    sink.begin(name_);
    sink.add("{");
  }

  bool read_argument(CallSink& sink) {
    if (word_.empty() && held_[0] == ')') {
      begin(sink);
      sink.add("}");
      return take(Where::kAfterCall);
    }
    if (word_.empty() && !read_word()) return false;
    if (!skip_space()) return false;
    if (held_[0] != '=') return bad();  // only named arguments have a meaning
    begin(sink);
    sink.add(fmt::format("{}\"{}\": ", std::exchange(more_, true) ? ", " : "",
                         json_escaped(std::exchange(word_, {}))));
    return take(Where::kValue);
  }

  bool read_value(CallSink& sink) {
    const char c = held_[0];
    if (c == '"' || c == '\'') {
      // Three quotes begin a long string.
      if (held_.size() < 3 && held_ == std::string(held_.size(), c)) return false;
      quote_.assign(held_.starts_with(std::string(3, c)) ? 3 : 1, c);
      held_.erase(0, quote_.size());
      sink.add("\"");
      where_ = Where::kString;
      return true;
    }
    if (c == '[' || c == '(' || c == '{') {
      const bool key = !open_.empty() && open_.back() == '{';
      if (key || open_.size() >= kMaxPythonDepth) return bad();
      open_.push_back(c);
      sink.add(c == '{' ? "{" : "[");
      return take(Where::kValue);
    }
    if ((c == ']' || c == ')' || c == '}') && !open_.empty()) return close(c, sink);  // empty
    if (!read_word()) return false;
    std::string value = python_constant(std::exchange(word_, {}));
    const bool key = !open_.empty() && open_.back() == '{';
    if (key && value[0] != '"') value = '"' + value + '"';
    sink.add(value);
    return end_value();
  }

  bool end_value() {
    const bool key = !open_.empty() && open_.back() == '{';
    if (key) open_.back() = '}';  // its value follows
    where_ = key ? Where::kColon : Where::kAfterValue;
    return true;
  }

  bool close(char c, CallSink& sink) {
    const char open = open_.back();
    const bool fits = c == ']' ? open == '[' : c == ')' ? open == '(' : open == '{' || open == '}';
    if (!fits) return bad();
    open_.pop_back();
    sink.add(c == '}' ? "}" : "]");
    return take(Where::kAfterValue);
  }

  bool read_after(CallSink& sink) {
    const char c = held_[0];
    if (open_.empty()) {
      if (c == ',') return take(Where::kArgument);
      where_ = Where::kArgument;  // only its end is valid here
      return c == ')' ? true : bad();
    }
    if (c != ',') return c == ']' || c == ')' || c == '}' ? close(c, sink) : bad();
    held_.erase(0, 1);
    if (!skip_space()) {  // whether another value follows is not known yet
      held_ = ",";
      return false;
    }
    where_ = Where::kValue;
    if (held_[0] == ']' || held_[0] == ')' || held_[0] == '}') return close(held_[0], sink);
    if (open_.back() == '}') open_.back() = '{';
    sink.add(", ");
    return true;
  }

  bool read_string(CallSink& sink) {
    std::string out;
    bool more = false;
    while (!held_.empty() && !more) {
      if (held_.starts_with(quote_)) {
        held_.erase(0, quote_.size());
        out += '"';
        end_value();
        more = true;
      } else if (held_[0] == '\\') {
        size_t used = escape(out);
        if (used == 0) break;
        held_.erase(0, used);
      } else if (std::string_view(quote_).starts_with(held_)) {
        break;  // perhaps the end
      } else {
        out += json_escaped(held_.substr(0, 1));
        held_.erase(0, 1);
      }
    }
    if (!out.empty()) sink.add(out);
    return more;
  }

  // An escape sequence at the beginning of held_: how long it is; 0: incomplete.
  size_t escape(std::string& out) const {
    if (held_.size() < 2) return 0;
    const char c = held_[1];
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
    if (digits > 0) {
      if (held_.size() < 2 + digits) return 0;
      std::string_view code = std::string_view(held_).substr(2, digits);
      if (code.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos) {
        out += fmt::format("\\u{:0>4}", code);
        return 2 + digits;
      }
    }
    if (c == '\n') return 2;  // a line that goes on
    constexpr std::string_view kSame = "nrtbf\\\"";
    if (c == '\'')
      out += c;
    else if (kSame.find(c) != std::string_view::npos)
      out += {'\\', c};
    else
      out += "\\\\" + json_escaped(std::string_view(&c, 1));
    return 2;
  }

  const ToolTypes& types_;
  Where where_ = Where::kStart;
  std::string word_, name_, quote_, open_;  // open_: '{' before a key, '}' before its value
  bool begun_ = false, more_ = false;
};

}  // namespace

std::unique_ptr<CallMachine> make_python_calls(const ToolTypes& types) {
  return std::make_unique<PythonCalls>(types);
}

}  // namespace tokamak
