// WordPiece (greedy longest match, continuation pieces carry a prefix) and WordLevel (whole words).
#include "base/error.h"
#include "engine/text/flat_maps.h"
#include "engine/text/model.h"
#include "engine/text/unicode.h"
#include "engine/text/word_cache.h"

namespace tokamak {
namespace {

struct WordWorkspace final : ModelWorkspace {
  WordCache cache;
  std::string scratch;
};

class WordPieceModel final : public TokenModel {
 public:
  explicit WordPieceModel(const TokenizerSpec& spec) : spec_(spec) {
    map_.build(spec.pieces);
    for (const std::string& p : spec.pieces) longest_ = std::max(longest_, p.size());
  }

  std::unique_ptr<ModelWorkspace> make_workspace() const override {
    return std::make_unique<WordWorkspace>();
  }

  void encode_word(std::string_view word, ModelWorkspace& workspace,
                   std::vector<int32_t>& ids) const override {
    auto& w = static_cast<WordWorkspace&>(workspace);
    if (w.cache.get(word, ids)) return;
    const size_t start = ids.size();
    if (static_cast<int64_t>(utf8_length(word)) > spec_.max_word_chars || !split(word, w, ids)) {
      ids.resize(start);
      unknown(word, ids);
    }
    w.cache.put(word, ids.data() + start, ids.size() - start);
  }

  void encode_invalid(std::string_view bytes, ModelWorkspace&,
                      std::vector<int32_t>& ids) const override {
    unknown(bytes, ids);
  }

 private:
  void unknown(std::string_view word, std::vector<int32_t>& ids) const {
    if (spec_.unk_id < 0)
      fail(ErrorCode::kInvalidArgument,
           "the tokenizer has no token for \"{}\" and no unknown token", utf8_lossy(word));
    ids.push_back(spec_.unk_id);
  }

  bool split(std::string_view word, WordWorkspace& w, std::vector<int32_t>& ids) const {
    for (size_t start = 0; start < word.size();) {
      const std::string_view prefix = start > 0 ? std::string_view(spec_.continuing_prefix) : "";
      size_t end = std::min(word.size(), start + longest_);
      while (end < word.size() && is_utf8_continuation(word[end])) --end;
      int32_t id = -1;
      while (end > start) {
        w.scratch.assign(prefix).append(word.substr(start, end - start));
        id = map_.find(w.scratch);
        if (id >= 0) break;
        do --end;
        while (end > start && is_utf8_continuation(word[end]));
      }
      if (id < 0) return false;
      ids.push_back(id);
      start = end;
    }
    return true;
  }

  const TokenizerSpec& spec_;
  PieceMap map_;
  size_t longest_ = 0;
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
