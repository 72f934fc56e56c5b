#include "compile/planner/pack.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "compile/planner/pack_csv.h"

namespace tokamak {
namespace {

uint64_t peak_of(const std::vector<PackBuffer>& buffers, const std::vector<uint64_t>& offsets) {
  uint64_t peak = 0;
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].size > 0) peak = std::max(peak, offsets[i] + buffers[i].size);
  return peak;
}

uint64_t live_bound(const std::vector<PackBuffer>& buffers) {
  uint64_t bound = 0;
  for (const PackBuffer& at : buffers) {
    uint64_t live = 0;
    for (const PackBuffer& b : buffers)
      if (b.lower <= at.lower && at.lower < b.upper) live += b.size;
    bound = std::max(bound, live);
  }
  return bound;
}

// Sound by a check that knows nothing of the solver.
void expect_sound(const std::vector<PackBuffer>& buffers, const PackResult& r) {
  ASSERT_EQ(r.offsets.size(), buffers.size());
  for (size_t a = 0; a < buffers.size(); ++a) {
    EXPECT_EQ(r.offsets[a] % buffers[a].alignment, 0u);
    for (size_t b = a + 1; b < buffers.size(); ++b) {
      bool together = buffers[a].lower < buffers[b].upper && buffers[b].lower < buffers[a].upper;
      bool apart = r.offsets[a] + buffers[a].size <= r.offsets[b] ||
                   r.offsets[b] + buffers[b].size <= r.offsets[a];
      EXPECT_TRUE(!together || apart) << a << " and " << b << " by " << r.method;
    }
  }
  EXPECT_EQ(r.peak, peak_of(buffers, r.offsets));
  EXPECT_GE(r.lower_bound, live_bound(buffers));
  EXPECT_LE(r.lower_bound, r.peak);
}

// The best of all orders of dropping one buffer on the others: any packing, pushed down and sorted
// by offset, is one of them.
struct BruteForce {
  const std::vector<PackBuffer>& buffers;
  std::vector<uint64_t> tops = std::vector<uint64_t>(buffers.size());  // 0: not placed
  uint64_t best = UINT64_MAX;

  uint64_t run(size_t placed = 0, uint64_t peak = 0) {
    if (peak >= best) return best;
    if (placed == buffers.size()) return best = peak;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (tops[i] != 0) continue;
      uint64_t offset = 0;
      for (size_t j = 0; j < buffers.size(); ++j)
        if (buffers[j].lower < buffers[i].upper && buffers[i].lower < buffers[j].upper)
          offset = std::max(offset, tops[j]);
      tops[i] = offset + buffers[i].size;
      run(placed + 1, std::max(peak, tops[i]));
      tops[i] = 0;
    }
    return best;
  }
};

std::vector<PackBuffer> random_buffers(Rng& rng, size_t n, uint64_t times, uint64_t sizes) {
  std::vector<PackBuffer> buffers(n);
  for (PackBuffer& b : buffers) {
    b.lower = rng.below(times);
    b.upper = b.lower + 1 + rng.below(times / 2 + 1);
    b.size = 1 + rng.below(sizes);
  }
  return buffers;
}

// Up to `n` buffers of which never more than `capacity` is alive, and nearly so all the time. They
// need not fit into it.
std::vector<PackBuffer> dense_buffers(Rng& rng, size_t n, uint64_t times, uint64_t capacity) {
  std::vector<PackBuffer> buffers;
  std::vector<uint64_t> room(times, capacity);
  for (int tries = 0; tries < 1000 && buffers.size() < n; ++tries) {
    uint64_t lower = rng.below(times), upper = lower + 1 + rng.below(times - lower);
    uint64_t free = *std::min_element(room.begin() + static_cast<ptrdiff_t>(lower),
                                      room.begin() + static_cast<ptrdiff_t>(upper));
    if (free == 0) continue;
    uint64_t size = 1 + rng.below(std::min(free, capacity / 2));
    for (uint64_t t = lower; t < upper; ++t) room[t] -= size;
    buffers.push_back({lower, upper, size, 1});
  }
  return buffers;
}

