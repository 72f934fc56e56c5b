#include "text/grammar/json_rules.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

constexpr uint32_t kBlock = 1024;  // characters of a rule that long counts are built from

// Names that need no quotes in kGemma.
constexpr const char* kBareNames = "[A-Za-z0-9_.$-]{1,128}";
// The text between the quotes of a JSON string.
constexpr const char* kJsonText =
    R"(([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u([0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}|)"
    R"([Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))*)";

CharFsm space_fsm(std::string_view pattern) {
  return parse_regex(pattern, RegexUse::kWhole, {.inside = true});
}

}  // namespace

JsonRules::JsonRules(Ir& ir, const std::optional<std::string>& space, Notation notation)
    : ir_(ir), space_regex_(space), notation_(std::move(notation)) {
  if (!space) return;
  CharFsm other = complement(parse_regex("[ \\t\\n\\r]*", RegexUse::kWhole));
  if (!is_empty(intersect(space_fsm(*space), other)))
    fail(ErrorCode::kInvalidArgument,
         "the pattern of white space '{}' also matches other characters", *space);
}

bool precedes_in_dictsort(std::string_view a, std::string_view b) {
  auto lower = [](std::string_view text) {
    std::string out(text);
    for (char& c : out)
      if ('A' <= c && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
  };
  return lower(a) < lower(b);
}

RuleId JsonRules::rule(RuleId& known, const char* name, ExprId (JsonRules::*body)()) {
  if (known != kNone) return known;
  RuleId id = known = ir_.add_rule(name);
  ir_.define(id, (this->*body)());
  return id;
}

ExprId JsonRules::space_body() {
  if (space_regex_) return expr_of(ir_, space_fsm(*space_regex_));
  ExprId indent = ir_.repeat(ir_.chars({{'\t', '\t'}, {' ', ' '}}), 0, 20);
  return ir_.optional(ir_.alt({ir_.bytes(" "), ir_.seq({ir_.bytes("\n"), indent})}));
}

// \" \n ... and \uXXXX; surrogates in pairs only.
ExprId JsonRules::escape_body() {
  CodeSet hex{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  auto digits = [&](uint32_t n) { return ir_.repeat(ir_.chars(hex), n, n); };
  ExprId d = ir_.chars({{'D', 'D'}, {'d', 'd'}});
  ExprId not_d = ir_.chars({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
  ExprId high = ir_.seq({d, ir_.chars({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), digits(2)});
  ExprId low = ir_.seq({d, ir_.chars({{'C', 'F'}, {'c', 'f'}}), digits(2)});
  ExprId code =
      ir_.alt({ir_.seq({not_d, digits(3)}), ir_.seq({d, ir_.chars({{'0', '7'}}), digits(2)}),
               ir_.seq({high, ir_.bytes("\\u"), low})});
  ExprId single = ir_.chars({{'"', '"'},
                             {'/', '/'},
                             {'\\', '\\'},
                             {'b', 'b'},
                             {'f', 'f'},
                             {'n', 'n'},
                             {'r', 'r'},
                             {'t', 't'}});
  return ir_.seq({ir_.bytes("\\"), ir_.alt({single, ir_.seq({ir_.bytes("u"), code})})});
}

ExprId JsonRules::character() {
  ExprId plain = ir_.chars({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kMaxCode}});
  return ir_.alt({plain, ir_.ref(rule(escape_, "an escape", &JsonRules::escape_body))});
}

// The escapes that have the same meaning as in JSON, \' and \x41.
ExprId JsonRules::python_string(char quote) {
  const auto mark = static_cast<char32_t>(quote);
  CodeSet plain = complement(CodeSet{{0, 0x1F}, {mark, mark}, {'\\', '\\'}});
  CodeSet hex{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  ExprId digit = ir_.chars(hex);
  ExprId not_d = ir_.chars({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
  ExprId escape =
      ir_.seq({ir_.bytes("\\"), ir_.alt({ir_.one_of({"\"", "'", "\\", "n", "r", "t", "b", "f"}),
                                         ir_.seq({ir_.bytes("x"), digit, digit}),
                                         ir_.seq({ir_.bytes("u"), not_d, digit, digit, digit})})});
  ExprId text = ir_.repeat(ir_.alt({ir_.chars(std::move(plain)), escape}), 0, kUnbounded);
  std::string around(1, quote);
  return ir_.seq({ir_.bytes(around), text, ir_.bytes(around)});
}

ExprId JsonRules::string_body() {
  if (notation_.kind == Notation::Kind::kPython)
    return ir_.alt({python_string('"'), python_string('\'')});
  if (notation_.kind == Notation::Kind::kGemma)
    return quoted(writable(fsm_of_length(0, kUnbounded)));
  if (has_absent())
    return ir_.seq({ir_.bytes("\""),
                    expr_of(ir_, writable(parse_regex(kJsonText, RegexUse::kWhole))),
                    ir_.bytes("\"")});
  return ir_.seq({ir_.bytes("\""), ir_.repeat(character(), 0, kUnbounded), ir_.bytes("\"")});
}

ExprId JsonRules::block_body() { return ir_.repeat(character(), kBlock, kBlock); }

ExprId JsonRules::characters(uint32_t count) {
  if (count <= 2 * kBlock) return ir_.repeat(character(), count, count);
  ExprId block = ir_.ref(rule(block_, "characters", &JsonRules::block_body));
  return ir_.seq({ir_.repeat(block, count / kBlock, count / kBlock),
                  ir_.repeat(character(), count % kBlock, count % kBlock)});
}

// Long counts consist of blocks, so that the automaton stays small.
ExprId JsonRules::string(uint32_t min, uint32_t max) {
  std::vector<ExprId> parts{ir_.bytes("\""), characters(min)};
  if (max == kUnbounded) {
    parts.push_back(ir_.repeat(character(), 0, kUnbounded));
  } else if (uint32_t more = max - min; more <= 2 * kBlock) {
    parts.push_back(ir_.repeat(character(), 0, more));
  } else {
    ExprId block = ir_.ref(rule(block_, "characters", &JsonRules::block_body));
    uint32_t blocks = more / kBlock, rest = more % kBlock;
    ExprId some = ir_.seq({ir_.repeat(block, 0, blocks - 1), ir_.repeat(character(), 0, kBlock)});
    ExprId all = ir_.seq({ir_.repeat(block, blocks, blocks), ir_.repeat(character(), 0, rest)});
    parts.push_back(ir_.alt({some, all}));
  }
  parts.push_back(ir_.bytes("\""));
  return ir_.seq(std::move(parts));
}

CharFsm JsonRules::writable(CharFsm strings) const {
  return has_absent() ? intersect(strings, fsm_without(notation_.absent)) : std::move(strings);
}

ExprId JsonRules::quoted(const CharFsm& strings) {
  auto within = [&](std::string_view quote, ExprId text) {
    return ir_.seq({ir_.bytes(quote), text, ir_.bytes(quote)});
  };
  switch (notation_.kind) {
    case Notation::Kind::kPython:
      return ir_.alt({within("\"", json_expr_of(ir_, strings)),
                      within("'", json_expr_of(ir_, strings, '\''))});
    case Notation::Kind::kGemma:
      return within(notation_.quote, expr_of(ir_, strings));
    default:
      return within("\"", json_expr_of(ir_, strings));
  }
}

ExprId JsonRules::key(const std::string& name) {
  if (notation_.kind != Notation::Kind::kGemma) return exactly(Value(name));
  static const CharFsm bare = parse_regex(kBareNames, RegexUse::kWhole);
  if (!bare.matches(std::string_view(name)))
    fail(ErrorCode::kInvalidArgument,
         "the name '{}' cannot be written in the model's format of calls", name);
  return ir_.bytes(name);
}

ExprId JsonRules::key(const CharFsm& names) {
  if (notation_.kind != Notation::Kind::kGemma) return quoted(writable(names));
  return expr_of(ir_, intersect(names, parse_regex(kBareNames, RegexUse::kWhole)));
}

std::vector<std::string> JsonRules::spellings(const Value& v) const {
  const std::string json = dump_json(v);
  if (v.is_string() && has_absent() && v.as_string().find(notation_.absent) != std::string::npos)
    return {};
  if (notation_.kind == Notation::Kind::kJson || v.is_number()) return {json};
  const bool python = notation_.kind == Notation::Kind::kPython;
  if (v.is_null()) return {"None", "null"};
  if (v.is_bool() && python) return {json, v.as_bool() ? "True" : "False"};
  if (v.is_bool()) return {json};
  if (!python) return {notation_.quote + v.as_string() + notation_.quote};
  std::string single = "'";
  for (char c : json.substr(1, json.size() - 2)) {
    if (c == '\'') single += '\\';
    single += c;
  }
  return {json, single + '\''};
}

// The readers of calls take a number that is not finite for a string, and no word of more than 256
// characters.
ExprId JsonRules::integer_body() {
  ExprId digits = ir_.repeat(ir_.chars({{'0', '9'}}), 0, is_plain() ? kUnbounded : 40);
  return ir_.seq({ir_.optional(ir_.bytes("-")),
                  ir_.alt({ir_.bytes("0"), ir_.seq({ir_.chars({{'1', '9'}}), digits})})});
}

ExprId JsonRules::number_body() {
  ExprId digits = ir_.repeat(ir_.chars({{'0', '9'}}), 1, is_plain() ? kUnbounded : 40);
  ExprId sign = ir_.optional(ir_.chars({{'+', '+'}, {'-', '-'}}));
  ExprId power = is_plain() ? digits : ir_.repeat(ir_.chars({{'0', '9'}}), 1, 2);
  return ir_.seq({integer_body(), ir_.optional(ir_.seq({ir_.bytes("."), digits})),
                  ir_.optional(ir_.seq({ir_.chars({{'E', 'E'}, {'e', 'e'}}), sign, power}))});
}

ExprId JsonRules::braces(std::string_view open, ExprId members, std::string_view close,
                         bool maybe_empty) {
  ExprId full = ir_.seq({space(), members, space(), ir_.bytes(close)});
  return ir_.seq({ir_.bytes(open), maybe_empty ? ir_.alt({ir_.bytes(close), full}) : full});
}

ExprId JsonRules::member(ExprId quoted_key, ExprId value) {
  return ir_.seq({quoted_key, ir_.bytes(":"), space(), value});
}

ExprId JsonRules::object_body() {
  const bool bare = notation_.kind == Notation::Kind::kGemma;
  ExprId one = member(bare ? key(fsm_of_length(0, kUnbounded)) : string(), value());
  ExprId more = ir_.repeat(ir_.seq({comma(), one}), 0, kUnbounded);
  return braces("{", ir_.seq({one, more}), "}", true);
}

ExprId JsonRules::array_body() {
  ExprId more = ir_.repeat(ir_.seq({comma(), value()}), 0, kUnbounded);
  return braces("[", ir_.seq({value(), more}), "]", true);
}

ExprId JsonRules::value_body() {
  std::vector<std::string> words;
  for (const Value& word : {Value(true), Value(false), Value()})
    for (std::string& text : spellings(word)) words.push_back(std::move(text));
  return ir_.alt({object(), array(), string(), number(), ir_.one_of(std::move(words))});
}

ExprId JsonRules::exactly(const Value& v) {
  bool object = v.is_object();
  if (!object && !v.is_array()) {
    std::vector<std::string> texts = spellings(v);
    if (texts.empty())
      return ir_.never(
          fmt::format("a string contains {}, which ends an argument", notation_.absent));
    return ir_.one_of(std::move(texts));
  }
  if (v.size() == 0) return ir_.bytes(dump_json(v));
  std::vector<ExprId> parts;
  auto add = [&](ExprId part) {
    if (!parts.empty()) parts.push_back(comma());
    parts.push_back(part);
  };
  if (object) {
    Value::Object members = v.as_object();
    if (notation_.kind == Notation::Kind::kGemma)
      std::stable_sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
        return precedes_in_dictsort(a.first, b.first);
      });
    for (const auto& [name, item] : members) add(member(key(name), exactly(item)));
  } else {
    for (const Value& item : v.as_array()) add(exactly(item));
  }
  return braces(object ? "{" : "[", ir_.seq(std::move(parts)), object ? "}" : "]", false);
}

}  // namespace tokamak::grammar
