// Short fuzzer runs as plain tests: seeded mutations, no crash, no hang, all errors are Error.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/import/tokenizer_json.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tokamak {
namespace {

std::string mutate(std::string text, std::mt19937& rng, const std::string& other) {
  for (int i = 1 + static_cast<int>(rng() % 4); i > 0 && !text.empty(); --i) {
    const size_t at = rng() % text.size(), length = std::min<size_t>(rng() % 12, text.size() - at);
    switch (rng() % 5) {
      case 0:
        text[at] = static_cast<char>(rng());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(rng() % text.size(), length));
        break;
      case 3:
        text.insert(at, other.substr(rng() % other.size(), rng() % 20));
        break;
      default: {
        static const char* const kBits[] = {"{{",          "}}", "{%", "%}", "null", "-1",
                                            "99999999999", "\"", "[",  "]",  "\\"};
        text.insert(at, kBits[rng() % std::size(kBits)]);
      }
    }
  }
  return text;
}

TEST(Mutation, Templates) {
  const Value goldens = parse_json(read_text_file(std::string(TK_GOLDENS) + "/templates.json"));
  const Value::Array& cases = goldens.at("cases").as_array();
  RenderLimits limits;
  limits.max_steps = 20000;
  limits.max_memory_bytes = size_t{16} << 20;
  limits.max_output_bytes = size_t{1} << 20;
  std::mt19937 rng(11);
  int rendered = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::string source = mutate(cases[rng() % cases.size()].at("template").as_string(), rng,
                                      cases[rng() % cases.size()].at("template").as_string());
    try {
      ChatTemplate::parse(source).render(goldens.at("context"), limits);
      ++rendered;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << e.what() << "\n" << source;
    }
  }
  EXPECT_GT(rendered, 100);
}

TEST(Mutation, TokenizerJson) {
  const Value goldens = parse_json(read_text_file(std::string(TK_GOLDENS) + "/tokenizers.json"));
  std::vector<std::string> files;
  for (const Value& g : goldens.as_array()) files.push_back(dump_json(g.at("tokenizer")));
  std::mt19937 rng(12);
  int loaded = 0;
  for (int round = 0; round < 600; ++round) {
    const std::string text = mutate(files[rng() % files.size()], rng, files[rng() % files.size()]);
    try {
      const Tokenizer t(tokenizer_from_json(text));
      t.decode(t.encode("Hello <s> w\xC3\xB6rld \xFF 123"));
      ++loaded;
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::kInternal) << e.what();
    }
  }
  EXPECT_GT(loaded, 20);
}

}  // namespace
}  // namespace tokamak
