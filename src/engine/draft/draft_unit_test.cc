// Drafters and the cost model, without an engine.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "engine/draft/lookahead_drafter.h"
#include "engine/draft/mapped_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/draft/pattern_drafter.h"
#include "engine/draft/step_cost.h"
#include "engine/draft/suffix_drafter.h"

namespace tokamak {
namespace {

using Ids = std::vector<int32_t>;

DraftRequest ask(Drafter& drafter, const Ids& ids, int32_t most, uint64_t sequence = 1,
                 std::string_view salt = "") {
  DraftRequest r;
  r.sequence = sequence;
  r.ids = ids;
  r.prompt_length = static_cast<int32_t>(ids.size());
  r.salt = salt;
  r.most = most;
  drafter.propose(std::span(&r, 1));
  for (size_t i = 0; i < r.tokens.size(); ++i)
    EXPECT_EQ(r.tokens[i].parent, static_cast<int32_t>(i) - 1) << "not a chain";
  EXPECT_LE(std::ssize(r.tokens), most);
  return r;
}

Ids drafted(Drafter& drafter, const Ids& ids, int32_t most, uint64_t sequence = 1,
            std::string_view salt = "") {
  Ids out;
  for (const DraftToken& t : ask(drafter, ids, most, sequence, salt).tokens) out.push_back(t.id);
  return out;
}

// Every draft as its path from the known tokens.
std::vector<Ids> tree(Drafter& drafter, const Ids& ids, int32_t most, int32_t branches,
                      uint64_t sequence = 1) {
  DraftRequest r;
  r.sequence = sequence;
  r.ids = ids;
  r.prompt_length = static_cast<int32_t>(ids.size());
  r.most = most;
  r.branches = branches;
  drafter.propose(std::span(&r, 1));
  EXPECT_LE(r.tokens.size(), most_nodes(r));
  std::vector<Ids> out;
  for (const DraftToken& t : r.tokens) {
    EXPECT_LT(t.parent, std::ssize(out));
    Ids path = t.parent < 0 ? Ids() : out[static_cast<size_t>(t.parent)];
    path.push_back(t.id);
    out.push_back(path);
  }
  return out;
}

TEST(Drafters, BranchesAreOtherContinuations) {
  // 1 2 was followed by 3 4 5, by 3 6 and, last, by 7 8.
  const Ids text = {1, 2, 3, 4, 5, 1, 2, 3, 6, 9, 1, 2, 7, 8, 1, 2};
  NgramDrafter ngram({4, 2, false});
  EXPECT_EQ(tree(ngram, text, 3, 2),
            (std::vector<Ids>{{7}, {7, 8}, {7, 8, 1}, {3}, {3, 6}, {3, 6, 9}, {3, 4}, {3, 4, 5}}));
  EXPECT_EQ(tree(ngram, text, 3, 1), (std::vector<Ids>{{7}, {7, 8}, {7, 8, 1}}));
  EXPECT_EQ(tree(ngram, text, 1, 2), (std::vector<Ids>{{7}, {3}}));
  SuffixDrafter suffix({.factor = 2});
  // 3 followed twice, 7 once; after 3 both 6 and 4.
  std::vector<Ids> paths = tree(suffix, text, 4, 2);
  ASSERT_GE(paths.size(), 4u);
  EXPECT_EQ(paths[0], (Ids{3}));
  EXPECT_NE(std::find(paths.begin(), paths.end(), Ids{7}), paths.end());
  EXPECT_NE(std::find(paths.begin(), paths.end(), Ids{3, 4}), paths.end());
  EXPECT_NE(std::find(paths.begin(), paths.end(), Ids{3, 6}), paths.end());
  LookaheadDrafter lookahead({.window = 1, .ngram = 3, .candidates = 4});
  paths = tree(lookahead, Ids{1, 2, 3, 1, 2, 4, 1, 5, 6, 1}, 3, 3);
  ASSERT_EQ(paths.size(), 6u);
  EXPECT_EQ((std::vector<Ids>(paths.begin(), paths.end() - 1)),
            (std::vector<Ids>{{5}, {5, 6}, {2}, {2, 4}, {2, 3}}));
  EXPECT_EQ(paths[5].size(), 3u) << "a guess after the first n-gram";
}

TEST(LookaheadDrafter, ImprovesItsGuessesAndKeepsNgrams) {
  LookaheadDrafter drafter({.window = 3, .ngram = 3, .candidates = 2});
  Ids text = {1, 2, 3, 9, 1};
  // 1 was followed by 2 3; the other positions have no guesses yet and begin with tokens of the
  // text.
  DraftRequest first = ask(drafter, text, 8);
  Ids tokens;
  for (const DraftToken& t : first.tokens) tokens.push_back(t.id);
  EXPECT_EQ(tokens, (Ids{2, 3, 1, 2, 9}));
  EXPECT_EQ(first.strength, 1);
  EXPECT_EQ(first.founded, 2);
  // 2 is right, 3 is not: 7 follows. Then what the model chose after the wrong tokens.
  drafter.verified(1, first.tokens, Ids{2, 7, 20, 21, 22, 23}, 1);
  text.insert(text.end(), {2, 7});
  DraftRequest guesses = ask(drafter, text, 8);
  EXPECT_EQ(guesses.strength, 0) << "nothing followed 7 so far";
  EXPECT_EQ(drafted(drafter, text, 8), (Ids{20, 21, 22}));
  // 21 was chosen after the drafts 3 1: that n-gram is later than the text's 3 9 1.
  text.push_back(3);
  EXPECT_EQ(drafted(drafter, text, 4), (Ids{1, 21, 22, 23}));
  EXPECT_EQ(drafted(drafter, text, 1), (Ids{1}));
  drafter.finish(1, "", text, 1);
  EXPECT_EQ(drafted(drafter, Ids{5, 3}, 2).size(), 2u) << "a new text with the same number";
}

// Its tokens are letters; those of the model are pairs of letters, and letters in another order.
TEST(MappedDrafter, TranslatesBothWays) {
  struct Next final : Drafter {  // a b c d ... after the last letter
    void propose(std::span<DraftRequest> requests) override {
      for (DraftRequest& r : requests) {
        seen.assign(r.ids.begin(), r.ids.end());
        prompt = r.prompt_length;
        temperature = r.sample->get()->temperature;
        for (int32_t i = 0; i < r.most; ++i)
          r.tokens.push_back({r.ids.back() + 1 + i, i - 1, nullptr});
      }
    }
    void finish(uint64_t, std::string_view, std::span<const int32_t>, int32_t) override {
      ++finished;
    }
    std::vector<int32_t> seen;
    int32_t prompt = 0, finished = 0;
    float temperature = 1;
  };
  auto inner = std::make_unique<Next>();
  Next& next = *inner;
  VocabularyMap map;
  map.to_draft = {{0, 1}, {3}, {2}, {1}, {0}, {}};  // "ab", d, c, b, a, a control token
  map.to_target = {4, 3, 2, 1, -1};                 // the model has no e
  MappedDrafter drafter(std::move(inner), map);
  auto sample = std::make_shared<const SampleSpec>();
  auto propose = [&](const std::vector<int32_t>& ids, int32_t most) {
    std::vector<DraftRequest> requests(1);
    requests[0].sequence = 7;
    requests[0].ids = ids;
    requests[0].prompt_length = 1;
    requests[0].sample = &sample;
    requests[0].most = most;
    drafter.propose(requests);
    std::vector<int32_t> out;
    for (const DraftToken& t : requests[0].tokens) out.push_back(t.id);
    return out;
  };
  EXPECT_EQ(propose({0}, 1), (std::vector<int32_t>{2}));  // "ab" -> c
  EXPECT_EQ(next.seen, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(next.prompt, 2);
  EXPECT_EQ(next.temperature, 0);
  EXPECT_EQ(propose({0, 5, 4}, 8), (std::vector<int32_t>{3, 2, 1}));  // b c d, then e
  EXPECT_EQ(next.seen, (std::vector<int32_t>{0, 1, 0}));
  EXPECT_EQ(propose({0, 3}, 2), (std::vector<int32_t>{2, 1}));  // the last tokens changed
  EXPECT_EQ(next.seen, (std::vector<int32_t>{0, 1, 1}));
  drafter.finish(7, "", {}, 0);
  drafter.finish(8, "", {}, 0);
  EXPECT_EQ(next.finished, 1);
}

TEST(NgramDrafter, ContinuesTheLongestEarlierOccurrence) {
  struct Case {
    Ids ids;
    int32_t most;
    Ids latest, earliest;
  };
  const Case cases[] = {
      {{1, 2, 3, 4, 5, 1, 2}, 3, {3, 4, 5}, {3, 4, 5}},
      {{1, 2, 3, 9, 1, 2, 4, 8, 1, 2}, 2, {4, 8}, {3, 9}},
      // Three tokens match before, two match later.
      {{7, 1, 2, 5, 6, 1, 2, 8, 8, 7, 1, 2}, 2, {5, 6}, {5, 6}},
      {{1, 2, 3, 4}, 4, {}, {}},
      {{1, 2, 1}, 4, {}, {}},                      // one token is not enough
      {{5, 5, 5}, 4, {5, 5, 5, 5}, {5, 5, 5, 5}},  // the match overlaps the end
      {{1, 2, 1, 2}, 5, {1, 2, 1, 2, 1}, {1, 2, 1, 2, 1}},
      {{3}, 4, {}, {}},
      {{1, 2, 3, 1, 2}, 0, {}, {}},
  };
  for (const Case& c : cases) {
    NgramDrafter latest({4, 2, false}), earliest({4, 2, true});
    EXPECT_EQ(drafted(latest, c.ids, c.most), c.latest);
    EXPECT_EQ(drafted(earliest, c.ids, c.most), c.earliest);
  }
}

// Both places have the last four tokens; the one with more of the text before is right.
TEST(NgramDrafter, TheLongestMatchDecidesByDefault) {
  Ids text = {1, 2, 3, 4, 5, 6, 7, 8, 20, 9, 9, 5, 6, 7, 8, 30, 1, 2, 3, 4, 5, 6, 7, 8};
  NgramDrafter standard({}), four({4, 2, false});
  EXPECT_EQ(drafted(standard, text, 1), (Ids{20}));
  EXPECT_EQ(drafted(four, text, 1), (Ids{30}));
}

TEST(Drafters, FollowAPrediction) {
  const Ids prediction = {5, 6, 7, 8, 9, 4};
  NgramDrafter ngram({4, 2, false});
  SuffixDrafter suffix({});
  struct Case {
    Ids answer, want;
  };
  for (const Case& c : {Case{{}, {5, 6, 7}}, Case{{5, 6}, {7, 8, 9}}, Case{{5, 6, 7, 8, 9}, {4}},
                        Case{{5, 1, 2, 7, 8}, {9, 4}}, Case{{5, 2}, {}}})
    for (Drafter* drafter : {static_cast<Drafter*>(&ngram), static_cast<Drafter*>(&suffix)}) {
      Ids ids = {1, 3};
      ids.insert(ids.end(), c.answer.begin(), c.answer.end());
      DraftRequest r;
      r.sequence = 100;
      r.ids = ids;
      r.prompt_length = 2;
      r.prediction = prediction;
      r.most = 3;
      drafter->propose(std::span(&r, 1));
      drafter->finish(r.sequence, "", Ids{}, 0);
      Ids have;
      for (const DraftToken& t : r.tokens) have.push_back(t.id);
      EXPECT_EQ(have, c.want);
    }
}

TEST(NgramDrafter, StrengthIsTheLengthOfTheMatch) {
  for (int32_t length : {2, 3, 6, 12, 40}) {
    Ids ids;
    for (int round = 0; round < 2; ++round) {
      ids.push_back(1000 + round);
      for (int32_t i = 0; i < length; ++i) ids.push_back(i);
    }
    NgramDrafter drafter({4, 2, false});
    EXPECT_EQ(ask(drafter, ids, 1).strength, match_strength(length)) << length;
  }
  EXPECT_EQ(match_strength(1), 0);
  EXPECT_LT(match_strength(3), match_strength(8));
  EXPECT_LT(match_strength(1 << 20), kMostDraftStrengths);
}

int64_t occurrences(const std::vector<Ids>& texts, std::span<const int32_t> part) {
  int64_t n = 0;
  for (const Ids& text : texts)
    for (size_t i = 0; i + part.size() <= text.size(); ++i)
      n += std::equal(part.begin(), part.end(), text.begin() + static_cast<std::ptrdiff_t>(i));
  return n;
}

// The automaton against a search through the texts.
TEST(SuffixAutomaton, KnowsEverySubstringAndItsCount) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    auto alphabet = 1 + rng.below(5);
    SuffixAutomaton automaton;
    std::vector<Ids> texts;
    for (uint64_t t = 1 + rng.below(3); t > 0; --t) {
      Ids& text = texts.emplace_back();
      automaton.begin_text();
      for (uint64_t n = 1 + rng.below(20); n > 0; --n) {
        text.push_back(static_cast<int32_t>(rng.below(alphabet)));
        automaton.append(text.back());
      }
    }
    for (int probe = 0; probe < 40; ++probe) {
      Ids ids;
      for (uint64_t n = rng.below(12); n > 0; --n)
        ids.push_back(static_cast<int32_t>(rng.below(alphabet + 1)));
      SuffixAutomaton::Match m = automaton.match(ids);
      size_t longest = 0;
      while (longest < ids.size() && occurrences(texts, std::span(ids).last(longest + 1)) > 0)
        ++longest;
      ASSERT_EQ(m.length, static_cast<int32_t>(longest));
      Ids suffix(ids.end() - m.length, ids.end());
      int64_t all = 0, most = 0;
      for (int32_t token = 0; token < static_cast<int32_t>(alphabet); ++token) {
        suffix.push_back(token);
        int64_t n = occurrences(texts, suffix);
        EXPECT_EQ(automaton.next(m.state, token) >= 0, n > 0);
        all += n;
        most = std::max(most, n);
        suffix.pop_back();
      }
      SuffixAutomaton::Follower f = automaton.likeliest(m.state);
      EXPECT_EQ(f.token >= 0, all > 0);
      if (all == 0) continue;
      EXPECT_DOUBLE_EQ(f.share, static_cast<double>(most) / static_cast<double>(all));
      suffix.push_back(f.token);
      EXPECT_EQ(occurrences(texts, suffix), most);
    }
  }
}

TEST(SuffixDrafter, FollowsWhatWasFrequent) {
  SuffixDrafter drafter({});
  // After 1 2: three times 3 4, once 5.
  Ids ids = {1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 5, 7, 1, 2, 3, 4, 6, 1, 2};
  EXPECT_EQ(drafted(drafter, ids, 8), (Ids{3, 4}));  // no longer than the match
  EXPECT_EQ(drafted(drafter, ids, 1), (Ids{3}));
  SuffixOptions longer;
  longer.factor = 4;
  longer.min_share = 0.5;
  SuffixDrafter other(longer);
  EXPECT_EQ(drafted(other, ids, 8), (Ids{3, 4})) << "what follows 4 differs each time";
  EXPECT_EQ(drafted(drafter, {1, 2, 3}, 8, 2), Ids());
}

TEST(SuffixDrafter, ASequenceGrows) {
  SuffixDrafter drafter({});
  Ids ids = {1, 2, 3, 4, 5};
  EXPECT_EQ(drafted(drafter, ids, 4), Ids());
  ids.insert(ids.end(), {1, 2});
  EXPECT_EQ(drafted(drafter, ids, 4), (Ids{3, 4}));
  ids.push_back(3);
  EXPECT_EQ(drafted(drafter, ids, 4), (Ids{4, 5, 1}));
}

TEST(SuffixDrafter, EarlierAnswersServeTheSameSaltOnly) {
  SuffixDrafter drafter({});
  Ids answer = {9, 9, 1, 2, 3, 4, 5, 6};
  drafter.finish(1, "a", answer, 2);
  EXPECT_EQ(drafted(drafter, {7, 1, 2}, 8, 2, "a"), (Ids{3, 4}));
  EXPECT_EQ(drafted(drafter, {7, 1, 2}, 8, 3, "b"), Ids());
  EXPECT_EQ(drafted(drafter, {7, 9}, 8, 4, "a"), Ids()) << "of the prompt";
}

TEST(SuffixDrafter, MemoryIsBounded) {
  SuffixOptions options;
  options.answer_tokens = 4096;
  SuffixDrafter drafter(options);
  Rng rng(4);
  int64_t most = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    Ids answer;
    for (int t = 0; t < 64; ++t) answer.push_back(static_cast<int32_t>(rng.below(500)));
    drafter.finish(i, std::string(1, static_cast<char>('a' + i % 3)), answer, 0);
    most = std::max(most, drafter.kept_tokens());
  }
  EXPECT_LE(most, 4096 + 64);
  EXPECT_GT(drafter.kept_tokens(), 1000);
  SuffixOptions none;
  none.answers = 0;
  SuffixDrafter off(none);
  off.finish(1, "", Ids{1, 2, 3, 4}, 0);
  EXPECT_EQ(off.kept_tokens(), 0);
}

