#include "text/grammar/call_grammar.h"

#include <algorithm>

#include "base/error.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex_parser.h"
#include "text/grammar/vocabulary.h"

namespace tokamak::grammar {
namespace {

using Texts = ArgumentSyntax::Texts;

// What stands around the name and the arguments of one call.
struct CallForm {
  Texts before_name;
  bool numbered = false;  // a colon and a number may follow the name
  Texts after_name, after;
};
struct CallFormat {
  CallSyntax syntax;
  std::vector<CallForm> forms;
  bool list = false;  // [f(...), g(...)]
  ArgumentNotation arguments = {};
  // Regular expressions for the names of functions that the reader of calls (text/output) finds,
  // and for those of them that it takes for another name.
  std::string names = {}, misread = {};
};
constexpr size_t kMaxFunctionName = 256;  // the limit of the readers

// Names between marks, and those with a namespace or a number, which the reader drops.
constexpr const char *kMarkedNames = R"([^{<>"\n]+)",
                     *kQualifiedNames = R"(functions\..*|.*:[0-9]*)";

CallFormat gemma_format(const CallSyntax& syntax, const std::string& quote) {
  return {
      .syntax = syntax,
      .forms = {{.before_name = {"call:"}, .after_name = {""}, .after = {""}}},
      .arguments = {.notation = {Notation::Kind::kGemma, quote, quote}, .syntax = {}, .space = ""},
      .names = "[^{]+"};
}

// The texts are those that the models' templates print for past calls.
std::vector<CallFormat> make_formats() {
  std::vector<CallFormat> out;
  out.push_back({.syntax = {"qwen3_coder", CallStart::kMark, "<function="},
                 .forms = {{.before_name = {""}, .after_name = {">\n"}, .after = {"</function>"}}},
                 .names = R"([^{}<>"]+)"});
  out.back().arguments = {.notation = {.absent = "</parameter>"},
                          .syntax = ArgumentSyntax{.before_name = {"<parameter="},
                                                   .before_value = {">\n"},
                                                   .after_value = {"\n</parameter>\n"},
                                                   .value_end = "</parameter>",
                                                   .names = R"([^<>"\s{}=]{1,128})"},
                          .space = {}};
  out.push_back(
      {.syntax = {"glm45", CallStart::kMark, "<tool_call>"},
       .forms = {{.before_name = {""}, .after_name = {"\n", ""}, .after = {"</tool_call>"}}},
       .names = R"([^{}<"\n]+)"});
  out.back().arguments = {
      .notation = {.absent = "</arg_value>"},
      .syntax = ArgumentSyntax{.before_name = {"<arg_key>"},
                               .before_value = {"</arg_key>\n<arg_value>", "</arg_key><arg_value>"},
                               .after_value = {"</arg_value>\n", "</arg_value>"},
                               .value_end = "</arg_value>",
                               .names = R"([^<>"\s{}]{1,128})"},
      .space = {}};
  out.push_back({.syntax = {"glm4", CallStart::kName, ""},
                 .forms = {{.before_name = {""}, .after_name = {"\n"}, .after = {""}}},
                 .names = kMarkedNames,
                 .misread = std::string("function|") + kQualifiedNames});
  out.push_back(gemma_format({"gemma", CallStart::kMark, "<start_function_call>"}, "<escape>"));
  out.push_back(gemma_format({"gemma4", CallStart::kMark, "<|tool_call>"}, "<|\"|>"));
  out.push_back({.syntax = {"llama4", CallStart::kList, ""},
                 .forms = {{.before_name = {""}, .after_name = {"("}, .after = {")"}}},
                 .list = true,
                 .names = "[A-Za-z0-9_.+-]+"});
  out.back().arguments = {.notation = {.kind = Notation::Kind::kPython},
                          .syntax = ArgumentSyntax{.before_name = {""},
                                                   .before_value = {"="},
                                                   .after_value = {""},
                                                   .commas = true,
                                                   .names = "[A-Za-z_][A-Za-z0-9_]{0,127}"},
                          .space = {}};
  out.push_back({.syntax = {"mistral_args", CallStart::kMark, "[TOOL_CALLS]"},
                 .forms = {{.before_name = {""}, .after_name = {"[ARGS]"}, .after = {""}}},
                 .names = R"([^{<>"\n\[\]]+)",
                 .misread = std::string("function|") + kQualifiedNames});
  out.push_back({.syntax = {"kimi_k2", CallStart::kMark, "<|tool_call_begin|>"},
                 .forms = {{.before_name = {"functions.", ""},
                            .numbered = true,
                            .after_name = {"<|tool_call_argument_begin|>"},
                            .after = {""}}},
                 .names = kMarkedNames});
  out.push_back({.syntax = {"deepseek", CallStart::kMark, "<｜tool▁call▁begin｜>"},
                 .forms = {{.before_name = {""}, .after_name = {"<｜tool▁sep｜>"}, .after = {""}},
                           {.before_name = {"function<｜tool▁sep｜>"},
                            .after_name = {"\n```json\n"},
                            .after = {"\n```"}}},
                 .names = kMarkedNames,
                 .misread = kQualifiedNames});
  return out;
}

