#pragma once
// How a model turns a text into a vector: importers read it, bundles store it, the engine and the
// server follow it.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/value.h"

namespace tokamak {

// Which rows of a sequence give its vector. kTokens: each gives one of its own.
enum class Pooling : uint8_t { kNone, kMean, kFirst, kLast, kTokens };
const char* pooling_name(Pooling pooling);  // "none", "mean", "cls", "last", "tokens"
// From a name of these; throws Error(kInvalidArgument).
Pooling parse_pooling(std::string_view name);

struct EmbeddingSpec {
  Pooling pooling = Pooling::kNone;  // kNone: the model gives no vectors
  bool encoder = false;              // a sequence is computed whole, and there is no next token
  bool normalize = true;             // vectors get length 1
  int64_t max_tokens = 0;            // of a text, special tokens included; 0: the context
  // Texts that precede an input, by name ("query", "document"), and the one that is used when a
  // request names none; empty: none.
  std::vector<std::pair<std::string, std::string>> prompts;
  std::string default_prompt;
  // A classifier gives one score per label instead of an embedding. One label: how well a pair of
  // texts fits.
  std::vector<std::string> labels;

  bool embeds() const { return pooling != Pooling::kNone && !per_token() && labels.empty(); }
  bool per_token() const { return pooling == Pooling::kTokens; }
  bool classifies() const { return !labels.empty(); }
  bool generates() const { return !encoder; }
  const std::string* prompt(std::string_view name) const;  // nullptr: there is no such prompt
  // The prompt for texts that are searched for ("query") or found ("document", which some models
  // call "passage"); the default one if the model has none.
  const std::string& prompt_for(std::string_view kind) const;

  bool operator==(const EmbeddingSpec&) const = default;
};

Value embedding_value(const EmbeddingSpec& spec);
EmbeddingSpec parse_embedding(const Value& value);  // throws Error(kCorrupt)

}  // namespace tokamak
