#include "serve/openai/shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "serve/openai/params.h"

namespace tokamak::openai {

size_t count_characters(std::string_view utf8) {
  size_t count = 0;
  for (char c : utf8) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

Value ids_value(const std::vector<int32_t>& ids) {
  Value list = Value::array();
  for (int32_t id : ids) list.push(id);
  return list;
}

Value usage_value(const Usage& usage) {
  Value value = Value::object();
  value.set("prompt_tokens", usage.prompt_tokens);
  value.set("completion_tokens", usage.completion_tokens);
  value.set("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  Value details = Value::object();
  details.set("cached_tokens", usage.cached_tokens);
  value.set("prompt_tokens_details", std::move(details));
  if (usage.reasoning_tokens > 0)
    value.set("completion_tokens_details",
              Value::Object{{"reasoning_tokens", usage.reasoning_tokens}});
  return value;
}

Shape::Shape(ShapeOptions options, const Tokenizer& tokenizer)
    : options_(std::move(options)), tokenizer_(tokenizer) {}

void Shape::set_names(std::string id_prefix, std::string whole_object, std::string chunk_object) {
  id_ = fmt::format("{}-{:016x}{:016x}", id_prefix, fresh_number(), fresh_number());
  whole_object_ = std::move(whole_object);
  // The same for every chunk of a stream, so it is formatted once.
  chunk_head_ = fmt::format(
      R"({{"id":"{}","object":"{}","created":{},"model":{},"system_fingerprint":{},"choices":[)",
      id_, chunk_object, options_.created, dump_json(options_.model),
      dump_json(options_.fingerprint));
}

std::string Shape::wrap_chunk(std::string_view choices, const Usage* usage,
                              std::string_view more) const {
  std::string out = chunk_head_;
  out += choices;
  out += ']';
  if (usage != nullptr)
    out += ",\"usage\":" + dump_json(usage_value(*usage));
  else if (options_.usage_field)
    out += ",\"usage\":null";
  out += more;
  out += '}';
  return out;
}

std::string Shape::chunk(const Piece& piece, const Usage* usage) {
  return wrap_chunk(stream_choice(piece), usage);
}

Value Shape::prompt_logprobs(const std::vector<int32_t>& ids, const PromptScores& scores) const {
  Value list = Value::array();
  list.push(Value());  // nothing comes before the first token
  for (size_t i = 1; i < ids.size() && i - 1 < scores.logprobs.size(); ++i) {
    Value entry = Value::object();
    auto add = [&](int32_t id, float logprob, Value rank) {
      entry.set(fmt::format("{}", id),
                Value::Object{{"logprob", static_cast<double>(std::max(logprob, -9999.0f))},
                              {"rank", std::move(rank)},
                              {"decoded_token", tokenizer_.piece_bytes(id)}});
    };
    add(ids[i], scores.logprobs[i - 1], Value());
    size_t wanted = static_cast<size_t>(std::max(0, options_.prompt_logprobs));
    if (i - 1 < scores.top.size())
      for (size_t r = 0; r < scores.top[i - 1].size() && r < wanted; ++r)
        add(scores.top[i - 1][r].id, scores.top[i - 1][r].logprob, static_cast<int64_t>(r + 1));
    list.push(std::move(entry));
  }
  return list;
}

std::string Shape::usage_chunk(const Usage& usage) { return wrap_chunk("", &usage); }

std::string Shape::whole(const std::vector<Piece>& choices, const Usage& usage) {
  Value value = Value::object();
  value.set("id", id_);
  value.set("object", whole_object_);
  value.set("created", options_.created);
  value.set("model", options_.model);
  value.set("system_fingerprint", options_.fingerprint);
  Value list = Value::array();
  for (const Piece& piece : choices) list.push(whole_choice(piece));
  value.set("choices", std::move(list));
  value.set("usage", usage_value(usage));
  if (Value ids = top_level_ids(choices); !ids.is_null())
    value.set("prompt_token_ids", std::move(ids));
  if (Value scores = top_level_scores(choices); !scores.is_null())
    value.set("prompt_logprobs", std::move(scores));
  return dump_json(value);
}

}  // namespace tokamak::openai