TEST(PatternDrafter, ProposesWhatFollowedInTheCorpus) {
  std::string path = testing::TempDir() + "/patterns";
  // 1 2 3 4 twice and 1 2 5 once; texts do not continue each other.
  Ids corpus = {1, 2, 3, 4, -1, 9, 1, 2, 3, 4, 7, -1, 1, 2, 5, -1};
  PatternFile::write(path, corpus, 10, 77);
  auto file = PatternFile::open(path);
  EXPECT_EQ(file->fingerprint(), 77u);
  EXPECT_EQ(file->find(Ids{1, 2}).size(), 3u);
  EXPECT_EQ(file->find(Ids{2, 3, 4}).size(), 2u);
  EXPECT_EQ(file->find(Ids{4, 9}).size(), 0u);
  auto drafter = [&](double share) {
    PatternOptions options;
    options.min_share = share;
    return PatternDrafter(file, options, std::make_unique<NgramDrafter>(NgramOptions()));
  };
  auto often = drafter(0.5), always = drafter(0.9);
  EXPECT_EQ(drafted(often, {8, 1, 2}, 8), (Ids{3, 4}));  // 7 follows in one of three
  EXPECT_EQ(drafted(often, {8, 1, 2}, 1), (Ids{3}));
  EXPECT_EQ(drafted(often, {8, 9, 1, 2}, 8), (Ids{3, 4, 7}));
  EXPECT_EQ(drafted(always, {8, 1, 2}, 8), Ids());
  EXPECT_EQ(drafted(often, {8, 2}, 8), Ids()) << "one token is not enough";
  EXPECT_EQ(drafted(often, {1, 2, 6, 1, 2}, 2), (Ids{6, 1})) << "its own text comes first";
  EXPECT_EQ(drafted(often, {}, 2), Ids());
  for (size_t size : {0, 7, 40, 100}) {
    std::string bytes = read_text_file(path).substr(0, size);
    write_text_file(path + ".cut", bytes);
    EXPECT_THROW(PatternFile::open(path + ".cut"), Error) << size;
  }
  std::string bytes = read_text_file(path);
  bytes.back() = 0x7f;  // a start beyond the end
  write_text_file(path + ".bad", bytes);
  EXPECT_THROW(PatternFile::open(path + ".bad"), Error);
}

