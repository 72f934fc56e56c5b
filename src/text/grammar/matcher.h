#pragma once
// Grammars and their progress through a text.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/ir.h"
#include "text/grammar/state_mask.h"
#include "text/grammar/unique_items.h"
#include "text/grammar/vocabulary.h"

namespace tokamak::grammar {

// A compiled grammar. Owner: the requests that use it. Thread-safe: its caches, which grow while it
// is used and are cleared when they reach kMaxCacheBytes, are behind a lock.
class Grammar {
 public:
  // Throws Error(kInvalidArgument) for a grammar that matches nothing or is left-recursive, and
  // Error(kOutOfRange) for one that is too large or too ambiguous.
  Grammar(const Ir& ir, std::shared_ptr<const Vocabulary> vocabulary);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const std::vector<std::string>& notes() const { return notes_; }  // Ir::notes
  size_t cache_bytes() const;
  size_t memory_bytes() const {
    return memory_;
  }                                           // before the last operation; does not wait for it
  bool matches(std::string_view text) const;  // the whole text

 private:
  friend class Matcher;
  // nullptr on the first call for a state: many states are visited only once.
  const StateMask* mask_of(StateId state) const;
  void fill(ConfigId config, std::span<uint32_t> mask) const;
  void begin(size_t budget) const;  // of an operation, under the lock
  void allow(ConfigId config, std::span<uint32_t> mask) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  const Nfa nfa_;
  const bool has_unique_;  // rules of strings that must differ
  const std::vector<std::string> notes_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Automaton> automaton_;
  mutable std::vector<std::unique_ptr<StateMask>> masks_;  // by state
  mutable std::vector<uint8_t> visited_;                   // by state
  // The masks of configs that were visited twice: the text of a string has one for every token. An
  // empty one was visited once.
  mutable std::unordered_map<ConfigId, std::vector<uint32_t>> config_masks_;
  mutable size_t config_mask_bytes_ = 0;
  mutable size_t mask_bytes_ = 0;
  mutable std::atomic<size_t> memory_ = 0;
  mutable uint64_t generation_ = 0;  // counts how often the caches were cleared
  mutable ConfigId start_ = kDeadConfig;
};
inline constexpr size_t kMaxCacheBytes = size_t{32} << 20;

// The progress of one text. Owner: one choice of a request; one thread at a time. A copy is a fork:
// it goes on by itself from the same text. All functions may throw Error(kOutOfRange) if the
// grammar turns out to be too ambiguous for this text.
class Matcher {
 public:
  // `begun`: the text has begun with it, before the first token.
  explicit Matcher(std::shared_ptr<const Grammar> grammar, std::string begun = "");

  // False, and nothing changes, if the token may not follow.
  bool accept(int32_t token);
  void rollback(size_t tokens);  // forgets the last ones
  size_t size() const { return tokens_.size(); }
  std::span<const int32_t> tokens() const { return tokens_; }

  // Sets the bits of the tokens that may follow; the others keep their value. A mask for fewer
  // tokens than the tokenizer has is filled as far as it goes.
  void fill_mask(std::span<uint32_t> mask);
  bool accepting();  // the text may end here
  bool finished();   // the text must end here
  // The bytes that must follow, at most `most` of them, up to a control token.
  std::string forced(size_t most);
  // The first byte of `forced`, a text that must follow, at which a token could begin that may
  // follow and that ends after the text; the size of the text if there is none.
  size_t first_crossing(std::string_view forced);

 private:
  void sync();  // under the grammar's lock
  void forbid_repeated(std::span<uint32_t> mask) const;
  bool crosses(ConfigId end, std::string_view rest) const;
  ConfigId advance(ConfigId config, int32_t token);
  ConfigId now() const { return configs_.back(); }

  std::shared_ptr<const Grammar> grammar_;
  std::string begun_;
  std::vector<int32_t> tokens_;
  std::vector<ConfigId> configs_;  // before the first token and after each
  UniqueItems unique_;             // of the text so far, if the grammar needs it
  uint64_t generation_ = 0;
};

}  // namespace tokamak::grammar
