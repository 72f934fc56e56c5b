// llama.cpp's own API: /completion, /infill, /props, /slots.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "serve/compat/fill_in.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "serve/openai/params.h"

namespace tokamak::openai {
namespace {

// llama.cpp's names of fields, and fields that have no meaning here.
constexpr std::pair<const char*, const char*> kNames[] = {{"n_predict", "max_tokens"},
                                                          {"repeat_penalty", "repetition_penalty"},
                                                          {"n_probs", "logprobs"},
                                                          {"typ_p", "typical_p"},
                                                          {"n_cmpl", "n"},
                                                          {"return_tokens", "return_token_ids"}};
constexpr std::string_view kIgnored[] = {"cache_prompt",   "penalize_nl",  "input_prefix",
                                         "input_extra",    "input_suffix", "slot_id",
                                         "response_fields"};
constexpr size_t kMaxList = 1024;    // biases, names of fields
constexpr int32_t kRepeatLast = 64;  // the tokens that penalties count unless a request says

// The answer of one prompt, whole or in a stream.
class LlamaShape final : public Shape {
 public:
  LlamaShape(ShapeOptions options, const Tokenizer& tokenizer, Value prompt, Value wanted,
             bool silent, int32_t slot)
      : Shape(std::move(options)),
        tokenizer_(tokenizer),
        prompt_(std::move(prompt)),
        wanted_(std::move(wanted)),
        silent_(silent),
        slot_(slot) {
    id_ = new_id("cmpl-");
  }

  bool counts() const override { return true; }
  void begin(std::string&, int, const std::vector<int32_t>*, const Usage&) override {}

  void piece(std::string& out, const Piece& piece, const Usage& usage) override {
    if (piece.finish == nullptr && piece.text.empty() && piece.ids.empty()) return;
    Value value = common(piece, usage);
    new_line_ = new_line_ || piece.text.find('\n') != std::string::npos;
    if (piece.finish != nullptr)
      add_end(value, piece, usage);
    else if (options_.timings)
      value.set("timings", timings_value(usage));
    add_event(out, dump_json(value));
  }

  void progress(std::string& out, const PromptProgress& progress) override {
    Value value = common(Piece{}, Usage{});
    value.set("tokens_evaluated", progress.total);
    const Value members = progress_value(progress, options_.timings);
    for (const auto& [key, member] : members.as_object()) value.set(key, member);
    add_event(out, dump_json(value));
  }

  void end(std::string&, const Usage&) override {}  // the last piece says so

  void broken(std::string& out, const http::Response& error) override {
    add_event(out, error.body);
  }

  std::string whole(const std::vector<Piece>& choices, const Usage& usage) override {
    Value list = Value::array();
    for (const Piece& piece : choices) {
      Value value = common(piece, usage);
      add_end(value, piece, usage);
      list.push(selected(value));
    }
    return dump_json(choices.size() == 1 ? list.as_array()[0] : list);
  }

 private:
  // The members that `response_fields` names, under these names; "timings/predicted_n" is a member
  // of a member.
  Value selected(const Value& value) const {
    if (wanted_.is_null()) return value;
    Value out = Value::object();
    for (const Value& path : wanted_.as_array()) {
      const std::string& name = path.as_string();
      const size_t slash = name.find('/');
      const Value* found = value.find(name.substr(0, slash));
      if (found != nullptr && slash != std::string::npos)
        found = found->find(name.substr(slash + 1));
      if (found != nullptr) out.set(name, *found);
    }
    return out;
  }

  Value common(const Piece& piece, const Usage& usage) const {
    Value value = Value::object();
    value.set("index", piece.index);
    value.set("content", silent_ ? "" : piece.text);
    value.set("tokens", options_.token_ids ? ids_value(piece.ids) : Value::array());
    value.set("id_slot", slot_);
    value.set("stop", piece.finish != nullptr);
    value.set("tokens_predicted", usage.completion_tokens);
    value.set("tokens_evaluated", usage.prompt_tokens);
    if (options_.logprobs && !piece.scored.empty() && !silent_)
      value.set("completion_probabilities", probabilities(piece));
    return value;
  }

  // With post_sampling_probs probabilities instead of their logarithms.
  Value probabilities(const Piece& piece) const {
    Value list = logprobs_value(piece, options_, tokenizer_, true);
    if (!options_.sampled_probs) return list;
    auto linear = [](const Value& entry) {
      Value out = Value::object();
      for (const auto& [key, member] : entry.as_object())
        if (key == "logprob")
          out.set("prob", std::exp(member.as_double()));
        else if (key != "top_logprobs")
          out.set(key, member);
      return out;
    };
    Value out = Value::array();
    for (const Value& entry : list.as_array()) {
      Value chosen = linear(entry), top = Value::array();
      for (const Value& other : entry.find("top_logprobs")->as_array()) top.push(linear(other));
      chosen.set("top_probs", std::move(top));
      out.push(std::move(chosen));
    }
    return out;
  }

