#pragma once
// ids -> text, piece by piece: the decoders of tokenizer.json, each as a streaming step.
// Decoding a whole text uses the same stream.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tokamak {

// A step receives and passes on tokens in fragments. `end` closes the token.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void feed(std::string_view fragment, bool end) = 0;
  virtual void finish() = 0;  // the end of the text; passes on what was held back
  DecodeStep* next = nullptr;

 protected:
  void pass(std::string_view fragment, bool end) const { next->feed(fragment, end); }
};

// One sequence being decoded; one thread.
class PieceDecoder {
 public:
  // config: the decoder as in tokenizer.json; null: tokens joined by spaces.
  PieceDecoder(const Value& config, bool valid_utf8);
  ~PieceDecoder();
  void skip_beginning();  // the rules for the first piece do not apply to what follows
  void push(std::string_view piece);
  void finish();
  std::string take();  // text that is final

 private:
  class Sink;
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  std::unique_ptr<Sink> sink_;
};

// Checks a decoder config without using it; throws Error(kUnsupported).
void check_decoder(const Value& config);

}  // namespace tokamak
