#include "serve/openai/structured.h"

#include <algorithm>
#include <optional>

#include "base/json.h"
#include "serve/call_mask.h"
#include "serve/grammar_mask.h"
#include "serve/message_mask.h"
#include "serve/openai/api_error.h"
#include "serve/openai/calls.h"
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
    return compile_grammar(source, param_, model);
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

Thinking thinking_of(const OutputSpec& output) {
  if (output.thoughts == nullptr) return Thinking::kNone;
  return output.start == ThoughtStart::kInside  ? Thinking::kOpen
         : output.start == ThoughtStart::kMaybe ? Thinking::kMaybe
                                                : Thinking::kNone;
}

std::shared_ptr<TokenMask> call_mask_of(const GenerationParams& params, const ServedModel& model,
                                        const OutputSpec& output) {
  CallMaskOptions options;
  options.grammar = params.call_grammar;
  options.begin = params.call_begin;
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
  if (params.grammar == nullptr && params.call_grammar != nullptr)
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
    options.open_tag = kThoughtsHeader;
    options.close_tag = "<|end|>";
    options.forced = "<|end|><|start|>assistant";
    if (params.messages.empty()) options.forced += kFinalHeader;
    options.again = true;
  } else {
    options.open_tag = output.thoughts->open;
    options.forced = options.close_tag = output.thoughts->close;
  }
  return std::make_shared<ThoughtBudget>(std::move(options));
}

}  // namespace

std::shared_ptr<const grammar::Grammar> compile_grammar(const GrammarSource& source,
                                                        const std::string& param,
                                                        const ServedModel& model) {
  try {
    auto grammar = model.grammars->get(source);
    for (const std::string& note : grammar->notes()) log_once(Notice::kSchema, note);
    return grammar;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
    bad_request(param, "invalid_value", "Invalid '{}': {}.", param, e.what());
  }
}

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

void prepare_structured(GenerationParams& params, const ServedModel& model,
                        const OutputSpec& output) {
  if (output.harmony && params.grammar != nullptr)
    params.messages = {{.header = kThoughtsHeader},
                       {.header = kFinalHeader, .grammar = params.grammar, .end = kFinalEnd}};
  const bool messages = !params.messages.empty();
  if (params.sample.penalty_alpha > 0 && (params.call_grammar || params.grammar || messages))
    unsupported("penalty_alpha", "It cannot be combined with constrained output.");
  if (params.call_grammar != nullptr && params.beams > 0)
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
