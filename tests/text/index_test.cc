// The vector index: near neighbours against a comparison of all vectors, and damaged files. Also
// the passages that are indexed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "text/embedding.h"
#include "text/index/passages.h"
#include "text/index/vector_index.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

class IndexTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::path(testing::TempDir()) / fmt::format("tokamak-index-{}", ::getpid());
  }
  void TearDown() override { fs::remove(path_); }

  // Vectors in clusters, as those of texts are.
  static std::vector<IndexEntry> random_entries(int64_t count, int64_t dimensions, Rng& rng) {
    std::vector<std::vector<float>> centres;
    for (int i = 0; i < 20; ++i) {
      std::vector<float>& c = centres.emplace_back();
      for (int64_t d = 0; d < dimensions; ++d) c.push_back(static_cast<float>(rng.normal()));
    }
    std::vector<IndexEntry> entries;
    for (int64_t i = 0; i < count; ++i) {
      IndexEntry& e = entries.emplace_back();
      e.vector = centres[rng.below(centres.size())];
      for (float& x : e.vector) x += static_cast<float>(rng.normal());
      finish_vector(e.vector, 0, true);
      e.text = fmt::format("entry {}", i);
    }
    return entries;
  }

  static std::set<int64_t> nearest(const std::vector<IndexEntry>& entries,
                                   const std::vector<float>& query, size_t k) {
    std::vector<std::pair<double, int64_t>> all;
    for (size_t i = 0; i < entries.size(); ++i)
      all.emplace_back(-cosine(entries[i].vector, query), static_cast<int64_t>(i));
    std::sort(all.begin(), all.end());
    std::set<int64_t> out;
    for (size_t i = 0; i < k; ++i) out.insert(all[i].second);
    return out;
  }

  fs::path path_;
};

TEST_F(IndexTest, FindsWhatAComparisonOfAllVectorsFinds) {
  Rng rng(1);
  std::vector<IndexEntry> entries = random_entries(3000, 96, rng);
  write_vector_index(path_, entries, Value::Object{{"model", "m"}});
  auto index = VectorIndex::open(path_);
  EXPECT_EQ(index->size(), 3000);
  EXPECT_EQ(index->dimensions(), 96);
  EXPECT_EQ(index->meta().get_string("model", ""), "m");
  for (auto how : {VectorIndex::Search::kFlat, VectorIndex::Search::kGraph}) {
    int found = 0;
    for (const IndexEntry& q : random_entries(100, 96, rng)) {
      std::set<int64_t> wanted = nearest(entries, q.vector, 10);
      auto hits = index->search(q.vector, 10, how);
      ASSERT_EQ(hits.size(), 10u);
      for (size_t i = 0; i < hits.size(); ++i) {
        found += static_cast<int>(wanted.count(hits[i].index));
        EXPECT_EQ(index->text(hits[i].index), fmt::format("entry {}", hits[i].index));
        EXPECT_LE(hits[i].score, hits[i > 0 ? i - 1 : 0].score);
        EXPECT_NEAR(hits[i].score,
                    cosine(entries[static_cast<size_t>(hits[i].index)].vector, q.vector), 1e-5);
      }
    }
    EXPECT_GE(found, 980) << "of 1000";  // recall@10
  }
}

TEST_F(IndexTest, SmallAndEmptyIndexes) {
  Rng rng(2);
  for (int64_t count : {0, 1, 2, 7}) {
    std::vector<IndexEntry> entries = random_entries(count, 5, rng);
    write_vector_index(path_, entries, {});
    auto index = VectorIndex::open(path_);
    std::vector<float> query(count == 0 ? 0 : 5, 0.4f);
    for (auto how : {VectorIndex::Search::kFlat, VectorIndex::Search::kGraph})
      EXPECT_EQ(std::ssize(index->search(query, 4, how)), std::min<int64_t>(count, 4));
  }
  EXPECT_THROW(write_vector_index(path_, {{{1.0f}, ""}, {{1.0f, 2.0f}, ""}}, {}), Error);
  EXPECT_THROW(write_vector_index(path_, {{{std::nanf("")}, ""}}, {}), Error);
  EXPECT_THROW(VectorIndex::open(path_)->search(std::vector<float>(3), 1), Error);
}

TEST_F(IndexTest, DamagedFilesAreRefused) {
  Rng rng(3);
  write_vector_index(path_, random_entries(50, 8, rng), Value::Object{{"a", 1}});
  std::string good = read_text_file(path_);
  auto refused = [&](const std::string& bytes) {
    write_text_file(path_, bytes);
    try {
      VectorIndex::open(path_);
      return false;
    } catch (const Error& e) {
      return e.code() == ErrorCode::kCorrupt;
    }
  };
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused(good.substr(0, 70)));
  EXPECT_TRUE(refused(good.substr(0, good.size() - 1)));
  EXPECT_TRUE(refused(good + "x"));
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    size_t at = i < 72 ? static_cast<size_t>(i) : rng.below(bad.size());
    bad[at] = static_cast<char>(bad[at] ^ (1 << rng.below(8)));
    EXPECT_TRUE(refused(bad)) << "byte " << at;
  }
}

TEST(Passages, FollowParagraphsAndSentences) {
  auto texts = [](std::string_view document, size_t most) {
    std::vector<std::pair<int64_t, std::string>> out;
    for (const Passage& p : split_passages(document, most)) out.emplace_back(p.line, p.text);
    return out;
  };
  using List = std::vector<std::pair<int64_t, std::string>>;
  EXPECT_EQ(texts("", 100), List());
  EXPECT_EQ(texts(" \n\n ", 100), List());
  EXPECT_EQ(texts("one\ntwo\n\nthree\n", 100), (List{{1, "one\ntwo\n\nthree"}}));
  EXPECT_EQ(texts("\n\none paragraph\n\nanother paragraph\n\n\nthe last one", 20),
            (List{{3, "one paragraph"}, {5, "another paragraph"}, {8, "the last one"}}));
  EXPECT_EQ(texts("A first sentence. A second one follows.", 24),
            (List{{1, "A first sentence."}, {1, "A second one follows."}}));
  for (const auto& [line, text] :
       texts(std::string(100, 'x') + "\xc3\xa9" + std::string(99, 'y'), 17))
    EXPECT_LE(text.size(), 17u);
  std::string joined;
  for (const auto& [line, text] :
       texts("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 17)) {
    EXPECT_EQ(text.size() % 2, 0u);  // whole characters
    joined += text;
  }
  EXPECT_EQ(joined.size(), 18u);
}

}  // namespace
}  // namespace tokamak
