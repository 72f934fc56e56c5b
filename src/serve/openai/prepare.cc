#include "serve/openai/prepare.h"

#include <algorithm>

#include "serve/openai/api_error.h"
#include "serve/openai/calls.h"
#include "serve/openai/structured.h"

namespace tokamak::openai {
namespace {

constexpr int64_t kMaxTopLogprobs = 20;
constexpr size_t kMaxPrompts = 1024;

int64_t limit_of(const ServedModel& model) {
  return model.max_model_len > 0 ? model.max_model_len : INT32_MAX;
}

void check_ids(const std::string& param, const Value::Array& list, const ServedModel& model,
               std::vector<int32_t>& out) {
  int64_t vocab = model.tokenizer->vocab_size();
  out.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_int() && list[i].as_int() >= 0 && list[i].as_int() < vocab)
      out.push_back(static_cast<int32_t>(list[i].as_int()));
    else
      out.push_back(static_cast<int32_t>(
          checked_integer(fmt::format("{}[{}]", param, i), list[i], 0, vocab - 1)));
  }
}

// -1: as many as the context allows.
std::optional<int64_t> read_length(Fields& fields, const char* name, int64_t least) {
  auto length = fields.integer(name, -1, INT32_MAX);
  if (length && *length != -1 && *length < least) fields.integer(name, least, INT32_MAX);  // 400
  return length;
}

// Keeps the last tokens of prompts that are longer, or the first ones (truncation_side: right); -1:
// those that leave room for the answer.
void truncate_prompts(Fields& fields, Prepared& request) {
  auto most = fields.integer("truncate_prompt_tokens", -1, INT32_MAX);
  std::string side = fields.string("truncation_side").value_or("left");
  if (side != "left" && side != "right")
    bad_request("truncation_side", "invalid_value",
                "Invalid 'truncation_side': expected 'left' or 'right'.");
  if (!most) return;
  if (*most == 0)
    bad_request("truncate_prompt_tokens", "invalid_value",
                "Invalid 'truncate_prompt_tokens': use -1 or a positive number.");
  int64_t answer = request.params.max_tokens.value_or(1);
  if (answer < 0) answer = 1;
  size_t keep = static_cast<size_t>(
      *most > 0 ? *most : std::max<int64_t>(1, limit_of(*request.model) - answer));
  for (Prompt& prompt : request.prompts) {
    if (prompt.ids.size() <= keep) continue;
    if (side == "right")
      prompt.ids.resize(keep);
    else
      prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - static_cast<std::ptrdiff_t>(keep));
    if (!prompt.text.empty()) prompt.text = request.model->tokenizer->decode(prompt.ids);
  }
}

// Fills in max_tokens and rejects what cannot fit. With context shift an answer may be longer than
// the context, if the request says so.
void fit_context(Prepared& request, const char* param, std::optional<int64_t> fallback,
                 bool clamp) {
  request.prompt_param = param;
  int64_t limit = limit_of(*request.model), longest = 0;
  if (request.params.sample.penalty_alpha > 0) --limit;  // the last token is computed too
  for (const Prompt& prompt : request.prompts)
    longest = std::max(longest, static_cast<int64_t>(prompt.ids.size()));
  if (auto negative = std::ssize(request.params.negative_prompt); negative > longest) {
    longest = negative;
    param = "negative_prompt";
  }
  auto& wanted = request.params.max_tokens;
  bool scoring = wanted == 0;
  if (longest > limit || (longest == limit && !scoring))
    bad_request(param, "context_length_exceeded",
                "This model's maximum context length is {} tokens. However, your {} resulted in {} "
                "tokens. Please reduce the length of the {}.",
                limit, param, longest, param);
  const bool endless = request.model->context_shift && request.params.beams == 0;
  if (!wanted && fallback) wanted = std::min(*fallback, limit - longest);
  if (wanted == -1 && endless) wanted = INT32_MAX;
  if (!wanted || *wanted == -1) wanted = limit - longest;
  if (clamp && !endless) wanted = std::min(*wanted, limit - longest);
  if (longest + *wanted > limit && !endless)
    bad_request(
        param, "context_length_exceeded",
        "This model's maximum context length is {} tokens. However, you requested {} tokens "
        "({} in the {}, {} in the completion). Please reduce the length of the {} or completion.",
        limit, longest + *wanted, longest, param, *wanted, param);
  int32_t min_tokens = request.params.sample.min_tokens;
  if (min_tokens > *wanted)
    bad_request("min_tokens", "invalid_value",
                "Invalid 'min_tokens': {} is more than the {} tokens of the completion.",
                min_tokens, *wanted);
}

// The engine ranks the same number of alternatives for prompt and answer.
void want_logprobs(GenerationParams& params, int32_t answer) {
  if (params.beams > 0 && (answer > 0 || (answer >= 0 && params.echo)))
    unsupported("logprobs",
                "With beam search only those of the answer's own tokens are available.");
  params.logprobs = answer;
  params.sample.top_logprobs = std::max({answer, params.prompt_logprobs, params.best > 0 ? 0 : -1});
}

