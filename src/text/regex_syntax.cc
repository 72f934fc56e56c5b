// Oniguruma (Ruby) syntax -> PCRE2 syntax. Where they differ: \h, \w, \u, script
// properties, nested and intersected character classes, ^ and $ (always per line), (?m), {n,m}+.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/regex.h"

namespace tokamak {
namespace {

constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside of a class, superscripts and fractions below U+0100 count as well.
constexpr std::string_view kWordAlone =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
#define TK_WORD R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}])"
constexpr std::string_view kBoundary =
    "(?:(?<=" TK_WORD ")(?!" TK_WORD ")|(?<!" TK_WORD ")(?=" TK_WORD "))";
constexpr std::string_view kNoBoundary =
    "(?:(?<=" TK_WORD ")(?=" TK_WORD ")|(?<!" TK_WORD ")(?!" TK_WORD "))";
#undef TK_WORD
constexpr std::string_view kHex = "0-9a-fA-F";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (pos_ < in_.size()) {
      if (groups_.empty() && at_alternative_ && starts(R"(\s+$)") &&
          (pos_ + 4 == in_.size() || in_[pos_ + 4] == '|')) {
        // Within a run of white space only its first position can match; trying each of them would
        // take
        // quadratic time.
        out_ += R"((?:\G|(?<!\s)))";
      }
      at_alternative_ = peek() == '|';
      element();
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void bad(const char* what) const {
    fail(ErrorCode::kUnsupported, "regular expression {}: {} at character {}", in_, what, pos_);
  }
  char peek(size_t ahead = 0) const { return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0'; }
  bool starts(std::string_view s) const { return in_.substr(pos_, s.size()) == s; }

  void element() {
    const char c = peek();
    switch (c) {
      case '\\':
        atom_ = out_.size();
        out_ += escape(false);
        return;
      case '[':
        atom_ = out_.size();
        out_ += char_class();
        return;
      case '(':
        group();
        return;
      case ')':
        if (groups_.empty()) bad("unmatched )");
        ++pos_;
        out_ += ')';
        atom_ = groups_.back();
        groups_.pop_back();
        return;
      case '^':
      case '$':
        ++pos_;
        atom_ = out_.size();
        out_ += c == '^' ? "(?m:^)" : "(?m:$)";
        return;
      case '{':
        interval();
        return;
      case '*':
      case '+':
      case '?':
      case '|':
        ++pos_;
        out_ += c;
        return;
      default:
        atom_ = out_.size();
        out_ += c;
        ++pos_;
        // A quantifier applies to the whole character.
        while (pos_ < in_.size() && (static_cast<unsigned char>(in_[pos_]) & 0xC0) == 0x80)
          out_ += in_[pos_++];
    }
  }

  // {n}, {n,}, {,m}, {n,m}; a following + repeats (it is not possessive in Ruby).
  void interval() {
    size_t end = pos_ + 1;
    while (end < in_.size() && (isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ','))
      ++end;
    const std::string_view body = in_.substr(pos_ + 1, end - pos_ - 1);
    if (end >= in_.size() || in_[end] != '}' || body.empty() || body == ",") {
      atom_ = out_.size();
      out_ += "\\{";
      ++pos_;
      return;
    }
    if (out_.ends_with('}') && out_.size() > atom_ + 1 && quantified_ == out_.size()) {
      out_.insert(atom_, "(?:");  // a quantifier on a quantifier
      out_ += ")";
    }
    out_ += '{';
    if (body[0] == ',') out_ += '0';
    out_ += body;
    out_ += '}';
    quantified_ = out_.size();
    pos_ = end + 1;
    if (peek() == '+') {
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
  }

  void group() {
    const size_t start = out_.size();
    groups_.push_back(start);
    ++pos_;
    out_ += '(';
    if (peek() != '?') return;
    if (starts("?<") && peek(2) != '=' && peek(2) != '!') return;  // named: same syntax
    // (?imx-imx: and (?imx): Ruby's m lets the dot match newlines.
    size_t end = pos_ + 1;
    while (end < in_.size() && std::string_view("imx-").find(in_[end]) != std::string_view::npos)
      ++end;
    if (end < in_.size() && end > pos_ + 1 && (in_[end] == ':' || in_[end] == ')')) {
      for (; pos_ < end; ++pos_) out_ += in_[pos_] == 'm' ? 's' : in_[pos_];
      if (in_[end] == ':') out_ += in_[pos_++];
      return;
    }
    // (?:  (?=  (?!  (?>  (?<=  (?<!
    out_ += in_[pos_++];
    while (pos_ < in_.size() &&
           std::string_view(":=!><").find(in_[pos_]) != std::string_view::npos) {
      const char c = in_[pos_];
      out_ += in_[pos_++];
      if (c != '<') break;
    }
  }

  // A set as an element or, in a class, as items of it; negated sets are kept separate from the
  // items.
  std::string char_set(std::string_view items, bool negated, bool in_class) {
    if (in_class && !negated) return std::string(items);
    std::string whole = (negated ? "[^" : "[") + std::string(items) + "]";
    if (!in_class) return whole;
    nested_->push_back(std::move(whole));
    return {};
  }

  std::string property(bool in_class) {
    // at \p{ or \P{
    std::string head = peek(1) == 'P' ? "\\P{" : "\\p{";
    if (peek(2) != '{') {
      std::string plain(in_.substr(pos_, 3));
      pos_ += 3;
      return plain;
    }
    const size_t end = in_.find('}', pos_);
    if (end == std::string_view::npos) bad("\\p without }");
    std::string_view name = in_.substr(pos_ + 3, end - pos_ - 3);
    pos_ = end + 1;
    if (!name.empty() && name[0] == '^') {
      head = head[1] == 'p' ? "\\P{" : "\\p{";
      name.remove_prefix(1);
    }
    std::string key;
    for (char c : name)
      if (c != '_' && c != ' ' && c != '-')
        key += static_cast<char>(tolower(static_cast<unsigned char>(c)));
    if (key == "word" && !in_class) return char_set(kWordAlone, head[1] == 'P', false);
    if (const std::string_view set = regex_named_set(key, false); !set.empty())
      return char_set(set, head[1] == 'P', in_class);
    if (const std::string_view to = regex_property_name(key); !to.empty())
      return head + std::string(to) + "}";
    if (name.size() <= 2 && key.find_first_of("lmnpszc") == 0)
      return head + std::string(name) + "}";
    if (key.starts_with("is")) name.remove_prefix(2);
    // The rest are scripts; by default PCRE2 would match script extensions.
    return head + (name.find('=') == std::string_view::npos ? "sc:" : "") + std::string(name) + "}";
  }

  // \xHH and \x{H...}: one element, even where a quantifier could follow.
  std::string hex_escape() {
    const bool braces = peek(2) == '{';
    const size_t begin = pos_ + (braces ? 3 : 2);
    size_t end = begin;
    while (end < in_.size() && end - begin < (braces ? 8 : 2) &&
           isxdigit(static_cast<unsigned char>(in_[end])))
      ++end;
    if (end == begin || (braces && (end >= in_.size() || in_[end] != '}')))
      bad("\\x without hexadecimal digits");
    pos_ = end + (braces ? 1 : 0);
    return "\\x{" + std::string(in_.substr(begin, end - begin)) + "}";
  }

  std::string escape(bool in_class) {
    const char c = peek(1);
    const auto set = [&](std::string_view items, bool negated) {
      pos_ += 2;
      return char_set(items, negated, in_class);
    };
    switch (c) {
      case '\0':
        bad("trailing backslash");
      case 'w':
        return set(in_class ? kWord : kWordAlone, false);
      case 'W':
        return set(in_class ? kWord : kWordAlone, true);
      case 'b':
      case 'B':
        if (in_class) break;
        pos_ += 2;
        return std::string(c == 'b' ? kBoundary : kNoBoundary);
      case 'h':
        return set(kHex, false);
      case 'H':
        return set(kHex, true);
      case 'p':
      case 'P':
        return property(in_class);
      case 'O':
        if (in_class) break;
        pos_ += 2;
        return "(?s:.)";
      case 'u': {
        std::string out = "\\x{" + std::string(in_.substr(pos_ + 2, 4)) + "}";
        pos_ = std::min(in_.size(), pos_ + 6);
        return out;
      }
      case 'x':
        return hex_escape();
      case 'v':  // one character in Ruby, a class in PCRE2
        pos_ += 2;
        return "\\x{b}";
      case 'Q':  // and these are letters
      case 'E':
      case 'V':
        pos_ += 2;
        return std::string(1, c);
      default:
        break;
    }
    std::string out(in_.substr(pos_, 2));
    pos_ += 2;
    while (pos_ < in_.size() && (static_cast<unsigned char>(in_[pos_]) & 0xC0) == 0x80)
      out += in_[pos_++];
    if (out.size() > 2) out.erase(0, 1);  // an escaped non-ASCII character stands for itself
    return out;
  }

  // [\p{Lu}\p{M}&&[^\p{Han}]] as one class, [^ all other categories \p{Han}]: repeating a class is
  // cheap, repeating a look-ahead is not. Empty: not of this form.
  static std::string one_class(const std::vector<std::string>& operands) {
    static constexpr std::string_view kCategories[] = {
        "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
        "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};
    if (operands.size() != 2 || !operands[1].starts_with("[^") ||
        operands[1].find('[', 1) != std::string::npos || !operands[0].starts_with("[\\p{"))
      return {};
    std::string_view rest = std::string_view(operands[0]).substr(1);
    std::vector<std::string_view> named;
    while (rest != "]") {
      const size_t end = rest.find('}');
      if (!rest.starts_with("\\p{") || end == std::string_view::npos || end > 5) return {};
      named.push_back(rest.substr(3, end - 3));
      rest.remove_prefix(end + 1);
    }
    std::string out = "[^";
    for (std::string_view c : kCategories)
      if (std::none_of(named.begin(), named.end(),
                       [&](std::string_view n) { return c.starts_with(n); }))
        out.append("\\p{").append(c).append("}");
    return out + operands[1].substr(2);
  }

  // [:name:] and [:^name:] inside a class.
  std::string posix_class() {
    const size_t end = in_.find(":]", pos_);
    if (end == std::string_view::npos) bad("POSIX class without :]");
    std::string_view name = in_.substr(pos_ + 2, end - pos_ - 2);
    const bool inverse = name.starts_with('^');
    if (inverse) name.remove_prefix(1);
    const std::string_view set = regex_named_set(name, true);
    if (set.empty()) bad("unknown POSIX class");
    pos_ = end + 2;
    return char_set(set, inverse, true);
  }

  // [...] with nested classes and && as in Ruby. A plain class stays a class; others become
  // alternatives and look-aheads, each of one character.
  std::string char_class() {
    ++pos_;
    const bool negated = peek() == '^';
    if (negated) ++pos_;
    std::string items;
    std::vector<std::string> nested, operands;
    std::vector<std::string>* const outer = std::exchange(nested_, &nested);
    bool first = true;
    const auto close = [&]() {
      std::string one;
      if (nested.empty()) {
        one = items.empty() ? "(?!)" : "[" + items + "]";
      } else if (nested.size() == 1 && items.empty()) {
        one = nested[0];
      } else {
        one = "(?:";
        for (const std::string& n : nested) one += n + "|";
        one += items.empty() ? "(?!)" : "[" + items + "]";
        one += ")";
      }
      operands.push_back(std::move(one));
      items.clear();
      nested.clear();
    };
    while (true) {
      if (pos_ >= in_.size()) bad("class without ]");
      const char c = peek();
      if (c == ']' && !first) break;
      first = false;
      if (c == '[' && peek(1) == ':') {
        items += posix_class();
      } else if (c == '[') {
        nested.push_back(char_class());
      } else if (starts("&&")) {
        pos_ += 2;
        close();
      } else if (c == '\\') {
        items += escape(true);
      } else {
        if (c == ']') items += '\\';
        items += c;
        ++pos_;
      }
    }
    ++pos_;
    nested_ = outer;
    if (operands.empty() && nested.empty()) return (negated ? "[^" : "[") + items + "]";
    close();
    if (const std::string one = one_class(operands); !one.empty() && !negated) return one;
    std::string out = "(?:";
    for (size_t i = 0; i + 1 < operands.size(); ++i) out += "(?=" + operands[i] + ")";
    out += operands.back() + ")";
    return negated ? "(?:(?!" + out + ")(?s:.))" : out;
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = 0;                             // where the last atom starts in out_
  size_t quantified_ = 0;                       // where the last interval ended in out_
  std::vector<size_t> groups_;                  // where the open groups start in out_
  bool at_alternative_ = true;                  // at the start of an alternative outside of groups
  std::vector<std::string>* nested_ = nullptr;  // negated sets of the open class
};

}  // namespace

std::string regex_to_pcre(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace tokamak
