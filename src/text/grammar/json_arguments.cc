// Arguments of calls that are not written as an object: f(a=1) or <parameter=a>1</parameter>.
#include "base/error.h"
#include "text/grammar/json_compiler.h"
#include "text/grammar/regex_parser.h"

namespace tokamak::grammar {
namespace {

struct Reading {
  uint32_t types;
  const char* regex;
};
// Texts without quotes that the reader of calls takes for something else than a string, where a
// parameter may have these types. Of arrays and objects the first character decides.
constexpr Reading kReadings[] = {
    {kNumbers, R"([ \t\r\n]*-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?[ \t\r\n]*)"},
    {kBoolean, R"([ \t\r\n]*(true|false)[ \t\r\n]*|True|False)"},
    {kNull, R"([ \t\r\n]*null[ \t\r\n]*|None)"},
    {kString, R"([ \t\r\n]*"([^"\\]|\\.)*"[ \t\r\n]*)"},
    {kArray, R"([ \t\r\n]*\[.*)"},
    {kObject, R"([ \t\r\n]*\{.*)"},
};

CharFsm texts_only(uint32_t types) {
  CharFsm out = fsm_of_length(0, kUnbounded);
  for (const Reading& r : kReadings)
    if ((r.types & types) != 0)
      out = intersect(out, complement(parse_regex(r.regex, RegexUse::kWhole, {.dot_all = true})));
  return out;
}

}  // namespace

SchemaCompiler::Place SchemaCompiler::argument_place(const std::string& name) const {
  if (syntax_->value_end.empty()) return kValue;
  return kArgument + (syntax_->texts_only ? uint32_t{kString} : parameter_types(schema_, name));
}

ExprId SchemaCompiler::argument(ExprId name, ExprId value) {
  return ir_.seq({ir_.one_of(syntax_->before_name), name, ir_.one_of(syntax_->before_value), value,
                  ir_.one_of(syntax_->after_value)});
}

ExprId SchemaCompiler::argument_name(const std::string& name) {
  if (!parse_regex(syntax_->names, RegexUse::kWhole).matches(std::string_view(name)))
    fail(ErrorCode::kInvalidArgument,
         "the name of the parameter '{}' cannot be written in the model's format of calls", name);
  return ir_.bytes(name);
}

std::vector<std::string> SchemaCompiler::words(const Value& word) const {
  std::vector<std::string> out = rules_.spellings(word);
  if (place_ >= kArgument)  // templates print them in Python's spelling
    out.push_back(word.is_null() ? "None" : word.as_bool() ? "True" : "False");
  return out;
}

// Where the parameter may be something else than a string, a string that would be read as that has
// quotes, as in JSON.
ExprId SchemaCompiler::argument_text(const CharFsm& strings) {
  const uint32_t types = place_ - kArgument;
  const CharFsm texts = rules_.writable(strings);
  if (types == kString) return expr_of(ir_, texts);
  CharFsm bare = intersect(texts, texts_only(types));
  std::vector<ExprId> parts;
  if (!is_empty(bare)) parts.push_back(expr_of(ir_, bare));
  parts.push_back(rules_.quoted(texts));
  return ir_.alt(std::move(parts));
}

ExprId SchemaCompiler::listed_arguments(const Value& value) {
  std::vector<ExprId> parts;
  const Place here = place_;
  for (const auto& [name, item] : value.as_object()) {
    if (syntax_->commas && !parts.empty()) parts.push_back(rules_.comma());
    place_ = argument_place(name);
    ExprId written = listed_values({&item});
    place_ = here;
    parts.push_back(argument(argument_name(name), written));
  }
  return ir_.seq(std::move(parts));
}

}  // namespace tokamak::grammar