// Cuts a rectangle of time and memory into `n` buffers: they fill it without a hole. A guillotine
// cut either keeps the time (splits the height) or splits the time.
std::vector<PackBuffer> perfect_buffers(Rng& rng, size_t n, uint64_t times, uint64_t capacity) {
  struct Piece {
    uint64_t t0, t1, h;
  };
  std::vector<Piece> pieces{{0, times, capacity}};
  while (pieces.size() < n) {
    size_t at = rng.below(pieces.size());
    for (size_t k = 0; k < 3; ++k) {  // large pieces are cut more often
      size_t other = rng.below(pieces.size());
      auto area = [&](size_t p) { return (pieces[p].t1 - pieces[p].t0) * pieces[p].h; };
      if (area(other) > area(at)) at = other;
    }
    Piece p = pieces[at];
    if (rng.below(2) == 0 && p.t1 - p.t0 >= 2) {
      uint64_t cut = p.t0 + 1 + rng.below(p.t1 - p.t0 - 1);
      pieces[at].t1 = cut;
      pieces.push_back({cut, p.t1, p.h});
    } else if (p.h >= 2) {
      uint64_t cut = 1 + rng.below(p.h - 1);
      pieces[at].h = cut;
      pieces.push_back({p.t0, p.t1, p.h - cut});
    }
  }
  std::vector<PackBuffer> out;
  for (const Piece& p : pieces) out.push_back({p.t0, p.t1, p.h, 1});
  for (size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[rng.below(i)]);
  return out;
}

// Each needs one more than what is alive at its worst time; found by search, rare among random
// ones.
const std::vector<std::vector<PackBuffer>> kTight = {
    {{2, 6, 2}, {7, 11, 2}, {3, 8, 1}, {4, 7, 1}, {8, 9, 2}, {2, 3, 2}, {6, 8, 1}},
    {{3, 6, 3}, {6, 9, 4}, {0, 3, 4}, {2, 5, 4}, {7, 10, 4}, {4, 7, 1}, {5, 7, 1}},
    {{5, 8, 1}, {5, 9, 2}, {12, 14, 3}, {8, 13, 3}, {6, 9, 2}, {3, 6, 3}, {1, 5, 4}},
    {{3, 8, 4}, {4, 6, 3}, {0, 2, 3}, {2, 4, 1}, {1, 4, 1}, {1, 3, 3}, {0, 1, 4}},
    {{3, 7, 2}, {4, 6, 5}, {2, 6, 3}, {3, 4, 3}, {0, 4, 1}, {1, 4, 1}, {0, 3, 4}, {0, 1, 5}},
};

void expect_optimal(const std::vector<PackBuffer>& buffers, uint64_t best) {
  PackResult r = pack(buffers, {});
  expect_sound(buffers, r);
  EXPECT_EQ(r.peak, best);
  EXPECT_EQ(r.lower_bound, best);
  EXPECT_LE(pack(buffers, {.capacity = best}).peak, best);
  EXPECT_EQ(pack(buffers, {.capacity = best - 1}).lower_bound, best);
}

TEST(Pack, EqualsBruteForceAndProvesIt) {
  Rng rng(7);
  int above_bound = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<PackBuffer> buffers = kTight[static_cast<size_t>(round) % kTight.size()];
    for (uint64_t changes = rng.below(3) * (round >= 5); changes > 0; --changes) {
      PackBuffer& b = buffers[rng.below(buffers.size())];
      if (rng.below(2)) ++b.upper;
      b.size = std::max<uint64_t>(b.size + rng.below(3), 2) - 1;
    }
    uint64_t best = BruteForce{buffers}.run();
    expect_optimal(buffers, best);
    above_bound += best > live_bound(buffers);
    EXPECT_TRUE(round >= 5 || best == live_bound(buffers) + 1);
  }
  EXPECT_GE(above_bound, 50);  // the proof needed more than the sum of what is alive
  for (int round = 0; round < 40; ++round) {
    std::vector<PackBuffer> buffers = dense_buffers(rng, 2 + rng.below(6), 6, 8);
    expect_optimal(buffers, BruteForce{buffers}.run());
  }
}

