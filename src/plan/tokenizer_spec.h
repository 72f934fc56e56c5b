#pragma once
// A tokenizer as plain data: what the importers read from a file, what a bundle stores and what
// text runs. One normal form for all sources: the pipeline of a tokenizer.json
//   text -> added tokens -> normalizer -> pre_tokenizer -> model -> post_processor -> ids
// and ids -> pieces -> decoder -> text. Vocabularies from GGUF metadata are written as such a
// pipeline.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/value.h"

namespace tokamak {

enum class TokenizerModel { kBpe, kUnigram, kWordPiece, kWordLevel };

// A token that is found in the text before anything else looks at it.
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;  // control token: not parsed and not printed on request
  bool lstrip = false;   // takes the white space on its left with it
  bool rstrip = false;
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // searched in the normalised text (and itself normalised)
  bool operator==(const AddedToken&) const = default;
};

// Merges are tried in the order of the list: the index is the rank.
struct BpeMerge {
  int32_t left = -1, right = -1, result = -1;
  bool operator==(const BpeMerge&) const = default;
};

struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::kBpe;

  // The model's vocabulary as the model spells it (byte-level BPE: mapped characters), index = id.
  // An empty string is an id without a piece. Added tokens may lie beyond the end.
  std::vector<std::string> pieces;
  std::vector<double> scores;  // unigram, and BPE with merge_by_score; else empty
  std::vector<BpeMerge> merges;

  int32_t unk_id = -1;
  bool byte_fallback = false;  // what no piece covers becomes <0xXX> pieces
  bool ignore_merges = false;  // a whole word that is a piece is taken at once
  bool fuse_unk = false;       // neighbouring unknowns become one
  bool merge_by_score =
      false;  // SentencePiece BPE: best-scored concatenation first; merges is empty
  std::string continuing_prefix;  // "##" (WordPiece)
  std::string word_suffix;        // "</w>" (BPE)
  int64_t max_word_chars = 100;   // WordPiece: longer words are unknown
  // Pieces that text never becomes (control tokens, byte pieces) when merging by score; sorted ids.
  std::vector<int32_t> unmergeable;

  // As in tokenizer.json ({"type": "NFC"}, ...); null = none.
  Value normalizer, pre_tokenizer, post_processor, decoder;
  std::vector<AddedToken> added_tokens;

  int32_t bos_id = -1, eos_id = -1, eot_id = -1, pad_id = -1, sep_id = -1, cls_id = -1,
          mask_id = -1;
  std::vector<int32_t> eog_ids;           // generation ends at any of these; sorted
  bool add_bos = false, add_eos = false;  // for information: post_processor does it

  std::string chat_template;  // the default one; empty = none
  std::vector<std::pair<std::string, std::string>> named_templates;  // "tool_use", "rag", ...

  // Number of ids: pieces and added tokens.
  int64_t vocab_size() const;
  // The piece or added token of an id; empty when there is none.
  std::string_view piece(int32_t id) const;

  bool operator==(const TokenizerSpec&) const = default;
};

// Byte form for bundles. parse checks everything and throws Error(kCorrupt).
std::string serialize_tokenizer(const TokenizerSpec& spec);
TokenizerSpec parse_tokenizer(std::string_view bytes);

}  // namespace tokamak
