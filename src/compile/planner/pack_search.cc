#include "compile/planner/pack_search.h"

#include <algorithm>
#include <deque>
#include <thread>

// The search state is a skyline: per section of time the height below which nothing more goes, and
// the buffers still to be placed above it. In a packing that is pushed down as far as it goes, each
// buffer rests on the skyline or on another buffer, so for a section s at floor f, either one of
// the buffers that can start at f does, or everything in s starts at the next height that something
// can be lifted to. That makes branches which exclude each other, and the section may be chosen
// freely (few branches first) as long as nothing fits beneath what is placed. Whether a state can
// be packed depends on nothing but the state, so failures are remembered, whatever led there.

namespace tokamak {
namespace {

using Status = SearchResult::Status;
constexpr int64_t kNever = INT64_MAX / 4;

uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

struct Item {
  uint32_t first, last, id;
  int64_t size;
  int64_t least;  // lowest offset above the skyline
};

struct Problem {
  std::vector<Item> items;
  std::vector<int64_t> floor;  // per section
  int64_t capacity = 0;
};

// How a run chooses: which section to branch on, which of its buffers first.
struct Strategy {
  enum class Section : uint8_t { kFewestLowest, kFewestTightest, kForcedLowest, kLowest };
  enum class Key : uint8_t { kSize, kArea, kLifetime };
  Section section;
  Key key;
};
using Section = Strategy::Section;
using Key = Strategy::Key;

// Failed states by hash, four places each; grows to 64 MiB, then forgets. A collision could hide a
// packing (chance below 1e-8 for the largest table), never make a wrong one.
class FailureTable {
 public:
  FailureTable() : slots_(size_t{1} << 14) {}
  bool contains(uint64_t hash) const {
    for (size_t k = 0; k < 4; ++k)
      if (slots_[(hash + k) & (slots_.size() - 1)] == hash) return true;
    return false;
  }
  void add(uint64_t hash) {
    if (++stored_ > slots_.size() / 2 && slots_.size() < (size_t{1} << 23)) grow();
    put(hash);
  }

 private:
  void put(uint64_t hash) {
    size_t mask = slots_.size() - 1;
    for (size_t k = 0; k < 4; ++k) {
      uint64_t& slot = slots_[(hash + k) & mask];
      if (slot == 0 || slot == hash) {
        slot = hash;
        return;
      }
    }
    slots_[(hash + (stored_ & 3)) & mask] = hash;
  }
  void grow() {
    std::vector<uint64_t> old(slots_.size() * 2);
    old.swap(slots_);
    for (uint64_t hash : old)
      if (hash != 0) put(hash);
  }
  std::vector<uint64_t> slots_;
  size_t stored_ = 0;
};

// One depth first search at a time; the memory of failures and the scratch stay. One thread.
class Searcher {
 public:
  Searcher(std::span<const SearchBuffer> buffers, uint32_t sections) : buffers_(buffers) {
    priority_.resize(buffers.size());
    offsets_.resize(buffers.size());
    for (auto* v : {&total_, &packed_, &lowest_top_, &later_}) v->resize(sections);
    choices_.resize(sections);
    blocked_.resize(sections);
    for (auto* v : {&starts_, &ends_, &section_to_, &part_of_}) v->resize(sections + 1);
    for (uint32_t i = 0; i < buffers.size(); ++i)
      root_.items.push_back({buffers[i].first, buffers[i].last, i, buffers[i].size, 0});
    root_.floor.assign(sections, 0);
  }

  // `noise` 0 tries branches strictly by the strategy's key.
  Status run(int64_t capacity, Strategy strategy, uint64_t noise, uint64_t node_limit,
             const SearchLimits& limits, uint64_t work_limit) {
    section_rule_ = strategy.section;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const SearchBuffer& b = buffers_[i];
      double key = strategy.key == Key::kLifetime ? b.lifetime : static_cast<double>(b.size);
      if (strategy.key == Key::kArea) key *= b.lifetime;
      if (noise != 0)
        key *= 0.5 + static_cast<double>(mix(noise + i * 0x9e3779b9u) >> 40) * 0x1p-24;
      priority_[i] = key;
    }
    limits_ = limits;
    node_limit_ = nodes_ + node_limit;
    work_limit_ = work_ + std::min(work_limit, UINT64_MAX - work_);
    stopped_ = false;
    root_.capacity = capacity;
    if (split(root_, 0)) return Status::kFits;
    return stopped_ ? Status::kUnknown : Status::kImpossible;
  }
  void abort() { aborted_ = true; }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  uint64_t nodes() const { return nodes_; }
  uint64_t work() const { return work_; }

