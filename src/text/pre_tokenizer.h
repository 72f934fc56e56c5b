#pragma once
// The pre-tokenizers of tokenizer.json: they split text into the words that the model encodes.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tokamak {

// A section of text and its words so far. Steps that only split adjust the spans; steps that change
// text build a new buffer.
struct Words {
  struct Span {
    size_t begin = 0, end = 0;
  };
  std::string_view text;  // the caller's, or `buffer`
  std::string buffer;
  std::vector<Span> spans;
  size_t first = 0;  // leading bytes that correspond to the first character of the whole text
  bool joined =
      false;  // it continues text that was split at bytes that are not UTF-8: no prefix here

  void start(std::string_view section, size_t first_bytes, bool is_joined) {
    text = section;
    first = first_bytes;
    joined = is_joined;
    spans.clear();
    if (!section.empty()) spans.push_back({0, section.size()});
  }
  std::vector<Span> spare;  // capacity for the next step
};

// Immutable, thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Words& words) const = 0;
};

struct PreTokenizerResult {
  std::unique_ptr<PreTokenizer> step;  // nullptr: none
  bool byte_level = false;             // the last step maps bytes to characters
};
// leave_bytes: the last byte-level step only splits; the model takes raw bytes. Throws
// kUnsupported.
PreTokenizerResult make_pre_tokenizer(const Value& config, bool leave_bytes);

}  // namespace tokamak
