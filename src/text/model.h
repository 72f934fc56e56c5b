#pragma once
// The model step of a tokenizer: one word (from the pre-tokenizer) -> ids.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan/tokenizer_spec.h"

namespace tokamak {

// An unk_id: the file names an unknown token that is not in the vocabulary. Text that needs it is
// rejected; with -1 (none named) unknown characters are dropped.
inline constexpr int32_t kMissingUnk = -2;

// Buffers of one encoding thread, for one model; borrowed from the tokenizer's pool.
class ModelWorkspace {
 public:
  virtual ~ModelWorkspace() = default;
};

// Immutable after construction, thread-safe. The spec must outlive it.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual std::unique_ptr<ModelWorkspace> make_workspace() const {
    return std::make_unique<ModelWorkspace>();
  }
  // Appends to ids. `word` is valid UTF-8, or any bytes if takes_bytes().
  virtual void encode_word(std::string_view word, ModelWorkspace& workspace,
                           std::vector<int32_t>& ids) const = 0;
  // Bytes that are not valid UTF-8.
  virtual void encode_invalid(std::string_view bytes, ModelWorkspace& workspace,
                              std::vector<int32_t>& ids) const = 0;
  // True: words are raw bytes, and the model performs the pre-tokenizer's byte-level step.
  virtual bool takes_bytes() const { return false; }
};

// byte_level: the pre-tokenizer maps bytes to characters as its last step.
std::unique_ptr<TokenModel> make_bpe_model(const TokenizerSpec& spec, bool byte_level);
std::unique_ptr<TokenModel> make_unigram_model(const TokenizerSpec& spec);
std::unique_ptr<TokenModel> make_wordpiece_model(const TokenizerSpec& spec);
std::unique_ptr<TokenModel> make_wordlevel_model(const TokenizerSpec& spec);

// The alphabet of byte-level BPE: every byte as a printable character.
int char_to_byte(char32_t c);  // -1: not in the alphabet
// Raw bytes of a byte-level piece; false if it has a character outside the alphabet.
bool unmap_bytes(std::string_view piece, std::string& bytes);
void map_bytes(std::string_view bytes, std::string& piece);
// "<0x0A>" -> 10; -1 if it is not a byte piece.
int byte_piece_value(std::string_view piece);
std::string byte_piece(int byte);

}  // namespace tokamak
