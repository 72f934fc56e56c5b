// The prefix index against naive models: random operations, compared with maps and full scans.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/rng.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_tree.h"

namespace tokamak {
namespace {

using Ids = std::vector<int32_t>;

Ids random_ids(Rng& rng, size_t n, uint64_t vocab = 3) {
  Ids ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(vocab));
  return ids;
}

size_t common(std::span<const int32_t> a, std::span<const int32_t> b) {
  size_t n = 0;
  while (n < std::min(a.size(), b.size()) && a[n] == b[n]) ++n;
  return n;
}

// --- the tree

// The tree and a map of its nodes by salt and tokens from the root, side by side.
class TreeModel {
 public:
  static constexpr size_t kUnit = 3;
  using Key = std::pair<std::string, Ids>;
  explicit TreeModel(Rng& rng) : rng_(rng) {}

  Key random_key() {  // a root or an existing node
    const std::string salts[] = {"", "a", "b"};
    if (nodes_.empty() || rng_.below(3) == 0) return {salts[rng_.below(3)], {}};
    auto it = nodes_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(rng_.below(nodes_.size())));
    return it->first;
  }

  void add(const Key& parent_key, const Ids& tokens) {  // a leaf that holds a block
    if (nodes_.size() > 200 || parent_key.second.size() > 4 * kUnit) return;
    Key key = parent_key;
    key.second.insert(key.second.end(), tokens.begin(), tokens.end());
    PrefixNode parent = find(parent_key);
    if (parent == kNoPrefixNode) parent = index_.root(parent_key.first);
    PrefixNode there = index_.child(parent, tokens);
    ASSERT_EQ(there != kNoPrefixNode, nodes_.contains(key));
    if (there != kNoPrefixNode) {
      EXPECT_EQ(there, nodes_.at(key));
      EXPECT_THROW(index_.add_child(parent, tokens), Error);
      return;
    }
    there = index_.add_child(parent, tokens);
    index_.set_block(there, 0, 0, {1, 0});
    nodes_[key] = there;
  }

  // Takes its block away: it goes, with hollow ancestors, if it has no children.
  void hollow(Key key) {
    if (key.second.empty()) return;
    PrefixNode node = nodes_.at(key);
    index_.set_block(node, 0, 0, {});
    index_.prune(node);
    for (; !key.second.empty(); key.second.resize(key.second.size() - kUnit)) {
      auto next = nodes_.upper_bound(key);
      bool has_children = next != nodes_.end() && next->first.first == key.first &&
                          common(next->first.second, key.second) == key.second.size();
      if (has_children || index_.block(nodes_.at(key), 0, 0).valid()) return;
      nodes_.erase(key);
    }
  }

  void nearest(const Key& at, const Ids& wanted) {
    PrefixNode parent = find(at);
    if (parent == kNoPrefixNode) return;
    size_t best = 0;
    for (const auto& [key, node] : nodes_) {
      bool is_child = key.first == at.first && key.second.size() == at.second.size() + kUnit &&
                      common(key.second, at.second) == at.second.size();
      if (is_child) best = std::max(best, common(std::span(key.second).last(kUnit), wanted));
    }
    auto near = index_.nearest(parent, wanted);
    ASSERT_EQ(static_cast<size_t>(near.common), best);
    if (best > 0) {
      EXPECT_EQ(common(index_.tokens(near.node), wanted), best);
    }
  }

  void check_size() {
    std::set<std::string> roots;
    for (const auto& [key, node] : nodes_) roots.insert(key.first);
    // A root that never got a child may stay until it is pruned.
    ASSERT_GE(index_.nodes(), nodes_.size() + roots.size());
    ASSERT_LE(index_.nodes(), nodes_.size() + 3);
  }

 private:
  PrefixNode find(const Key& key) {
    return key.second.empty() ? index_.find_root(key.first) : nodes_.at(key);
  }
  Rng& rng_;
  PrefixIndex index_{kUnit, {1}, 16};
  std::map<Key, PrefixNode> nodes_;
};

TEST(PrefixIndex, RandomOperationsAgainstAMap) {
  Rng rng(3);
  TreeModel model(rng);
  for (int round = 0; round < 20000 && !HasFatalFailure(); ++round) {
    auto at = model.random_key();
    Ids tokens = random_ids(rng, TreeModel::kUnit);
    switch (rng.below(3)) {
      case 0:
        model.add(at, tokens);
        break;
      case 1:
        model.hollow(at);
        break;
      default:
        tokens.resize(1 + rng.below(TreeModel::kUnit));
        model.nearest(at, tokens);
    }
    model.check_size();
  }
}