const std::vector<CallFormat>& formats() {
  static const std::vector<CallFormat> all = make_formats();
  return all;
}

const CallFormat* find_format(std::string_view name) {
  for (const CallFormat& f : formats())
    if (f.syntax.format == name) return &f;
  return nullptr;
}

// Spells marks that are control tokens as the vocabulary does.
class Speller {
 public:
  explicit Speller(const std::vector<std::string>& controls) : controls_(controls) {}
  std::string operator()(std::string text) const {
    for (const std::string& mark : controls_)
      for (size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + mark.size() + 1))
        text.insert(at, 1, kControlByte);
    return text;
  }
  Texts operator()(Texts texts) const {
    for (std::string& text : texts) text = (*this)(std::move(text));
    return texts;
  }

 private:
  const std::vector<std::string>& controls_;
};

bool can_write(const CallFormat& format, const std::string& name) {
  constexpr std::string_view kBlanks = " \t\r\n";
  auto is = [&](const std::string& regex) {
    return parse_regex(regex, RegexUse::kWhole, {.dot_all = true}).matches(std::string_view(name));
  };
  return !name.empty() && name.size() <= kMaxFunctionName &&
         kBlanks.find(name.front()) == kBlanks.npos && kBlanks.find(name.back()) == kBlanks.npos &&
         is(format.names) && (format.misread.empty() || !is(format.misread));
}

ExprId one_call(Ir& ir, const CallFormat& format, const Value& tool, const Speller& spell,
                bool strict) {
  ArgumentNotation notation = format.arguments;
  notation.notation.quote = spell(notation.notation.quote);
  if (notation.syntax)
    for (Texts ArgumentSyntax::*texts :
         {&ArgumentSyntax::before_name, &ArgumentSyntax::before_value,
          &ArgumentSyntax::after_value})
      (*notation.syntax).*texts = spell((*notation.syntax).*texts);
  const std::string& name = tool.at("name").as_string();
  if (!can_write(format, name))
    fail(ErrorCode::kInvalidArgument, "the name cannot be written in the model's format of calls");
  Value schema = object_schema(tool.at("parameters"));
  if (tool.at("parameters").is_null() && notation.syntax && !notation.syntax->value_end.empty()) {
    schema.set("additionalProperties", Value::Object{{"type", "string"}});
    notation.syntax->texts_only = true;
  }
  const ExprId arguments = ir.ref(ir.embed(arguments_grammar(schema, notation, strict)));
  std::vector<ExprId> forms;
  for (const CallForm& form : format.forms) {
    ExprId number = ir.seq({ir.bytes(":"), ir.repeat(ir.chars({{'0', '9'}}), 1, 3)});
    forms.push_back(
        ir.seq({ir.one_of(spell(form.before_name)), ir.bytes(name),
                form.numbered ? ir.optional(number) : ir.empty(), ir.one_of(spell(form.after_name)),
                arguments, ir.one_of(spell(form.after))}));
  }
  return ir.alt(std::move(forms));
}

