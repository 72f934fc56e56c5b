// Grammars as the masks of requests: by themselves, and in the engine on the null backend, whose
// tokens are hashes.
#include "serve/grammar_mask.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/json.h"
#include "serve/call_mask.h"
#include "serve/fake_client.h"
#include "serve/message_mask.h"
#include "serve/thought_budget.h"
#include "serve/token_filter.h"
#include "tests/engine/test_run.h"
#include "tests/grammar/mask_bits.h"
#include "text/grammar/grammar_cache.h"

namespace tokamak {
namespace {

using grammar::CallStart;
using grammar::GrammarCache;
using grammar::Kind;

// Bytes, <|im_start|>, <|im_end|> (the end) and <|bos|>, then tags.
constexpr int32_t kOpen = 259, kClose = 260;

std::shared_ptr<const Tokenizer> tagged_tokenizer() {
  TokenizerSpec spec = testing::byte_tokenizer()->spec();
  for (const char* tag : {"<think>", "</think>"}) {
    AddedToken token;
    token.id = static_cast<int32_t>(spec.vocab_size());
    token.content = tag;
    spec.added_tokens.push_back(token);
  }
  return std::make_shared<Tokenizer>(std::move(spec));
}

// JSON without white space, so that random answers end soon.
constexpr const char* kCompactJson = R"(root ::= "{\"a\":" ("\"x\"" | "\"yes\"") b? c
b ::= ",\"b\":" [1-9] [0-9]?
c ::= ",\"c\":\"" [a-z]{0,3} "\"}")";

GrammarMaskOptions mask_options(Kind kind, const std::string& text) {
  static const auto tokenizer = tagged_tokenizer();
  static GrammarCache cache(tokenizer);
  GrammarMaskOptions options;
  options.grammar = cache.get({kind, text});
  options.tokenizer = tokenizer;
  options.end_ids = grammar_end_ids(*tokenizer, {});
  return options;
}

TEST(GrammarMask, EndsOnlyWhereTheGrammarMayEnd) {
  GrammarMask mask(mask_options(Kind::kRegex, "ab?"));
  EXPECT_EQ(allowed_after(mask, {}), (std::vector<int32_t>{'a'}));
  EXPECT_EQ(allowed_after(mask, {'a'}), (std::vector<int32_t>{'b', kEnd}));
  EXPECT_EQ(allowed_after(mask, {'a', 'b'}), (std::vector<int32_t>{kEnd}));
  // A failed step takes tokens back.
  EXPECT_EQ(allowed_after(mask, {'a'}), (std::vector<int32_t>{'b', kEnd}));
  EXPECT_EQ(allowed_after(mask, {}), (std::vector<int32_t>{'a'}));
}

TEST(GrammarMask, MinTokensGivesWayToTheGrammar) {
  GrammarMaskOptions options = mask_options(Kind::kRegex, "ab{0,2}");
  options.min_tokens = 9;
  GrammarMask mask(options);
  EXPECT_EQ(allowed_after(mask, {'a'}), (std::vector<int32_t>{'b'}));
  EXPECT_EQ(allowed_after(mask, {'a', 'b', 'b'}), (std::vector<int32_t>{kEnd}));
}

TEST(GrammarMask, DraftsAreFollowedAndForgotten) {
  GrammarMask mask(mask_options(Kind::kRegex, "a(bc|d)e"));
  EXPECT_EQ(allowed_after(mask, {'a'}, {'b'}), (std::vector<int32_t>{'c'}));
  EXPECT_EQ(allowed_after(mask, {'a'}, {'d', 'e'}), (std::vector<int32_t>{kEnd}));
  EXPECT_TRUE(allowed_after(mask, {'a'}, {'x'}).empty());
  EXPECT_EQ(allowed_after(mask, {'a'}), (std::vector<int32_t>{'b', 'd'}));
}

// A draft may be the end of the answer. The row that follows is not kept, but must not fail the
// step.
TEST(GrammarMask, ADraftThatEndsTheAnswer) {
  GrammarMask mask(mask_options(Kind::kRegex, "ab?"));
  EXPECT_EQ(allowed_after(mask, {'a'}, {kEnd}).size(), 300u);
  EXPECT_EQ(allowed_after(mask, {}, {'a', 'b', kEnd, 'x'}).size(), 300u);
  EXPECT_TRUE(allowed_after(mask, {}, {'a', 'x', kEnd}).empty());  // not after what is refused
}

// The rows of a step with a tree of drafts, each after the one that it continues, against a mask
// that has not seen the other rows.
TEST(GrammarMask, TreesOfDrafts) {
  GrammarMaskOptions options = mask_options(Kind::kGrammar, kCompactJson);
  options.thinking = Thinking::kMaybe;
  GrammarMask mask(options);
  std::mt19937 rng(7);
  size_t refused = 0, rows = 0;
  for (int step = 0; step < 60; ++step) {
    std::vector<std::vector<int32_t>> paths{{}};
    for (int row = 0; row < 12; ++row) {
      std::vector<int32_t> path = paths[rng() % 2 == 0 ? paths.size() - 1 : rng() % paths.size()];
      GrammarMask fresh(options);
      std::vector<int32_t> next = allowed_after(fresh, {}, path);
      if (next.empty() || rng() % 8 == 0) next = {kEnd, 'x', '{', '"', kOpen, kClose};
      path.push_back(next[rng() % next.size()]);
      GrammarMask other(options);
      std::vector<int32_t> wanted = allowed_after(other, {}, path);
      EXPECT_EQ(allowed_after(mask, {}, path), wanted);
      refused += wanted.empty();
      if (!wanted.empty() || rng() % 3 == 0) paths.push_back(path);
      ++rows;
    }
  }
  EXPECT_GT(refused, 20u);
  EXPECT_LT(refused, rows / 2);
}

struct CountedProgress {
  std::vector<int32_t> ids = {};
};
// Allows the number of tokens read.
class CountingMask final : public AnswerMask<CountedProgress> {
 public:
  CountingMask() { choices_.resize(1); }
  mutable size_t reads = 0;

