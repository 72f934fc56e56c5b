// Three kinds of BPE: over raw bytes (byte-level), over characters with byte fallback or an unknown
// token, and SentencePiece's, which merges by the score of the result.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "text/bpe_merge.h"
#include "text/flat_maps.h"
#include "text/model.h"
#include "text/unicode.h"
#include "text/word_cache.h"

namespace tokamak {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

struct BpeWorkspace final : ModelWorkspace {
  BpeMerger merger;
  WordCache cache;
  std::vector<int32_t> symbols;
  std::string scratch;
};

class BpeModel final : public TokenModel {
 public:
  BpeModel(const TokenizerSpec& spec, bool byte_level) : spec_(spec) {
    bytes_ = byte_level && spec.continuing_prefix.empty() && spec.word_suffix.empty() &&
             !spec.byte_fallback && !spec.merge_by_score;
    if (bytes_) {
      unmap_vocabulary();
    } else {
      map_.build(spec.pieces);
    }
    for (int b = 0; b < 256; ++b) byte_ids_[b] = map_.find(byte_piece(b));
    if (bytes_)
      for (int b = 0; b < 256; ++b) byte_ids_[b] = map_.find(std::string(1, static_cast<char>(b)));
    if (spec.merge_by_score) {
      merges_from_scores();
    } else {
      merges_.reserve(spec.merges.size());
      for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
        const BpeMerge& m = spec.merges[rank];
        merges_.insert(m.left, m.right, {static_cast<uint32_t>(rank), m.result});
      }
    }
    if (!bytes_) find_joints();
  }

  std::unique_ptr<ModelWorkspace> make_workspace() const override {
    return std::make_unique<BpeWorkspace>();
  }
  bool takes_bytes() const override { return bytes_; }

  void encode_word(std::string_view word, ModelWorkspace& workspace,
                   std::vector<int32_t>& ids) const override {
    auto& w = static_cast<BpeWorkspace&>(workspace);
    if (joints_known_ && word.size() > kMetaspace.size()) {
      encode_by_joints(word, w, ids);
    } else {
      encode_unit(word, w, ids);
    }
  }

