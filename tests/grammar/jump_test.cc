// Tokens that grammars force: what is appended is what the tokenizer makes of the text, and nothing
// that a longer token could still become.
#include "serve/jump_forward.h"

#include <gtest/gtest.h>

#include "serve/call_mask.h"
#include "serve/fake_client.h"
#include "serve/grammar_mask.h"
#include "tests/engine/test_run.h"
#include "text/grammar/grammar_cache.h"

namespace tokamak {
namespace {

using grammar::GrammarCache;
using grammar::Kind;

constexpr int32_t kStopId = 257;

// Bytes and merges: "ab", "cd", "abcd", "de", "\":", "\": ".
std::shared_ptr<const Tokenizer> merging_tokenizer() {
  TokenizerSpec spec = testing::byte_tokenizer()->spec();
  auto id = [&](std::string_view piece) {
    for (size_t i = 0; i < spec.pieces.size(); ++i)
      if (spec.pieces[i] == piece) return static_cast<int32_t>(i);
    ADD_FAILURE() << piece;
    return 0;
  };
  std::vector<AddedToken> added = spec.added_tokens;
  const std::pair<const char*, const char*> merges[] = {{"a", "b"}, {"c", "d"},  {"ab", "cd"},
                                                        {"d", "e"}, {"\"", ":"}, {"\":", "\u0120"}};
  for (size_t i = 0; i < 3; ++i) spec.pieces.push_back("");  // the ids of the special tokens
  for (const auto& [left, right] : merges) {
    spec.merges.push_back({id(left), id(right), static_cast<int32_t>(spec.pieces.size())});
    spec.pieces.push_back(std::string(left) + right);
  }
  return std::make_shared<Tokenizer>(std::move(spec));
}

struct Forced {
  explicit Forced(const std::string& gbnf) : cache(tokenizer) {
    options.grammar = cache.get({Kind::kGrammar, gbnf});
    options.tokenizer = tokenizer;
    options.end_ids = grammar_end_ids(*tokenizer, {});
  }
  std::vector<int32_t> ids(std::string_view text) const {
    return tokenizer->encode(text, {.add_special = false, .parse_special = false});
  }
  // What follows these texts, tokenized one by one.
  std::string after(std::vector<std::string> texts) const {
    GrammarMask mask(options);
    std::vector<int32_t> answer, forced;
    for (const std::string& text : texts)
      for (int32_t id : ids(text)) answer.push_back(id);
    mask.force(0, answer, forced);
    std::string out;
    for (int32_t id : forced)
      out += (out.empty() ? "" : "|") + (id == kStopId ? "END" : tokenizer->piece_bytes(id));
    return out;
  }
  std::shared_ptr<const Tokenizer> tokenizer = merging_tokenizer();
  GrammarCache cache;
  GrammarMaskOptions options;
};

TEST(ForcedTokens, AreTheTokenizersOwn) {
  Forced f(R"(root ::= "xabcdx" ("y" | "z") "abcd")");
  EXPECT_EQ(f.after({}), "x|abcd|x");
  EXPECT_EQ(f.after({"xabcd"}), "x");
  EXPECT_EQ(f.after({"xabcdx"}), "");
  EXPECT_EQ(f.after({"xabcdxy"}), "abcd|END");
  // Tokens that were sent stay, although the tokenizer would have merged them with what follows.
  EXPECT_EQ(f.after({"xab"}), "cd|x");
  EXPECT_EQ(f.after({"xa"}), "b|cd|x");
  EXPECT_EQ(f.after({"xab", "c"}), "d|x");
}

TEST(ForcedTokens, LeaveWhatALongerTokenMayCover) {
  // "cd" could be "cd" or the beginning of "c" "de".
  Forced f(R"(root ::= "xabcd" ("e" | "f"))");
  EXPECT_EQ(f.after({}), "x");
  // After the brace the space is optional: the model chooses between "\":" and "\": ".
  Forced json(R"(root ::= "{\"key\":" " "? [0-9])");
  EXPECT_EQ(json.after({}), "{|\"|k|e|y");
  EXPECT_EQ(json.after({"{\"key\":"}), "");
  Forced spaced(R"(root ::= "{\"key\": " [0-9])");
  EXPECT_EQ(spaced.after({}), "{|\"|k|e|y|\": ");
}

TEST(ForcedTokens, PartsOfCharacters) {
  Forced f("root ::= \"a\" [\u00e4\u00f6] \"b\"");
  EXPECT_EQ(f.after({}), "a|\xC3");  // both begin with this byte, which is a token of its own
  EXPECT_EQ(f.after({"a\u00e4"}), "b|END");
}

// For random texts of random grammars: jumping wherever possible gives the tokens of the whole text
// wherever the model, which is the tokenizer here, had to choose none.
TEST(ForcedTokens, WholeTextsAreTokenizedAsUsual) {
  Rng rng(5);
  int jumps = 0;
  for (int round = 0; round < 200; ++round) {
    std::string gbnf = "root ::=", text;
    for (int part = 0; part < 6; ++part) {
      std::string fixed, chosen(1, "abcde"[rng.below(5)]);
      for (auto n = rng.below(6); n > 0; --n) fixed += "abcde"[rng.below(5)];
      gbnf += " \"" + fixed + "\" [a-e]";
      text += fixed + chosen;
    }
    Forced f(gbnf);
    std::vector<int32_t> want = f.ids(text);
    GrammarMask mask(f.options);
    std::vector<int32_t> answer;
    while (answer.size() < want.size()) {
      std::vector<int32_t> forced;
      mask.force(0, answer, forced);
      for (int32_t id : forced)
        if (id != kStopId) answer.push_back(id), ++jumps;
      if (answer.size() < want.size()) answer.push_back(want[answer.size()]);
    }
    EXPECT_EQ(answer, want) << gbnf << "\n" << text;
  }
  EXPECT_GT(jumps, 300);
}

TEST(ForcedTokens, CallsAreForcedAfterTheMark) {
  Forced f(R"(root ::= "<call>abcdx" [0-9] "yz")");
  CallMaskOptions options;
  options.grammar = f.options.grammar;
  options.tokenizer = f.tokenizer;
  options.end_ids = f.options.end_ids;
  options.begin.mark = "<call>";
  CallMask mask(options);
  auto forced = [&](std::string_view text) {
    std::vector<int32_t> out;
    mask.force(0, f.ids(text), out);
    return f.tokenizer->decode(out);
  };
  EXPECT_EQ(forced("hm"), "");
  EXPECT_EQ(forced("hm <call>"), "abcdx");
  EXPECT_EQ(forced("hm <call>abcdx"), "");
  EXPECT_EQ(forced("hm <call>abcdx4"), "yz");
  EXPECT_EQ(forced("hm <call>abcdx4yz"), "");
}

// Where every token is a byte, jumps change nothing but the number of steps.
TEST(ForcedTokens, AnswersOfTheEngineAreTheSame) {
  PlanSet plans = fake_plan_set(300);
  GrammarCache cache(testing::byte_tokenizer());
  GrammarMaskOptions options;
  options.tokenizer = testing::byte_tokenizer();
  options.grammar = cache.get({Kind::kGrammar, R"(root ::= "{\"name\":\"" [a-z]{0,3} "\",\"age\":" n
n ::= [1-9] [0-9]? ",\"more\":" ("true}" | "false}"))"});
  options.end_ids = grammar_end_ids(*options.tokenizer, {});
  options.choices = 2;
  std::map<std::pair<RequestId, int32_t>, Answer> plain;
  int64_t steps = 0;
  for (bool jump : {false, true})
    for (int in_flight : {1, 2}) {
      EngineConfig config = default_engine_config(plans, 200, 1000);
      config.max_in_flight = in_flight;
      TestRun run(plans, config, checked(in_flight));
      for (RequestId id = 1; id <= 6; ++id) {
        RequestSpec spec = request({1, 2, static_cast<int32_t>(id)}, id == 6 ? 20 : 100);
        spec.n = 2;
        spec.stop_ids = options.end_ids;
        spec.mask = std::make_shared<GrammarMask>(options);
        spec.jump_forward = jump;
        run.arrive(0, id, spec);
      }
      run.run();
      if (plain.empty()) {
        plain = run.answers;
        steps = run.core.stats().steps;
      }
      for (const auto& [key, want] : plain) {
        const Answer& got = run.answers.at(key);
        EXPECT_EQ(got.ids, want.ids) << jump << in_flight;
        EXPECT_EQ(got.finish, want.finish);
        EXPECT_EQ(got.stop_id, want.stop_id);
      }
      if (jump && in_flight == 1) {
        EXPECT_LT(run.core.stats().steps, steps / 2);
      }
      EXPECT_EQ(run.core.stats().jump_tokens > 0, jump);
    }
}

}  // namespace
}  // namespace tokamak
