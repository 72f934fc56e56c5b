// Vocabularies in GGUF metadata, and the choice among several chat templates.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "compile/import/gguf_writer.h"
#include "compile/import/tokenizer_gguf.h"
#include "compile/import/tokenizer_json.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"

namespace tokamak {
namespace {

TokenizerSpec spec_of(const GgufWriter& writer) {
  const std::vector<std::byte> bytes = writer.to_bytes();
  return tokenizer_from_gguf(*GgufFile::parse(bytes, "vocab.gguf"));
}

// All bytes, some longer pieces (one that ends inside a character), a control token and padding.
GgufWriter rwkv_vocabulary() {
  std::vector<std::string> tokens = {"<s>"};
  std::vector<int32_t> types = {3};
  for (int b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    tokens.push_back(b >= 0x20 && b < 0x7F && c != '\\' && c != '\'' ? std::string(1, c)
                                                                     : fmt::format("\\x{:02x}", b));
    types.push_back(1);
  }
  for (const char* piece : {"\\n\\n", "\\t\\t", "don\\'t", "ab", "abcd", "\\\\\\\\", "\\xe4\\xbd",
                            "\\xe4\\xbd\\xa0", "\\xa0\\xe5"}) {
    tokens.emplace_back(piece);
    types.push_back(1);
  }
  tokens.emplace_back("[PAD]");
  types.push_back(5);
  GgufWriter w;
  w.set_string("tokenizer.ggml.model", "rwkv");
  w.set_strings("tokenizer.ggml.tokens", tokens);
  w.set_i32s("tokenizer.ggml.token_type", types);
  w.set_u32("tokenizer.ggml.eos_token_id", 0);
  w.set_u32("tokenizer.ggml.eot_token_id", 257);
  return w;
}

TEST(GgufVocabulary, RwkvTakesTheLongestPiece) {
  const TokenizerSpec spec = spec_of(rwkv_vocabulary());
  const Tokenizer t(parse_tokenizer(serialize_tokenizer(spec)));
  const auto ids = [&](std::string_view text) { return t.encode(text); };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ids("abcab"), (Ids{260, 'c' + 1, 260}));
  EXPECT_EQ(ids("abcd\n\n\t"), (Ids{261, 257, '\t' + 1}));
  EXPECT_EQ(ids("don't\\\\"), (Ids{259, 262}));
  EXPECT_EQ(ids("\xE4\xBD\xA0\xE4\xBD\xA1"), (Ids{264, 263, 0xA2}));
  EXPECT_EQ(ids("<s>"), (Ids{0}));
  EXPECT_EQ(t.encode("<s>", {true, false}), (Ids{'<' + 1, 's' + 1, '>' + 1}));
  EXPECT_TRUE(t.is_eog(0) && t.is_eog(257));
}

TEST(GgufVocabulary, RwkvGivesAnyBytesBack) {
  const Tokenizer t(spec_of(rwkv_vocabulary()));
  std::mt19937 rng(3);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (size_t n = rng() % 60; n > 0; --n) text += "ab\n\\\xE4\xBD\xA0\xE5\x80z"[rng() % 10];
    const std::vector<int32_t> ids = t.encode(text, {false, false});
    EXPECT_EQ(t.decode(ids, {false, false}), text);
    Detokenizer stream(t);
    std::string joined;
    for (int32_t id : ids) joined += stream.push(id);
    EXPECT_EQ(joined + stream.finish(), t.decode(ids));
  }
}

TEST(GgufVocabulary, WordsBetweenSpaces) {
  const auto tokenizer = [](const char* model) {
    GgufWriter w;
    w.set_string("tokenizer.ggml.model", model);
    w.set_string("tokenizer.ggml.pre", "whitespace");
    w.set_strings("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", " "});
    w.set_strings("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
    w.set_bool("tokenizer.ggml.normalizer.lowercase", true);
    return Tokenizer(spec_of(w));
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokenizer("whitespace").encode("AB ba b"), (Ids{2, 1, 0, 1}));
  EXPECT_EQ(tokenizer("gpt2").encode("ab b"), (Ids{2, 3, 1}));  // spaces are words there
}

TEST(GgufVocabulary, ModelsThatAreNotKnownAreNamed) {
  GgufWriter w;
  w.set_string("tokenizer.ggml.model", "dna");
  w.set_strings("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  try {
    spec_of(w);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("\"dna\""), std::string::npos);
  }
}

std::string not_found(const TokenizerSpec& spec, std::string_view name) {
  try {
    return "found " + pick_chat_template(spec, name, true);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    return e.what();
  }
}

TEST(NamedTemplates, OfGgufFilesWithAndWithoutAList) {
  for (const bool list : {true, false}) {
    GgufWriter w = rwkv_vocabulary();
    w.set_string("tokenizer.chat_template", "D");
    w.set_string("tokenizer.chat_template.tool_use", "T");
    w.set_string("tokenizer.chat_template.rag", "R");
    if (list)
      w.set_strings("tokenizer.chat_templates", std::vector<std::string>{"rag", "tool_use"});
    const TokenizerSpec spec = parse_tokenizer(serialize_tokenizer(spec_of(w)));
    EXPECT_EQ(pick_chat_template(spec, "", false), "D");
    EXPECT_EQ(pick_chat_template(spec, "", true), "T");
    EXPECT_EQ(pick_chat_template(spec, "rag", true), "R");
    EXPECT_EQ(pick_chat_template(spec, "default", true), "D");
    EXPECT_EQ(not_found(spec, "none"),
              "no chat template is named \"none\"; available: default rag tool_use");
  }
}

TEST(NamedTemplates, OneTemplateIsForAll) {
  TokenizerSpec spec;
  EXPECT_EQ(pick_chat_template(spec, "", true), "");
  EXPECT_EQ(not_found(spec, "default"), "no chat template is named \"default\"; available: none");
  spec.chat_template = "D";
  EXPECT_EQ(pick_chat_template(spec, "", true), "D");
  EXPECT_EQ(not_found(spec, "tool_use"),
            "no chat template is named \"tool_use\"; available: default");
}

TEST(NamedTemplates, FilesStandForWhatTheConfigSays) {
  TokenizerFiles files;
  files.tokenizer_json =
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []})";
  files.tokenizer_config_json =
      R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})";
  EXPECT_EQ(pick_chat_template(tokenizer_from_json(files), "", true), "T");
  files.chat_template_jinja = "J";
  EXPECT_EQ(pick_chat_template(tokenizer_from_json(files), "", true), "J");
  files.named_templates = {{"tool_use", "N"}};
  EXPECT_EQ(pick_chat_template(tokenizer_from_json(files), "", true), "N");
  EXPECT_EQ(pick_chat_template(tokenizer_from_json(files), "", false), "J");
  files.tokenizer_config_json = R"({"chat_template": {"default": "D", "rag": "R"}})";
  files.chat_template_jinja = {};
  files.named_templates = {};
  EXPECT_EQ(pick_chat_template(tokenizer_from_json(files), "rag", false), "R");
}

}  // namespace
}  // namespace tokamak
