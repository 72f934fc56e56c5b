#include "text/grammar/json_rules.h"

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

constexpr uint32_t kBlock = 1024;  // characters of a rule that long counts are built from

CharFsm space_fsm(std::string_view pattern) {
  return parse_regex(pattern, RegexUse::kWhole, {.inside = true});
}

}  // namespace

JsonRules::JsonRules(Ir& ir, const std::optional<std::string>& space)
    : ir_(ir), space_regex_(space) {
  if (!space) return;
  CharFsm other = complement(parse_regex("[ \\t\\n\\r]*", RegexUse::kWhole));
  if (!is_empty(intersect(space_fsm(*space), other)))
    fail(ErrorCode::kInvalidArgument,
         "the pattern of white space '{}' also matches other characters", *space);
}

std::string json_quoted(std::string_view text) { return dump_json(Value(text)); }

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

ExprId JsonRules::string_body() {
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

ExprId JsonRules::integer_body() {
  ExprId digits = ir_.repeat(ir_.chars({{'0', '9'}}), 0, kUnbounded);
  return ir_.seq({ir_.optional(ir_.bytes("-")),
                  ir_.alt({ir_.bytes("0"), ir_.seq({ir_.chars({{'1', '9'}}), digits})})});
}

ExprId JsonRules::number_body() {
  ExprId digits = ir_.repeat(ir_.chars({{'0', '9'}}), 1, kUnbounded);
  ExprId sign = ir_.optional(ir_.chars({{'+', '+'}, {'-', '-'}}));
  return ir_.seq({integer_body(), ir_.optional(ir_.seq({ir_.bytes("."), digits})),
                  ir_.optional(ir_.seq({ir_.chars({{'E', 'E'}, {'e', 'e'}}), sign, digits}))});
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
  ExprId one = member(string(), value());
  ExprId more = ir_.repeat(ir_.seq({comma(), one}), 0, kUnbounded);
  return braces("{", ir_.seq({one, more}), "}", true);
}

ExprId JsonRules::array_body() {
  ExprId more = ir_.repeat(ir_.seq({comma(), value()}), 0, kUnbounded);
  return braces("[", ir_.seq({value(), more}), "]", true);
}

ExprId JsonRules::value_body() {
  return ir_.alt({object(), array(), string(), number(), ir_.one_of({"true", "false", "null"})});
}

ExprId JsonRules::exactly(const Value& v) {
  bool object = v.is_object();
  if ((!object && !v.is_array()) || v.size() == 0) return ir_.bytes(dump_json(v));
  std::vector<ExprId> parts;
  auto add = [&](ExprId part) {
    if (!parts.empty()) parts.push_back(comma());
    parts.push_back(part);
  };
  if (object)
    for (const auto& [key, item] : v.as_object())
      add(member(ir_.bytes(json_quoted(key)), exactly(item)));
  else
    for (const Value& item : v.as_array()) add(exactly(item));
  return braces(object ? "{" : "[", ir_.seq(std::move(parts)), object ? "}" : "]", false);
}

}  // namespace tokamak::grammar
