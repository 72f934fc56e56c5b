#include "serve/openai/params.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <random>

#include "base/rng.h"
#include "engine/sample_params.h"
#include "serve/openai/api_error.h"
#include "serve/openai/prepare.h"
#include "serve/openai/shape.h"
#include "serve/openai/structured.h"
#include "serve/token_filter.h"

namespace tokamak::openai {
namespace {

constexpr int64_t kMaxChoices = 128;
constexpr size_t kMaxStops = 64, kMaxText = 1024, kMaxStopIds = 256, kMaxBiases = 1024,
                 kMaxBreakers = 64;

std::vector<std::string> read_stops(Fields& fields) {
  const Value* value = fields.find("stop");
  if (value == nullptr) return {};
  Value::Array list;
  if (value->is_string())
    list.push_back(*value);
  else if (value->is_array())
    list = value->as_array();
  else
    wrong_type("stop", "a string or an array of strings", *value);
  if (list.size() > kMaxStops)
    bad_request("stop", "array_above_max_length",
                "Invalid 'stop': at most {} stop strings are allowed.", kMaxStops);
  std::vector<std::string> stops;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) wrong_type(fmt::format("stop[{}]", i), "a string", list[i]);
    const std::string& text = list[i].as_string();
    if (count_characters(text) > kMaxText)
      bad_request("stop", "string_above_max_length",
                  "Invalid 'stop[{}]': longer than {} characters.", i, kMaxText);
    if (!text.empty()) stops.push_back(text);
  }
  return stops;
}

void read_stop_ids(Fields& fields, const ServedModel& model, GenerationParams& params) {
  int64_t vocab = model.tokenizer->vocab_size();
  bool ignore_eos = params.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  std::vector<int32_t>& ids = params.stop_ids;
  if (!ignore_eos) {
    ids = model.tokenizer->spec().eog_ids;
    if (int32_t eos = model.tokenizer->eos_id(); eos >= 0) ids.push_back(eos);
  }
  if (const auto* list = fields.array("stop_token_ids")) {
    if (list->size() > kMaxStopIds)
      bad_request("stop_token_ids", "array_above_max_length",
                  "Invalid 'stop_token_ids': at most {} ids are allowed.", kMaxStopIds);
    for (size_t i = 0; i < list->size(); ++i)
      params.own_stop_ids.push_back(static_cast<int32_t>(
          checked_integer(fmt::format("stop_token_ids[{}]", i), (*list)[i], 0, vocab - 1)));
    std::sort(params.own_stop_ids.begin(), params.own_stop_ids.end());
    ids.insert(ids.end(), params.own_stop_ids.begin(), params.own_stop_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void read_logit_bias(Fields& fields, const ServedModel& model, SampleSpec& sample) {
  const Value* value = fields.find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) wrong_type("logit_bias", "an object", *value);
  if (value->size() > kMaxBiases)
    bad_request("logit_bias", "object_above_max_properties",
                "Invalid 'logit_bias': at most {} tokens are allowed.", kMaxBiases);
  for (const auto& [key, bias] : value->as_object()) {
    int64_t id = -1;
    auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0 ||
        id >= model.tokenizer->vocab_size())
      bad_request("logit_bias", "invalid_value",
                  "Invalid 'logit_bias': '{}' is not a token id; this vocabulary of {} tokens has "
                  "ids from 0 to {}.",
                  key.substr(0, 64), model.tokenizer->vocab_size(),
                  model.tokenizer->vocab_size() - 1);
    if (!bias.is_number()) wrong_type("logit_bias." + key, "a number", bias);
    double amount = bias.as_double();
    if (!(amount >= -kMaxLogitBias && amount <= kMaxLogitBias))
      bad_request("logit_bias", "invalid_value",
                  "Invalid 'logit_bias': values range from -100 to 100, but token {} has {}.", id,
                  amount);
    sample.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(amount));
  }
}

// Ids whose text contains one of the strings: repetitions are not matched across them.
std::vector<int32_t> ids_with(const Tokenizer& tokenizer, const std::vector<std::string>& marks) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab_size()); ++id) {
    std::string bytes = tokenizer.piece_bytes(id);
    for (const std::string& mark : marks)
      if (bytes.find(mark) != std::string::npos) {
        ids.push_back(id);
        break;
      }
  }
  return ids;
}

