// Any bytes through a byte-level and a SentencePiece tokenizer: they round-trip, and streaming
// gives the same result. The first byte also selects ids to decode that no text produces.
#include <cstdint>
#include <string>

#include "base/json.h"
#include "tests/fuzz/fuzzer.h"
#include "text/detokenizer.h"
#include "text/model.h"

using namespace tokamak;

namespace {

TokenizerSpec byte_level() {
  TokenizerSpec spec;
  for (int b = 0; b < 256; ++b)
    map_bytes(std::string(1, static_cast<char>(b)), spec.pieces.emplace_back());
  for (const auto& [a, b] :
       {std::pair{' ', 't'}, {'h', 'e'}, {'a', 'a'}, {'\n', '\n'}, {'\xE4', '\xBD'}}) {
    const int32_t left = static_cast<unsigned char>(a), right = static_cast<unsigned char>(b);
    spec.pieces.push_back(spec.pieces[left] + spec.pieces[right]);
    spec.merges.push_back({left, right, static_cast<int32_t>(spec.pieces.size()) - 1});
  }
  spec.added_tokens = {{static_cast<int32_t>(spec.pieces.size()), "<s>", true}};
  spec.pre_tokenizer = parse_json(R"({"type": "ByteLevel", "add_prefix_space": false})");
  spec.decoder = parse_json(R"({"type": "ByteLevel"})");
  return spec;
}

TokenizerSpec sentence_piece() {
  TokenizerSpec spec;
  spec.merge_by_score = spec.byte_fallback = true;
  for (int b = 0; b < 256; ++b) {
    spec.unmergeable.push_back(b);
    spec.pieces.push_back(byte_piece(b));
  }
  for (const char* p : {"\xE2\x96\x81", "a", "b", "aa", "ab", "aab",
                        "\xE2\x96\x81"
                        "a",
                        "\xE4\xBD\xA0"})
    spec.pieces.push_back(p);
  for (size_t i = 0; i < spec.pieces.size(); ++i)
    spec.scores.push_back(-static_cast<double>(i % 7));
  spec.normalizer =
      parse_json(R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})");
  spec.decoder = parse_json(
      R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}]})");
  return spec;
}

void stream_equals_whole(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer stream(tokenizer);
  std::string joined;
  for (int32_t id : ids) joined += stream.push(id);
  fail_if(joined + stream.finish() != tokenizer.decode(ids));
}

}  // namespace

TK_FUZZER(tokenize) {
  static const Tokenizer tokenizers[] = {Tokenizer(byte_level()), Tokenizer(sentence_piece())};
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const Tokenizer& tokenizer : tokenizers) {
    const std::vector<int32_t> ids = tokenizer.encode(text, {false, size % 2 == 0});
    // U+2581 in the text cannot be distinguished from a space afterwards.
    if (text.find("\xE2\x96\x81") == std::string::npos)
      fail_if(tokenizer.decode(ids, {false, false}) != text);
    stream_equals_whole(tokenizer, ids);
    std::vector<int32_t> any;
    for (uint8_t byte : text)
      any.push_back((byte * 5 + 3) % static_cast<int32_t>(tokenizer.vocab_size() + 2));
    stream_equals_whole(tokenizer, any);
  }
  return 0;
}