 private:
  CountedProgress start() const override { return {}; }
  bool read(CountedProgress& p, int32_t id) const override {
    ++reads;
    p.ids.push_back(id);
    return true;
  }
  void fill(CountedProgress& p, std::span<uint32_t> allowed) const override {
    grammar::set_bit(allowed, static_cast<int32_t>(p.ids.size()));
  }
  bool ends_answer(const CountedProgress&, int32_t) const override { return false; }
};

TEST(AnswerMask, ReadsEveryDraftOfAChainOnce) {
  CountingMask mask;
  std::vector<int32_t> answer(20, 5), drafts;
  for (int32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(allowed_after(mask, answer, drafts), (std::vector<int32_t>{20 + i}));
    drafts.push_back(i);
  }
  EXPECT_EQ(mask.reads, 20u + 63u);
  // The step accepts 10 drafts, and the next one begins after them.
  answer.insert(answer.end(), drafts.begin(), drafts.begin() + 10);
  EXPECT_EQ(allowed_after(mask, answer, {}), (std::vector<int32_t>{30}));
  EXPECT_EQ(allowed_after(mask, answer, {1}), (std::vector<int32_t>{31}));
  EXPECT_EQ(mask.reads, 20u + 63u + 10u + 1u);
}

TEST(GrammarMask, BeginsAfterTheThinking) {
  GrammarMaskOptions options = mask_options(Kind::kRegex, "ab");
  options.thinking = Thinking::kOpen;
  GrammarMask open(options);
  std::vector<int32_t> free = allowed_after(open, {});
  EXPECT_GT(free.size(), 255u);
  EXPECT_FALSE(std::binary_search(free.begin(), free.end(), kEnd));
  EXPECT_EQ(allowed_after(open, {'x', '<', '/'}).size(), free.size());
  EXPECT_EQ(allowed_after(open, {'x', '<', '/', kClose}), (std::vector<int32_t>{'\n', 'a'}));
  EXPECT_EQ(allowed_after(open, {'x', '<', '/', kClose, '\n', 'a'}), (std::vector<int32_t>{'b'}));
  EXPECT_EQ(allowed_after(open, {'x', '<', '/', kClose, '\n', 'a', 'b'}),
            (std::vector<int32_t>{kEnd}));
  EXPECT_EQ(allowed_after(open, {'x', '<'}).size(), free.size());  // back into the thinking
  // The tag as bytes.
  std::vector<int32_t> spelled;
  for (char c : std::string_view("hm</think>a")) spelled.push_back(c);
  EXPECT_EQ(allowed_after(open, spelled), (std::vector<int32_t>{'b'}));

  options.thinking = Thinking::kMaybe;
  GrammarMask maybe(options);
  EXPECT_EQ(allowed_after(maybe, {}), (std::vector<int32_t>{'a', kOpen}));
  EXPECT_EQ(allowed_after(maybe, {'a'}), (std::vector<int32_t>{'b'}));
  EXPECT_EQ(allowed_after(maybe, {kOpen, 'z', kClose, 'a'}), (std::vector<int32_t>{'b'}));
}

TEST(GrammarMask, AnswersOfTheEngineFollowTheGrammar) {
  PlanSet plans = fake_plan_set(300);
  GrammarMaskOptions options = mask_options(Kind::kGrammar, kCompactJson);
  std::map<std::pair<RequestId, int32_t>, std::vector<int32_t>> first;
  size_t ended = 0;
  for (int in_flight : {1, 2, 4})
    for (int64_t blocks : {1000, 210}) {  // 210: sequences are preempted
      EngineConfig config = default_engine_config(plans, 200, blocks);
      config.max_in_flight = in_flight;
      TestRun run(plans, config, checked(in_flight));
      for (RequestId id = 1; id <= 6; ++id) {
        RequestSpec spec = request({1, 2, static_cast<int32_t>(id)}, 100);
        spec.n = 2;
        spec.stop_ids = options.end_ids;
        options.choices = 2;
        spec.mask = std::make_shared<GrammarMask>(options);
        run.arrive(0, id, spec);
      }
      run.arrive(0, 9, request({5, 6}, 20));
      run.run();
      EXPECT_EQ((run.answers[{9, 0}].ids), run.model.continuation(std::vector<int32_t>{5, 6}, 20));
      for (RequestId id = 1; id <= 6; ++id)
        for (int32_t choice : {0, 1}) {
          const Answer& a = run.answers[{id, choice}];
          std::string text(a.ids.begin(), a.ids.end());
          ASSERT_TRUE(a.finish == Finish::kStop || a.finish == Finish::kLength) << a.error;
          if (a.finish == Finish::kStop) {
            ++ended;
            EXPECT_EQ(a.stop_id, kEnd);
            EXPECT_TRUE(options.grammar->matches(text)) << text;
            EXPECT_TRUE(parse_json(text).has("a"));
          }
          // Neither preemption nor steps in flight change an answer.
          auto [it, fresh] = first.emplace(std::pair(id, choice), a.ids);
          EXPECT_EQ(it->second, a.ids) << fresh;
        }
    }
  EXPECT_GT(ended, 30u);
}

// A tokenizer with tokens that cross the end of the mark.
std::shared_ptr<const Tokenizer> crossing_tokenizer() {
  TokenizerSpec spec = tagged_tokenizer()->spec();
  for (const char* text : {"l>\n", "<call>", "<call>x", ">", " {", "{}"}) {
    AddedToken token;
    token.id = static_cast<int32_t>(spec.vocab_size());
    token.content = text;
    spec.added_tokens.push_back(token);
  }
  return std::make_shared<Tokenizer>(std::move(spec));
}
constexpr int32_t kCrossing = 261, kMark = 262, kMarkAndMore = 263, kBlankBrace = 265,
                  kBraces = 266;

CallMaskOptions call_options(const std::string& mark, const std::string& gbnf) {
  static const auto tokenizer = crossing_tokenizer();
  static GrammarCache cache(tokenizer);
  CallMaskOptions options;
  grammar::GrammarSource source{Kind::kGrammar, gbnf};
  source.before = mark;
  options.grammar = cache.get(source);
  options.begin = {mark.empty() ? CallStart::kBrace : CallStart::kMark, mark, {}, {}};
  options.tokenizer = tokenizer;
  options.end_ids = grammar_end_ids(*tokenizer, {});
  return options;
}

TEST(CallMask, IsFreeUntilACallBeginsAndAfterIt) {
  CallMask mask(call_options("<call>", "root ::= \"a\" [0-9] \";\""));
  std::vector<int32_t> free = allowed_after(mask, {});
  EXPECT_TRUE(allows(free, kEnd) && allows(free, 'z') && allows(free, kMark));
  EXPECT_FALSE(allows(free, kMarkAndMore));  // the call would begin with x
  EXPECT_TRUE(allows(free, kCrossing));
  EXPECT_FALSE(allows(allowed_after(mask, ids_of("hm <cal")), kCrossing));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("hm <cax")), kCrossing));
  EXPECT_EQ(allowed_after(mask, ids_of("hm <call>")), ids_of("a"));
  EXPECT_EQ(allowed_after(mask, {kMark}), ids_of("a"));
  EXPECT_EQ(allowed_after(mask, ids_of("hm <call>a")), ids_of("0123456789"));
  EXPECT_EQ(allowed_after(mask, ids_of("hm <call>a7")), ids_of(";"));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("hm <call>a7;")), kEnd));
  EXPECT_EQ(allowed_after(mask, ids_of("<call>a7; and <call>")), ids_of("a"));
  // Drafts, and an answer that is taken back.
  EXPECT_EQ(allowed_after(mask, ids_of("<ca"), ids_of("ll>a")), ids_of("0123456789"));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("<c")), 'z'));
  // A draft that is not allowed: nothing follows it, and it changes nothing.
  EXPECT_TRUE(allowed_after(mask, ids_of("h"), {kMarkAndMore}).empty());
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("h"), ids_of("m")), 'z'));
}

