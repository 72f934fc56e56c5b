#pragma once
// Incremental decoding: the concatenated results of push() and finish() equal Tokenizer::decode of
// all ids.
#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace tokamak {

class PieceDecoder;

// Owner: one generated sequence; one thread at a time; the tokenizer outlives it. Text is held back
// while a character is incomplete, and during a run of byte pieces (its validity is known only at
// its end).
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DecodeOptions options = {});
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  std::string push(int32_t id);  // never ends inside a UTF-8 character
  std::string finish();          // the text held back; then resets

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::unique_ptr<PieceDecoder> stream_;
};

}  // namespace tokamak