// --- the cache

const GroupEntry kAll{"full", 0, 4}, kLocal{"window", 6, 2};

struct Live {
  SequenceBlocks blocks;
  Ids ids;
  std::string salt;
  int64_t computed = 0;
  bool open = false;
};

// What every block holds, by group and index, as a device would: the tokens up to each of its
// slots.
class Content {
 public:
  explicit Content(const KvCache& kv) : kv_(kv) {}
  void copy(const SequenceBlocks& seq) {
    for (const auto& c : seq.copies)
      for (int64_t i = 0; i < kv_.group(c.blocks.group).block_size; ++i)
        cells_[{c.blocks.group, c.blocks.to, i}] = cells_[{c.blocks.group, c.blocks.from, i}];
  }
  void write(const Live& s, int64_t from, int64_t to) {
    for (size_t g = 0; g < kv_.groups(); ++g)
      for (int64_t slot = from; slot < to; ++slot) cell(s, g, slot) = key(s, slot);
  }
  // Everything that a query at slot `computed` sees is its own.
  void check(const Live& s) {
    for (size_t g = 0; g < kv_.groups(); ++g)
      for (int64_t slot = first_visible(kv_.group(g), s.computed); slot < s.computed; ++slot)
        ASSERT_EQ(cell(s, g, slot), key(s, slot)) << "group " << g << " slot " << slot;
  }

 private:
  static std::pair<std::string, Ids> key(const Live& s, int64_t slot) {
    return {s.salt, Ids(s.ids.begin(), s.ids.begin() + slot + 1)};
  }
  std::pair<std::string, Ids>& cell(const Live& s, size_t g, int64_t slot) {
    int64_t size = kv_.group(g).block_size;
    BlockHandle h = s.blocks.tables[g].blocks[static_cast<size_t>(slot / size)];
    EXPECT_TRUE(h.valid());
    return cells_[{g, h.index, slot % size}];
  }
  const KvCache& kv_;
  std::map<std::tuple<size_t, int32_t, int64_t>, std::pair<std::string, Ids>> cells_;
};

// Sequences start from what others left, grow, end and fork, with few blocks: content is always
// theirs, references add up, and nothing is left.
class RandomSequences {
 public:
  RandomSequences(uint64_t seed, std::vector<int64_t> blocks)
      : kv_(std::vector<GroupEntry>{kAll, kLocal}, blocks, true), rng_(seed) {}

  void round(int now) {
    kv_.set_time(now);
    Live& s = seqs_[rng_.below(seqs_.size())];
    if (!s.open) return start(s);
    if (rng_.below(6) > 0) return grow(s);
    kv_.release(s.blocks);
    s.open = false;
  }
  void end() {
    for (Live& s : seqs_)
      if (s.open) kv_.release(s.blocks);
    EXPECT_TRUE(kv_.all_free());
    EXPECT_GT(hits_, 100);
    EXPECT_GT(copies_, 20);
  }

 private:
  void start(Live& s) {
    s.blocks.path.clear();
    s.ids = random_ids(rng_, 1 + rng_.below(40), 2);
    std::fill_n(s.ids.begin(), std::min<size_t>(s.ids.size(), rng_.below(30)), 1);
    s.salt = rng_.below(4) == 0 ? "x" : "";
    s.blocks.priority = static_cast<int32_t>(rng_.below(3));
    s.blocks.ttl = rng_.below(2) == 0 ? kNever : static_cast<Nanos>(rng_.below(100));
    const Live& other = seqs_[rng_.below(seqs_.size())];
    if (other.open && rng_.below(3) == 0 && other.computed > 0) {
      int64_t n = 1 + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(other.computed)));
      s.ids.assign(other.ids.begin(), other.ids.begin() + n);
      s.ids.push_back(7);
      s.salt = other.salt;
      kv_.find_fork(other.blocks, n, hit_);
    } else {
      kv_.find_prefix(s.salt, s.ids, std::ssize(s.ids) - 1, hit_);
    }
    kv_.open(s.blocks, 60);
    for (size_t g = 0; g < 2; ++g)  // room for copies, as admission makes sure
      if (kv_.pool(g).available() - hit_.groups[g].cached < 2) return;
    kv_.start(s.blocks, s.salt, s.ids, hit_);
    s.computed = hit_.tokens;
    s.open = true;
    hits_ += hit_.tokens > 0;
    copies_ += std::ssize(s.blocks.copies);
    content_.copy(s.blocks);
    content_.check(s);
  }

  void grow(Live& s) {
    int64_t to = s.computed + 1 + static_cast<int64_t>(rng_.below(5));
    if (to > 60 || !kv_.reserve(s.blocks, to)) return kv_.truncate(s.blocks, s.computed);
    while (std::ssize(s.ids) < to) s.ids.push_back(static_cast<int32_t>(rng_.below(2)));
    content_.write(s, s.computed, to);
    s.computed = to - static_cast<int64_t>(rng_.below(2));  // the last one may not be accepted
    kv_.truncate(s.blocks, s.computed);
    kv_.commit(s.blocks, s.computed, s.ids);
    content_.check(s);
  }

  KvCache kv_;
  Content content_{kv_};
  Rng rng_;
  std::vector<Live> seqs_ = std::vector<Live>(6);
  PrefixHit hit_;
  int64_t hits_ = 0, copies_ = 0;
};

