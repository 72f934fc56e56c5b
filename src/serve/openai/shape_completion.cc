#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto byte = static_cast<unsigned char>(text[i]);
    int more = byte < 0x80       ? 0
               : byte >> 5 == 6  ? 1
               : byte >> 4 == 14 ? 2
               : byte >> 3 == 30 ? 3
                                 : -1;
    if (more < 0 || i + more >= text.size()) return false;
    for (int k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    i += more + 1;
  }
  return true;
}

class CompletionShape final : public OpenaiShape {
 public:
  CompletionShape(ShapeOptions options, const Tokenizer& tokenizer)
      : OpenaiShape(std::move(options), tokenizer) {
    set_names("cmpl", "text_completion", "text_completion");
  }

 protected:
  std::string first_chunk(int, const std::vector<int32_t>*, const Usage*) override { return ""; }
  bool separate_finish() const override { return false; }
  std::string stream_choice(const Piece& piece) override { return dump_json(choice(piece, false)); }
  Value whole_choice(const Piece& piece) override { return choice(piece, true); }

 private:
  Value choice(const Piece& piece, bool whole) const {
    Value value = Value::object();
    value.set("text", piece.text);
    value.set("index", piece.index);
    bool with = options_.logprobs && (whole || piece.finish != nullptr || !piece.scored.empty());
    value.set("logprobs", with ? logprobs(piece) : Value());
    value.set("finish_reason", piece.finish == nullptr ? Value() : Value(piece.finish));
    if (!piece.stop_reason.is_null()) value.set("stop_reason", piece.stop_reason);
    if (options_.token_ids) value.set("token_ids", ids_value(piece.ids));
    if (piece.prompt_scores != nullptr)
      value.set("prompt_logprobs", prompt_logprobs(piece.prompt_scores->ids, *piece.prompt_scores));
    if (piece.prompt_ids != nullptr) value.set("prompt_token_ids", ids_value(*piece.prompt_ids));
    return value;
  }

  // A token that is not valid text by itself is written as its bytes, so that different tokens have
  // different keys.
  std::string spelled(int32_t id) const {
    if (options_.spell_ids) return fmt::format("token_id:{}", id);
    std::string bytes = tokenizer_.piece_bytes(id);
    if (valid_utf8(bytes)) return bytes;
    std::string out = "bytes:";
    for (unsigned char byte : bytes) out += fmt::format("\\x{:02x}", byte);
    return out;
  }

  Value logprobs(const Piece& piece) const {
    Value tokens = Value::array(), values = Value::array(), tops = Value::array(),
          offsets = Value::array();
    auto number = [](float logprob) {
      return Value(static_cast<double>(std::max(logprob, -9999.0f)));
    };
    for (const ScoredToken& scored : piece.scored) {
      tokens.push(spelled(scored.id));
      values.push(scored.logprob ? number(*scored.logprob) : Value());
      offsets.push(static_cast<int64_t>(scored.text_offset));
      if (!scored.logprob) {  // nothing comes before the first token
        tops.push(Value());
        continue;
      }
      // The token itself is always included, as evaluation harnesses expect.
      Value top = Value::object();
      for (size_t i = 0; i < scored.top.size() && static_cast<int>(i) < options_.top_logprobs; ++i)
        top.set(spelled(scored.top[i].id), number(scored.top[i].logprob));
      top.set(spelled(scored.id), number(*scored.logprob));
      tops.push(std::move(top));
    }
    Value value = Value::object();
    value.set("tokens", std::move(tokens));
    value.set("token_logprobs", std::move(values));
    value.set("top_logprobs", std::move(tops));
    value.set("text_offset", std::move(offsets));
    return value;
  }
};

}  // namespace

std::unique_ptr<Shape> make_completion_shape(ShapeOptions options, const Tokenizer& tokenizer) {
  return std::make_unique<CompletionShape>(std::move(options), tokenizer);
}

}  // namespace tokamak::openai