std::vector<Prompt> read_prompts(Fields& fields, const ServedModel& model, bool echo) {
  const Value& value = fields.require("prompt");
  EncodeOptions encode;
  encode.add_special = fields.boolean("add_special_tokens").value_or(true);
  encode.parse_special = fields.boolean("parse_special").value_or(true);
  std::vector<Prompt> prompts;
  auto add_text = [&](const std::string& text) {
    prompts.push_back({model.tokenizer->encode(text, encode), echo ? text : ""});
  };
  auto add_ids = [&](const std::string& param, const Value::Array& list) {
    Prompt prompt;
    check_ids(param, list, model, prompt.ids);
    if (echo) prompt.text = model.tokenizer->decode(prompt.ids);
    prompts.push_back(std::move(prompt));
  };
  if (value.is_string()) {
    add_text(value.as_string());
  } else if (value.is_array() && value.size() > 0 && value.as_array()[0].is_number()) {
    add_ids("prompt", value.as_array());
  } else if (value.is_array() && value.size() > 0) {
    const Value::Array& list = value.as_array();
    if (list.size() > kMaxPrompts)
      bad_request("prompt", "array_above_max_length",
                  "Invalid 'prompt': at most {} prompts are allowed.", kMaxPrompts);
    for (size_t i = 0; i < list.size(); ++i) {
      std::string param = fmt::format("prompt[{}]", i);
      if (list[i].is_string())
        add_text(list[i].as_string());
      else if (list[i].is_array())
        add_ids(param, list[i].as_array());
      else
        wrong_type(param, "a string or an array of token ids", list[i]);
    }
  } else if (value.is_array()) {
    bad_request("prompt", "empty_array", "Invalid 'prompt': the array is empty.");
  } else {
    wrong_type("prompt", "a string, an array of strings, or token ids", value);
  }
  for (size_t i = 0; i < prompts.size(); ++i)
    if (prompts[i].ids.empty())
      bad_request("prompt", "invalid_value", "Invalid 'prompt': prompt {} has no tokens.", i);
  return prompts;
}

// Texts, token ids, or (in a chat) messages, under the names of transformers and llama.cpp.
void read_negative_prompt(Fields& fields, const Value& body, Prepared& request, bool chat) {
  const ServedModel& model = *request.model;
  std::vector<int32_t>& ids = request.params.negative_prompt;
  const char* given = nullptr;
  for (const char* name : {"negative_prompt", "negative_prompt_ids", "cfg_negative_prompt"}) {
    const Value* value = fields.find(name);
    if (value == nullptr || ((value->is_string() || value->is_array()) && value->size() == 0))
      continue;
    if (given != nullptr)
      bad_request(name, "invalid_value", "'{}' and '{}' are the same field.", given, name);
    given = name;
    if (value->is_string()) {
      ids = model.tokenizer->encode(value->as_string());
    } else if (value->is_array() && chat && value->as_array()[0].is_object()) {
      Value other = body;
      other.set("messages", *value);
      Fields inner(other);
      RenderedChat rendered = render_chat(inner, model);
      ids = encode_chat(*model.tokenizer, rendered.text, rendered.guard);
    } else if (value->is_array()) {
      check_ids(name, value->as_array(), model, ids);
    } else {
      wrong_type(name, chat ? "a string, messages or token ids" : "a string or token ids", *value);
    }
  }
  if (given != nullptr && request.params.sample.guidance_scale == 1)
    bad_request(given, "invalid_value", "'{}' has no effect without 'guidance_scale'.", given);
}

void refuse_rest_of_chat(Fields& fields) {
  if (const auto* list = fields.array("modalities"))
    for (const Value& item : *list)
      if (!item.is_string() || item.as_string() != "text")
        unsupported("modalities", "Only text is available.");
  fields.refuse("audio", "Audio is not available.");
  fields.refuse("web_search_options", "Web search is not available.");
  fields.refuse("functions", "Use 'tools'.");
  fields.refuse("function_call", "Use 'tool_choice'.");
  for (const char* field : {"documents", "echo"}) fields.refuse(field, "It is not available yet.");
  fields.ignore({"parallel_tool_calls"});
}

// True: thoughts are part of the answer's text.
bool thoughts_in_text(Fields& fields, const ServedModel& model) {
  auto format = fields.string("reasoning_format");
  if (!format) return !model.split_thoughts;
  if (*format != "none" && *format != "auto" && *format != "deepseek")
    bad_request("reasoning_format", "invalid_value",
                "Invalid 'reasoning_format': use auto, deepseek or none.");
  return *format == "none";
}