void random_sequences(uint64_t seed, std::vector<int64_t> blocks) {
  SCOPED_TRACE(seed);
  RandomSequences run(seed, std::move(blocks));
  for (int round = 0; round < 4000 && !testing::Test::HasFatalFailure(); ++round) run.round(round);
  run.end();
}

TEST(KvPrefix, RandomSequencesFindOnlyTheirOwnContent) {
  for (uint64_t seed = 1; seed <= 6; ++seed) random_sequences(seed, {30, 40});
  random_sequences(7, {200, 30});
  random_sequences(8, {20, 200});
}

// With room for everything, the hit is as long as a full scan of all that was ever computed says.
TEST(KvPrefix, TheHitIsTheLongest) {
  GroupEntry groups[] = {{"full", 0, 8}};
  int64_t blocks[] = {100000};
  KvCache kv(groups, blocks, true);
  Rng rng(5);
  std::vector<Ids> done;
  PrefixHit hit;
  for (int round = 0; round < 600; ++round) {
    Ids ids = random_ids(rng, 1 + rng.below(60), 2);
    if (!done.empty() && rng.below(2) == 0) {
      const Ids& other = done[rng.below(done.size())];
      std::copy_n(other.begin(), std::min({other.size(), ids.size(), size_t{rng.below(60)}}),
                  ids.begin());
    }
    auto most = static_cast<int64_t>(ids.size()) - 1;
    size_t best = 0;
    for (const Ids& d : done) {
      // Whole units are in the index.
      auto whole = std::span(d).first(d.size() / 8 * 8);
      best = std::max(best, std::min(common(whole, ids), static_cast<size_t>(most)));
    }
    if (best % 8 < 2) best -= best % 8;  // not worth a copy
    kv.find_prefix("", ids, most, hit);
    ASSERT_EQ(hit.tokens, static_cast<int64_t>(best)) << "round " << round;
    SequenceBlocks s;
    kv.open(s, 64);
    kv.start(s, "", ids, hit);
    ASSERT_TRUE(kv.reserve(s, std::ssize(ids)));
    kv.commit(s, std::ssize(ids), ids);
    kv.release(s);
    done.push_back(ids);
  }
}

TEST(KvPrefix, SecondsWaitForWhoeverComputes) {
  GroupEntry groups[] = {kAll};
  int64_t blocks[] = {100};
  KvCache kv(groups, blocks, true);
  Ids ids(20, 1);
  PrefixHit hit;
  SequenceBlocks a;
  kv.find_prefix("", ids, 19, hit);
  EXPECT_FALSE(hit.wait);
  kv.open(a, 40);
  kv.start(a, "", ids, hit);
  kv.find_prefix("", ids, 19, hit);
  EXPECT_TRUE(hit.wait);
  kv.find_prefix("other salt", ids, 19, hit);
  EXPECT_FALSE(hit.wait);
  ASSERT_TRUE(kv.reserve(a, 12));
  kv.commit(a, 9, ids);
  kv.find_prefix("", ids, 19, hit);
  EXPECT_EQ(hit.tokens, 8);
  EXPECT_TRUE(hit.wait);
  kv.release(a);  // no sequence computes it now
  kv.find_prefix("", ids, 19, hit);
  EXPECT_EQ(hit.tokens, 8);
  EXPECT_FALSE(hit.wait);
}