 private:
  struct Level {
    std::vector<Problem> parts;
    size_t used = 0;
    Problem child;
    std::vector<Item> candidates;
    std::vector<int64_t> floor;  // raised to where the first remaining buffer can start
    Problem& next_part(int64_t capacity) {
      if (used == parts.size()) parts.emplace_back();
      Problem& p = parts[used++];
      p.items.clear();
      p.floor.clear();
      p.capacity = capacity;
      return p;
    }
  };
  Level& level(size_t depth) {
    while (levels_.size() <= depth) levels_.emplace_back();
    return levels_[depth];
  }

  // Cuts a problem where no buffer crosses, merges sections that no buffer tells apart, and packs
  // the parts one by one.
  bool split(const Problem& in, size_t depth) {
    Level& l = level(depth);
    l.used = 0;
    size_t sections = in.floor.size();
    std::fill_n(starts_.begin(), sections + 1, 0u);
    std::fill_n(ends_.begin(), sections + 1, 0u);
    for (const Item& i : in.items) ++starts_[i.first], ++ends_[i.last];
    uint32_t alive = 0;
    Problem* part = nullptr;
    for (size_t s = 0; s < sections; ++s) {
      alive -= ends_[s];
      if (alive == 0) part = nullptr;
      alive += starts_[s];
      if (alive == 0) continue;
      bool begins = part == nullptr;
      if (begins) part = &l.next_part(in.capacity);
      if (begins || starts_[s] != 0 || ends_[s] != 0)
        part->floor.push_back(in.floor[s]);
      else
        part->floor.back() = std::max(part->floor.back(), in.floor[s]);
      section_to_[s] = static_cast<uint32_t>(part->floor.size() - 1);
      part_of_[s] = static_cast<uint32_t>(l.used - 1);
    }
    for (const Item& i : in.items)
      l.parts[part_of_[i.first]].items.push_back(
          {section_to_[i.first], section_to_[i.last - 1] + 1, i.id, i.size, i.least});
    work_ += in.items.size() + sections;
    std::sort(l.parts.begin(), l.parts.begin() + static_cast<ptrdiff_t>(l.used),
              [](const Problem& a, const Problem& b) { return a.items.size() < b.items.size(); });
    for (size_t p = 0; p < l.used; ++p)
      if (!solve(l.parts[p], depth)) return false;
    return true;
  }

  // A buffer alive in all sections may as well lie on top of the others. True when there was one.
  bool take_whole_spans(Problem& p) {
    size_t before = p.items.size();
    std::erase_if(p.items, [&](const Item& i) {
      if (i.first != 0 || i.last != p.floor.size()) return false;
      p.capacity -= i.size;
      offsets_[i.id] = p.capacity;
      return true;
    });
    return p.items.size() != before;
  }

  bool solve(Problem& p, size_t depth) {
    if (out_of_budget(depth)) return false;
    if (take_whole_spans(p)) {
      for (int64_t f : p.floor)
        if (f > p.capacity) return false;
      return split(p, depth + 1);
    }
    Level& l = level(depth);
    if (!propagate(p, l.floor)) return false;
    uint64_t hash = hash_of(p, l.floor);
    if (failures_.contains(hash)) return false;
    size_t s = choose_section(p, l.floor);
    if (s != SIZE_MAX && branch(p, s, depth)) return true;
    if (!stopped_) failures_.add(hash);
    return false;
  }

  // Least offsets, raised floors, and the bound: within one section the buffers lie one above the
  // other, each not below its least offset, which is a schedule on one machine with release dates.
  bool propagate(Problem& p, std::vector<int64_t>& floor) {
    size_t sections = p.floor.size();
    floor.assign(sections, kNever);
    std::fill_n(total_.begin(), sections, 0);
    std::fill_n(packed_.begin(), sections, 0);
    std::fill_n(lowest_top_.begin(), sections, kNever);
    for (Item& i : p.items)
      i.least = *std::max_element(p.floor.begin() + i.first, p.floor.begin() + i.last);
    for (size_t x = 1; x < p.items.size(); ++x) {  // nearly sorted: it was so in the parent
      Item item = p.items[x];
      size_t y = x;
      for (; y > 0 && p.items[y - 1].least > item.least; --y) p.items[y] = p.items[y - 1];
      p.items[y] = item;
    }
    bool fits = true;
    for (const Item& i : p.items) {
      for (uint32_t s = i.first; s < i.last; ++s) {
        floor[s] = std::min(floor[s], i.least);
        total_[s] += i.size;
        packed_[s] = std::max(packed_[s], i.least) + i.size;
        fits &= packed_[s] <= p.capacity;
        lowest_top_[s] = std::min(lowest_top_[s], i.least + i.size);
      }
      work_ += i.last - i.first;
      if (!fits) return false;
    }
    return true;
  }