  void add_end(Value& value, const Piece& piece, const Usage& usage) const {
    const bool length = piece.finish == std::string_view("length");
    const bool word = piece.stop_reason.is_string();
    value.set("model", options_.model);
    value.set("prompt", prompt_);
    value.set("generation_settings", options_.settings);
    value.set("truncated", usage.truncated);
    value.set("stop_type", length ? "limit" : word ? "word" : "eos");
    value.set("stopping_word", word ? piece.stop_reason : Value(""));
    value.set("has_new_line", new_line_ || piece.text.find('\n') != std::string::npos);
    value.set("tokens_cached", usage.cached_tokens);
    value.set("timings", timings_value(usage));
  }

  const Tokenizer& tokenizer_;
  const Value prompt_, wanted_;
  bool new_line_ = false;  // in the stream so far
  const bool silent_;      // only the prompt was wanted, which is not part of the answer
  const int32_t slot_;     // that the request names; -1: none
};

Value sampling_settings(const SampleSpec& sample) {
  auto number = [](float value) { return Value(static_cast<double>(value)); };
  Value out = Value::object();
  out.set("temperature", number(sample.temperature));
  out.set("dynatemp_range", number(sample.dynatemp_range));
  out.set("dynatemp_exponent", number(sample.dynatemp_exponent));
  out.set("top_k", sample.top_k);
  out.set("top_p", number(sample.top_p));
  out.set("min_p", number(sample.min_p));
  out.set("top_n_sigma", number(sample.top_n_sigma));
  out.set("typical_p", number(sample.typical_p));
  out.set("min_keep", sample.min_keep);
  out.set("xtc_probability", number(sample.xtc_probability));
  out.set("xtc_threshold", number(sample.xtc_threshold));
  out.set("repeat_penalty", number(sample.repetition_penalty));
  out.set("repeat_last_n", sample.penalty_last_n);
  out.set("presence_penalty", number(sample.presence_penalty));
  out.set("frequency_penalty", number(sample.frequency_penalty));
  out.set("dry_multiplier", number(sample.dry_multiplier));
  out.set("dry_base", number(sample.dry_base));
  out.set("dry_allowed_length", sample.dry_allowed_length);
  out.set("dry_penalty_last_n", sample.dry_last_n);
  out.set("mirostat", sample.mirostat);
  out.set("mirostat_tau", number(sample.mirostat_tau));
  out.set("mirostat_eta", number(sample.mirostat_eta));
  return out;
}

// What a request was understood to ask for. A bias of null removes a token.
Value generation_settings(const GenerationParams& params, const ServedModel& model) {
  Value out = sampling_settings(params.sample);
  out.set("seed", static_cast<int64_t>(params.sample.seed & INT64_MAX));
  out.set("n_predict", params.max_tokens.value_or(-1));
  out.set("max_tokens", params.max_tokens.value_or(-1));
  out.set("n_keep", params.keep);
  out.set("ignore_eos", params.ignore_eos);
  out.set("stream", params.stream);
  out.set("n_probs", std::max(0, params.logprobs));
  out.set("post_sampling_probs", params.sample.report_sampled);
  out.set("timings_per_token", params.timings);
  Value stops = Value::array(), biases = Value::array();
  for (const std::string& stop : params.stops) stops.push(stop);
  for (auto [id, bias] : params.sample.logit_bias)
    biases.push(Value::Object{{"token", id}, {"bias", static_cast<double>(bias)}});
  if (params.ignore_eos)
    for (int32_t id : model.tokenizer->spec().eog_ids)
      biases.push(Value::Object{{"token", id}, {"bias", Value()}});
  out.set("stop", std::move(stops));
  out.set("logit_bias", std::move(biases));
  return out;
}

// [[id, bias], [text, false], ...] or {"id or text": bias, ...} -> {"id": bias}
Value bias_object(const Value& given, const Tokenizer& tokenizer) {
  Value::Array list;
  if (given.is_array()) list = given.as_array();
  if (given.is_object())
    for (const auto& [key, bias] : given.as_object()) {
      const bool id = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
      if (id) return given;  // OpenAI's form
      list.push_back(Value::Array{Value(key), bias});
    }
  if (list.size() > kMaxList)
    bad_request("logit_bias", "array_above_max_length",
                "Invalid 'logit_bias': at most {} tokens are allowed.", kMaxList);
  Value out = Value::object();
  for (size_t i = 0; i < list.size(); ++i) {
    std::string param = fmt::format("logit_bias[{}]", i);
    if (!list[i].is_array() || list[i].size() != 2)
      wrong_type(param, "a pair of a token and a bias", list[i]);
    const Value &token = list[i].as_array()[0], &bias = list[i].as_array()[1];
    Value amount = bias.is_bool() && !bias.as_bool() ? Value(-100) : bias;
    if (token.is_string()) {
      EncodeOptions encode;
      encode.add_special = false;
      for (int32_t id : tokenizer.encode(token.as_string(), encode))
        out.set(fmt::format("{}", id), amount);
    } else {
      out.set(fmt::format("{}", checked_integer(param, token, 0, tokenizer.vocab_size() - 1)),
              amount);
    }
  }
  return out;
}

// A prompt is a text, {"prompt_string": text}, or a list in which texts and ids may be mixed.
Value one_prompt(const Value& given, const std::string& param, const Tokenizer& tokenizer) {
  if (given.is_object()) {
    Fields fields(given, param);
    fields.refuse("multimodal_data", "Images and audio are not available.");
    return fields.require_string("prompt_string");
  }
  if (!given.is_array()) return given;
  const Value::Array& list = given.as_array();
  auto is_text = [](const Value& part) { return part.is_string(); };
  if (std::none_of(list.begin(), list.end(), is_text)) return given;
  Value ids = Value::array();
  for (size_t i = 0; i < list.size(); ++i) {
    EncodeOptions encode;
    encode.add_special = i == 0;
    if (!list[i].is_string())
      ids.push(list[i]);
    else
      for (int32_t id : tokenizer.encode(list[i].as_string(), encode)) ids.push(id);
  }
  return ids;
}

// One prompt or, in a list without single ids, several.
Value all_prompts(const Value& given, const Tokenizer& tokenizer) {
  auto is_id = [](const Value& part) { return part.is_number(); };
  if (!given.is_array() || std::any_of(given.as_array().begin(), given.as_array().end(), is_id))
    return one_prompt(given, "prompt", tokenizer);
  Value list = Value::array();
  for (const Value& prompt : given.as_array())
    list.push(one_prompt(prompt, fmt::format("prompt[{}]", list.size()), tokenizer));
  return list;
}

// The members of the answer that are wanted; null: all.
Value wanted_fields(Fields& fields) {
  const auto* names = fields.array("response_fields");
  if (names == nullptr || names->empty()) return {};
  if (names->size() > kMaxList)
    bad_request("response_fields", "array_above_max_length",
                "Invalid 'response_fields': at most {} names are allowed.", kMaxList);
  for (size_t i = 0; i < names->size(); ++i)
    if (!(*names)[i].is_string())
      wrong_type(fmt::format("response_fields[{}]", i), "a string", (*names)[i]);
  return *names;
}

// Its range is checked with the other fields.
int32_t slot_of(const Value& body) {
  const Value* slot = body.find("id_slot");
  return slot != nullptr && slot->is_int() ? static_cast<int32_t>(slot->as_int()) : -1;
}

Translated translate_llama(const Value& given, bool infill, const Api& api) {
  Translated out;
  out.chat = false;
  out.clamp = true;
  out.penalize_prompt = true;
  out.settings = generation_settings;
  out.body = with_llama_names(given);
  Fields fields(given);
  auto model = api.model_of(given);
  if (!given.has("n_predict") && !given.has("max_tokens")) out.body.set("max_tokens", -1);
  Value prompt = infill ? Value("") : fields.require("prompt");
  if (infill) {
    std::string before = fields.string("input_prefix").value_or(""),
                after = fields.string("input_suffix").value_or("");
    before += fields.string("prompt").value_or("");
    FillInFiles files;
    if (const auto* list = fields.array("input_extra"))
      for (size_t i = 0; i < list->size(); ++i) {
        Fields file((*list)[i], fmt::format("input_extra[{}]", i));
        const Value& text = file.require("text");
        if (!text.is_string()) wrong_type(file.name("text"), "a string", text);
        files.emplace_back(file.string("filename").value_or("tmp"), text.as_string());
      }
    Value marked = fill_in_prompt(*model, before, after, &files);
    std::vector<int32_t> ids;
    for (const Value& id : marked.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
    prompt = model->tokenizer->decode(ids);
    out.body.set("prompt", std::move(marked));
    stop_at_next_file(*model->tokenizer, out.body);
  } else {
    out.body.set("prompt", all_prompts(prompt, *model->tokenizer));
  }
  if (const Value* bias = fields.find("logit_bias");
      bias != nullptr && (bias->is_array() || bias->is_object()))
    out.body.set("logit_bias", bias_object(*bias, *model->tokenizer));
  const Value* length = out.body.find("max_tokens");
  const bool silent = length != nullptr && length->is_int() && length->as_int() == 0;
  if (silent) out.body.set("echo", true);
  if (const Value* stream = fields.find("stream");
      stream != nullptr && stream->is_bool() && stream->as_bool())
    out.body.set("return_token_ids", true);
  Value wanted = wanted_fields(fields);
  const Value* dry = fields.find("dry_multiplier");  // with it, penalties count all tokens
  if (fields.find("repeat_last_n") == nullptr && (dry == nullptr || *dry == Value(0)))
    out.body.set("repeat_last_n", kRepeatLast);
  const int32_t slot = slot_of(given);
  out.shape = [prompt = std::move(prompt), wanted = std::move(wanted), silent, slot](
                  ShapeOptions options, const Tokenizer& tokenizer) {
    return std::make_unique<LlamaShape>(std::move(options), tokenizer, prompt, wanted, silent,
                                        slot);
  };
  return out;
}

Value default_settings(const ServedModel& model) {
  Value params = sampling_settings(model.defaults);
  params.set("n_predict", -1);
  params.set("repeat_last_n", kRepeatLast);
  return Value::Object{{"n_ctx", model.max_model_len}, {"params", std::move(params)}};
}

http::Response props(const Api& api) {
  const auto first = api.model("");
  const ServedModel& model = *first;
  const Tokenizer& tokenizer = *model.tokenizer;
  auto piece = [&](int32_t id) { return id < 0 ? Value("") : Value(tokenizer.piece(id)); };
  Value value = Value::object();
  value.set("default_generation_settings", default_settings(model));
  value.set("has_sampling_defaults", model.has_defaults);  // for the page; not in llama.cpp
  value.set("total_slots", model.max_sequences);
  value.set("model_alias", model.name);
  value.set("model_path", model.name);
  value.set("modalities", Value::Object{{"vision", false}, {"audio", false}});
  value.set("chat_template", pick_chat_template(tokenizer.spec(), "", false));
  value.set("bos_token", piece(tokenizer.bos_id()));
  value.set("eos_token", piece(tokenizer.eos_id()));
  value.set("build_info", "tokamak " + api.options().version);
  return http::json_response(value);
}

// One entry for each sequence that may run at once.
http::Response slots(const Api& api) {
  Value list = Value::array();
  int64_t id = 0;
  for (const auto& model : api.models()) {
    const int64_t running = model->client->info().running;
    for (int64_t i = 0; i < model->max_sequences; ++i)
      list.push(Value::Object{{"id", id++},
                              {"model", model->name},
                              {"n_ctx", model->max_model_len},
                              {"is_processing", i < running}});
  }
  return http::json_response(list);
}

}  // namespace

Value with_llama_names(Value body) {
  auto own_name = [](const std::string& key) {
    auto alias = std::find_if(std::begin(kNames), std::end(kNames),
                              [&](const auto& names) { return names.first == key; });
    return alias == std::end(kNames) ? nullptr : alias->second;
  };
  auto ignored = [](const std::string& key) {
    return std::find(std::begin(kIgnored), std::end(kIgnored), key) != std::end(kIgnored);
  };
  auto special = [&](const Value::Member& member) {
    return own_name(member.first) != nullptr || ignored(member.first) ||
           (member.first == "seed" && member.second.is_int() && member.second.as_int() == -1);
  };
  Value::Object& members = body.as_object();
  if (std::none_of(members.begin(), members.end(), special)) return body;
  Value out = Value::object();
  for (auto& member : members) {
    auto& [key, value] = member;
    if (!special(member)) {
      out.set(key, std::move(value));
    } else if (const char* own = own_name(key); own != nullptr && !body.has(own)) {
      const bool off = key == "n_probs" && value.is_int() && value.as_int() == 0;
      const bool chat = key == "n_probs" && body.has("messages");  // has other fields for this
      if (chat && !off) out.set("top_logprobs", value);
      if (!off) out.set(own, chat ? Value(true) : value);
    }
  }
  // Without the cache: no other request has this salt.
  const Value* cache = body.find("cache_prompt");
  if (cache != nullptr && cache->is_bool() && !cache->as_bool()) out.set("cache_salt", new_id(""));
  return out;
}

Dialect llama_dialect(bool infill, const Api& api) {
  return {[infill, &api](Value body, const http::Request&) {
            return translate_llama(body, infill, api);
          },
          nullptr};
}

void add_llama_routes(Api& api, http::Router& router) {
  using http::Request;
  for (const char* path : {"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"})
    router.add("POST", path,
               api.with_json([&api](http::ExchangePtr exchange, const Value& body, uint64_t) {
                 exchange->respond(
                     http::json_response(Value::Object{{"input_tokens", count_prompt(api, body)}}));
               }));
  router.add("POST", "/completion", api.generator(llama_dialect(false, api)));
  router.add("POST", "/infill", api.generator(llama_dialect(true, api)));
  router.add("GET", "/props", api.quick([&api](const Request&) { return props(api); }));
  router.add("GET", "/slots", api.quick([&api](const Request&) { return slots(api); }));
}

}  // namespace tokamak::openai
