#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "compile/import/tokenizer_json.h"
#include "text/bpe_merge.h"
#include "text/chat_guard.h"
#include "text/detokenizer.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

// Byte-level BPE: 256 bytes, "aa".."a*16", " the" and an added token.
TokenizerSpec byte_level() {
  TokenizerSpec spec;
  for (int b = 0; b < 256; ++b) {
    std::string piece;
    map_bytes(std::string(1, static_cast<char>(b)), piece);
    spec.pieces.push_back(piece);
  }
  const auto merge = [&](int32_t a, int32_t b) {
    spec.pieces.push_back(spec.pieces[a] + spec.pieces[b]);
    spec.merges.push_back({a, b, static_cast<int32_t>(spec.pieces.size()) - 1});
    return static_cast<int32_t>(spec.pieces.size()) - 1;
  };
  int32_t run = merge('a', 'a');
  for (int i = 0; i < 3; ++i) run = merge(run, run);
  merge(merge(' ', 't'), merge('h', 'e'));
  const auto end = static_cast<int32_t>(spec.pieces.size());
  spec.added_tokens = {{end, "<|end|>", true}, {end + 1, "<tool>", false}};
  spec.eog_ids = {end};
  spec.pre_tokenizer =
      parse_json(R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})");
  spec.decoder = parse_json(R"({"type": "ByteLevel"})");
  return spec;
}

// SentencePiece BPE with byte pieces, as GGUF files describe it.
TokenizerSpec sentence_piece() {
  TokenizerSpec spec;
  spec.merge_by_score = spec.byte_fallback = true;
  const auto add = [&](std::string piece, double score) {
    spec.pieces.push_back(std::move(piece));
    spec.scores.push_back(score);
  };
  add("<unk>", 0);
  add("<s>", 0);
  for (int b = 0; b < 256; ++b) add(byte_piece(b), 0);
  for (size_t i = 0; i < spec.pieces.size(); ++i)
    spec.unmergeable.push_back(static_cast<int32_t>(i));
  const char* const pieces[] = {
      "\xE2\x96\x81", "h", "e", "l", "o", "he", "ll", "lo", "hell", "hello", "\xE2\x96\x81hello"};
  double score = -1;
  for (const char* p : pieces) add(p, score -= 1);
  spec.unk_id = 0;
  spec.added_tokens = {{1, "<s>", true}};
  spec.normalizer = parse_json(
      R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})");
  spec.decoder = parse_json(
      R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  return spec;
}

std::string random_bytes(std::mt19937& rng, size_t size, bool utf8) {
  std::string out;
  while (out.size() < size) {
    if (!utf8) {
      out += static_cast<char>(rng() % 4 ? rng() % 256 : 'a');
      continue;
    }
    static constexpr char32_t kTops[] = {0x80, 0x800, 0x10000, 0x110000};
    const char32_t c = rng() % kTops[rng() % 4];
    if (c < 0xD800 || c > 0xDFFF) utf8_append(out, c);
  }
  return out;
}

TEST(Tokenizer, RoundTripsAnyBytes) {
  const Tokenizer tokenizers[] = {Tokenizer(byte_level()), Tokenizer(sentence_piece())};
  std::mt19937 rng(1);
  for (const Tokenizer& t : tokenizers)
    for (int round = 0; round < 400; ++round) {
      const std::string text = random_bytes(rng, rng() % 60, round % 2);
      const std::vector<int32_t> ids = t.encode(text, {false, false});
      EXPECT_EQ(t.decode(ids, {false, false}), text);
      if (round % 2) {
        EXPECT_EQ(t.decode(ids), text);
      }
    }
}

TEST(Tokenizer, StreamEqualsWholeForAnyIds) {
  const Tokenizer tokenizers[] = {Tokenizer(byte_level()), Tokenizer(sentence_piece())};
  std::mt19937 rng(2);
  for (const Tokenizer& t : tokenizers)
    for (int round = 0; round < 1000; ++round) {
      std::vector<int32_t> ids;
      for (size_t i = rng() % 20; i > 0; --i)
        ids.push_back(static_cast<int32_t>(rng() % (t.vocab_size() + 2)) - 1);
      for (bool skip : {false, true}) {
        Detokenizer stream(t, {skip, true});
        std::string joined;
        for (int32_t id : ids) {
          const std::string part = stream.push(id);
          EXPECT_TRUE(utf8_is_valid(part));
          joined += part;
        }
        joined += stream.finish();
        EXPECT_EQ(joined, t.decode(ids, {skip, true}));
      }
    }
}

