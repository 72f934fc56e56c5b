// A warmed-up engine does not allocate while it decodes.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/engine/test_run.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};
}  // namespace

// Both sides are replaced, which the compiler does not see when it inlines one.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(size_t size) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void* operator new[](size_t size) { return operator new(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace tokamak {
namespace {

constexpr int kWarm = 50;

// A tree of six drafts, most of them wrong.
class FixedDrafter final : public Drafter {
 public:
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests)
      for (int32_t i = 0; i < std::min(r.most, 6); ++i)
        r.tokens.push_back({(r.ids.back() + 37 * i) % 40, i == 0 ? -1 : (i - 1) / 2});
  }
};

// Allows forty tokens, so that some drafts are right.
class FixedMask final : public TokenMask {
 public:
  void allow(int32_t, std::span<const int32_t>, std::span<const int32_t>,
             std::span<uint32_t> bits) override {
    bits[0] = ~0u;
    bits[1] = 0xff;
  }
};

struct AllocationCase {
  int in_flight = 1;
  bool drafts = false, masks = false;
};

// Decodes with a warm core; returns the allocations of `steps` calls in the middle.
int64_t allocations_while_decoding(const AllocationCase& c, int steps) {
  PlanSet plans = fake_plan_set(1000, 24, 1024);
  EngineConfig config = default_engine_config(plans, 1024, 8 * 1024);
  config.max_in_flight = c.in_flight;
  config.draft_tokens = c.drafts ? 6 : 0;
  config.tree_mask = c.drafts;
  NullOptions options;
  options.shadow = true;
  options.max_in_flight = c.in_flight;
  auto executable = null_for(plans, config, options);
  FixedDrafter drafter;
  EngineCore core(config, &drafter);
  StepQueue queue(*executable, config.vocab);
  Actions actions;
  std::vector<Event> events;
  for (RequestId id = 1; id <= 8; ++id) {
    RequestSpec spec;
    spec.prompt.assign(10 + id, static_cast<int32_t>(id));
    spec.max_tokens = 900;
    SampleSpec sample;
    sample.top_logprobs = 0;
    spec.sample = std::make_shared<const SampleSpec>(sample);
    if (c.masks) spec.mask = std::make_shared<FixedMask>();
    events.push_back(Event::arrival(id, std::move(spec)));
  }
  int64_t tokens = 0;
  int warm =
      c.drafts ? 5 * kWarm : kWarm;  // until the longest path of accepted drafts has occurred
  for (int i = 0; i < warm + steps; ++i) {
    if (i == warm) counting = true;
    core.advance(i, events, actions);
    for (const SubmitAction& s : actions.submits) queue.submit(s);
    queue.set_masks(actions);
    for (const Delta& d : actions.deltas()) tokens += static_cast<int64_t>(d.ids.size());
    events.clear();
    queue.next(events);
  }
  counting = false;
  if (!c.drafts) {
    EXPECT_GT(tokens, 8 * (kWarm - 10 + steps));
  }
  while (!queue.empty()) queue.next(events);
  return allocations.exchange(0);
}

TEST(Allocations, NoneInSteadyDecode) {
  for (int in_flight : {1, 2, 4})
    EXPECT_EQ(allocations_while_decoding({in_flight}, 100), 0) << "in flight " << in_flight;
}

TEST(Allocations, NoneWithDraftsAndMasks) {
  EXPECT_EQ(allocations_while_decoding({1, true, false}, 100), 0);
  EXPECT_EQ(allocations_while_decoding({1, false, true}, 100), 0);
  EXPECT_EQ(allocations_while_decoding({2, false, true}, 100), 0);
  EXPECT_EQ(allocations_while_decoding({1, true, true}, 100), 0);
}

}  // namespace
}  // namespace tokamak
