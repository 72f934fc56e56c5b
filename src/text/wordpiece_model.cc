// WordPiece (greedy longest match, continuation pieces carry a prefix) and WordLevel (whole words).
#include <algorithm>

#include "base/error.h"
#include "text/byte_trie.h"
#include "text/flat_maps.h"
#include "text/model.h"
#include "text/unicode.h"
#include "text/word_cache.h"

namespace tokamak {
namespace {

struct WordWorkspace final : ModelWorkspace {
  WordCache cache;
};

// Pieces are matched as bytes: UTF-8 pieces match only whole characters, and a vocabulary of
// arbitrary bytes (RWKV's) works as well.
class WordPieceModel final : public TokenModel {
 public:
  explicit WordPieceModel(const TokenizerSpec& spec) : spec_(spec) {
    const std::string_view prefix = spec.continuing_prefix;
    std::vector<std::pair<std::string_view, int32_t>> all, rest;
    for (size_t i = 0; i < spec.pieces.size(); ++i) {
      const std::string_view piece = spec.pieces[i];
      const auto id = static_cast<int32_t>(i);
      if (std::binary_search(spec.unmergeable.begin(), spec.unmergeable.end(), id)) continue;
      all.emplace_back(piece, id);
      if (!prefix.empty() && piece.starts_with(prefix))
        rest.emplace_back(piece.substr(prefix.size()), id);
    }
    first_.build(std::move(all));
    if (!prefix.empty()) rest_.build(std::move(rest));
  }

  std::unique_ptr<ModelWorkspace> make_workspace() const override {
    return std::make_unique<WordWorkspace>();
  }

  void encode_word(std::string_view word, ModelWorkspace& workspace,
                   std::vector<int32_t>& ids) const override {
    auto& w = static_cast<WordWorkspace&>(workspace);
    if (w.cache.get(word, ids)) return;
    const size_t start = ids.size();
    if (static_cast<int64_t>(utf8_length(word)) > spec_.max_word_chars || !split(word, ids)) {
      ids.resize(start);
      unknown(word, ids);
    }
    w.cache.put(word, ids.data() + start, ids.size() - start);
  }

  void encode_invalid(std::string_view bytes, ModelWorkspace& workspace,
                      std::vector<int32_t>& ids) const override {
    encode_word(bytes, workspace, ids);
  }

 private:
  void unknown(std::string_view word, std::vector<int32_t>& ids) const {
    if (spec_.unk_id < 0)
      fail(ErrorCode::kInvalidArgument,
           "the tokenizer has no token for \"{}\" and no unknown token", utf8_lossy(word));
    ids.push_back(spec_.unk_id);
  }

  bool split(std::string_view word, std::vector<int32_t>& ids) const {
    for (size_t start = 0; start < word.size();) {
      const ByteTrie& trie = start > 0 && !spec_.continuing_prefix.empty() ? rest_ : first_;
      int32_t id = -1, node = 0;
      size_t end = start;
      for (size_t at = start; !trie.empty() && at < word.size(); ++at) {
        node = trie.step(node, static_cast<unsigned char>(word[at]));
        if (node < 0) break;
        if (trie.value(node) < 0) continue;
        id = trie.value(node);
        end = at + 1;
      }
      if (id < 0) return false;
      ids.push_back(id);
      start = end;
    }
    return true;
  }

  const TokenizerSpec& spec_;
  ByteTrie first_,
      rest_;  // pieces at the start of a word; continuation pieces, without their prefix
};

class WordLevelModel final : public TokenModel {
 public:
  explicit WordLevelModel(const TokenizerSpec& spec) : spec_(spec) { map_.build(spec.pieces); }

  void encode_word(std::string_view word, ModelWorkspace& workspace,
                   std::vector<int32_t>& ids) const override {
    if (const int32_t id = map_.find(word); id >= 0) {
      ids.push_back(id);
    } else {
      encode_invalid(word, workspace, ids);
    }
  }
  void encode_invalid(std::string_view bytes, ModelWorkspace&,
                      std::vector<int32_t>& ids) const override {
    if (spec_.unk_id < 0)
      fail(ErrorCode::kInvalidArgument,
           "the tokenizer has no token for \"{}\" and no unknown token", utf8_lossy(bytes));
    ids.push_back(spec_.unk_id);
  }

 private:
  const TokenizerSpec& spec_;
  PieceMap map_;
};

}  // namespace

std::unique_ptr<TokenModel> make_wordpiece_model(const TokenizerSpec& spec) {
  return std::make_unique<WordPieceModel>(spec);
}
std::unique_ptr<TokenModel> make_wordlevel_model(const TokenizerSpec& spec) {
  return std::make_unique<WordLevelModel>(spec);
}

}  // namespace tokamak