// The sorted list against a search.
TEST(PatternFile, FindsEveryOccurrence) {
  std::string path = testing::TempDir() + "/random_patterns";
  Rng rng(8);
  std::vector<Ids> texts;
  Ids corpus;
  for (int t = 0; t < 20; ++t) {
    Ids& text = texts.emplace_back();
    for (uint64_t n = 1 + rng.below(60); n > 0; --n)
      text.push_back(static_cast<int32_t>(rng.below(4)));
    corpus.insert(corpus.end(), text.begin(), text.end());
    corpus.push_back(-1);
  }
  PatternFile::write(path, corpus, 4, 0);
  auto file = PatternFile::open(path);
  for (int i = 0; i < 500; ++i) {
    Ids ids;
    for (uint64_t n = 1 + rng.below(7); n > 0; --n)
      ids.push_back(static_cast<int32_t>(rng.below(4)));
    EXPECT_EQ(static_cast<int64_t>(file->find(ids).size()), occurrences(texts, ids));
  }
}

TEST(StepCost, InterpolatesAndForgets) {
  StepCost cost;
  EXPECT_LT(cost.seconds(1), cost.seconds(4)) << "before the first measurement";
  for (int i = 0; i < 50; ++i) cost.observe(1, 1.0);
  EXPECT_NEAR(cost.seconds(1), 1, 1e-9);
  for (int i = 0; i < 50; ++i) cost.observe(5, 2.0);
  EXPECT_NEAR(cost.seconds(3), 1.5, 1e-9);
  EXPECT_NEAR(cost.seconds(9), 3, 1e-9);
  cost.observe(5, 1000);  // an outlier
  EXPECT_LT(cost.seconds(5), 2.6);
  for (int i = 0; i < 2000; ++i) cost.observe(1, 1.0);
  EXPECT_LT(cost.seconds(5), 2) << "no longer trusted";
}

}  // namespace
}  // namespace tokamak