void read_order(Fields& fields, SampleSpec& sample) {
  const auto* list = fields.array("samplers");
  if (list == nullptr || list->empty()) return;
  std::vector<std::string> names;
  for (size_t i = 0; i < list->size(); ++i) {
    std::string param = fmt::format("samplers[{}]", i);
    if (!(*list)[i].is_string()) wrong_type(param, "a string", (*list)[i]);
    if ((*list)[i].as_string() == "infill") continue;  // clients for code; the others suffice
    names.push_back((*list)[i].as_string());
    try {
      sample.order = sample_order(names);
    } catch (const Error& e) {
      bad_request(param, "invalid_value", "Invalid '{}': {}.", param, e.what());
    }
  }
}

// The texts that DRY does not look across, and the order of the stages, under the names
// llama.cpp's clients use.
void read_newer_samplers(Fields& fields, const ServedModel& model, SampleSpec& sample) {
  std::vector<std::string> breakers = {"\n", ":", "\"", "*"};
  if (const auto* list = fields.array("dry_sequence_breakers")) {
    if (list->size() > kMaxBreakers)
      bad_request("dry_sequence_breakers", "array_above_max_length",
                  "Invalid 'dry_sequence_breakers': at most {} strings are allowed.", kMaxBreakers);
    breakers.clear();
    for (size_t i = 0; i < list->size(); ++i) {
      if (!(*list)[i].is_string())
        wrong_type(fmt::format("dry_sequence_breakers[{}]", i), "a string", (*list)[i]);
      if (!(*list)[i].as_string().empty()) breakers.push_back((*list)[i].as_string());
    }
  }
  if (sample.dry_multiplier > 0 && !breakers.empty())
    sample.dry_breakers = ids_with(*model.tokenizer, breakers);
  read_order(fields, sample);
}

// Fields of llama.cpp that its editor plugins send.
void read_line_limits(Fields& fields, LineLimits& limits) {
  limits.indent = static_cast<int32_t>(fields.integer("n_indent", 0, INT32_MAX).value_or(0));
  limits.time_ms =
      std::max<int64_t>(0, fields.integer("t_max_predict_ms", -1, INT32_MAX).value_or(0));
  fields.integer("t_max_prompt_ms", -1, INT32_MAX);  // llama.cpp does not use it either
}

void read_sampling(Fields& fields, const ServedModel& model, uint64_t fallback_seed,
                   SampleSpec& sample) {
  sample = model.defaults;
  for (const SampleSetting& p : sample_params()) {
    if (p.integer) {
      if (auto value =
              fields.integer(p.name, static_cast<int64_t>(p.low), static_cast<int64_t>(p.high)))
        sample.*p.integer = static_cast<int32_t>(*value);
    } else if (auto value = fields.number(p.name, p.low, p.high)) {
      sample.*p.number = static_cast<float>(*value);
    }
  }
  if (auto value = fields.number("cfg_scale", 0, 100))
    sample.guidance_scale = static_cast<float>(*value);
  normalize_sampling(sample);
  if (sample.penalty_last_n >= 0 && sample.dry_multiplier > 0 && penalizes(sample))
    unsupported("repeat_last_n", "With DRY, penalties count all tokens: use -1.");
  read_newer_samplers(fields, model, sample);
  sample.report_sampled = fields.boolean("post_sampling_probs").value_or(false);
  if (sample.report_sampled && sample.min_keep > 1)
    unsupported("post_sampling_probs", "It is not available with 'min_keep'.");
  auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  sample.seed = seed ? static_cast<uint64_t>(*seed) : fallback_seed;
  read_logit_bias(fields, model, sample);
}

// DoLa, as transformers' dola_layers: 'low', 'high' or a list of layers.
void read_dola(Fields& fields, const ServedModel& model, SampleSpec& sample) {
  const Value* value = fields.find("dola_layers");
  if (value == nullptr) return;
  if (model.dola_layers == 0) unsupported("dola_layers", "The server was started without --dola.");
  if (value->is_array()) {
    const Value::Array& list = value->as_array();
    for (size_t i = 0; i < list.size(); ++i)
      sample.dola_layers.push_back(static_cast<int32_t>(
          checked_integer(fmt::format("dola_layers[{}]", i), list[i], 0, model.dola_layers - 1)));
  } else if (value->is_string()) {
    const std::string& name = value->as_string();
    if (name != "low" && name != "high")
      bad_request("dola_layers", "invalid_value",
                  "Invalid 'dola_layers': use 'low', 'high' or an array of layers.");
    sample.dola_layers = dola_half(model.dola_layers, model.shares_embedding, name == "high");
  } else {
    wrong_type("dola_layers", "a string or an array of integers", *value);
  }
  if (sample.dola_layers.empty())
    bad_request("dola_layers", "invalid_value",
                "Invalid 'dola_layers': it names no layer of the model's {}.", model.dola_layers);
  if (sample.guidance_scale != 1)
    unsupported("dola_layers", "It cannot be combined with guidance_scale.");
}