  // States that differ only in which of two equal buffers is left, or in height, are one.
  static uint64_t hash_of(const Problem& p, const std::vector<int64_t>& floor) {
    uint64_t hash = 0;
    for (const Item& i : p.items)
      hash += mix(mix(uint64_t{i.first} << 32 | i.last) + static_cast<uint64_t>(i.size));
    for (int64_t f : floor) hash = mix(hash + static_cast<uint64_t>(p.capacity - f));
    return hash == 0 ? 1 : hash;
  }

  bool can_start_now(const Item& i, int64_t capacity) const {
    for (uint32_t s = i.first; s < i.last; ++s)
      if (i.least + total_[s] > capacity) return false;
    return true;
  }

  // The section to branch on, SIZE_MAX when one of them has no branch left.
  size_t choose_section(const Problem& p, const std::vector<int64_t>& floor) {
    size_t sections = floor.size();
    std::fill_n(choices_.begin(), sections, 0u);
    std::fill_n(blocked_.begin(), sections, false);
    std::fill_n(later_.begin(), sections, kNever);
    for (const Item& i : p.items) {
      bool settled = true;  // nothing fits beneath it
      for (uint32_t s = i.first; s < i.last; ++s) settled &= lowest_top_[s] > i.least;
      bool starts = settled && can_start_now(i, p.capacity);
      for (uint32_t s = i.first; s < i.last; ++s) {
        if (i.least != floor[s]) {
          later_[s] = std::min(later_[s], i.least);
        } else {
          blocked_[s] = blocked_[s] || !settled;
          choices_[s] += starts;
        }
      }
      work_ += 2 * (i.last - i.first);
    }
    size_t best = SIZE_MAX;
    std::pair<int64_t, int64_t> best_score{kNever, kNever};
    for (size_t s = 0; s < sections; ++s) {
      if (blocked_[s]) continue;
      int64_t slack = p.capacity - floor[s] - total_[s];
      int64_t branches = choices_[s] + (slack > 0);
      if (choices_[s] == 0 && (slack == 0 || next_start(p, s, floor[s]) == kNever)) return SIZE_MAX;
      auto score = score_of(branches, floor[s], slack);
      if (score < best_score) best = s, best_score = score;
    }
    return best;
  }

  std::pair<int64_t, int64_t> score_of(int64_t branches, int64_t floor, int64_t slack) const {
    switch (section_rule_) {
      case Section::kFewestLowest:
        return {branches, floor};
      case Section::kFewestTightest:
        return {branches, slack};
      case Section::kForcedLowest:
        return branches <= 1 ? std::pair{int64_t{-1}, int64_t{0}} : std::pair{floor, branches};
      case Section::kLowest:
        break;
    }
    return {floor, branches};
  }

  // Where the lowest buffer of section s starts when none starts at its floor: at a later least
  // offset, or on top of a neighbour outside s. kNever when that leaves too little room.
  int64_t next_start(const Problem& p, size_t s, int64_t floor) {
    uint32_t left = UINT32_MAX, right = 0;  // the span of the buffers that could start at the floor
    for (const Item& i : p.items) {
      if (i.least != floor || i.first > s || i.last <= s) continue;
      left = std::min(left, i.first);
      right = std::max(right, i.last);
    }
    int64_t next = later_[s];
    for (const Item& i : p.items)
      if ((i.first > s && i.first < right) || (i.last <= s && i.last > left))
        next = std::min(next, i.least + i.size);
    work_ += p.items.size();
    return next + total_[s] <= p.capacity ? next : kNever;
  }

  bool branch(const Problem& p, size_t s, size_t depth) {
    Level& l = level(depth);  // levels_ is a deque: it stays where it is
    int64_t floor = l.floor[s];
    l.candidates.clear();
    for (const Item& i : p.items) {
      if (i.first > s || i.last <= s || i.least != floor || !can_start_now(i, p.capacity)) continue;
      bool seen = std::any_of(l.candidates.begin(), l.candidates.end(), [&](const Item& c) {
        return c.first == i.first && c.last == i.last && c.size == i.size;
      });
      if (!seen) l.candidates.push_back(i);
    }
    std::sort(l.candidates.begin(), l.candidates.end(), [&](const Item& a, const Item& b) {
      return priority_[a.id] != priority_[b.id] ? priority_[a.id] > priority_[b.id] : a.id < b.id;
    });
    int64_t next = p.capacity - floor > total_[s] ? next_start(p, s, floor) : kNever;
    l.child.capacity = p.capacity;
    for (const Item& c : l.candidates) {
      l.child.items.clear();
      for (const Item& i : p.items)
        if (i.id != c.id) l.child.items.push_back(i);
      l.child.floor = l.floor;
      std::fill(l.child.floor.begin() + c.first, l.child.floor.begin() + c.last, floor + c.size);
      offsets_[c.id] = floor;
      if (split(l.child, depth + 1)) return true;
      if (stopped_) return false;
    }
    if (next == kNever) return false;
    l.child.items = p.items;
    l.child.floor = l.floor;
    l.child.floor[s] = next;
    return split(l.child, depth + 1);
  }

