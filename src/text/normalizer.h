#pragma once
// The normalizers of tokenizer.json: text -> text, before the pre-tokenizer.
#include <algorithm>
#include <memory>
#include <string>

#include "base/value.h"
#include "text/unicode.h"

namespace tokamak {

// Immutable, thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8 and is modified in place. joined: it continues preceding text (it was
  // split at bytes
  // that are not UTF-8), so nothing is prepended.
  virtual void apply(std::string& text, bool joined) const = 0;
  // The same for text whose first `start` bytes are its first character; returns how many bytes of
  // the result
  // correspond to that character. (Pre-tokenizers need to know which word begins the text.)
  virtual size_t apply_tracked(std::string& text, bool joined, size_t start) const {
    std::string head = text.substr(0, start);
    apply(head, joined);
    apply(text, joined);
    size_t size = std::min(head.size(), text.size());
    while (size < text.size() && is_utf8_continuation(text[size])) ++size;
    return size;
  }
};

// nullptr for null. Throws Error(kUnsupported) naming the type.
std::unique_ptr<Normalizer> make_normalizer(const Value& config);

// A map of character sequences as SentencePiece compiles it (a double-array trie and a text blob).
// longest: the longest prefix wins (SentencePiece); otherwise whole grapheme clusters are looked up
// by their shortest prefix (the `tokenizers` package).
std::unique_ptr<Normalizer> make_precompiled_normalizer(std::string charsmap, bool longest);

std::string base64_decode(std::string_view text);  // throws Error(kInvalidArgument)

// Characters of the CJK ideograph blocks, which BERT surrounds with spaces.
bool is_bert_ideograph(char32_t c);

}  // namespace tokamak
