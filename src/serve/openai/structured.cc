#include "serve/openai/structured.h"

#include <algorithm>
#include <optional>

#include "base/json.h"
#include "serve/call_mask.h"
#include "serve/grammar_mask.h"
#include "serve/message_mask.h"
#include "serve/openai/api_error.h"
#include "serve/openai/params.h"
#include "serve/thought_budget.h"
#include "serve/token_filter.h"

namespace tokamak::openai {
namespace {

using grammar::GrammarSource;
using grammar::Kind;

// Collects the one constraint that a request may have.
class Constraint {
 public:
  void set(const std::string& param, GrammarSource source) {
    if (source_)
      bad_request(param, "invalid_value",
                  "'{}' cannot be combined with '{}': only one of them can constrain the answer.",
                  param, param_);
    param_ = param;
    source_ = std::move(source);
  }
  void set_text(const std::string& param, Kind kind, const Value& value) {
    if (!value.is_string()) wrong_type(param, "a string", value);
    set(param, {kind, value.as_string(), {}});
  }
  // An object, or the same as text.
  void set_schema(const std::string& param, const Value& value, bool strict = false) {
    if (!value.is_object() && !value.is_bool() && !value.is_string())
      wrong_type(param, "a JSON schema", value);
    GrammarSource source{Kind::kJsonSchema,
                         value.is_string() ? value.as_string() : dump_json(value)};
    source.strict = strict;
    set(param, std::move(source));
  }
  void set_choice(const std::string& param, const Value& value) {
    if (!value.is_array()) wrong_type(param, "an array of strings", value);
    GrammarSource source{Kind::kChoice, "", {}};
    for (size_t i = 0; i < value.size(); ++i) {
      const Value& item = value.as_array()[i];
      if (!item.is_string()) wrong_type(fmt::format("{}[{}]", param, i), "a string", item);
      source.choices.push_back(item.as_string());
    }
    set(param, std::move(source));
  }

  bool is_set() const { return source_.has_value(); }
  // White space in JSON, as a regular expression.
  void set_space(const std::string& param, std::string regex) {
    space_param_ = param;
    space_ = std::move(regex);
  }

  std::shared_ptr<const grammar::Grammar> compile(const ServedModel& model) const {
    if (!source_) return nullptr;
    GrammarSource source = *source_;
    if (space_) {
      if (source.kind != Kind::kJsonSchema && source.kind != Kind::kJsonObject)
        bad_request(space_param_, "invalid_value", "'{}' is about JSON, but '{}' is not.",
                    space_param_, param_);
      source.space = space_;
    }
    try {
      auto grammar = model.grammars->get(source);
      for (const std::string& note : grammar->notes()) log_once(Notice::kSchema, note);
      return grammar;
    } catch (const Error& e) {
      if (e.code() == ErrorCode::kInternal) throw;
      bad_request(param_, "invalid_value", "Invalid '{}': {}.", param_, e.what());
    }
  }

