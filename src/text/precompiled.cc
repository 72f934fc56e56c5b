// SentencePiece's compiled character map: u32 size, a Darts-clone double array of that many bytes,
// then the replacement texts, each ended by a zero byte; the array's values are offsets into them.
#include <cstring>
#include <optional>

#include "base/error.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::string charsmap, bool longest) : longest_(longest) {
    if (charsmap.empty()) return;
    uint32_t bytes = 0;
    if (charsmap.size() < 4)
      fail(ErrorCode::kCorrupt, "precompiled character map: {} bytes", charsmap.size());
    std::memcpy(&bytes, charsmap.data(), 4);
    if (bytes % 4 != 0 || bytes > charsmap.size() - 4)
      fail(ErrorCode::kCorrupt,
           "precompiled character map: its trie has {} bytes, but the map has {}", bytes,
           charsmap.size());
    units_.resize(bytes / 4);
    if (bytes > 0) std::memcpy(units_.data(), charsmap.data() + 4, bytes);
    texts_ = charsmap.substr(4 + bytes);
  }

  // When the map drops a character, the next one takes its position.
  size_t apply_tracked(std::string& text, bool joined, size_t start) const override {
    const size_t size = Normalizer::apply_tracked(text, joined, start);
    return start > 0 && size == 0 && !text.empty() ? utf8_sequence_length(text[0]) : size;
  }
  void apply(std::string& text, bool) const override {
    if (units_.empty()) return;
    std::string out;
    out.reserve(text.size());
    if (longest_) {
      for (size_t pos = 0; pos < text.size();) {
        size_t used = 0;
        if (const auto found = find(std::string_view(text).substr(pos), true, used)) {
          out += *found;
        } else {
          used = utf8_decode(text, pos).length;
          out.append(text, pos, used);
        }
        pos += used;
      }
    } else {
      size_t start = 0;
      for (size_t end : grapheme_ends(text)) {
        cluster(std::string_view(text).substr(start, end - start), out);
        start = end;
      }
    }
    text.swap(out);
  }

 private:
  void cluster(std::string_view text, std::string& out) const {
    size_t used = 0;
    if (text.size() < 6)
      if (const auto found = find(text, false, used)) {
        out += *found;
        return;
      }
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = utf8_decode(text, pos).length;
      const std::string_view c = text.substr(pos, length);
      if (const auto found = find(c, false, used)) {
        out += *found;
      } else {
        out += c;
      }
      pos += length;
    }
  }

  // The replacement of the shortest or longest prefix of `text` in the trie.
  std::optional<std::string_view> find(std::string_view text, bool longest, size_t& used) const {
    const auto offset = [](uint32_t unit) { return unit >> 10 << ((unit & (1u << 9)) >> 6); };
    std::optional<std::string_view> best;
    size_t node = offset(units_[0]);
    for (size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      if (c == 0) break;
      node ^= c;
      if (node >= units_.size()) break;
      const uint32_t unit = units_[node];
      if ((unit & ((1u << 31) | 0xFF)) != c) break;  // the label; leaves have the top bit set
      node ^= offset(unit);
      if ((unit >> 8 & 1) == 0) continue;
      if (node >= units_.size()) break;
      const size_t at = units_[node] & ((1u << 31) - 1);
      if (at >= texts_.size()) break;
      best = std::string_view(texts_.data() + at, strnlen(texts_.data() + at, texts_.size() - at));
      used = i + 1;
      if (!longest) break;
    }
    return best;
  }

  bool longest_;
  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled_normalizer(std::string charsmap, bool longest) {
  return std::make_unique<Precompiled>(std::move(charsmap), longest);
}

std::string base64_decode(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    int v = -1;
    if (c >= 'A' && c <= 'Z') v = c - 'A';
    if (c >= 'a' && c <= 'z') v = c - 'a' + 26;
    if (c >= '0' && c <= '9') v = c - '0' + 52;
    if (c == '+') v = 62;
    if (c == '/') v = 63;
    if (c == '=') break;
    if (v < 0) fail(ErrorCode::kInvalidArgument, "base64 text has the character '{}'", c);
    bits = bits << 6 | static_cast<uint32_t>(v);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return out;
}

}  // namespace tokamak