EarlyStopping read_early_stopping(Fields& fields) {
  const Value* value = fields.find("early_stopping");
  if (value == nullptr) return EarlyStopping::kFalse;
  if (value->is_string() && value->as_string() == "never") return EarlyStopping::kNever;
  if (!value->is_bool()) wrong_type("early_stopping", "a boolean or 'never'", *value);
  return value->as_bool() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
}

// Contrastive search, as in transformers: top_k candidates for every token.
void read_contrastive(double alpha, bool other_search, GenerationParams& params) {
  const SampleSpec& s = params.sample;
  auto refuse = [](const char* what) {
    unsupported("penalty_alpha", fmt::format("It cannot be combined with {}.", what));
  };
  if (s.top_k < 2 || s.top_k > kMaxChoices)
    bad_request("top_k", "invalid_value",
                "Invalid 'top_k': 'penalty_alpha' compares top_k candidates, from 2 to {}.",
                kMaxChoices);
  if (params.n > 1 || other_search) refuse("n, best_of or beam search");
  if (s.guidance_scale != 1) refuse("guidance_scale");
  if (!s.dola_layers.empty()) refuse("dola_layers");
  if (penalizes(s) || s.dry_multiplier > 0 || !s.logit_bias.empty()) refuse("penalties and biases");
  if (s.min_tokens > 0) refuse("min_tokens");
  if (!params.stops.empty()) refuse("stop strings; use stop_token_ids");
  if (params.prompt_logprobs >= 0) refuse("prompt_logprobs");
  params.beams = s.top_k;
  params.sample.penalty_alpha = static_cast<float>(alpha);
}

// best_of (default: n) answers, of which the n with the highest log-probability per token are
// returned; with beam search, as in vLLM, the number of beams.
void read_beams(Fields& fields, GenerationParams& params) {
  bool beams = fields.boolean("use_beam_search").value_or(false);
  auto best_of = fields.integer("best_of", 0, kMaxChoices);
  auto penalty = fields.number("length_penalty", -100, 100);
  EarlyStopping early = read_early_stopping(fields);
  int64_t width = best_of && *best_of != 0 ? *best_of : params.n;
  if (auto beam_width = fields.integer("beam_width", 1, kMaxChoices)) {
    if (best_of && *best_of != 0 && *best_of != *beam_width)
      bad_request("beam_width", "invalid_value",
                  "'beam_width' and 'best_of' both name the number of beams.");
    if (beams) width = *beam_width;
  }
  if (width < params.n)
    bad_request(best_of ? "best_of" : "beam_width", "invalid_value",
                "Invalid '{}': {} is less than 'n', {}.", best_of ? "best_of" : "beam_width", width,
                params.n);
  if (auto alpha = fields.number("penalty_alpha", 0, 1); alpha && *alpha > 0)
    return read_contrastive(*alpha, beams || best_of, params);
  if (!beams) {
    if (width == params.n) return;
    if (params.stream)
      bad_request("best_of", "invalid_value", "'best_of' is not available with 'stream'.");
    params.best = params.n;
    params.n = static_cast<int>(width);
    return;
  }
  params.beams = static_cast<int>(width);
  if (params.sample.guidance_scale != 1)
    unsupported("guidance_scale", "It cannot be combined with beam search.");
  if (!params.sample.dola_layers.empty())
    unsupported("dola_layers", "It cannot be combined with beam search.");
  params.length_penalty = static_cast<float>(penalty.value_or(1.0));
  params.early_stopping = early;
  if (!params.stops.empty())
    unsupported("stop", "Beam search ends at 'stop_token_ids', not at strings.");
  if (params.prompt_logprobs >= 0)
    unsupported("prompt_logprobs", "Beam search does not score prompts.");
}