TEST(CallMask, TheGrammarChecksTokensThatCrossTheMark) {
  CallMask mask(call_options("<call>", "root ::= (\"x\" | \"\\n\") [0-9]"));
  EXPECT_TRUE(allows(allowed_after(mask, {}), kMarkAndMore));
  EXPECT_EQ(allowed_after(mask, {'h', kMarkAndMore}), ids_of("0123456789"));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("hm <cal")), kCrossing));
  std::vector<int32_t> crossed = ids_of("hm <cal");
  crossed.push_back(kCrossing);
  EXPECT_EQ(allowed_after(mask, crossed), ids_of("0123456789"));
  EXPECT_EQ(allowed_after(mask, ids_of("hm <cal"), {kCrossing}), ids_of("0123456789"));
}

TEST(CallMask, MarksInThoughtsBeginNothing) {
  CallMaskOptions options = call_options("<call>", "root ::= \"a\"");
  options.thinking = Thinking::kOpen;
  CallMask mask(options);
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("<call>")), 'z'));
  EXPECT_EQ(allowed_after(mask, ids_of("<call></think>x<call>")), ids_of("a"));
}

TEST(CallMask, ABraceAtTheBeginning) {
  CallMask mask(call_options("", "root ::= \"{\" [0-9] \"}\""));
  std::vector<int32_t> first = allowed_after(mask, {});
  EXPECT_TRUE(allows(first, '{') && allows(first, 'x') && allows(first, kEnd));
  EXPECT_FALSE(allows(first, kBlankBrace) || allows(first, kBraces));
  EXPECT_EQ(allowed_after(mask, ids_of("{")), ids_of("0123456789"));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("{4}")), kEnd));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("Well {")), 'z'));
}

