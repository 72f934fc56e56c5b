#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace tokamak {

void AddedTokens::build(const std::vector<const AddedToken*>& tokens,
                        const std::function<std::string(const std::string&)>& spell) {
  tokens_ = tokens;
  spelled_.clear();
  for (const AddedToken* t : tokens) spelled_.push_back(spell(t->content));
  std::vector<std::pair<std::string_view, int32_t>> keys;
  // The trie keeps the last of equal keys, but the first one must win.
  for (size_t i = spelled_.size(); i-- > 0;)
    keys.emplace_back(spelled_[i], static_cast<int32_t>(i));
  trie_.build(std::move(keys));
  for (int b = 0; b < 256; ++b) first_byte_[b] = trie_.starts_with(static_cast<unsigned char>(b));
}

AddedTokens::Candidate AddedTokens::longest_at(std::string_view text, size_t pos) const {
  Candidate best;
  int32_t node = 0;
  for (size_t at = pos; at < text.size(); ++at) {
    node = trie_.step(node, static_cast<unsigned char>(text[at]));
    if (node < 0) break;
    if (trie_.value(node) >= 0) best = {trie_.value(node), at + 1};
  }
  return best;
}

// A special token starts here, or the text ends inside of a token.
bool AddedTokens::may_be_special(std::string_view text, size_t pos) const {
  int32_t node = 0;
  for (size_t at = pos; at < text.size(); ++at) {
    node = trie_.step(node, static_cast<unsigned char>(text[at]));
    if (node < 0) return false;
    if (trie_.value(node) >= 0 && tokens_[trie_.value(node)]->special) return true;
  }
  return trie_.value(node) < 0;
}

void AddedTokens::guard(std::string_view text, std::string_view mark, std::string& out) const {
  size_t done = 0;
  for (size_t pos = 0; !empty() && pos < text.size(); ++pos) {
    if (!first_byte_[static_cast<unsigned char>(text[pos])] || !may_be_special(text, pos)) continue;
    const size_t end = std::min<size_t>(pos + utf8_sequence_length(text[pos]), text.size());
    out.append(text, done, end - done);
    out += mark;
    done = end;
  }
  out.append(text, done);
}

namespace {

char32_t char_before(std::string_view text, size_t pos, size_t& start) {
  start = pos - 1;
  while (start > 0 && is_utf8_continuation(text[start])) --start;
  return utf8_decode(text, start).cp;
}

}  // namespace

void AddedTokens::split(std::string_view text, bool parse_special, std::vector<Part>& parts) const {
  size_t done = 0;
  for (size_t pos = 0; !empty() && pos < text.size();) {
    if (!first_byte_[static_cast<unsigned char>(text[pos])]) {
      ++pos;
      continue;
    }
    const Candidate found = longest_at(text, pos);
    if (found.token < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = *tokens_[found.token];
    size_t begin = pos, end = found.end, start = 0;
    pos = found.end;
    if (!parse_special && token.special) continue;
    if (token.single_word) {
      const bool left = begin > 0 && is_word(char_before(text, begin, start));
      const bool right = end < text.size() && is_word(utf8_decode(text, end).cp);
      if (left || right) continue;
    }
    if (token.lstrip) {
      while (begin > 0 && is_white_space(char_before(text, begin, start))) begin = start;
      begin = std::max(begin, done);
    }
    while (token.rstrip && end < text.size()) {
      const Utf8Char c = utf8_decode(text, end);
      if (!is_white_space(c.cp)) break;
      end += c.length;
    }
    if (done < begin) parts.push_back({done, begin, -1});
    // White space consumed by the previous token is no longer a token.
    if (begin < end) parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
}

}  // namespace tokamak