// true: the server's limit; false: no drafts; a number or {"num_speculative_tokens": N}: at most N
// per step. llama.cpp's clients send speculative.n_max.
void read_speculative(Fields& fields, const ServedModel& model, GenerationParams& params) {
  constexpr int64_t kMost = 1024;
  auto tokens = fields.integer("speculative.n_max", 0, kMost);
  const Value* value = fields.find("speculative");
  if (value != nullptr && value->is_object()) {
    Fields inner(*value, "speculative");
    tokens = inner.integer("num_speculative_tokens", 0, kMost);
    if (auto branches = inner.integer("max_branches", 1, kMost))
      params.draft_branches = static_cast<int32_t>(*branches);
    if (auto rule = inner.string("rejection_sample_method")) {
      if (*rule != "strict" && *rule != "probabilistic" && *rule != "standard")
        bad_request("speculative.rejection_sample_method", "invalid_value",
                    "Invalid 'speculative.rejection_sample_method': use 'strict', 'probabilistic' "
                    "or 'standard', another name of the latter.");
      params.sample.rejection = *rule != "strict";
    }
    log_unknown_fields(inner.unknown());
  } else if (value != nullptr && value->is_bool()) {
    tokens = value->as_bool() ? kMost : 0;
  } else if (value != nullptr) {
    if (!value->is_int()) wrong_type("speculative", "a boolean, an integer or an object", *value);
    tokens = fields.integer("speculative", 0, kMost);
  }
  if (!tokens) return;
  if (*tokens > 0 && value != nullptr && model.draft_tokens == 0)
    unsupported("speculative", "The server was started without --speculate.");
  if (*tokens > 0 && value != nullptr && params.beams > 0)
    unsupported("speculative", "It cannot be combined with beam search.");
  bool guided = params.sample.guidance_scale != 1, dola = !params.sample.dola_layers.empty();
  if (*tokens > 0 && value != nullptr && (guided || dola))
    unsupported("speculative", fmt::format("It cannot be combined with {}.",
                                           dola ? "dola_layers" : "guidance_scale"));
  bool drafts = params.beams == 0 && !guided && !dola;
  params.draft_tokens = drafts ? static_cast<int32_t>(*tokens) : 0;
}

// OpenAI's predicted outputs: a text that the answer will largely repeat. Without speculation it
// is not used.
void read_prediction(Fields& fields, const ServedModel& model, GenerationParams& params) {
  const Value* value = fields.find("prediction");
  if (value == nullptr) return;
  if (!value->is_object()) wrong_type("prediction", "an object", *value);
  Fields inner(*value, "prediction");
  if (inner.string("type").value_or("content") != "content")
    bad_request("prediction.type", "invalid_value", "Invalid 'prediction.type': use 'content'.");
  std::string text = read_content(inner.require("content"), "prediction.content");
  if (model.draft_tokens > 0 && params.draft_tokens != 0)
    params.prediction = model.tokenizer->encode(text, {.add_special = false});
  // No answer is longer than the context.
  if (auto most = static_cast<size_t>(model.max_model_len); params.prediction.size() > most)
    params.prediction.resize(most);
}

// Tokens that an answer consists of, and texts that it must not contain.
void read_token_lists(Fields& fields, const ServedModel& model, GenerationParams& params) {
  constexpr size_t kMaxWords = 256;
  if (const auto* list = fields.array("allowed_token_ids")) {
    if (list->empty())
      bad_request("allowed_token_ids", "empty_array", "Invalid 'allowed_token_ids': it is empty.");
    for (size_t i = 0; i < list->size(); ++i)
      params.allowed_ids.push_back(
          static_cast<int32_t>(checked_integer(fmt::format("allowed_token_ids[{}]", i), (*list)[i],
                                               0, model.tokenizer->vocab_size() - 1)));
  }
  if (const auto* list = fields.array("bad_words")) {
    if (list->size() > kMaxWords)
      bad_request("bad_words", "array_above_max_length",
                  "Invalid 'bad_words': at most {} texts are allowed.", kMaxWords);
    for (size_t i = 0; i < list->size(); ++i) {
      std::string param = fmt::format("bad_words[{}]", i);
      if (!(*list)[i].is_string()) wrong_type(param, "a string", (*list)[i]);
      if ((*list)[i].as_string().find_first_not_of(" \t\r\n") == std::string::npos)
        bad_request(param, "invalid_value", "Invalid '{}': the text is empty.", param);
      for (auto& ids : banned_sequences(*model.tokenizer, (*list)[i].as_string()))
        params.bad_words.push_back(std::move(ids));
    }
  }
  if (params.beams > 0 && !params.allowed_ids.empty())
    unsupported("allowed_token_ids", "It cannot be combined with beam search.");
  if (params.beams > 0 && !params.bad_words.empty())
    unsupported("bad_words", "It cannot be combined with beam search.");
}