// Adds each <...> and [...] of the text; without its end, up to the end of the text.
void add_marks(std::vector<std::string_view>& out, std::string_view text) {
  for (size_t at = text.find_first_of("<["); at != text.npos;
       at = text.find_first_of("<[", at + 1)) {
    const size_t last = std::min(text.find(text[at] == '<' ? '>' : ']', at), text.size() - 1);
    const std::string_view mark = text.substr(at, last - at + 1);
    if (std::find(out.begin(), out.end(), mark) == out.end()) out.push_back(mark);
  }
}

}  // namespace

const CallSyntax* find_call_syntax(std::string_view format) {
  const CallFormat* found = find_format(format);
  return found == nullptr ? nullptr : &found->syntax;
}

std::span<const std::string_view> call_marks() {
  static const std::vector<std::string_view> marks = [] {
    std::vector<std::string_view> out;
    for (const CallFormat& format : formats()) {
      add_marks(out, format.arguments.notation.quote);
      for (const CallForm& form : format.forms)
        for (const Texts* texts : {&form.before_name, &form.after_name, &form.after})
          for (std::string_view text : *texts) add_marks(out, text);
      if (!format.arguments.syntax) continue;
      const ArgumentSyntax& syntax = *format.arguments.syntax;
      for (const Texts* texts : {&syntax.before_name, &syntax.before_value, &syntax.after_value})
        for (std::string_view text : *texts) add_marks(out, text);
    }
    return out;
  }();
  return marks;
}

Value object_schema(const Value& parameters) {
  const Value object = Value::Object{{"type", "object"}};
  if (parameters.is_null() || (parameters.is_bool() && parameters.as_bool())) return object;
  if (!parameters.is_object()) return parameters;
  const Value* type = parameters.find("type");
  auto named = [](const Value& name) { return name == Value("object"); };
  if (type != nullptr && !named(*type) &&
      !(type->is_array() && std::any_of(type->as_array().begin(), type->as_array().end(), named)))
    fail(ErrorCode::kInvalidArgument,
         "the JSON schema, #/type: the arguments of a function are an object");
  // In drafts that $schema may name, type has no effect beside $ref.
  const bool other_draft = type == nullptr && parameters.has("$ref");
  Value out = Value::object();
  for (const auto& [key, value] : parameters.as_object())
    if (key != "$schema" || !other_draft) out.set(key, value);
  out.set("type", "object");
  return out;
}

Ir call_grammar(std::string_view format, const Value& tools,
                const std::vector<std::string>& controls, bool strict) {
  const CallFormat* found = find_format(format);
  TK_CHECK(found != nullptr, "calls of the format {}", format);
  const Speller spell(controls);
  Ir ir;
  RuleId root = ir.add_rule("calls");
  std::vector<ExprId> calls;
  for (const Value& tool : tools.as_array()) try {
      calls.push_back(one_call(ir, *found, tool, spell, strict));
    } catch (const Error& e) {
      fail(e.code(), "function '{}': {}", tool.at("name").as_string(), e.what());
    }
  ExprId body = ir.alt(std::move(calls));
  if (found->list) {
    RuleId one = ir.add_rule("a call");
    ir.define(one, body);
    ExprId more = ir.seq({ir.one_of({",", ", ", ",\n"}), ir.ref(one)});
    body = ir.seq({ir.bytes("["), ir.ref(one), ir.repeat(more, 0, kUnbounded), ir.bytes("]")});
  }
  ir.define(root, ir.seq({ir.bytes(found->syntax.mark), body}));
  return ir;
}

}  // namespace tokamak::grammar
