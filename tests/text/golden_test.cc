// Tokenizers of every kind and random templates, compared with results of the Python packages
// (tools/text_oracle.py).
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/import/tokenizer_json.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tokamak {
namespace {

Value load(const char* name) {
  return parse_json(read_text_file(std::string(TK_GOLDENS) + "/" + name), name);
}

std::vector<int32_t> ids_of(const Value& list) {
  std::vector<int32_t> ids;
  for (const Value& v : list.as_array()) ids.push_back(static_cast<int32_t>(v.as_int()));
  return ids;
}

TEST(Golden, Tokenizers) {
  const Value goldens = load("tokenizers.json");
  ASSERT_GE(goldens.size(), 30u);
  size_t checked = 0;
  for (const Value& golden : goldens.as_array()) {
    const TokenizerSpec spec = tokenizer_from_json(dump_json(golden.at("tokenizer")));
    EXPECT_EQ(parse_tokenizer(serialize_tokenizer(spec)), spec);
    const Tokenizer tokenizer(spec);
    for (const Value& c : golden.at("cases").as_array()) {
      const std::string& text = c.at("text").as_string();
      const std::vector<int32_t> want = ids_of(c.at("ids"));
      EXPECT_EQ(tokenizer.encode(text, {c.at("special").as_bool(), true}), want)
          << text << " in " << dump_json(golden.at("tokenizer").at("pre_tokenizer"));
      ++checked;
      if (!c.at("decoded").is_string()) continue;
      const std::string whole = tokenizer.decode(want);
      EXPECT_EQ(whole, c.at("decoded").as_string())
          << dump_json(golden.at("tokenizer").at("decoder"));
      Detokenizer stream(tokenizer);
      std::string joined;
      for (int32_t id : want) joined += stream.push(id);
      EXPECT_EQ(joined + stream.finish(), whole);
    }
  }
  EXPECT_GT(checked, 200u);
}

TEST(Golden, Templates) {
  const Value goldens = load("templates.json");
  RenderLimits limits;
  limits.now = TemplateTime::parse(goldens.at("now").as_string());
  ASSERT_GE(goldens.at("cases").size(), 100u);
  for (const Value& c : goldens.at("cases").as_array()) {
    const std::string& source = c.at("template").as_string();
    if (c.at("expected").is_null()) {
      EXPECT_THROW(ChatTemplate::parse(source).render(goldens.at("context"), limits), Error)
          << source;
    } else {
      EXPECT_EQ(ChatTemplate::parse(source).render(goldens.at("context"), limits),
                c.at("expected").as_string())
          << source;
    }
  }
}

}  // namespace
}  // namespace tokamak
