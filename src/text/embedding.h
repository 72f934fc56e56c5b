#pragma once
// Texts as an encoder reads them, and vectors as callers want them.
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "plan/embedding_spec.h"
#include "text/post_processor.h"
#include "text/tokenizer.h"

namespace tokamak {

struct EmbeddingInput {
  std::vector<int32_t> ids;
  int32_t second_text = 0;  // the first token of the second segment; 0: there is none
};

// Adds the special tokens around a text or a pair of texts, and cuts texts that are too long: the
// special tokens stay. Immutable; any thread.
class EmbeddingEncoder {
 public:
  explicit EmbeddingEncoder(std::shared_ptr<const Tokenizer> tokenizer);

  // most: tokens, special ones included; longer texts are cut at their end. 0: no bound.
  EmbeddingInput encode(std::string_view text, int64_t most = 0) const;
  // The longer one of the two is cut until both fit.
  EmbeddingInput encode_pair(std::string_view first, std::string_view second,
                             int64_t most = 0) const;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> single_;
  PairFrame pair_;
};

// The first `dimensions` values (0: all), divided by their length if `normalize`.
void finish_vector(std::vector<float>& vector, int64_t dimensions, bool normalize);
double cosine(std::span<const float> a, std::span<const float> b);
// Probabilities of a classifier's scores: of one label its sigmoid, of several their softmax.
std::vector<double> label_probabilities(std::span<const float> scores);

}  // namespace tokamak