// Some models end an answer that has calls with a special token.
void add_format_stops(Prepared& request) {
  if (request.output.tools == nullptr) return;
  const Tokenizer& tokenizer = *request.model->tokenizer;
  std::vector<int32_t>& ids = request.params.stop_ids;
  for (std::string_view stop : request.output.tools->stops)
    if (int32_t id = tokenizer.find_piece(stop); id >= 0 && tokenizer.is_special(id))
      ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void add_calls(Prepared& request, CallGrammar call) {
  request.params.warning = std::move(call.warning);
  if (!call.constrains()) return;
  if (request.params.grammar != nullptr)
    bad_request(call.forced ? "tool_choice" : "tools", "invalid_value",
                "{} cannot be combined with another constraint of the answer.",
                call.forced ? "'tool_choice'" : "Strict tools");
  if (call.format != nullptr) request.output.tools = call.format;
  (call.forced ? request.params.grammar : request.params.call_grammar) = std::move(call.grammar);
  request.params.messages = std::move(call.messages);
  request.params.call_begin = std::move(call.begin);
}

}  // namespace

Prepared prepare_chat(const Value& body, std::shared_ptr<const ServedModel> model, uint64_t seed,
                      bool clamp) {
  if (const std::optional<Value> usual = with_usual_tool_choice(body))
    return prepare_chat(*usual, std::move(model), seed, clamp);
  Fields fields(body);
  fields.ignore({"model"});
  if (model->chat_template == nullptr)
    bad_request("model", "no_chat_template",
                "The model '{}' has no chat template; use /v1/completions.", model->name);
  Prepared request;
  request.model = model;
  request.params = read_params(fields, *model, seed);
  auto newer = read_length(fields, "max_completion_tokens", 1);
  auto older = read_length(fields, "max_tokens", 1);
  bool both = newer.value_or(-1) > 0 && older.value_or(-1) > 0;
  request.params.max_tokens = both                     ? std::min(*newer, *older)
                              : newer.value_or(-1) > 0 ? newer
                                                       : older;
  bool logprobs = fields.boolean("logprobs").value_or(false);
  auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !logprobs)
    bad_request("top_logprobs", "invalid_value",
                "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.");
  want_logprobs(request.params, logprobs ? static_cast<int32_t>(top.value_or(0)) : -1);
  refuse_rest_of_chat(fields);
  read_negative_prompt(fields, body, request, true);
  request.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  RenderedChat chat = render_chat(fields, *model);
  const Value* tools = body.find("tools");
  const Value* choice = body.find("tool_choice");
  bool none = choice != nullptr && choice->is_string() && choice->as_string() == "none";
  const bool with_tools = tools != nullptr && tools->size() > 0 && !none;
  const std::string& source = chat.own_template.empty()
                                  ? pick_chat_template(model->tokenizer->spec(), "", with_tools)
                                  : chat.own_template;
  const ToolFormat* calls = chat.own_template.empty() ? nullptr : tool_format_of(source);
  if (calls == nullptr) calls = model->tool_format;
  request.output = output_spec(source, chat.plain(), with_tools ? calls : nullptr, tools);
  request.output.split = !thoughts_in_text(fields, *model);
  request.params.thought_budget = read_thought_budget(fields, *model);
  add_format_stops(request);
  if (with_tools) add_calls(request, call_grammar(body, *model, calls));
  prepare_structured(request.params, *model, request.output);
  request.prompts.push_back(
      {encode_chat(*model->tokenizer, chat.text, chat.guard), "", chat.continues});
  if (request.prompts[0].ids.empty())
    bad_request("messages", "invalid_value", "Invalid 'messages': they render to an empty prompt.");
  truncate_prompts(fields, request);
  log_unknown_fields(fields.unknown());
  request.known_fields = fields.known();
  fit_context(request, "messages", std::nullopt, clamp);
  return request;
}

Prepared prepare_completion(const Value& body, std::shared_ptr<const ServedModel> model,
                            uint64_t seed, bool clamp) {
  Fields fields(body);
  fields.ignore({"model"});
  Prepared request;
  request.model = model;
  request.params = read_params(fields, *model, seed);
  GenerationParams& params = request.params;
  params.max_tokens = read_length(fields, "max_tokens", 0);
  params.echo = fields.boolean("echo").value_or(false);
  want_logprobs(params,
                static_cast<int32_t>(fields.integer("logprobs", 0, kMaxTopLogprobs).value_or(-1)));
  if (params.max_tokens == 0 && !params.echo)
    bad_request("max_tokens", "integer_below_min_value",
                "Invalid 'max_tokens': 0 is only allowed together with 'echo'.");
  fields.refuse("suffix", "Use /infill, or 'suffix' in /v1/completions.");
  prepare_structured(params, *model, request.output);
  request.prompts = read_prompts(fields, *model, params.echo);
  for (Prompt& prompt : request.prompts) prompt.continues = model->tokenizer->has_text(prompt.ids);
  read_negative_prompt(fields, body, request, false);
  truncate_prompts(fields, request);
  if (request.prompts.size() * static_cast<size_t>(params.n) > kMaxPrompts)
    bad_request("n", "invalid_value", "'n' times the number of prompts is more than {}.",
                kMaxPrompts);
  log_unknown_fields(fields.unknown());
  request.known_fields = fields.known();
  fit_context(request, "prompt", 16, clamp);
  return request;
}

}  // namespace tokamak::openai
