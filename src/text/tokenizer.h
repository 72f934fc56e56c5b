#pragma once
// Text <-> token ids, for every tokenizer that TokenizerSpec can describe.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/tokenizer_spec.h"

namespace tokamak {

struct EncodeOptions {
  bool add_special = true;    // what the post-processor adds: BOS, EOS, [CLS] ...
  bool parse_special = true;  // "<|im_end|>" in the text becomes the control token
  // See Tokenizer::guard(): removed from the text, and no token is found across it. Empty: none.
  std::string_view guard = {};
};

struct DecodeOptions {
  bool skip_special = false;
  // false: the raw bytes of the tokens. true: valid UTF-8, with U+FFFD for invalid bytes.
  bool valid_utf8 = true;
  // Special tokens that are not skipped; sorted; must outlive the decoding.
  std::span<const int32_t> keep = {};
  // The text follows another one: the first token keeps a space that a text would not begin with.
  bool continues = false;
};

// Owner: the server of the model; share by const reference. Thread-safe after construction
// (workspaces with word caches are borrowed from a pool, two short locks per call). Construction
// takes about 100 ms for 256k pieces; encoding takes linear time. Any bytes may be encoded: invalid
// UTF-8 is passed to the model byte by byte.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerSpec spec);  // throws Error(kInvalidArgument / kUnsupported)
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
  // The text with marks in it. As a part of any text that is encoded with EncodeOptions::guard, it
  // gives no control token, and otherwise the same ids as without the marks. The mark must not
  // occur in the text, and normalizers must not change it: a letter of a script without cases.
  std::string guard(std::string_view text, std::string_view mark) const;
  std::string decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  int64_t vocab_size() const;
  int32_t bos_id() const;  // -1: none
  int32_t eos_id() const;
  int32_t pad_id() const;
  int32_t unk_id() const;
  bool is_eog(int32_t id) const;                      // generation ends here
  bool is_special(int32_t id) const;                  // control token
  bool has_text(std::span<const int32_t> ids) const;  // not only control tokens
  std::string_view piece(int32_t id) const;           // as in the vocabulary; empty: no such id
  int32_t find_piece(std::string_view piece) const;   // added tokens first; -1: none
  // The bytes a token stands for on its own (grammars, byte-wise logprobs): no first-token rules.
  std::string piece_bytes(int32_t id) const;
  const TokenizerSpec& spec() const;

 private:
  friend class Detokenizer;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak
