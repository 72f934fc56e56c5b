#pragma once
// From what a request asks for to a compiled grammar.
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/grammar/matcher.h"
#include "text/tokenizer.h"

namespace tokamak::grammar {

enum class Kind : uint8_t {
  kJsonObject,  // any object
  kJsonSchema,  // text: the schema
  kRegex,       // text: an expression that matches the whole answer
  kChoice,      // one of `choices`
  kGrammar,     // text: rules in llama.cpp's notation (gbnf.h) or Lark's (lark.h)
  kCalls,       // text: a list of tools; call_grammar.h
};

struct GrammarSource {
  Kind kind = Kind::kJsonObject;
  std::string text{};
  std::vector<std::string> choices{};
  std::string before{}, after{};  // fixed texts around it
  // JSON: a regular expression for white space between its parts; unset: as docs/structured.md says
  std::optional<std::string> space{};
  bool strict = false;   // json_schema_grammar()
  std::string format{};  // kCalls: of the calls; `choices` are the control tokens
};
inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;
inline constexpr size_t kMaxCachedBytes = size_t{256} << 20;  // of all grammars of a model

// Throws Error(kInvalidArgument or kOutOfRange) with a message for the author of the grammar.
Ir parse_grammar(const GrammarSource& source);

// Compiled grammars of one model, the least recently used ones dropped beyond `capacity` and beyond
// `most_bytes` with all their caches; the last one stays. Owner: the model; thread-safe: compiling
// does not hold the lock. The vocabulary is built by the first call (0.1 to 0.3 s for 150,000
// tokens).
class GrammarCache {
 public:
  explicit GrammarCache(std::shared_ptr<const Tokenizer> tokenizer, size_t capacity = 64,
                        size_t most_bytes = kMaxCachedBytes)
      : tokenizer_(std::move(tokenizer)), capacity_(capacity), most_bytes_(most_bytes) {}

  std::shared_ptr<const Grammar> get(const GrammarSource& source);
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  struct Stats {
    uint64_t hits = 0, misses = 0, entries = 0, bytes = 0;
  };
  Stats stats() const;

 private:
  std::shared_ptr<const Vocabulary> vocabulary();
  void drop_oldest();           // under the lock
  size_t memory_bytes() const;  // under the lock

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const size_t capacity_, most_bytes_;
  std::once_flag built_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  using Entry = std::pair<std::string, std::shared_ptr<const Grammar>>;  // by source
  std::list<Entry> entries_;                                             // last used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_;
  Stats stats_;
};

}  // namespace tokamak::grammar
