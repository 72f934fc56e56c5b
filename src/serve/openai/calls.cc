#include "serve/openai/calls.h"

#include <algorithm>

#include "base/json.h"
#include "serve/openai/api_error.h"
#include "serve/openai/fields.h"
#include "serve/openai/structured.h"
#include "text/grammar/call_grammar.h"
#include "text/grammar/vocabulary.h"
#include "text/output/mark.h"

namespace tokamak::openai {
namespace {

using grammar::GrammarSource;
using grammar::Kind;

// References of an embedded schema are relative to the whole.
Value embedded(const Value& schema, const std::string& path) {
  if (schema.is_array()) {
    Value out = Value::array();
    for (const Value& item : schema.as_array()) out.push(embedded(item, path));
    return out;
  }
  if (!schema.is_object()) return schema;
  Value out = Value::object();
  for (const auto& [key, value] : schema.as_object()) {
    bool local = key == "$ref" && value.is_string() &&
                 (value.as_string() == "#" || value.as_string().starts_with("#/"));
    bool data = key == "enum" || key == "const" || key == "$schema";
    if (key == "$schema") continue;
    out.set(key, local  ? Value(path + value.as_string().substr(1))
                 : data ? value
                        : embedded(value, path));
  }
  return out;
}

// How models write calls as one JSON value; call_grammar.h has the other formats.
struct JsonCallFormat {
  std::string_view format, mark;  // what a call follows; empty: a brace at the start of the answer
  const char *name = "name", *arguments = "arguments";
  std::string_view before = "", after = "";
  bool list = false, has_id = false;  // [{...}], with "tool_call_id"
};
constexpr JsonCallFormat kJsonCalls[] = {
    {.format = "hermes", .mark = "<tool_call>", .before = "\n", .after = "\n</tool_call>"},
    {.format = "llama3", .mark = "", .arguments = "parameters"},
    {.format = "llama4_json", .mark = "", .arguments = "parameters"},
    {.format = "mistral", .mark = "[TOOL_CALLS]", .list = true},
    {.format = "granite", .mark = "<|tool_call|>", .list = true},
    {.format = "phi4", .mark = "<|tool_call|>", .list = true},
    {.format = "command_r",
     .mark = "<|START_ACTION|>",
     .name = "tool_name",
     .arguments = "parameters",
     .list = true,
     .has_id = true},
};
const JsonCallFormat* json_calls_of(const ToolFormat* format) {
  for (const JsonCallFormat& f : kJsonCalls)
    if (format != nullptr && f.format == format->name) return &f;
  return nullptr;
}

// The text as the vocabulary spells it if the marks in it are control tokens of the model.
std::string spelled(std::string_view text, std::string_view mark, const ServedModel& model) {
  std::string out(text);
  const int32_t id = mark.empty() ? -1 : model.tokenizer->find_piece(mark);
  const size_t at = out.find(mark);
  if (id >= 0 && model.tokenizer->is_special(id) && at != out.npos)
    out.insert(at, 1, grammar::kControlByte);
  return out;
}

// A call may begin with every mark that its reader knows.
void add_other_marks(CallBegin& begin, const ToolFormat& format) {
  for (std::string_view open : format.opens)
    if (open != begin.mark) begin.others.emplace_back(open);
}

bool is_strict(const Value& tool) {
  const Value* function = tool.find("function");
  const Value* strict = function == nullptr ? nullptr : function->find("strict");
  return strict != nullptr && strict->is_bool() && strict->as_bool();
}

// Arguments that are not strict are any object.
Value argument_schema(const Value& function, bool strict) {
  const Value* parameters = strict ? function.find("parameters") : nullptr;
  try {
    return grammar::object_schema(parameters == nullptr ? Value() : *parameters);
  } catch (const Error& e) {
    bad_request("tools", "invalid_value", "Invalid 'tools': function '{}': {}.",
                function.at("name").as_string(), e.what());
  }
}

// A call of the function.
Value call_schema(const Value& function, const JsonCallFormat& format, const std::string& path,
                  bool strict) {
  Value schema = embedded(argument_schema(function, strict), path);
  Value properties = Value::object(), required = Value::array();
  auto add = [&](const char* key, Value value) {
    properties.set(key, std::move(value));
    required.push(key);
  };
  if (format.has_id)
    add("tool_call_id", Value::Object{{"type", "string"}, {"pattern", "^[0-9]{1,3}$"}});
  add(format.name, Value::Object{{"const", function.at("name")}});
  add(format.arguments, std::move(schema));
  return Value::Object{{"type", "object"},
                       {"properties", std::move(properties)},
                       {"required", std::move(required)},
                       {"additionalProperties", false}};
}

// Where the schema of a function is within that of its call.
struct SchemaPlace {
  std::string function, path;
};

// Errors name the place in the function's own schema.
std::shared_ptr<const grammar::Grammar> compile_calls(const GrammarSource& source,
                                                      const std::vector<SchemaPlace>& places,
                                                      const ServedModel& model) {
  try {
    return compile_grammar(source, "tools", model);
  } catch (const ApiError& e) {
    std::string message = e.what();
    for (const SchemaPlace& place : places) {
      const std::string before = "the JSON schema, ", found = before + place.path;
      const size_t at = message.find(found), end = at + found.size();
      if (at == message.npos || end >= message.size() ||
          std::string_view("/:").find(message[end]) == std::string_view::npos)
        continue;
      message.replace(at, found.size(), fmt::format("function '{}': {}#", place.function, before));
      break;
    }
    throw ApiError(e.status(), std::move(message), e.param(), e.error_code());
  }
}

std::shared_ptr<const grammar::Grammar> argument_grammar(const Value& tool, bool forced,
                                                         const ServedModel& model) {
  const bool strict = is_strict(tool);
  GrammarSource source{Kind::kJsonSchema,
                       dump_json(argument_schema(tool.at("function"), forced || strict))};
  source.strict = strict;
  return compile_calls(source, {{tool.at("function").at("name").as_string(), "#"}}, model);
}

// A call of one of the tools. `forced`: arguments follow the schema in all of them, not only in
// strict ones.
std::shared_ptr<const grammar::Grammar> json_call_grammar(const Value::Array& tools,
                                                          const JsonCallFormat& format, bool forced,
                                                          const ServedModel& model) {
  auto compile = [&](bool all, bool strict) {
    std::string_view list = format.list ? "/items" : "";
    Value calls = Value::array();
    std::vector<SchemaPlace> places;
    for (const Value& tool : tools) {
      const Value& function = tool.at("function");
      places.push_back(
          {function.at("name").as_string(),
           fmt::format("#{}/anyOf/{}/properties/{}", list, calls.size(), format.arguments)});
      calls.push(call_schema(function, format, places.back().path, all || is_strict(tool)));
    }
    Value schema = Value::Object{{"anyOf", std::move(calls)}};
    if (format.list)
      schema = Value::Object{{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}};
    GrammarSource source{Kind::kJsonSchema, dump_json(schema), {}};
    // A mark that the model chooses to write begins a call however it is spelled.
    source.before = fmt::format(
        "{}{}", forced ? spelled(format.mark, format.mark, model) : std::string(format.mark),
        format.before);
    source.after = spelled(format.after, trimmed(format.after), model);
    source.strict = strict;
    return compile_calls(source, places, model);
  };
  const bool any = std::any_of(tools.begin(), tools.end(), is_strict);
  const bool every = std::all_of(tools.begin(), tools.end(), is_strict);
  // A grammar is strict as a whole. If only some of the tools are, these are checked first, while
  // the arguments of the others are any object.
  if (forced && any && !every) compile(false, true);
  return compile(forced, !forced || every);
}

// Calls in the other formats; arguments follow the schema in strict tools.
void add_call_syntax(CallGrammar& out, const Value::Array& tools, const ServedModel& model,
                     const ToolFormat& format) {
  const grammar::CallSyntax& syntax = *grammar::find_call_syntax(format.name);
  out.begin = {syntax.start, std::string(syntax.mark), {}, {}};
  add_other_marks(out.begin, format);
  Value list = Value::array();
  for (const Value& tool : tools) {
    const Value& function = tool.at("function");
    out.begin.names.push_back(function.at("name").as_string());
    list.push(
        Value::Object{{"name", function.at("name")},
                      {"parameters", is_strict(tool) ? argument_schema(function, true) : Value()}});
  }
  GrammarSource source{Kind::kCalls, dump_json(list), {}};
  source.format = syntax.format;
  source.strict = true;
  for (std::string_view mark : grammar::call_marks())
    if (int32_t id = model.tokenizer->find_piece(mark); id >= 0 && model.tokenizer->is_special(id))
      source.choices.emplace_back(mark);
  out.grammar = compile_grammar(source, "tools", model);
}

// Harmony: an answer thinks, and then has a message to a function. If the call is not forced, it
// may also say something before it, or have an answer instead.
std::vector<MessageForm> call_messages(const Value& tools, const std::string& name, bool forced,
                                       const ServedModel& model) {
  std::vector<MessageForm> out = {{.header = kThoughtsHeader}};
  if (!forced) {
    out.push_back({.header = "<|channel|>commentary<|message|>"});
    out.push_back({.header = kFinalHeader, .grammar = nullptr, .end = kFinalEnd});
  }
  for (const Value& tool : tools.as_array()) {
    const Value& function = tool.at("function");
    const std::string& to = function.at("name").as_string();
    if (!name.empty() && to != name) continue;
    auto grammar = argument_grammar(tool, forced, model);
    // Models write the first form; the second one is how templates show earlier calls.
    for (const std::string& header :
         {fmt::format("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", to),
          fmt::format(" to=functions.{}<|channel|>commentary json<|message|>", to)})
      out.push_back({.header = header, .grammar = grammar, .end = "<|call|>"});
  }
  return out;
}

// The name in a tool or a choice, inside of `function` or without it; nullptr: there is none.
const Value* function_name(const Value& tool) {
  if (!tool.is_object()) return nullptr;
  const Value* function = tool.find("function");
  if (function == nullptr) return tool.find("name");
  return function->is_object() ? function->find("name") : nullptr;
}

void keep_allowed_tools(const Value& choice, const Value& tools, Value& body) {
  const bool inside = choice.has("allowed_tools");  // chat completions; otherwise as in Responses
  const std::string param = inside ? "tool_choice.allowed_tools" : "tool_choice";
  Fields fields(inside ? choice.at("allowed_tools") : choice, param);
  const std::string mode = fields.string("mode").value_or("auto");
  if (mode != "auto" && mode != "required")
    bad_request(param + ".mode", "invalid_value", "Invalid '{}.mode': use 'auto' or 'required'.",
                param);
  const auto* names = fields.array("tools");
  if (names == nullptr || names->empty())
    bad_request(param + ".tools", "empty_array", "Invalid '{}.tools': it is empty.", param);
  Value::Array kept;
  for (size_t i = 0; i < names->size(); ++i) {
    const Value* name = function_name((*names)[i]);
    const auto& all = tools.as_array();
    auto found = std::find_if(all.begin(), all.end(), [&](const Value& tool) {
      const Value* own = function_name(tool);
      return name != nullptr && own != nullptr && *own == *name;
    });
    if (found == all.end())
      bad_request(fmt::format("{}.tools[{}]", param, i), "invalid_value",
                  "Invalid '{}.tools[{}]': no function of 'tools' has this name.", param, i);
    kept.push_back(*found);
  }
  body.set("tools", Value(std::move(kept)));
  body.set("tool_choice", mode);
}

}  // namespace

std::optional<Value> with_usual_tool_choice(const Value& body) {
  const Value *choice = body.find("tool_choice"), *tools = body.find("tools");
  if (choice == nullptr) return std::nullopt;
  Value out = Value::object();
  if (*choice == Value("any")) {
    out = body;
    out.set("tool_choice", "required");
    return out;
  }
  const Value* type = choice->is_object() ? choice->find("type") : nullptr;
  if (type == nullptr || tools == nullptr || !tools->is_array()) return std::nullopt;
  if (*type == Value("function") && !choice->has("function") && choice->has("name")) {
    out = body;
    out.set("tool_choice",
            Value::Object{{"type", "function"},
                          {"function", Value::Object{{"name", choice->at("name")}}}});
    return out;
  }
  if (*type != Value("allowed_tools")) return std::nullopt;
  out = body;
  keep_allowed_tools(*choice, *tools, out);
  return out;
}

CallGrammar call_grammar(const Value& body, const ServedModel& model, const ToolFormat* calls) {
  const Value* choice = body.find("tool_choice");
  const Value* tools = body.find("tools");
  if (tools == nullptr) return {};
  bool chosen = choice != nullptr && !choice->is_null();
  std::string name;
  if (chosen && choice->is_object()) name = choice->at("function").at("name").as_string();
  CallGrammar out;
  out.forced = chosen && (choice->is_object() || choice->as_string() == "required");
  bool strict = std::any_of(tools->as_array().begin(), tools->as_array().end(), is_strict);
  if (!out.forced && !strict) return {};
  if (calls != nullptr && calls->machine == nullptr) {
    out.messages = call_messages(*tools, name, out.forced, model);
    return out;
  }
  const JsonCallFormat* format = json_calls_of(calls);
  bool own = format != nullptr && !format->list;  // a forced call is written as the model does
  if (out.forced && !own) {
    // The format is not known, or its marks may be control tokens, which the grammars of JSON
    // formats do not name: the whole answer is JSON instead.
    calls = out.format = find_tool_format("llama3");
    format = &kJsonCalls[1];
  }
  if (format == nullptr && calls != nullptr && grammar::find_call_syntax(calls->name) != nullptr) {
    add_call_syntax(out, tools->as_array(), model, *calls);
    return out;
  }
  if (format == nullptr) {
    out.warning = fmt::format(
        "tools: 'strict' has no effect with tool_choice 'auto' in this model's format of calls{}",
        calls == nullptr ? "" : fmt::format(" ({})", calls->name));
    log_once(Notice::kTools, out.warning);
    return out;
  }
  Value::Array allowed;
  for (const Value& tool : tools->as_array())
    if (name.empty() || tool.at("function").at("name").as_string() == name) allowed.push_back(tool);
  out.begin.start = format->mark.empty() ? grammar::CallStart::kBrace : grammar::CallStart::kMark;
  out.begin.mark = format->mark;
  add_other_marks(out.begin, *calls);
  out.grammar = json_call_grammar(allowed, *format, out.forced, model);
  return out;
}

}  // namespace tokamak::openai