TEST(Tokenizer, TextThatContinuesAnotherKeepsItsSpace) {
  const Tokenizer tokenizers[] = {Tokenizer(byte_level()), Tokenizer(sentence_piece())};
  std::mt19937 rng(3);
  for (const Tokenizer& t : tokenizers)
    for (int round = 0; round < 1000; ++round) {
      // Not of byte pieces: an invalid byte after them would make them invalid too.
      const std::vector<int32_t> first = t.encode("hello", {.add_special = false});
      std::vector<int32_t> ids, both = first;
      for (size_t i = rng() % 20; i > 0; --i)
        ids.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(t.vocab_size())));
      both.insert(both.end(), ids.begin(), ids.end());
      const DecodeOptions options{.continues = true};
      EXPECT_EQ("hello" + t.decode(ids, options), t.decode(both));
      Detokenizer stream(t, options);
      std::string joined;
      for (int32_t id : ids) joined += stream.push(id);
      EXPECT_EQ(joined + stream.finish(), t.decode(ids, options));
    }
}

TEST(Tokenizer, SpecialTokens) {
  const Tokenizer t(byte_level());
  const int32_t end = t.find_piece("<|end|>");
  EXPECT_EQ(t.encode("a<|end|>"), (std::vector<int32_t>{'a', end}));
  EXPECT_EQ(t.encode("<|end|>", {true, false}).size(), 7u);
  EXPECT_EQ(t.encode("<tool>", {true, false}), (std::vector<int32_t>{end + 1}));
  EXPECT_TRUE(t.is_eog(end));
  EXPECT_TRUE(t.is_special(end));
  EXPECT_EQ(t.decode(std::vector<int32_t>{'a', end, 'b'}, {true, true}), "ab");
  EXPECT_EQ(t.piece_bytes(t.find_piece("\xC4\xA0the")), " the");
  EXPECT_EQ(Tokenizer(sentence_piece()).piece_bytes(2 + 10), "\n");
}

TEST(Tokenizer, LongRunsAreLinear) {
  const Tokenizer tokenizers[] = {Tokenizer(byte_level()), Tokenizer(sentence_piece())};
  for (const Tokenizer& t : tokenizers)
    for (const char* unit : {"a", " ", "\xF0\x9F\x98\x80", "hello", "\n "}) {
      std::string text;
      while (text.size() < 300000) text += unit;
      const std::vector<int32_t> ids = t.encode(text, {false, true});
      EXPECT_EQ(t.decode(ids), text);
    }
  // 16 at a time.
  EXPECT_EQ(tokenizers[0].encode(std::string(160000, 'a')).size(), 10000u);
}

TEST(Tokenizer, ThreadsShareOne) {
  const Tokenizer t(byte_level());
  const std::vector<int32_t> want = t.encode("aaaa the the <|end|> aaaaaaa");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        EXPECT_EQ(t.encode("aaaa the the <|end|> aaaaaaa"), want);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Bpe, LongWordsMergeLikeShortOnes) {
  // Ranks in any order, including merges that create a better candidate.
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    MergeMap merges;
    merges.reserve(64);
    for (int32_t id = 4; id < 24; ++id)
      merges.insert(static_cast<int32_t>(rng() % id), static_cast<int32_t>(rng() % id),
                    {static_cast<uint32_t>(rng() % 40), id});
    std::vector<int32_t> word;
    for (int i = 0; i < 200; ++i) word.push_back(static_cast<int32_t>(rng() % 4));
    std::vector<int32_t> slow = word;
    while (true) {  // the definition
      size_t best = 0;
      uint32_t rank = MergeMap::kNone;
      for (size_t i = 0; i + 1 < slow.size(); ++i)
        if (const auto m = merges.find(slow[i], slow[i + 1]); m.rank < rank) {
          rank = m.rank;
          best = i;
        }
      if (rank == MergeMap::kNone) break;
      slow[best] = merges.find(slow[best], slow[best + 1]).result;
      slow.erase(slow.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    BpeMerger merger;
    merger.merge(merges, word);
    EXPECT_EQ(word, slow);
  }
}

TEST(Normalizer, BertDropsControlsAndKeepsUnassigned) {
  std::string text = "a\xC2\x85\xE2\x80\x8B\xEE\x80\x80\x01🫩\xF0\x9F\xBB\xBF";
  make_normalizer(parse_json(R"({"type": "BertNormalizer"})"))->apply(text, false);
  EXPECT_EQ(text, "a🫩\xF0\x9F\xBB\xBF");
  text = "\u0301\u08D4a\u07FDb\u1734\u0890";  // U+08D4 and U+07FD are too new for its tables
  make_normalizer(parse_json(R"({"type": "BertNormalizer"})"))->apply(text, false);
  EXPECT_EQ(text, "\u08D4a\u07FDb\u0890");
  text = "\u0301\u08D4\u07FDꟌ꟎";
  make_normalizer(parse_json(R"({"type": "StripAccents"})"))->apply(text, false);
  make_normalizer(parse_json(R"({"type": "Lowercase"})"))->apply(text, false);
  EXPECT_EQ(text, "\u07FDꟍ꟏");
}

// U+32FF and U+1F16C decompose since Unicode 12 and 13.
TEST(Normalizer, FormsAreThoseOfTheVocabularies) {
  const auto apply = [](const char* form, std::string text) {
    make_normalizer(Value(Value::Object{{"type", form}}))->apply(text, false);
    return text;
  };
  EXPECT_EQ(apply("NFKC", "①㋿e\xCC\x81①\xF0\x9F\x85\xAC"), "1㋿é1\xF0\x9F\x85\xAC");
  EXPECT_EQ(apply("NFKD", "㋿é㋾"), "㋿e\xCC\x81ヲ");
  EXPECT_EQ(apply("NFKC", ""), "");
}

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  std::vector<std::string> out;
  Regex(pattern).for_each(
      text, [&](Regex::Match m) { out.emplace_back(text.substr(m.begin, m.end - m.begin)); });
  return out;
}