  void encode_invalid(std::string_view bytes, ModelWorkspace& workspace,
                      std::vector<int32_t>& ids) const override {
    if (bytes_) return encode_word(bytes, workspace, ids);
    for (char b : bytes) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(b)];
      if (spec_.byte_fallback && id >= 0) {
        ids.push_back(id);
      } else if (has_unknown()) {
        ids.push_back(spec_.unk_id);
      }
    }
  }

 private:
  // Whether unknown characters become a token (otherwise they are dropped).
  bool has_unknown() const {
    if (spec_.unk_id == kMissingUnk)
      fail(ErrorCode::kInvalidArgument,
           "the text has a character that is not in the vocabulary, and neither is the "
           "tokenizer's unknown token");
    return spec_.unk_id >= 0;
  }

  // Vocabulary and words both as raw bytes: the same merges, without mapping bytes to characters.
  void unmap_vocabulary() {
    raw_pieces_.resize(spec_.pieces.size());
    for (size_t id = 0; id < raw_pieces_.size(); ++id)
      if (!unmap_bytes(spec_.pieces[id], raw_pieces_[id])) raw_pieces_[id].clear();
    map_.build(raw_pieces_);
  }

  // Every split of a piece into two others is a merge, ranked by the score of the piece. Characters
  // that are
  // not pieces get ids beyond the vocabulary.
  void merges_from_scores() {
    const std::vector<std::string>& pieces = spec_.pieces;
    const auto mergeable = [&](size_t id) {
      return !pieces[id].empty() &&
             !std::binary_search(spec_.unmergeable.begin(), spec_.unmergeable.end(),
                                 static_cast<int32_t>(id));
    };
    std::vector<double> order(spec_.scores);
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    struct Found {
      int32_t left, right, result;
      uint32_t rank;
    };
    std::vector<Found> found;
    const auto symbol = [&](std::string_view text) -> int32_t {
      const int32_t id = map_.find(text);
      if (id >= 0 && mergeable(static_cast<size_t>(id))) return id;
      if (text.size() != utf8_sequence_length(text[0])) return -1;
      return virtual_ids_
          .try_emplace(std::string(text), static_cast<int32_t>(pieces.size() + virtual_ids_.size()))
          .first->second;
    };
    for (size_t id = 0; id < pieces.size(); ++id) {
      const std::string_view piece = pieces[id];
      if (!mergeable(id) || map_.find(piece) != static_cast<int32_t>(id) || !utf8_is_valid(piece))
        continue;
      const auto rank = static_cast<uint32_t>(
          std::lower_bound(order.begin(), order.end(), spec_.scores[id], std::greater<>()) -
          order.begin());
      for (size_t cut = utf8_sequence_length(piece[0]); cut < piece.size();
           cut += utf8_sequence_length(piece[cut])) {
        const int32_t left = symbol(piece.substr(0, cut));
        const int32_t right = left < 0 ? -1 : symbol(piece.substr(cut));
        if (right >= 0) found.push_back({left, right, static_cast<int32_t>(id), rank});
      }
    }
    merges_.reserve(found.size());
    for (const Found& f : found) merges_.insert(f.left, f.right, {f.rank, f.result});
  }

  // Without a pre-tokenizer whole sections arrive here. If no piece contains "c▁", a word may be
  // split between
  // c and ▁ without changing the result, which keeps words short and the cache useful.
  void find_joints() {
    if (map_.find(kMetaspace) < 0 || !spec_.word_suffix.empty() ||
        !spec_.continuing_prefix.empty() || spec_.ignore_merges)
      return;
    // A character without a symbol would make its neighbours adjacent.
    const bool bytes_complete = std::count(byte_ids_.begin(), byte_ids_.end(), -1) == 0;
    if (spec_.unk_id == -1 && !spec_.merge_by_score && !(spec_.byte_fallback && bytes_complete))
      return;
    for (const BpeMerge& m : spec_.merges)
      for (int32_t side : {m.left, m.right})
        if (byte_piece_value(spec_.piece(side)) >= 0) return;
    for (const std::string& piece : spec_.pieces)
      for (size_t at = piece.find(kMetaspace, 1); at != std::string::npos;
           at = piece.find(kMetaspace, at + 1)) {
        size_t start = at - 1;
        while (start > 0 && is_utf8_continuation(piece[start])) --start;
        joints_.insert(utf8_decode(piece, start).cp);
      }
    joints_known_ = true;
  }

  void encode_by_joints(std::string_view word, BpeWorkspace& w, std::vector<int32_t>& ids) const {
    size_t begin = 0;
    for (size_t at = word.find(kMetaspace, 1); at != std::string_view::npos;
         at = word.find(kMetaspace, at + kMetaspace.size())) {
      size_t start = at - 1;
      while (start > 0 && is_utf8_continuation(word[start])) --start;
      if (joints_.contains(utf8_decode(word, start).cp)) continue;
      encode_unit(word.substr(begin, at - begin), w, ids);
      begin = at;
    }
    encode_unit(word.substr(begin), w, ids);
  }

  void encode_unit(std::string_view word, BpeWorkspace& w, std::vector<int32_t>& ids) const {
    if (w.cache.get(word, ids)) return;
    if (spec_.ignore_merges) {
      if (const int32_t id = map_.find(word); id >= 0) {
        ids.push_back(id);
        w.cache.put(word, &id, 1);
        return;
      }
    }
    w.symbols.clear();
    if (bytes_) {
      for (char b : word) add_byte(static_cast<unsigned char>(b), w.symbols);
    } else if (spec_.merge_by_score) {
      split_for_scores(word, w.symbols);
    } else {
      split_chars(word, w);
    }
    w.merger.merge(merges_, w.symbols);
    const size_t start = ids.size();
    if (spec_.merge_by_score) {
      emit_scored(word, w.symbols, ids);
    } else {
      ids.insert(ids.end(), w.symbols.begin(), w.symbols.end());
    }
    w.cache.put(word, ids.data() + start, ids.size() - start);
    if (w.symbols.capacity() > (size_t{1} << 18)) std::vector<int32_t>().swap(w.symbols);
  }

  void add_byte(unsigned char b, std::vector<int32_t>& symbols) const {
    if (byte_ids_[b] >= 0) {
      symbols.push_back(byte_ids_[b]);
    } else if (has_unknown() &&
               !(spec_.fuse_unk && !symbols.empty() && symbols.back() == spec_.unk_id)) {
      symbols.push_back(spec_.unk_id);
    }
  }

  void split_chars(std::string_view word, BpeWorkspace& w) const {
    bool unknown = false;  // an unknown is pending
    for (size_t pos = 0; pos < word.size();) {
      const size_t length = utf8_sequence_length(word[pos]);
      std::string_view c = word.substr(pos, length);
      const bool first = pos == 0, last = pos + length >= word.size();
      pos += length;
      if ((!first && !spec_.continuing_prefix.empty()) || (last && !spec_.word_suffix.empty())) {
        w.scratch = first ? "" : spec_.continuing_prefix;
        w.scratch += c;
        if (last) w.scratch += spec_.word_suffix;
        c = w.scratch;
      }
      if (const int32_t id = map_.find(c); id >= 0) {
        if (unknown) w.symbols.push_back(spec_.unk_id);
        unknown = false;
        w.symbols.push_back(id);
        continue;
      }
      if (spec_.byte_fallback && std::all_of(c.begin(), c.end(), [&](char b) {
            return byte_ids_[static_cast<unsigned char>(b)] >= 0;
          })) {
        for (char b : c) w.symbols.push_back(byte_ids_[static_cast<unsigned char>(b)]);
        continue;
      }
      if (!has_unknown()) continue;
      if (unknown && !spec_.fuse_unk) w.symbols.push_back(spec_.unk_id);
      unknown = true;
    }
    if (unknown) w.symbols.push_back(spec_.unk_id);
  }

  // Unknown characters stay distinct: -1 - code point if no merge uses them.
  void split_for_scores(std::string_view word, std::vector<int32_t>& symbols) const {
    for (size_t pos = 0; pos < word.size();) {
      const Utf8Char c = utf8_decode(word, pos);
      const std::string_view text = word.substr(pos, c.length);
      pos += c.length;
      const int32_t id = map_.find(text);
      if (id >= 0 && !std::binary_search(spec_.unmergeable.begin(), spec_.unmergeable.end(), id)) {
        symbols.push_back(id);
      } else if (const auto found = virtual_ids_.find(std::string(text));
                 found != virtual_ids_.end()) {
        symbols.push_back(found->second);
      } else {
        symbols.push_back(-1 - static_cast<int32_t>(c.cp));
      }
    }
  }

  void emit_scored(std::string_view word, const std::vector<int32_t>& symbols,
                   std::vector<int32_t>& ids) const {
    size_t pos = 0;  // in word; only non-pieces need their text
    const auto known = static_cast<int32_t>(spec_.pieces.size());
    for (int32_t s : symbols) {
      if (s >= 0 && s < known) {
        ids.push_back(s);
        pos += spec_.pieces[s].size();
        continue;
      }
      const size_t length = utf8_decode(word, pos).length;
      for (char b : word.substr(pos, length)) {
        const int32_t id = byte_ids_[static_cast<unsigned char>(b)];
        if (id >= 0) {
          ids.push_back(id);
        } else {
          if (spec_.unk_id >= 0) ids.push_back(spec_.unk_id);
          break;
        }
      }
      pos += length;
    }
  }

  const TokenizerSpec& spec_;
  bool bytes_ = false;
  std::vector<std::string> raw_pieces_;
  PieceMap map_;
  MergeMap merges_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t> virtual_ids_;
  bool joints_known_ = false;
  std::unordered_set<char32_t> joints_;
};

}  // namespace

std::unique_ptr<TokenModel> make_bpe_model(const TokenizerSpec& spec, bool byte_level) {
  return std::make_unique<BpeModel>(spec, byte_level);
}

}  // namespace tokamak