TEST(KvPrefix, EvictionByPriorityThenAge) {
  GroupEntry groups[] = {kAll};
  int64_t blocks[] = {6};
  KvCache kv(groups, blocks, true);
  PrefixHit hit;
  auto compute = [&](int32_t id, size_t n, int32_t priority, Nanos ttl) {
    Ids ids(n, id);
    SequenceBlocks s;
    s.priority = priority;
    s.ttl = ttl;
    kv.find_prefix("", ids, std::ssize(ids), hit);
    kv.open(s, 40);
    kv.start(s, "", ids, hit);
    ASSERT_TRUE(kv.reserve(s, std::ssize(ids)));
    kv.commit(s, std::ssize(ids), ids);
    kv.release(s);
  };
  auto cached = [&](int32_t id) {
    kv.find_prefix("", Ids(8, id), 8, hit);
    return hit.tokens;
  };
  kv.set_time(0);
  compute(1, 8, 5, 100);
  compute(2, 8, 0, kNever);
  compute(3, 8, 0, kNever);
  EXPECT_EQ(kv.cached_blocks(), 6);
  compute(4, 4, 0, kNever);  // takes the end of the oldest without priority
  EXPECT_EQ(cached(1), 8);
  EXPECT_EQ(cached(2), 4);
  EXPECT_EQ(cached(3), 8);
  compute(2, 8, 0, kNever);  // used again: 3 is older now
  EXPECT_EQ(cached(2), 8);
  EXPECT_EQ(cached(3), 4);
  EXPECT_EQ(cached(1), 8);
  kv.set_time(200);  // the priority of 1 has ended, and it is the oldest
  compute(5, 8, 0, kNever);
  EXPECT_EQ(cached(1), 0);
  EXPECT_EQ(cached(3), 4);
  EXPECT_TRUE(kv.all_free());
  EXPECT_GT(kv.evicted(), 0);
}

// The leaves of a tree, by salt, as tokens from the root.
std::map<std::string, std::set<Ids>> paths_of(const PrefixTree& tree) {
  std::map<std::string, std::set<Ids>> paths;
  std::vector<std::pair<std::string, Ids>> at;
  std::vector<bool> leaf(tree.nodes.size(), true);
  for (const PrefixTreeNode& node : tree.nodes) {
    if (node.parent >= 0) leaf[static_cast<size_t>(node.parent)] = false;
    at.emplace_back(node.salt, Ids{});
    if (node.parent < 0) continue;
    at.back() = at[static_cast<size_t>(node.parent)];
    Ids& path = at.back().second;
    EXPECT_EQ(node.first, std::ssize(path));
    path.insert(path.end(), node.ids.begin(), node.ids.end());
  }
  for (size_t i = 0; i < at.size(); ++i)
    if (leaf[i]) paths[at[i].first].insert(at[i].second);
  return paths;
}

// All paths of the tree are the prefixes that were computed, whatever was merged.
TEST(KvPrefix, TreeShowsWhatIsCachedAndUsed) {
  GroupEntry groups[] = {kAll};
  int64_t blocks[] = {64};
  KvCache kv(groups, blocks, true);
  PrefixHit hit;
  std::vector<SequenceBlocks> running;
  auto compute = [&](std::string_view salt, const Ids& ids, bool ends) {
    SequenceBlocks s;
    kv.find_prefix(salt, ids, std::ssize(ids) - 1, hit);
    kv.open(s, 40);
    kv.start(s, salt, ids, hit);
    ASSERT_TRUE(kv.reserve(s, std::ssize(ids)));
    kv.commit(s, std::ssize(ids), ids);
    if (ends)
      kv.release(s);
    else
      running.push_back(std::move(s));
  };
  const Ids first = {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
            second = {1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 5, 5, 5, 5};
  compute("", first, true);
  compute("", second, false);
  compute("other", first, true);
  PrefixTree tree = prefix_tree(kv, 1000);
  EXPECT_EQ(tree.unit, 4);
  EXPECT_EQ(tree.left_out, 0);
  EXPECT_EQ(paths_of(tree),
            (std::map<std::string, std::set<Ids>>{{"", {first, second}}, {"other", {first}}}));
  // The shared beginning, the rest of each, and the other salt: merged where they are used alike.
  ASSERT_EQ(tree.nodes.size(), 6u);
  int64_t cached = 0, held = 0;
  for (const PrefixTreeNode& node : tree.nodes) {
    cached += node.cached;
    held += node.blocks;
    EXPECT_EQ(node.references > 0, node.cached < node.blocks);
    if (node.cached > 0) {
      EXPECT_LE(node.ended_since, 1);
    }
  }
  EXPECT_EQ(cached, kv.cached_blocks());
  EXPECT_EQ(held, 8);
  PrefixTree some = prefix_tree(kv, 3);
  EXPECT_EQ(some.left_out, static_cast<int64_t>(kv.index()->nodes()) - 3);
  for (SequenceBlocks& s : running) kv.release(s);
  for (const PrefixTreeNode& node : prefix_tree(kv, 1000).nodes) EXPECT_EQ(node.references, 0);
}

}  // namespace
}  // namespace tokamak