// Also beside classes, which are matched with stand-ins such as U+30000, U+2400 and U+1FA70.
TEST(Regex, NamedCharactersAreThemselves) {
  using List = std::vector<std::string>;
  EXPECT_EQ(matches(R"(\d|[\x{2EBF0}-\x{2EE5D}])", "1\U0002EBF0\U00030000"),
            (List{"1", "\U0002EBF0"}));
  EXPECT_EQ(matches(R"([-\x{2EBF0}]\s)", "\U00030000 \U0002EBF1 \U0002EBF0 - "),
            (List{"\U0002EBF0 ", "- "}));
  EXPECT_EQ(matches(R"(\s|🩷+|\u2FFC)", "🩷🩷🩰 🫩\u2FFC\u2400"),
            (List{"🩷🩷", " ", "\u2FFC"}));
  EXPECT_EQ(matches(R"(\s|🩰)", "🩷 🩰"), (List{" ", "🩰"}));
  EXPECT_EQ(matches(R"(\p{L}|[\x{1F300}-\x{1FAFF}])", "Ɤ🩷"), (List{"Ɤ", "🩷"}));
  EXPECT_EQ(matches(regex_escape("🩷."), "🩰.🩷."), List{"🩷."});
}

TEST(Regex, SyntaxOfTokenizers) {
  using List = std::vector<std::string>;
  EXPECT_EQ(matches(R"(\s+)", "a \xE1\xA0\x8E b"), (List{" ", " "}));  // U+180E is not a space
  EXPECT_EQ(matches(R"([\p{P}\p{S}]+)", "a🩷!b"), List{"🩷!"});    // U+1FA77, of Unicode 15
  EXPECT_EQ(matches(R"(\p{So})", "a🫩b"), List{"🫩"});             // U+1FAE9, of Unicode 16
  EXPECT_EQ(matches(R"(\P{S}+)", "a🫩b"), (List{"a", "b"}));
  // Letters, marks and digits of Unicode 15 and 16; a pattern without classes sees the text itself.
  EXPECT_EQ(matches(R"(\p{L}+)", "1ꟋꟍⱠ𐗀\U0002EBF0a1"), List{"ꟋꟍⱠ𐗀\U0002EBF0a"});
  EXPECT_EQ(matches(R"(\p{Han}+)", "a\U0002EBF0\U00031350b"), List{"\U0002EBF0\U00031350"});
  EXPECT_EQ(matches(R"(\p{M}+|\p{N})", "a\u0897\U00011F50"), (List{"\u0897", "\U00011F50"}));
  EXPECT_EQ(matches(R"(\d{1,3}(?=(?:\d{3})*\b))", "\U0001E5F1\U0001E5F2"),
            List{"\U0001E5F1\U0001E5F2"});
  EXPECT_EQ(matches("[\U0002EBF0-\U0002EE5D]", "a\U0002EBF0"), List{"\U0002EBF0"});
  EXPECT_EQ(matches(R"(\p{Han}+)", "\xE3\x80\x82\xE4\xBD\xA0"),
            (List{"\xE4\xBD\xA0"}));  // nor is the full stop Han
  EXPECT_EQ(matches("[a-d&&[^b]]+", "abcd"), (List{"a", "cd"}));
  EXPECT_EQ(matches("\\h+", "xfgA"), (List{"f", "A"}));
  EXPECT_EQ(matches("^b", "a\nb"), (List{"b"}));
  EXPECT_EQ(matches("(?m:a.b)", "a\nb"), (List{"a\nb"}));
  EXPECT_EQ(matches("a{1,2}+", "aaaaa"), (List{"aaaaa"}));
  EXPECT_EQ(matches("", "ab"), (List{"", "", ""}));
  EXPECT_EQ(matches("[[:punct:]]+", "a<$.b"), (List{"<$."}));
  EXPECT_EQ(matches(R"(\x{4f60}|[\x{61}-\x62]|\u0063{2})",
                    "ax\xE4\xBD\xA0"
                    "ccb"),
            (List{"a", "\xE4\xBD\xA0", "cc", "b"}));
  EXPECT_EQ(matches(R"(\p{ID_Start}\p{ID_Continue}*|\p{Math})", "a1 + 2b"), (List{"a1", "+", "b"}));
  EXPECT_EQ(matches(R"(\p{Word}+)", "²a-"), List{"²a"});  // as \w
  EXPECT_THROW(Regex("\\x{zz}"), Error);
  EXPECT_EQ(matches(R"([\W&&[^ ]]+)", "a -b"), (List{"-"}));
  EXPECT_EQ(matches(R"(\d{1,3}(?=(?:\d{3})*\b))", "1234567 12a"), (List{"1", "234", "567"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "ab\xE4\xBD\xA0"), (List{"ab"}));
  // Trying every position would take hours.
  const std::string spaces(2'000'000, ' ');
  EXPECT_EQ(matches(R"(\s+$)", spaces + "x "), (List{" "}));
  EXPECT_EQ(matches(R"((?:a(?=a|b))+b)", std::string(500'000, 'a')), List{});
  EXPECT_THROW(Regex("(a"), Error);
  EXPECT_THROW(Regex("[a"), Error);
}

TEST(Unicode, LossyReplacesMaximalParts) {
  EXPECT_EQ(utf8_lossy("a\xE4\xBD"
                       "b\xFF\xC0\x80"),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(utf8_incomplete_tail("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(utf8_incomplete_tail("\xF5"), 0u);
}

TEST(Spec, DamagedBytesAreRefused) {
  const std::string bytes = serialize_tokenizer(byte_level());
  std::mt19937 rng(4);
  for (int round = 0; round < 500; ++round) {
    std::string damaged = bytes.substr(0, round % 5 ? bytes.size() : rng() % bytes.size());
    for (int i = 0; i < 3 && !damaged.empty(); ++i)
      damaged[rng() % damaged.size()] = static_cast<char>(rng());
    try {
      const Tokenizer t(parse_tokenizer(damaged));
      t.decode(t.encode("hello <|end|>"));
    } catch (const Error&) {
    }
  }
}

// Guarded text gives no control token, alone or inside of other text, and the ids of plain text.
TEST(Guard, ContentIsNeverAControlToken) {
  const std::string mark = "\xEA\x80\x95";
  const Tokenizer bytes(byte_level());
  const auto plain = [&](const std::string& text) { return bytes.encode(text, {false, false}); };
  const auto guarded = [&](const std::string& text) {
    return bytes.encode(bytes.guard(text, mark), {false, true, mark});
  };
  const int32_t end = bytes.find_piece("<|end|>"), tool = bytes.find_piece("<tool>");
  for (const char* text : {"<|end|>", "a<|end|>b", "<|<|end|>|>", "<|end|><|end|>", "x <|end", "<",
                           "hello the world", "", "aaaa <|end|> the", "<|e\xEA\x80\x94nd|>"}) {
    EXPECT_EQ(guarded(text), plain(text)) << text;
    EXPECT_EQ(bytes.guard(text, mark).find("<|end|>"), std::string::npos) << text;
  }
  // Tokens that are not special stay tokens.
  EXPECT_EQ(guarded("<tool>"), (std::vector<int32_t>{tool}));
  // The text around it is parsed, also where the content begins or ends a token.
  std::vector<int32_t> expected = plain("<|end|>");
  expected.insert(expected.begin(), end);
  expected.push_back(end);
  EXPECT_EQ(bytes.encode("<|end|>" + bytes.guard("<|end|>", mark) + "<|end|>", {false, true, mark}),
            expected);
  EXPECT_EQ(bytes.encode(bytes.guard("<|en", mark) + "d|>", {false, true, mark}), plain("<|end|>"));
}

// Special tokens that are searched in normalised text, from whatever characters they come.
TEST(Guard, NormalizedTokens) {
  const std::string mark = "\xEA\x80\x95";
  TokenizerSpec spec = byte_level();
  spec.normalizer = parse_json(
      R"({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]})");
  spec.added_tokens[0].normalized = true;
  const Tokenizer t(spec);
  const int32_t end = t.find_piece("<|end|>");
  for (const char* text : {"<|end|>", "<|END|>", "\xEF\xBC\x9C|end|>", "a<|End|>b"}) {
    const auto before = t.encode(text, {false, true});
    EXPECT_NE(std::find(before.begin(), before.end(), end), before.end()) << text;
    EXPECT_EQ(t.encode(t.guard(text, mark), {false, true, mark}), t.encode(text, {false, false}))
        << text;
  }
  EXPECT_EQ(t.encode("<|end|>", {false, true, mark}), (std::vector<int32_t>{end}));
}

TEST(Guard, MarksPassThroughTheChat) {
  const Tokenizer t(byte_level());
  Value context = parse_json(
      R"({"messages": [{"content": "\ua015\ua015<|end|>"}], "tools": [{"<|end|>": ["a", 1]}]})");
  const std::string guard = guard_chat(context, t);
  EXPECT_EQ(guard.size(), 9u);  // longer than any run of the letter in the content
  const std::string text = "<|end|>" +
                           context.at("messages").as_array()[0].at("content").as_string() +
                           context.at("tools").as_array()[0].as_object()[0].first;
  EXPECT_EQ(without_guard(text, guard), "<|end|>\xEA\x80\x95\xEA\x80\x95<|end|><|end|>");
  const std::vector<int32_t> ids = encode_chat(t, text, guard);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), t.find_piece("<|end|>")), 1);
}

TEST(TokenizerJson, AsThePackageDoes) {
  const char* json = R"({"added_tokens": [{"id": 3, "content": " ", "lstrip": true, "rstrip": true},
      {"id": 4, "content": "<s>", "special": true}, {"id": 5, "content": "</s>", "special": true}],
    "post_processor": {"type": "Sequence", "processors": [
      {"type": "TemplateProcessing", "special_tokens": {"</s>": {"id": "</s>", "ids": [5]}},
       "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
       "pair": []},
      {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [4]}},
       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})";
  const Tokenizer t(tokenizer_from_json(json));
  // The first space absorbs the others. The second template treats text and </s> as a pair.
  EXPECT_EQ(t.encode("a   b"), (std::vector<int32_t>{0, 3, 1, 5}));
  EXPECT_EQ(t.encode("ab", {false, true}), (std::vector<int32_t>{2}));
}

TEST(TokenizerJson, ErrorsNameThePart) {
  const auto error_of = [](const char* parts) -> std::string {
    const std::string json =
        std::string("{") + parts + R"("model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";
    try {
      Tokenizer(tokenizer_from_json(json));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(R"("added_tokens": [{"content": "b"}], )"),
            "tokenizer.json: added_tokens: missing field \"id\"");
  EXPECT_EQ(error_of(R"("pre_tokenizer": {"type": "ByteLevel", "use_regex": 3}, )"),
            "tokenizer: pre_tokenizer: expected a boolean, found integer");
  EXPECT_EQ(error_of(R"("normalizer": {"type": "Replace", "pattern": 3}, )"),
            "tokenizer: normalizer: missing field \"Regex\"");
  EXPECT_EQ(error_of(R"("decoder": {"type": "Fuse"}, )"), "");
}

TEST(TokenizerJson, Companions) {
  const char* json = R"({"added_tokens": [{"id": 3, "content": "<eot>", "special": true}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})";
  const TokenizerSpec spec = tokenizer_from_json(
      json,
      R"({"eos_token": {"content": "<eot>"}, "chat_template": [{"name": "default", "template": "D"},
                {"name": "tool_use", "template": "T"}]})",
      R"({"eos_token_id": [3, 1]})");
  EXPECT_EQ(spec.eos_id, 3);
  EXPECT_EQ(spec.eog_ids, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(spec.chat_template, "D");
  EXPECT_EQ(spec.named_templates.size(), 1u);
  EXPECT_EQ(Tokenizer(spec).encode("ab<eot>"), (std::vector<int32_t>{2, 3}));
  EXPECT_THROW(tokenizer_from_json("{}"), Error);
  EXPECT_THROW(
      tokenizer_from_json(R"({"model": {"type": "BPE", "vocab": {"a": 99999999}, "merges": []}})"),
      Error);
  EXPECT_THROW(
      tokenizer_from_json(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})"),
      Error);
}

}  // namespace
}  // namespace tokamak