TEST(Pack, FillsPerfectRectangles) {
  for (uint64_t seed : {1, 2, 3}) {
    Rng rng(seed);
    std::vector<PackBuffer> buffers = perfect_buffers(rng, 60, 40, 1024);
    PackResult r = pack(buffers, {.capacity = 1024, .time_limit = 120});
    expect_sound(buffers, r);
    EXPECT_EQ(r.peak, 1024u) << seed;
    EXPECT_EQ(r.lower_bound, 1024u);
    EXPECT_EQ(r.gap(), 0);
  }
}

TEST(Pack, RandomInstancesAreSoundWithMixedAlignment) {
  Rng rng(11);
  for (int round = 0; round < 150; ++round) {
    std::vector<PackBuffer> buffers = random_buffers(rng, 1 + rng.below(40), 30, 5000);
    for (PackBuffer& b : buffers) b.alignment = round % 2 ? 64 : uint64_t{1} << rng.below(8);
    if (round % 5 == 0) buffers[0].size = 0;
    expect_sound(buffers, pack(buffers, {.work_limit = 200'000}));
  }
}

TEST(Pack, SameSeedSameOffsets) {
  Rng rng(1);
  std::vector<PackBuffer> buffers = perfect_buffers(rng, 100, 66, 1 << 20);
  for (unsigned threads : {1u, 2u}) {
    PackOptions options{.time_limit = 1e6, .work_limit = 60'000'000, .threads = threads, .seed = 9};
    PackResult first = pack(buffers, options);
    expect_sound(buffers, first);
    EXPECT_EQ(first.method, "branch and bound");
    EXPECT_EQ(first.gap(), 0);
    for (int again = 0; again < 2; ++again) {
      PackResult r = pack(buffers, options);
      EXPECT_EQ(r.offsets, first.offsets);
      EXPECT_EQ(r.method, first.method);
    }
  }
}

TEST(Pack, LimitsLeaveASoundPacking) {
  Rng rng(6);
  std::vector<PackBuffer> buffers = perfect_buffers(rng, 150, 100, 1 << 20);
  std::atomic<bool> cancel = true;
  expect_sound(buffers, pack(buffers, {.time_limit = 0}));
  expect_sound(buffers, pack(buffers, {.work_limit = 0}));
  expect_sound(buffers, pack(buffers, {.cancel = &cancel}));
  expect_sound(buffers, pack(buffers, {.capacity = 1, .work_limit = 1000}));  // cannot fit
}

TEST(Pack, Extremes) {
  EXPECT_EQ(pack({}, {}).peak, 0u);
  std::vector<PackBuffer> far{{0, UINT64_MAX, 1, 1}, {UINT64_MAX - 1, UINT64_MAX, 5, 1}};
  EXPECT_EQ(pack(far, {}).peak, 6u);
  std::vector<PackBuffer> large{{0, 2, uint64_t{1} << 60, 1}, {1, 3, (uint64_t{1} << 60) + 1, 1}};
  EXPECT_EQ(pack(large, {}).peak, (uint64_t{1} << 61) + 1);
  std::vector<PackBuffer> empty{{0, 2, 0, 64}, {0, 2, 0, 64}};
  EXPECT_EQ(pack(empty, {}).peak, 0u);
  std::vector<PackBuffer> chain;
  for (uint64_t i = 0; i < 1500; ++i) chain.push_back({i, i + 2, 1024, 64});
  PackResult r = pack(chain, {});
  EXPECT_EQ(r.peak, 2048u);
  EXPECT_EQ(r.method, "first-fit by size");
}

TEST(PackingError, NamesWhatIsWrong) {
  std::vector<PackBuffer> b{{0, 2, 10, 4}, {1, 3, 10, 4}, {2, 4, 10, 4}, {0, 9, 0, 4}};
  auto error = [&](std::vector<uint64_t> offsets) { return packing_error(b, offsets); };
  EXPECT_EQ(error({0, 12, 0, 4}), "");
  EXPECT_EQ(error({0, 12, 0}), "not one offset per buffer");
  EXPECT_EQ(error({0, 10, 0, 0}), "buffer 1 is not aligned");
  EXPECT_EQ(error({0, 8, 20, 0}), "buffers 0 and 1 are alive together and overlap");
}

TEST(PackCsv, ReadsColumnsByName) {
  PackInstance in = parse_pack_csv("id,lower,upper,size\r\n7,0,10,64\r\n\nx, 5 ,12,0\n", "f");
  EXPECT_EQ(in.ids, (std::vector<std::string>{"7", "x"}));
  EXPECT_EQ(in.buffers[1].lower, 5u);
  EXPECT_EQ(in.buffers[1].upper, 12u);
  in = parse_pack_csv("size,alignment,id,upper,lower\n100,64,a,2,1", "f");
  EXPECT_EQ(in.buffers[0].size, 100u);
  EXPECT_EQ(in.buffers[0].alignment, 64u);
  EXPECT_TRUE(parse_pack_csv("id,lower,upper,size\n", "f").ids.empty());
}

TEST(PackCsv, RefusesWithLineAndReason) {
  const std::string h = "id,lower,upper,size\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "f, line 1: no header; the first line must be id,lower,upper,size"},
      {"0,1,2,3\n", "f, line 1: column \"0\" is not known; the header must be id,lower,upper,size"},
      {"id,lower,size\n",
       "f, line 1: column upper is missing; the header must be id,lower,upper,size"},
      {"id,id,lower,upper,size\n", "f, line 1: column id appears twice"},
      {h + "0,1,2\n", "f, line 2: the line has 3 fields, the header 4"},
      {h + "0,1,2,3,4\n", "f, line 2: the line has 5 fields, the header 4"},
      {h + "0,1,2,3\n\n0,1,2,3\n", "f, line 4: id 0 appears twice"},
      {h + ",1,2,3\n", "f, line 2: the id is empty"},
      {h + "0,1,2,-3\n", "f, line 2: size is negative: -3"},
      {h + "0,2,2,3\n", "f, line 2: lower 2 is not below upper 2"},
      {h + "0,1,2,3.5\n", "f, line 2: size is not a whole number: \"3.5\""},
      {h + "0,1,,3\n", "f, line 2: upper is not a whole number: \"\""},
      {h + "0,1,99999999999999999999,3\n",
       "f, line 2: upper is too large: 99999999999999999999; the limit is 2^62"},
      {h + "0,1,2,4611686018427387904\n",
       "f, line 2: size is too large: 4611686018427387904; the limit is 2^62"},
      {h + "0,1,2,4000000000000000000\n1,1,2,4000000000000000000\n",
       "f, line 3: the sizes sum to more than 2^62"},
      {"id,lower,upper,size,alignment\n0,1,2,3,48\n",
       "f, line 2: alignment 48 is not a power of two up to 1048576"},
  };
  for (const auto& [text, message] : cases) {
    try {
      parse_pack_csv(text, "f");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCorrupt);
      EXPECT_EQ(e.what(), message);
    }
  }
  std::vector<PackBuffer> most =
      parse_pack_csv(h + "0,1,2,2300000000000000000\n1,1,2,2300000000000000000\n", "f").buffers;
  EXPECT_EQ(pack(most, {}).peak, 4600000000000000000u);
}

}  // namespace
}  // namespace tokamak