TEST(CallMask, OtherMarksOfTheReaderBeginACallToo) {
  CallMaskOptions options = call_options("<call>", "root ::= \"a\" [0-9] \";\"");
  options.begin.others = {"<action>", "do"};
  CallMask mask(options);
  EXPECT_EQ(allowed_after(mask, ids_of("hm <action>")), ids_of("a"));
  EXPECT_EQ(allowed_after(mask, ids_of("do")), ids_of("a"));
  EXPECT_EQ(allowed_after(mask, ids_of("<call>a7; and <action>a")), ids_of("0123456789"));
  EXPECT_EQ(allowed_after(mask, ids_of("<actio"), ids_of("n>a")), ids_of("0123456789"));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("<ca")), 'z'));
  EXPECT_TRUE(allows(allowed_after(mask, ids_of("d")), 'z'));
  // A token that has the mark and more cannot be checked.
  options.begin.others = {"<call"};
  EXPECT_FALSE(allows(allowed_after(*std::make_unique<CallMask>(options), {}), kMark));

  options = call_options("", "root ::= \"{\" [0-9] \"}\"");
  options.begin.others = {"<tag>", "<end>"};
  CallMask brace(options);
  for (const char* before : {"<tag>", " <tag>\n", "<tag><end>"}) {
    const std::string text(before);
    EXPECT_TRUE(allows(allowed_after(brace, ids_of(text)), '{')) << text;
    EXPECT_TRUE(allows(allowed_after(brace, ids_of(text)), 'x')) << text;
    EXPECT_EQ(allowed_after(brace, ids_of(text + "{")), ids_of("0123456789")) << text;
  }
  EXPECT_TRUE(allows(allowed_after(brace, ids_of("<tag>x{")), 'z'));
  EXPECT_TRUE(allows(allowed_after(brace, ids_of("<tax{")), 'z'));
}

