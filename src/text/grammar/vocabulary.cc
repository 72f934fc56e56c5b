#include "text/grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

constexpr size_t kGroupEnds[kLengthGroups] = {1,  2,  3,  4,  5,  6,  7,  8,  9,       10,
                                              11, 12, 13, 14, 15, 16, 24, 32, SIZE_MAX};

// 0: not only plain characters.
size_t plain_characters(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) {
    Utf8Char c = utf8_decode(text, pos);
    if (!c.valid || !is_plain(c.cp)) return 0;
    pos += c.length;
  }
  return count;
}

bool is_word(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z');
  });
}

}  // namespace

size_t longest_of_group(size_t group) { return kGroupEnds[group - 1]; }

size_t length_group(size_t characters) {
  size_t group = 1;
  while (kGroupEnds[group - 1] < characters) ++group;
  return group;
}

void Trie::add(std::string_view text, int32_t id) {
  size_t common = 0;
  deepest = std::max(deepest, text.size());
  while (common < path_.size() && common < text.size() &&
         byte[path_[common]] == static_cast<uint8_t>(text[common]))
    ++common;
  while (path_.size() > common) {
    end[path_.back()] = static_cast<uint32_t>(size());
    path_.pop_back();
  }
  for (size_t i = common; i < text.size(); ++i) {
    path_.push_back(static_cast<uint32_t>(size()));
    byte.push_back(static_cast<uint8_t>(text[i]));
    depth.push_back(static_cast<uint16_t>(i));
    end.push_back(0);
    token.push_back(-1);
  }
  if (!path_.empty()) token[path_.back()] = id;
}

void Trie::finish() {
  for (uint32_t node : path_) end[node] = static_cast<uint32_t>(size());
  path_ = {};
}

Vocabulary::Vocabulary(const std::vector<std::string>& tokens) {
  offsets_.push_back(0);
  for (const std::string& token : tokens) {
    if (token.size() <= kMaxTokenBytes) text_ += token;
    offsets_.push_back(static_cast<uint32_t>(text_.size()));
  }
  build();
}

Vocabulary::Vocabulary(const Tokenizer& tokenizer) {
  offsets_.push_back(0);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string token = tokenizer.piece_bytes(id);
    const bool control = tokenizer.is_special(id);
    const bool usable = control || token.find(kControlByte) == token.npos;
    if (usable && !tokenizer.is_eog(id) && !token.empty() && token.size() < kMaxTokenBytes) {
      if (control) text_ += kControlByte;
      text_ += token;
    }
    offsets_.push_back(static_cast<uint32_t>(text_.size()));
  }
  build();
}

void Vocabulary::build() {
  std::vector<int32_t>& order = sorted_;
  order.resize(size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    int difference = bytes(a).compare(bytes(b));
    return difference != 0 ? difference < 0 : a < b;
  });
  for (int32_t id : order) {
    auto quotes = std::count(bytes(id).begin(), bytes(id).end(), '"');
    if (quotes > 0) quotes_.push_back(id);
    if (quotes > 1) several_quotes_.push_back(id);
  }
  next_same_.assign(size(), -1);
  tries_.resize(kTries);
  plain_masks_.assign(kLengthGroups, std::vector<uint32_t>(words(), 0));
  word_masks_ = plain_masks_;
  for (size_t i = 0; i < order.size();) {
    int32_t id = order[i];
    std::string_view text = bytes(id);
    size_t first = i;
    for (++i; i < order.size() && bytes(order[i]) == text; ++i)
      next_same_[static_cast<size_t>(order[i - 1])] = order[i];
    if (text.empty()) continue;
    size_t characters = plain_characters(text);
    size_t group = characters == 0 ? 0 : length_group(characters);
    bool word = group > 0 && is_word(text);
    tries_[word ? kLengthGroups + group : group].add(text, id);
    for (size_t g = group; g > 0 && g <= kLengthGroups; ++g)
      for (size_t k = first; k < i; ++k) {
        set_bit(plain_masks_[g - 1], order[k]);
        if (word) set_bit(word_masks_[g - 1], order[k]);
      }
  }
  for (uint32_t index = 0; index < kTries; ++index) {
    Trie& trie = tries_[index];
    trie.finish();
    for (uint32_t node = 0; node < trie.size(); node = trie.end[node])
      roots_[trie.byte[node]].push_back({index, node});
  }
  auto first =
      std::find_if(order.begin(), order.end(), [&](int32_t id) { return !bytes(id).empty(); });
  const std::span<const int32_t> texts(first, order.end());
  auto text_of = [&](int32_t id) { return bytes(id); };
  word_shapes_.emplace(TokenShapes::Kind::kWords, texts, text_of);
  plain_shapes_.emplace(TokenShapes::Kind::kPlain, texts, text_of);
}

}  // namespace tokamak::grammar
