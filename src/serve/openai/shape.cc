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
  if (usage.negative_tokens > 0) details.set("negative_prompt_tokens", usage.negative_tokens);
  value.set("prompt_tokens_details", std::move(details));
  Value answer = Value::object();
  if (usage.reasoning_tokens > 0) answer.set("reasoning_tokens", usage.reasoning_tokens);
  if (usage.drafted_tokens > 0) {
    answer.set("accepted_prediction_tokens", usage.accepted_tokens);
    answer.set("rejected_prediction_tokens", usage.drafted_tokens - usage.accepted_tokens);
  }
  if (answer.size() > 0) value.set("completion_tokens_details", std::move(answer));
  return value;
}

Value timings_value(const Usage& usage) {
  auto ms = [](Nanos time) { return static_cast<double>(time) * 1e-6; };
  auto per_second = [](int64_t count, Nanos time) {
    return time > 0 ? static_cast<double>(count) * 1e9 / static_cast<double>(time) : 0.0;
  };
  auto each = [&](int64_t count, Nanos time) {
    return count > 0 ? ms(time) / static_cast<double>(count) : 0.0;
  };
  const int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  Value value = Value::object();
  value.set("cache_n", usage.cached_tokens);
  value.set("prompt_n", computed);
  value.set("prompt_ms", ms(usage.prompt_time));
  value.set("prompt_per_token_ms", each(computed, usage.prompt_time));
  value.set("prompt_per_second", per_second(computed, usage.prompt_time));
  value.set("predicted_n", usage.completion_tokens);
  value.set("predicted_ms", ms(usage.answer_time));
  value.set("predicted_per_token_ms", each(usage.completion_tokens, usage.answer_time));
  value.set("predicted_per_second", per_second(usage.completion_tokens, usage.answer_time));
  if (usage.drafted_tokens > 0) {
    value.set("draft_n", usage.drafted_tokens);
    value.set("draft_n_accepted", usage.accepted_tokens);
  }
  return value;
}

Value progress_value(const PromptProgress& progress, bool timings) {
  Value value = Value::Object{
      {"prompt_progress",
       Value::Object{{"total", progress.total},
                     {"cache", progress.cached},
                     {"processed", progress.done},
                     {"time_ms", static_cast<int64_t>(seconds(progress.time) * 1e3)}}}};
  Usage so_far;
  so_far.prompt_tokens = progress.done;
  so_far.cached_tokens = progress.cached;
  so_far.prompt_time = progress.done > progress.cached ? progress.time : 0;
  if (timings) value.set("timings", timings_value(so_far));
  return value;
}

Value logprobs_value(const Piece& piece, const ShapeOptions& options, const Tokenizer& tokenizer,
                     bool with_ids) {
  auto token = [&](int32_t id, float logprob) {
    std::string text = tokenizer.piece_bytes(id);
    Value bytes = Value::array();
    for (unsigned char byte : text) bytes.push(int{byte});
    if (options.spell_ids) text = fmt::format("token_id:{}", id);
    Value value = Value::object();
    if (with_ids) value.set("id", id);
    value.set("token", std::move(text));  // dump_json replaces invalid UTF-8
    value.set("logprob", static_cast<double>(std::max(logprob, -9999.0f)));
    value.set("bytes", std::move(bytes));
    return value;
  };
  Value list = Value::array();
  for (const ScoredToken& scored : piece.scored) {
    Value entry = token(scored.id, scored.logprob.value_or(0)), top = Value::array();
    for (size_t i = 0; i < scored.top.size() && static_cast<int>(i) < options.top_logprobs; ++i)
      top.push(token(scored.top[i].id, scored.top[i].logprob));
    entry.set("top_logprobs", std::move(top));
    list.push(std::move(entry));
  }
  return list;
}

void add_event(std::string& out, std::string_view json, std::string_view name) {
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  out.append("data: ").append(json).append("\n\n");
}

std::string new_id(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, fresh_number(), fresh_number());
}

void OpenaiShape::set_names(std::string id_prefix, std::string whole_object,
                            std::string chunk_object) {
  id_ = new_id(id_prefix + "-");
  whole_object_ = std::move(whole_object);
  // The same for every chunk of a stream, so it is formatted once.
  chunk_head_ = fmt::format(
      R"({{"id":"{}","object":"{}","created":{},"model":{},"system_fingerprint":{},"choices":[)",
      id_, chunk_object, options_.created, dump_json(options_.model),
      dump_json(options_.fingerprint));
}

std::string OpenaiShape::wrap_chunk(std::string_view choices, const Usage* usage,
                                    std::string_view more) const {
  std::string out = chunk_head_;
  out += choices;
  out += ']';
  if (usage != nullptr)
    out += ",\"usage\":" + dump_json(usage_value(*usage));
  else if (options_.include_usage)
    out += ",\"usage\":null";
  if (usage != nullptr && options_.timings)
    out += ",\"timings\":" + dump_json(timings_value(*usage));
  out += more;
  out += '}';
  return out;
}

void OpenaiShape::begin(std::string& out, int choices, const std::vector<int32_t>* prompt_ids,
                        const Usage& usage) {
  const Usage* each = options_.continuous_usage ? &usage : nullptr;
  for (int i = 0; i < choices; ++i)
    if (std::string first = first_chunk(i, i == 0 ? prompt_ids : nullptr, each); !first.empty())
      add_event(out, first);
}

void OpenaiShape::progress(std::string& out, const PromptProgress& progress) {
  std::string members = dump_json(progress_value(progress, options_.timings));
  members.front() = ',';
  members.pop_back();
  Piece none;
  add_event(out, wrap_chunk(stream_choice(none), nullptr, members));
}

// In a chat the last text and the finish reason are sent in separate chunks, as in the OpenAI API;
// in a completion together, so that every chunk has its log-probabilities.
void OpenaiShape::piece(std::string& out, const Piece& piece, const Usage& usage) {
  const Usage* each = options_.continuous_usage ? &usage : nullptr;
  auto send = [&](const Piece& part) { add_event(out, wrap_chunk(stream_choice(part), each)); };
  if (piece.finish != nullptr && !separate_finish()) return send(piece);
  const bool ids = options_.token_ids && !piece.ids.empty();
  if (!piece.text.empty() || !piece.reasoning.empty() || !piece.scored.empty() ||
      !piece.calls.empty() || ids || piece.prompt_ids != nullptr) {
    Piece content = piece;
    content.finish = nullptr;
    content.stop_reason = {};
    send(content);
  }
  if (piece.finish != nullptr) {
    Piece last;
    last.index = piece.index;
    last.finish = piece.finish;
    last.stop_reason = piece.stop_reason;
    send(last);
  }
}

void OpenaiShape::end(std::string& out, const Usage& usage) {
  if (options_.include_usage) add_event(out, wrap_chunk("", &usage));
  add_event(out, "[DONE]");
}

void OpenaiShape::broken(std::string& out, const http::Response& error) {
  add_event(out, error.body);
  add_event(out, "[DONE]");
}

Value OpenaiShape::prompt_logprobs(const std::vector<int32_t>& ids,
                                   const PromptScores& scores) const {
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

std::string OpenaiShape::whole(const std::vector<Piece>& choices, const Usage& usage) {
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
  if (options_.timings) value.set("timings", timings_value(usage));
  if (Value ids = top_level_ids(choices); !ids.is_null())
    value.set("prompt_token_ids", std::move(ids));
  if (Value scores = top_level_scores(choices); !scores.is_null())
    value.set("prompt_logprobs", std::move(scores));
  return dump_json(value);
}

}  // namespace tokamak::openai
