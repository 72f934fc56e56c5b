#pragma once
// The wire format of an answer, the only difference between the chat and the completion route.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "engine/client.h"
#include "text/output/call.h"
#include "text/tokenizer.h"

namespace tokamak::openai {

// A token whose log-probability is reported.
struct ScoredToken {
  int32_t id = 0;
  std::optional<float> logprob;  // absent: the first prompt token
  std::vector<TokenLogprob> top;
  size_t text_offset = 0;  // characters of the choice's text before it
};

// Log-probabilities of a prompt's tokens 1.., with alternatives.
struct PromptScores {
  std::vector<int32_t> ids;  // of the whole prompt
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top;  // parallel to logprobs, or empty
};

// A part of one choice's answer: one chunk of a stream, or all of it.
struct Piece {
  int index = 0;
  std::string text, reasoning;
  std::vector<ScoredToken> scored;
  std::vector<int32_t> ids;
  std::vector<ToolCall> calls;   // in a stream also parts of calls
  const char* finish = nullptr;  // "stop", "length", "tool_calls"; nullptr: not finished
  Value stop_reason;             // with finish: the client's stop string or id that matched
  const std::vector<int32_t>* prompt_ids = nullptr;  // with return_token_ids, on the first piece
  const PromptScores* prompt_scores = nullptr;       // with prompt_logprobs, never in a stream
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // part of completion_tokens; only for reasoning models
};

struct ShapeOptions {
  std::string model, fingerprint;
  int64_t created = 0;
  bool logprobs = false;
  int top_logprobs = 0;
  int prompt_logprobs = -1;
  bool usage_field = false;  // chunks before the final usage chunk have "usage": null
  bool token_ids = false;
  bool spell_ids = false;  // log-probabilities name tokens "token_id:N"
};

// Owner: one generation, on one thread at a time. Returns JSON text without SSE framing.
class Shape {
 public:
  Shape(ShapeOptions options, const Tokenizer& tokenizer);
  virtual ~Shape() = default;

  const std::string& id() const { return id_; }
  // "": none for this shape. prompt_ids: nullptr unless requested; usage likewise.
  virtual std::string first_chunk(int index, const std::vector<int32_t>* prompt_ids,
                                  const Usage* usage) = 0;
  // The end of a choice is sent in its own chunk.
  virtual bool separate_finish() const = 0;
  std::string chunk(const Piece& piece, const Usage* usage);
  std::string usage_chunk(const Usage& usage);
  std::string whole(const std::vector<Piece>& choices, const Usage& usage);

 protected:
  virtual std::string stream_choice(const Piece& piece) = 0;  // JSON of choices[i]
  virtual Value whole_choice(const Piece& piece) = 0;
  virtual Value top_level_ids(const std::vector<Piece>&) { return {}; }
  virtual Value top_level_scores(const std::vector<Piece>&) { return {}; }
  void set_names(std::string id_prefix, std::string whole_object, std::string chunk_object);
  // [null, {"id": {"logprob", "rank", "decoded_token"}}, ...], as in vLLM.
  Value prompt_logprobs(const std::vector<int32_t>& ids, const PromptScores& scores) const;
  std::string wrap_chunk(std::string_view choices, const Usage* usage,
                         std::string_view more = {}) const;

  const ShapeOptions options_;
  const Tokenizer& tokenizer_;

 private:
  std::string id_, whole_object_, chunk_head_;
};

std::unique_ptr<Shape> make_chat_shape(ShapeOptions options, const Tokenizer& tokenizer);
std::unique_ptr<Shape> make_completion_shape(ShapeOptions options, const Tokenizer& tokenizer);

Value ids_value(const std::vector<int32_t>& ids);
Value usage_value(const Usage& usage);
size_t count_characters(std::string_view utf8);

}  // namespace tokamak::openai