// Rows with more and more drafts, and other drafts after them, against a budget that has not seen
// the rows before.
TEST(ThoughtBudget, ReadsDraftsOnceAndForgetsThem) {
  ThoughtBudgetOptions options;
  options.tokenizer = tagged_tokenizer();
  options.thinking = Thinking::kOpen;
  options.tokens = 3;
  options.forced = "</think>";
  ThoughtBudget mask(options);
  for (std::string_view text : {"abcdef", "abxy", "a</think>bcdefg", "ab"}) {
    const std::vector<int32_t> all = ids_of(text);
    for (size_t n = 0; n <= all.size(); ++n) {
      std::vector<int32_t> answer(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n / 3));
      std::vector<int32_t> drafts(all.begin() + static_cast<std::ptrdiff_t>(n / 3),
                                  all.begin() + static_cast<std::ptrdiff_t>(n));
      ThoughtBudget fresh(options);
      EXPECT_EQ(allowed_after(mask, answer, drafts), allowed_after(fresh, answer, drafts))
          << text.substr(0, n);
    }
  }
  EXPECT_EQ(allowed_after(mask, ids_of("a"), ids_of("bc")), (std::vector<int32_t>{kClose}));
}

// Harmony's marks as control tokens, from 259 on.
constexpr int32_t kStart = 259, kChannel = 260, kMessage = 261, kEndMessage = 263, kCall = 264;
MessageMaskOptions message_options() {
  TokenizerSpec spec = testing::byte_tokenizer()->spec();
  for (const char* mark :
       {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"}) {
    AddedToken token;
    token.id = static_cast<int32_t>(spec.vocab_size());
    token.content = mark;
    token.special = true;
    spec.added_tokens.push_back(token);
  }
  MessageMaskOptions options;
  options.tokenizer = std::make_shared<Tokenizer>(std::move(spec));
  GrammarCache cache(options.tokenizer);
  options.messages = {{.header = "<|channel|>a<|message|>"},
                      {.header = "<|channel|>c f<|message|>",
                       .grammar = cache.get({Kind::kGrammar, "root ::= [0-9]{1,2}"}),
                       .end = "<|call|>"},
                      {.header = "<|channel|>c go<|message|>",
                       .grammar = cache.get({Kind::kGrammar, "root ::= \"xyz\""}),
                       .end = "<|call|>"}};
  options.end_ids = grammar_end_ids(*options.tokenizer, {kCall});
  return options;
}
std::vector<int32_t> joined(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> out;
  for (const std::vector<int32_t>& p : parts) out.insert(out.end(), p.begin(), p.end());
  return out;
}

TEST(MessageMask, ThoughtsAndThenACall) {
  MessageMask mask(message_options());
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(allowed_after(mask, {}), Ids{kChannel});
  EXPECT_EQ(allowed_after(mask, {kChannel}), ids_of("ac"));
  const Ids think = {kChannel, 'a', kMessage};
  const Ids text = allowed_after(mask, think);
  EXPECT_TRUE(allows(text, 'z') && allows(text, kEndMessage));
  EXPECT_FALSE(allows(text, kEnd) || allows(text, kCall) || allows(text, kChannel));
  // After the thoughts, a new message must begin, and it is not one of thoughts.
  const Ids thought = joined({think, ids_of("hm"), {kEndMessage}});
  EXPECT_EQ(allowed_after(mask, thought), Ids{kStart});
  const Ids next = joined({thought, {kStart}, ids_of("assistant"), {kChannel}});
  EXPECT_EQ(allowed_after(mask, next), ids_of("c"));
  EXPECT_EQ(allowed_after(mask, joined({next, ids_of("c ")})), ids_of("fg"));
  const Ids call = joined({next, ids_of("c f"), {kMessage}});
  EXPECT_EQ(allowed_after(mask, call), ids_of("0123456789"));
  EXPECT_EQ(allowed_after(mask, joined({call, ids_of("42")})), Ids{kCall});
  // Drafts, an answer that is taken back, and a draft that ends the answer.
  EXPECT_EQ(allowed_after(mask, think, joined({{kEndMessage, kStart}, ids_of("assi")})),
            ids_of("s"));
  EXPECT_EQ(allowed_after(mask, {}), Ids{kChannel});
  EXPECT_EQ(allowed_after(mask, call, {'4', kCall}).size(), 300u);
}

TEST(MessageMask, ForcesWhatTheHeadersShare) {
  MessageMaskOptions options = message_options();
  MessageMask mask(options);
  std::vector<int32_t> forced;
  mask.force(0, {}, forced);
  EXPECT_EQ(forced, std::vector<int32_t>{kChannel});
  forced.clear();
  mask.force(0, joined({{kChannel}, ids_of("c g")}), forced);
  EXPECT_EQ(forced, joined({ids_of("o"), {kMessage}, ids_of("xyz")}));
}

TEST(TokenFilter, AllowedTokensAndBadWords) {
  TokenFilterOptions options;
  options.allowed = {'a', 'b', 'c', kEnd};
  options.banned = {{'c'}, {'a', 'b', 'a'}};
  options.vocab = 300;
  TokenFilter mask(options);
  EXPECT_EQ(allowed_after(mask, {}), (std::vector<int32_t>{'a', 'b', kEnd}));
  EXPECT_EQ(allowed_after(mask, ids_of("bab")), (std::vector<int32_t>{'b', kEnd}));
  EXPECT_EQ(allowed_after(mask, ids_of("ba"), ids_of("b")), (std::vector<int32_t>{'b', kEnd}));
  EXPECT_EQ(allowed_after(mask, ids_of("babb")), (std::vector<int32_t>{'a', 'b', kEnd}));
  options.allowed.clear();
  options.grammar = std::make_shared<GrammarMask>(mask_options(Kind::kRegex, "[a-d]b"));
  TokenFilter both(options);
  EXPECT_EQ(allowed_after(both, {}), ids_of("abd"));
  EXPECT_EQ(banned_sequences(*tagged_tokenizer(), " hi"),
            (std::vector<std::vector<int32_t>>{ids_of("hi"), ids_of(" hi")}));
}

TEST(GrammarCache, IsBoundedAndShared) {
  GrammarCache cache(tagged_tokenizer(), 3);
  auto a = cache.get({Kind::kRegex, "a"});
  EXPECT_EQ(cache.get({Kind::kRegex, "a"}), a);
  for (const char* regex : {"b", "c", "d"}) cache.get({Kind::kRegex, regex});
  EXPECT_EQ(cache.stats().entries, 3u);
  EXPECT_NE(cache.get({Kind::kRegex, "a"}), a);
  EXPECT_EQ(cache.stats().hits, 1u);
  EXPECT_TRUE(a->matches("a"));  // still usable
  grammar::GrammarSource wrapped{Kind::kJsonSchema, R"({"const":1})", {}, "<t>", "</t>"};
  EXPECT_TRUE(cache.get(wrapped)->matches("<t>1</t>"));
  EXPECT_THROW(cache.get({Kind::kRegex, "("}), Error);
  EXPECT_THROW(cache.get({Kind::kChoice, ""}), Error);
  EXPECT_THROW(cache.get({Kind::kGrammar, std::string(2 << 20, ' ')}), Error);
}

TEST(GrammarCache, TheMemoryOfAllGrammarsIsBounded) {
  constexpr size_t kMost = size_t{1} << 19;
  GrammarCache cache(tagged_tokenizer(), 64, kMost);
  for (int i = 0; i < 30; ++i) {
    auto grammar = cache.get({Kind::kRegex, fmt::format("[a-z]{{{}}}", 1000 + i)});
    EXPECT_TRUE(grammar->matches(std::string(static_cast<size_t>(1000 + i), 'x')));  // it grows
    EXPECT_EQ(cache.get({Kind::kRegex, fmt::format("[a-z]{{{}}}", 1000 + i)}), grammar);
    EXPECT_LE(cache.stats().bytes, kMost);
  }
  EXPECT_GT(cache.stats().entries, 1u);
  EXPECT_LT(cache.stats().entries, 30u);
}

}  // namespace
}  // namespace tokamak