void read_stream(Fields& fields, GenerationParams& params) {
  params.stream = fields.boolean("stream").value_or(false);
  const Value* options = fields.find("stream_options");
  if (options == nullptr) return;
  Fields inner(*options, "stream_options");
  params.include_usage = inner.boolean("include_usage").value_or(false);
  params.continuous_usage =
      inner.boolean("continuous_usage_stats").value_or(false) && params.include_usage;
  inner.ignore({"include_obfuscation"});
  log_unknown_fields(inner.unknown());
  if (!params.stream)
    bad_request("stream_options", "invalid_value",
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
}

}  // namespace

uint64_t fresh_number() {
  static const uint64_t key = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  static std::atomic<uint64_t> count{0};
  auto bits = philox(key, 0, count++);
  return uint64_t{bits[0]} << 32 | bits[1];
}

GenerationParams read_params(Fields& fields, const ServedModel& model, uint64_t seed) {
  GenerationParams params;
  read_sampling(fields, model, seed, params.sample);
  read_dola(fields, model, params.sample);
  read_stream(fields, params);
  params.n = static_cast<int>(fields.integer("n", 1, kMaxChoices).value_or(1));
  params.stops = read_stops(fields);
  params.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  read_stop_ids(fields, model, params);
  read_line_limits(fields, params.line_limits);
  if (params.sample.min_tokens > 0) params.sample.banned_until_min = params.stop_ids;
  params.skip_special = fields.boolean("skip_special_tokens").value_or(true);
  params.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  params.spell_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  params.progress = fields.boolean("return_progress").value_or(false) && params.stream;
  params.timings = fields.boolean("timings_per_token").value_or(false);
  params.priority = static_cast<int>(fields.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  params.cache_salt = fields.string("cache_salt").value_or("");
  if (count_characters(params.cache_salt) > kMaxText)
    bad_request("cache_salt", "string_above_max_length",
                "Invalid 'cache_salt': longer than {} characters.", kMaxText);

  params.request_id = fields.string("request_id").value_or("");
  if (!params.request_id.empty() && !http::is_request_id(params.request_id))
    bad_request("request_id", "invalid_value",
                "Invalid 'request_id': use 1 to 128 visible ASCII characters.");
  if (auto prompt = fields.integer("prompt_logprobs", 0, 20)) {
    params.prompt_logprobs = static_cast<int32_t>(*prompt);
    if (params.stream)
      bad_request("prompt_logprobs", "invalid_value",
                  "'prompt_logprobs' is not available with 'stream'.");
  }

  params.slot = static_cast<int32_t>(
      fields.integer("id_slot", -1, std::max<int64_t>(1, model.max_sequences) - 1).value_or(-1));
  params.keep =
      static_cast<int32_t>(fields.integer("n_keep", -1, INT32_MAX).value_or(model.shift_keep));
  fields.integer("n_discard", 0, model.context_shift ? 0 : INT32_MAX);  // a shift drops half
  read_beams(fields, params);
  read_speculative(fields, model, params);
  read_prediction(fields, model, params);
  fields.string("user");
  fields.ignore({"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "spaces_between_special_tokens", "stream_interval",
                 "verbosity"});
  fields.find("lora");  // read where the model is chosen
  params.grammar = read_structured(fields, model);
  params.jump_forward = fields.boolean("jump_forward").value_or(model.jump_forward);
  read_token_lists(fields, model, params);
  for (const char* field :
       {"logits_processors", "lora_request", "prompt_embeds", "logprob_token_ids"})
    fields.refuse(field, "It is not available yet.");
  // Sent by routers of other servers. Ignoring them would compute the prompt again, or lose it.
  for (const char* field : {"kv_transfer_params", "ec_transfer_params", "disaggregated_params",
                            "bootstrap_host", "bootstrap_port", "bootstrap_room"})
    fields.refuse(field, "KV transfer between servers is not available.");
  return params;
}

}  // namespace tokamak::openai
