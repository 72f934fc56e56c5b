// Unigram: the segmentation with the best sum of scores (Viterbi over a trie of the pieces).
#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "text/byte_trie.h"
#include "text/flat_maps.h"
#include "text/model.h"
#include "text/unicode.h"
#include "text/word_cache.h"

namespace tokamak {
namespace {

constexpr double kUnknownPenalty = 10.0;

struct UnigramWorkspace final : ModelWorkspace {
  struct Node {
    double score = 0;
    int32_t id = -1;
    uint32_t start = UINT32_MAX;  // of the piece that ends here on the best path
  };
  WordCache cache;
  std::vector<Node> nodes;
  std::vector<std::pair<uint32_t, uint32_t>> path;
};

class UnigramModel final : public TokenModel {
 public:
  explicit UnigramModel(const TokenizerSpec& spec) : spec_(spec) {
    if (spec.scores.size() != spec.pieces.size())
      fail(ErrorCode::kInvalidArgument, "unigram vocabulary: {} scores for {} pieces",
           spec.scores.size(), spec.pieces.size());
    map_.build(spec.pieces);
    std::vector<std::pair<std::string_view, int32_t>> keys;
    double lowest = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < spec.pieces.size(); ++id) {
      lowest = std::min(lowest, spec.scores[id]);
      if (!std::binary_search(spec.unmergeable.begin(), spec.unmergeable.end(),
                              static_cast<int32_t>(id)))
        keys.emplace_back(spec.pieces[id], static_cast<int32_t>(id));
    }
    unknown_score_ = lowest - kUnknownPenalty;
    trie_.build(std::move(keys));
    for (int b = 0; b < 256; ++b) byte_ids_[b] = map_.find(byte_piece(b));
  }

  std::unique_ptr<ModelWorkspace> make_workspace() const override {
    return std::make_unique<UnigramWorkspace>();
  }

  void encode_word(std::string_view word, ModelWorkspace& workspace,
                   std::vector<int32_t>& ids) const override {
    auto& w = static_cast<UnigramWorkspace&>(workspace);
    if (w.cache.get(word, ids)) return;
    forward(word, w);
    backward(word, w);
    const size_t start = ids.size();
    for (const auto& [begin, end] : w.path) emit(word.substr(begin, end - begin), ids);
    w.cache.put(word, ids.data() + start, ids.size() - start);
    if (w.nodes.capacity() > (size_t{1} << 18)) std::vector<UnigramWorkspace::Node>().swap(w.nodes);
  }

  void encode_invalid(std::string_view bytes, ModelWorkspace&,
                      std::vector<int32_t>& ids) const override {
    if (spec_.byte_fallback && add_bytes(bytes, ids)) return;
    if (spec_.unk_id >= 0) ids.push_back(spec_.unk_id);
  }

 private:
  void forward(std::string_view word, UnigramWorkspace& w) const {
    w.nodes.assign(word.size() + 1, {});
    const auto offer = [&](size_t start, size_t end, int32_t id, double score) {
      UnigramWorkspace::Node& node = w.nodes[end];
      if (node.start != UINT32_MAX && score <= node.score) return;
      node = {score, id, static_cast<uint32_t>(start)};
    };
    for (size_t start = 0; start < word.size();) {
      const double here = w.nodes[start].score;
      const size_t length = utf8_sequence_length(word[start]);
      bool covered = false;  // some piece is exactly this character
      int32_t node = 0;
      for (size_t at = start; !trie_.empty() && at < word.size(); ++at) {
        node = trie_.step(node, static_cast<unsigned char>(word[at]));
        if (node < 0) break;
        const int32_t id = trie_.value(node);
        if (id < 0) continue;
        offer(start, at + 1, id, here + spec_.scores[id]);
        covered |= at + 1 - start == length;
      }
      if (!covered) offer(start, start + length, spec_.unk_id, here + unknown_score_);
      start += length;
    }
  }

  void backward(std::string_view word, UnigramWorkspace& w) const {
    w.path.clear();
    bool open = false;  // an unknown token that may extend to the left
    for (auto end = static_cast<uint32_t>(word.size()); end > 0;) {
      const UnigramWorkspace::Node& node = w.nodes[end];
      const bool unknown = spec_.fuse_unk && spec_.unk_id >= 0 && node.id == spec_.unk_id;
      if (unknown && open) {
        w.path.back().first = node.start;
      } else {
        w.path.emplace_back(node.start, end);
      }
      open = unknown;
      end = node.start;
    }
    std::reverse(w.path.begin(), w.path.end());
  }

  void emit(std::string_view text, std::vector<int32_t>& ids) const {
    const int32_t id = map_.find(text);
    if (id >= 0 && !std::binary_search(spec_.unmergeable.begin(), spec_.unmergeable.end(), id)) {
      ids.push_back(id);
    } else if (spec_.byte_fallback && add_bytes(text, ids)) {
      return;
    } else if (spec_.unk_id >= 0) {
      ids.push_back(spec_.unk_id);
    } else {
      fail(ErrorCode::kInvalidArgument,
           "the tokenizer has no token for \"{}\" and no unknown token", text);
    }
  }

  bool add_bytes(std::string_view text, std::vector<int32_t>& ids) const {
    for (char b : text)
      if (byte_ids_[static_cast<unsigned char>(b)] < 0) return false;
    for (char b : text) ids.push_back(byte_ids_[static_cast<unsigned char>(b)]);
    return true;
  }

  const TokenizerSpec& spec_;
  PieceMap map_;
  ByteTrie trie_;
  double unknown_score_ = 0;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram_model(const TokenizerSpec& spec) {
  return std::make_unique<UnigramModel>(spec);
}

}  // namespace tokamak