 private:
  std::string param_, space_param_;
  std::optional<GrammarSource> source_;
  std::optional<std::string> space_;
};

void read_response_format(Fields& fields, Constraint& constraint) {
  const Value* format = fields.find("response_format");
  if (format == nullptr) return;
  Fields inner(*format, "response_format");
  std::string type = inner.string("type").value_or("");
  if (type == "text") return;
  if (type == "json_object") {
    // llama-server and others take a schema here.
    if (const Value* schema = inner.find("schema"))
      return constraint.set_schema("response_format.schema", *schema);
    return constraint.set("response_format", {Kind::kJsonObject, "", {}});
  }
  if (type != "json_schema")
    unsupported("response_format",
                fmt::format("Type '{}' is not available; 'text', 'json_object' and 'json_schema' "
                            "are.",
                            type.substr(0, 64)));
  Fields schema(inner.require("json_schema"), "response_format.json_schema");
  schema.string("name");
  schema.string("description");
  const bool strict = schema.boolean("strict").value_or(false);
  constraint.set_schema("response_format.json_schema.schema", schema.require("schema"), strict);
}

void read_structured_outputs(Fields& fields, Constraint& constraint) {
  const Value* value = fields.find("structured_outputs");
  if (value == nullptr) return;
  Fields inner(*value, "structured_outputs");
  if (const Value* v = inner.find("json")) constraint.set_schema(inner.name("json"), *v);
  if (const Value* v = inner.find("regex"))
    constraint.set_text(inner.name("regex"), Kind::kRegex, *v);
  if (const Value* v = inner.find("choice")) constraint.set_choice(inner.name("choice"), *v);
  if (const Value* v = inner.find("grammar"))
    constraint.set_text(inner.name("grammar"), Kind::kGrammar, *v);
  if (inner.boolean("json_object").value_or(false))
    constraint.set(inner.name("json_object"), {Kind::kJsonObject, "", {}});
  inner.refuse("structural_tag", "It is not available.");
  if (auto space = inner.string("whitespace_pattern"))
    constraint.set_space(inner.name("whitespace_pattern"), *space);
  else if (inner.boolean("disable_any_whitespace").value_or(false))
    constraint.set_space(inner.name("disable_any_whitespace"), "");
  // Objects with declared properties have no others anyway.
  inner.ignore({"disable_fallback", "disable_additional_properties"});
  if (!constraint.is_set())
    bad_request("structured_outputs", "invalid_value",
                "Invalid 'structured_outputs': it has none of json, regex, choice, grammar and "
                "json_object.");
  log_unknown_fields(inner.unknown());
}

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

// How models write calls as JSON. In other formats strict tools have no effect.
struct JsonCallFormat {
  std::string_view format, mark;  // what a call follows; empty: a brace at the start of the answer
  const char *name = "name", *arguments = "arguments";
  std::string_view before = "", after = "";
  bool list = false, has_id = false;  // [{...}], with "tool_call_id"
};
constexpr JsonCallFormat kJsonCalls[] = {
    {.format = "hermes", .mark = "<tool_call>", .before = "\n", .after = "\n</tool_call>"},
    {.format = "llama3", .mark = "", .arguments = "parameters"},
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
const JsonCallFormat* json_calls_of(const ServedModel& model) {
  for (const JsonCallFormat& f : kJsonCalls)
    if (model.tool_format != nullptr && f.format == model.tool_format->name) return &f;
  return nullptr;
}

// How models write a name, a separator and the arguments.
struct NamedFormat {
  std::string_view format, mark;
  std::vector<std::string> separators;
};
const NamedFormat* named_calls_of(const ServedModel& model) {
  static const NamedFormat formats[] = {
      {"kimi_k2", "<|tool_call_begin|>", {"<|tool_call_argument_begin|>"}},
      {"deepseek", "<｜tool▁call▁begin｜>", {"<｜tool▁sep｜>", "\n```json\n"}},
  };
  for (const NamedFormat& f : formats)
    if (model.tool_format != nullptr && f.format == model.tool_format->name) return &f;
  return nullptr;
}

bool is_strict(const Value& tool) {
  const Value* function = tool.find("function");
  const Value* strict = function == nullptr ? nullptr : function->find("strict");
  return strict != nullptr && strict->is_bool() && strict->as_bool();
}

// Arguments that are not strict are any object.
Value argument_schema(const Value& function, bool strict) {
  const Value* parameters = function.find("parameters");
  bool any = !strict || parameters == nullptr || parameters->is_null();
  Value schema = any ? Value::object() : *parameters;
  if (schema.is_object() && !schema.has("type")) schema.set("type", "object");
  return schema;
}

std::shared_ptr<const grammar::Grammar> argument_grammar(const Value& tool, bool forced,
                                                         const ServedModel& model) {
  const bool strict = is_strict(tool);
  GrammarSource source{Kind::kJsonSchema,
                       dump_json(argument_schema(tool.at("function"), forced || strict))};
  source.strict = strict;
  Constraint constraint;
  constraint.set("tools", std::move(source));
  return constraint.compile(model);
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

// A call of one of the tools. `forced`: arguments follow the schema in all of them, not only in
// strict ones.
std::shared_ptr<const grammar::Grammar> json_call_grammar(const Value::Array& tools,
                                                          const JsonCallFormat& format, bool forced,
                                                          const ServedModel& model) {
  auto compile = [&](bool all, bool strict) {
    std::string_view list = format.list ? "/items" : "";
    Value calls = Value::array();
    for (const Value& tool : tools) {
      std::string path =
          fmt::format("#{}/anyOf/{}/properties/{}", list, calls.size(), format.arguments);
      calls.push(call_schema(tool.at("function"), format, path, all || is_strict(tool)));
    }
    Value schema = Value::Object{{"anyOf", std::move(calls)}};
    if (format.list)
      schema = Value::Object{{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}};
    GrammarSource source{Kind::kJsonSchema, dump_json(schema), {}};
    source.before = fmt::format("{}{}", forced ? format.mark : "", format.before);
    source.after = format.after;
    source.strict = strict;
    Constraint constraint;
    constraint.set("tools", std::move(source));
    return constraint.compile(model);
  };
  const bool any = std::any_of(tools.begin(), tools.end(), is_strict);
  const bool every = std::all_of(tools.begin(), tools.end(), is_strict);
  // A grammar is strict as a whole. If only some of the tools are, these are checked first, while
  // the arguments of the others are any object.
  if (forced && any && !every) compile(false, true);
  return compile(forced, !forced || every);
}

// Harmony: an answer thinks, and then has a message to a function. If the call is not forced, it
// may also say something before it, or have an answer instead.
constexpr const char kThoughts[] = "<|channel|>analysis<|message|>",
                     kFinal[] = "<|channel|>final<|message|>", kFinalEnd[] = "<|return|>";

std::vector<MessageForm> call_messages(const Value& tools, const std::string& name, bool forced,
                                       const ServedModel& model) {
  std::vector<MessageForm> out = {{.header = kThoughts}};
  if (!forced) {
    out.push_back({.header = "<|channel|>commentary<|message|>"});
    out.push_back({.header = kFinal, .grammar = nullptr, .end = kFinalEnd});
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

Thinking thinking_of(const OutputSpec& output) {
  if (output.thoughts == nullptr) return Thinking::kNone;
  return output.start == ThoughtStart::kInside  ? Thinking::kOpen
         : output.start == ThoughtStart::kMaybe ? Thinking::kMaybe
                                                : Thinking::kNone;
}

bool has_strict_calls(const GenerationParams& params) {
  return params.call_grammar != nullptr || !params.named_calls.empty();
}

std::shared_ptr<TokenMask> call_mask_of(const GenerationParams& params, const ServedModel& model,
                                        const OutputSpec& output) {
  CallMaskOptions options;
  if (params.named_calls.empty()) {
    options.grammar = params.call_grammar;
    options.mark = json_calls_of(model)->mark;
  } else {
    const NamedFormat& format = *named_calls_of(model);
    options.named = params.named_calls;
    options.mark = format.mark;
    options.separators = format.separators;
  }
  options.tokenizer = model.tokenizer;
  options.end_ids = grammar_end_ids(*model.tokenizer, params.own_stop_ids);
  options.choices = params.n;
  options.thinking = thinking_of(output);
  if (output.thoughts != nullptr) {
    options.open_tag = output.thoughts->open;
    options.close_tag = output.thoughts->close;
  }
  return std::make_shared<CallMask>(std::move(options));
}

std::shared_ptr<TokenMask> message_mask_of(const GenerationParams& params,
                                           const ServedModel& model) {
  MessageMaskOptions options;
  options.messages = params.messages;
  options.tokenizer = model.tokenizer;
  options.end_ids = grammar_end_ids(*model.tokenizer, params.own_stop_ids);
  options.choices = params.n;
  options.min_tokens = params.grammar_min_tokens;
  return std::make_shared<MessageMask>(std::move(options));
}

std::shared_ptr<TokenMask> grammar_mask_of(const GenerationParams& params, const ServedModel& model,
                                           const OutputSpec& output) {
  if (!params.messages.empty()) return message_mask_of(params, model);
  if (params.grammar == nullptr && has_strict_calls(params))
    return call_mask_of(params, model, output);
  if (params.grammar == nullptr) return nullptr;
  GrammarMaskOptions options;
  options.grammar = params.grammar;
  options.tokenizer = model.tokenizer;
  options.end_ids = grammar_end_ids(*model.tokenizer, params.own_stop_ids);
  options.choices = params.n;
  options.min_tokens = params.grammar_min_tokens;
  if (output.thoughts != nullptr) {
    options.open_tag = output.thoughts->open;
    options.close_tag = output.thoughts->close;
    options.thinking = thinking_of(output);
  }
  return std::make_shared<GrammarMask>(std::move(options));
}

// The end of the thoughts is forced after a number of tokens; `inner` applies to the rest.
std::shared_ptr<TokenMask> within_budget(const GenerationParams& params, const ServedModel& model,
                                         const OutputSpec& output,
                                         std::shared_ptr<TokenMask> inner) {
  const Thinking thinking = output.harmony ? Thinking::kMaybe : thinking_of(output);
  if (params.thought_budget < 0 || thinking == Thinking::kNone) return inner;
  ThoughtBudgetOptions options;
  options.tokens = params.thought_budget;
  options.tokenizer = model.tokenizer;
  options.choices = params.n;
  options.thinking = thinking;
  options.inner = std::move(inner);
  if (output.harmony) {
    options.open_tag = "<|channel|>analysis<|message|>";
    options.close_tag = "<|end|>";
    options.forced = "<|end|><|start|>assistant";
    if (params.messages.empty()) options.forced += kFinal;
    options.again = true;
  } else {
    options.open_tag = output.thoughts->open;
    options.forced = options.close_tag = output.thoughts->close;
  }
  return std::make_shared<ThoughtBudget>(std::move(options));
}

}  // namespace

std::shared_ptr<const grammar::Grammar> read_structured(Fields& fields, const ServedModel& model) {
  Constraint constraint;
  read_response_format(fields, constraint);
  read_structured_outputs(fields, constraint);
  for (const char* field : {"guided_json", "json_schema"})
    if (const Value* v = fields.find(field)) constraint.set_schema(field, *v);
  for (const char* field : {"guided_regex", "regex"})
    if (const Value* v = fields.find(field)) constraint.set_text(field, Kind::kRegex, *v);
  for (const char* field : {"guided_grammar", "grammar", "ebnf"})
    if (const Value* v = fields.find(field); v && !(v->is_string() && v->size() == 0))
      constraint.set_text(field, Kind::kGrammar, *v);
  if (const Value* v = fields.find("guided_choice")) constraint.set_choice("guided_choice", *v);
  if (auto space = fields.string("guided_whitespace_pattern"))
    constraint.set_space("guided_whitespace_pattern", *space);
  fields.ignore({"guided_decoding_backend"});
  return constraint.compile(model);
}

CallGrammar call_grammar(const Value& body, const ServedModel& model) {
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
  if (model.tool_format != nullptr && model.tool_format->machine == nullptr) {
    out.messages = call_messages(*tools, name, out.forced, model);
    return out;
  }
  const JsonCallFormat* format = json_calls_of(model);
  bool own = format != nullptr && !format->list;  // a forced call is written as the model does
  if (out.forced && !own) {
    if (model.tool_format == nullptr)
      unsupported("tool_choice", "The model's format of tool calls is not known.");
    // Marks may be control tokens, which no grammar has: the whole answer is JSON instead.
    out.format = find_tool_format("llama3");
    format = &kJsonCalls[1];
  }
  if (format == nullptr && named_calls_of(model) != nullptr) {
    for (const Value& tool : tools->as_array())
      out.named.push_back(
          {tool.at("function").at("name").as_string(), argument_grammar(tool, false, model)});
    return out;
  }
  if (format == nullptr) {
    out.warning = fmt::format(
        "tools: 'strict' has no effect with tool_choice 'auto' in this model's format of calls{}",
        model.tool_format == nullptr ? "" : fmt::format(" ({})", model.tool_format->name));
    log_once(Notice::kTools, out.warning);
    return out;
  }
  Value::Array allowed;
  for (const Value& tool : tools->as_array())
    if (name.empty() || tool.at("function").at("name").as_string() == name) allowed.push_back(tool);
  out.grammar = json_call_grammar(allowed, *format, out.forced, model);
  return out;
}

void prepare_structured(GenerationParams& params, const ServedModel& model,
                        const OutputSpec& output) {
  if (output.harmony && params.grammar != nullptr)
    params.messages = {{.header = kThoughts},
                       {.header = kFinal, .grammar = params.grammar, .end = kFinalEnd}};
  const bool messages = !params.messages.empty();
  if (params.sample.penalty_alpha > 0 && (has_strict_calls(params) || params.grammar || messages))
    unsupported("penalty_alpha", "It cannot be combined with constrained output.");
  if (has_strict_calls(params) && params.beams > 0)
    unsupported("use_beam_search", "Beam search cannot be combined with strict tools.");
  if (params.thought_budget >= 0 && params.beams > 0)
    unsupported("use_beam_search", "Beam search cannot be combined with a budget of thoughts.");
  if (params.grammar == nullptr && !messages) return;
  if (params.beams > 0)
    unsupported("use_beam_search", "Beam search cannot be combined with constrained output.");
  std::vector<int32_t> ends = grammar_end_ids(*model.tokenizer, params.own_stop_ids);
  params.stop_ids.insert(params.stop_ids.end(), ends.begin(), ends.end());
  std::sort(params.stop_ids.begin(), params.stop_ids.end());
  params.stop_ids.erase(std::unique(params.stop_ids.begin(), params.stop_ids.end()),
                        params.stop_ids.end());
  params.grammar_min_tokens = params.ignore_eos ? INT32_MAX : params.sample.min_tokens;
  params.sample.banned_until_min.clear();
  params.sample.min_tokens = 0;
}

std::shared_ptr<TokenMask> mask_of(const GenerationParams& params, const ServedModel& model,
                                   const OutputSpec& output) {
  bool filtered = !params.allowed_ids.empty() || !params.bad_words.empty();
  if (filtered) {
    TokenFilterOptions options;
    options.allowed = params.allowed_ids;
    options.banned = params.bad_words;
    options.grammar = grammar_mask_of(params, model, output);
    options.vocab = model.tokenizer->vocab_size();
    return within_budget(params, model, output, std::make_shared<TokenFilter>(std::move(options)));
  }
  return within_budget(params, model, output, grammar_mask_of(params, model, output));
}

}  // namespace tokamak::openai