  // Also when the stack gets deep: a packing of kMaxSearchBuffers rarely takes half of this.
  bool out_of_budget(size_t depth) {
    constexpr size_t kMaxDepth = 2500;
    if (stopped_) return true;
    stopped_ = ++nodes_ > node_limit_ || work_ > work_limit_ || aborted_ || depth > kMaxDepth;
    if ((nodes_ & 63) == 0)
      stopped_ = stopped_ || (limits_.cancel && *limits_.cancel) ||
                 std::chrono::steady_clock::now() > limits_.deadline;
    return stopped_;
  }

  std::span<const SearchBuffer> buffers_;
  Problem root_;
  std::vector<double> priority_;
  std::vector<int64_t> offsets_;
  FailureTable failures_;
  std::deque<Level> levels_;
  Section section_rule_ = Section::kFewestTightest;
  SearchLimits limits_;
  uint64_t nodes_ = 0, work_ = 0, node_limit_ = 0, work_limit_ = 0;
  bool stopped_ = false;
  std::atomic<bool> aborted_ = false;
  // Per section, valid between propagate and branch.
  std::vector<int64_t> total_, packed_, lowest_top_, later_;
  std::vector<uint32_t> choices_;
  std::vector<char> blocked_;
  std::vector<uint32_t> starts_, ends_, section_to_, part_of_;
};

constexpr Strategy kStrategies[] = {
    {Section::kFewestTightest, Key::kSize},   {Section::kFewestLowest, Key::kSize},
    {Section::kForcedLowest, Key::kLifetime}, {Section::kFewestTightest, Key::kLifetime},
    {Section::kFewestLowest, Key::kArea},     {Section::kLowest, Key::kArea},
};
constexpr uint64_t kFirstNodeLimit = 2000;

// 1 1 2 1 1 2 4 1 1 2 ...: most restarts are short, some get their time.
uint64_t luby(uint64_t i) {
  uint64_t k = 1;
  while ((uint64_t{1} << k) - 1 < i + 1) ++k;
  if ((uint64_t{1} << k) - 1 == i + 1) return uint64_t{1} << (k - 1);
  return luby(i + 1 - (uint64_t{1} << (k - 1)));
}

}  // namespace

SearchResult search_packing(std::span<const SearchBuffer> buffers, uint32_t sections,
                            int64_t capacity, const SearchLimits& limits, unsigned threads,
                            uint64_t seed) {
  SearchResult result;
  if (buffers.size() > kMaxSearchBuffers) return result;
  std::deque<Searcher> searchers;
  for (unsigned t = 0; t < std::clamp(threads, 1u, 2u); ++t)
    searchers.emplace_back(buffers, sections);
  std::vector<Status> status(searchers.size(), Status::kUnknown);
  for (uint64_t round = 0; result.status == Status::kUnknown; ++round) {
    if (result.work >= limits.work || (limits.cancel && *limits.cancel) ||
        std::chrono::steady_clock::now() > limits.deadline)
      return result;
    auto run = [&](size_t t) {
      uint64_t r = round * searchers.size() + t, cycle = r / std::size(kStrategies);
      status[t] = searchers[t].run(
          capacity, kStrategies[r % std::size(kStrategies)], cycle == 0 ? 0 : mix(seed + r) | 1,
          kFirstNodeLimit * luby(cycle), limits, (limits.work - result.work) / searchers.size());
      for (size_t later = t + 1; later < searchers.size(); ++later)
        if (status[t] != Status::kUnknown) searchers[later].abort();
    };
    std::thread second;
    if (searchers.size() > 1) second = std::thread(run, 1);
    run(0);
    if (second.joinable()) second.join();
    result.nodes = result.work = 0;
    for (size_t t = 0; t < searchers.size(); ++t) {
      result.nodes += searchers[t].nodes();
      result.work += searchers[t].work();
      if (result.status != Status::kUnknown || status[t] == Status::kUnknown) continue;
      result.status = status[t];
      if (status[t] == Status::kFits) result.offsets = searchers[t].offsets();
    }
  }
  return result;
}

}  // namespace tokamak
