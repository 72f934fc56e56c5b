#include "engine/kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace tokamak {
namespace {

TEST(BlockPool, HandlesAreGoodUntilReleased) {
  BlockPool pool(2);
  BlockHandle a = pool.take(), b = pool.take();
  EXPECT_NE(a.index, b.index);
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_THROW(pool.take(), Error);
  EXPECT_EQ(pool.state(a), BlockState::kReserved);
  pool.set_state(a, BlockState::kReady);
  pool.release(a);
  EXPECT_THROW(pool.state(a), Error);
  EXPECT_THROW(pool.release(a), Error);
  BlockHandle c = pool.take();  // the same block, another generation
  EXPECT_EQ(c.index, a.index);
  EXPECT_NE(c.generation, a.generation);
  EXPECT_EQ(pool.state(c), BlockState::kReserved);
  EXPECT_THROW(pool.set_state(a, BlockState::kReady), Error);
}

TEST(BlockPool, SharedBlocksAreFreedByTheLastOwner) {
  BlockPool pool(1);
  BlockHandle a = pool.take();
  pool.retain(a);
  pool.release(a);
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_EQ(pool.references(a), 1);
  pool.release(a);
  EXPECT_EQ(pool.free_blocks(), 1);
}

const GroupEntry kFull{"full", 0, 4}, kWindow{"window", 6, 2};

TEST(KvCache, AllocationIsAllOrNothing) {
  GroupEntry groups[] = {kFull, kWindow};
  int64_t blocks[] = {10, 3};
  KvCache kv(groups, blocks);
  SequenceBlocks s;
  kv.open(s, 40);
  EXPECT_TRUE(kv.reserve(s, 6));
  EXPECT_EQ(kv.pool(0).free_blocks(), 8);
  EXPECT_EQ(kv.pool(1).free_blocks(), 0);
  EXPECT_FALSE(kv.reserve(s, 7));  // the second group is full
  EXPECT_EQ(kv.pool(0).free_blocks(), 8);
  EXPECT_EQ(s.capacity, 6);
  kv.release(s);
  EXPECT_TRUE(kv.all_free());
}

TEST(KvCache, CommitMarksWhatIsProven) {
  GroupEntry groups[] = {kFull};
  int64_t blocks[] = {4};
  KvCache kv(groups, blocks);
  SequenceBlocks s;
  kv.open(s, 40);
  ASSERT_TRUE(kv.reserve(s, 12));
  auto state = [&](size_t i) { return kv.pool(0).state(s.tables[0].blocks[i]); };
  kv.commit(s, 5, {});
  EXPECT_EQ(state(0), BlockState::kReady);
  EXPECT_EQ(state(1), BlockState::kFilling);
  EXPECT_EQ(state(2), BlockState::kReserved);
  kv.commit(s, 8, {});
  EXPECT_EQ(state(1), BlockState::kReady);
  kv.truncate(s, 6);
  EXPECT_EQ(s.tables[0].blocks.size(), 2u);
  EXPECT_EQ(state(1), BlockState::kFilling);
  EXPECT_THROW(kv.commit(s, 7, {}), Error);  // no longer reserved
}

TEST(KvCache, WindowsDropWhatNoQuerySees) {
  GroupEntry groups[] = {kFull, kWindow};
  int64_t blocks[] = {100, 100};
  KvCache kv(groups, blocks);
  SequenceBlocks s;
  kv.open(s, 40);
  for (int64_t n = 1; n <= 40; ++n) {
    ASSERT_TRUE(kv.reserve(s, n));
    kv.commit(s, n, {});
    // The query at slot n sees n-5 .. n.
    int64_t first = std::max<int64_t>(0, n - 5) / 2;
    EXPECT_EQ(s.tables[1].dropped, first);
    for (int64_t i = 0; i < static_cast<int64_t>(s.tables[1].blocks.size()); ++i)
      EXPECT_EQ(s.tables[1].blocks[static_cast<size_t>(i)].valid(), i >= first);
    EXPECT_LE(KvCache::held(s, 1), kv.most_blocks(1, n, 1));
    EXPECT_EQ(KvCache::held(s, 0), (n + 3) / 4);  // less than one block is wasted
  }
  EXPECT_THROW(kv.truncate(s, 20), Error);  // what it would need is gone
  kv.release(s);
  EXPECT_TRUE(kv.all_free());
}

TEST(KvCache, RandomSequencesNeverShareABlock) {
  GroupEntry groups[] = {kFull, kWindow, {"tiny", 1, 1}};
  int64_t blocks[] = {30, 25, 40};
  KvCache kv(groups, blocks);
  Rng rng(7);
  std::vector<SequenceBlocks> seqs(8);
  std::vector<int64_t> done(8, 0);
  for (auto& s : seqs) kv.open(s, 40);
  for (int round = 0; round < 20000; ++round) {
    size_t i = rng.below(seqs.size());
    SequenceBlocks& s = seqs[i];
    switch (rng.below(4)) {
      case 0:
      case 1: {
        int64_t free = kv.free_blocks();
        int64_t want = done[i] + 1 + static_cast<int64_t>(rng.below(9));
        if (!kv.reserve(s, want)) {
          EXPECT_EQ(kv.free_blocks(), free);
          break;
        }
        done[i] += static_cast<int64_t>(rng.below(static_cast<uint64_t>(want - done[i] + 1)));
        kv.commit(s, done[i], {});
        break;
      }
      case 2:
        kv.truncate(s, done[i]);
        break;
      case 3:
        if (rng.below(5) == 0) kv.release(s), done[i] = 0;
        break;
    }
    for (size_t g = 0; g < 3; ++g) {
      std::set<int32_t> used;
      for (const auto& t : seqs)
        for (BlockHandle h : t.tables[g].blocks)
          if (h.valid()) {
            EXPECT_TRUE(used.insert(h.index).second);
          }
      ASSERT_EQ(static_cast<int64_t>(used.size()), blocks[g] - kv.pool(g).free_blocks());
    }
  }
  for (auto& s : seqs) kv.release(s);
  EXPECT_TRUE(kv.all_free());
}

}  // namespace
}  // namespace tokamak
