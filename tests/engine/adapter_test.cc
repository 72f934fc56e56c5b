// Adapters in the engine: slots, their order of use, the KV cache, unloading, errors.
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "base/error.h"
#include "engine/adapter_slots.h"
#include "engine/local_engine.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

std::shared_ptr<const Adapter> adapter(uint64_t id) {
  auto out = std::make_shared<Adapter>();
  out->id = id;
  out->name = fmt::format("a{}", id);
  return out;
}

PlanSet adapter_plans(int64_t slots) {
  PlanSet plans = fake_plan_set();
  WeightEntry weight;
  weight.name = "lora.blk.0.attn_q.a";
  weight.dims = {slots, 4, 8};
  plans.weights.push_back(weight);
  return plans;
}

std::vector<int32_t> slots_of(const StepInputs& step) {
  for (const StepTensor& t : step.inputs) {
    if (t.name != kAdapterInput) continue;
    std::vector<int32_t> out(t.bytes.size() / sizeof(int32_t));
    std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
    return out;
  }
  return {};
}

TEST(AdapterSlots, TheLeastRecentlyUsedFreeSlotIsReplaced) {
  AdapterSlots slots(2);
  std::vector<AdapterAction> loads;
  auto a = adapter(1), b = adapter(2), c = adapter(3);
  EXPECT_EQ(slots.take(nullptr), -1);
  EXPECT_EQ(slots.take(a), 0);
  EXPECT_EQ(slots.take(b), 1);
  EXPECT_EQ(slots.take(a), 0);  // used twice, loaded once
  slots.move_loads(loads);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_FALSE(slots.has_room(c.get()));
  EXPECT_TRUE(slots.has_room(b.get()));
  EXPECT_TRUE(slots.has_room(nullptr));
  slots.release(0);
  EXPECT_FALSE(slots.has_room(c.get()));
  slots.release(1);
  slots.release(0);
  EXPECT_EQ(slots.take(c), 1);  // b was released first
  slots.release(-1);
  loads.clear();
  slots.move_loads(loads);
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_EQ(loads[0].slot, 1);
  EXPECT_EQ(loads[0].adapter->id, 3u);
  EXPECT_EQ(slots.take(a), 0);  // still there
  EXPECT_EQ(slots.loads(), 3);
}

// Follows the loads and checks that every row of every step finds its own adapter in its slot.
class SlotCheck {
 public:
  explicit SlotCheck(TestRun& run) {
    run.on_advance = [&](Nanos, std::span<const Event>, Actions& actions) {
      for (const AdapterAction& a : actions.adapters) content_[a.slot] = a.adapter->id;
      for (const SubmitAction& s : actions.submits) check(run.core, *s.inputs);
    };
  }
  int64_t rows = 0, mixed_steps = 0;

 private:
  void check(const EngineCore& core, const StepInputs& in) {
    std::vector<int32_t> slots = slots_of(in);
    ASSERT_EQ(slots.size(), in.ids.size());
    std::set<int32_t> used;
    for (size_t t = 0; t < slots.size(); ++t) {
      const Sequence* seq = core.sequence_in_row(in.row[static_cast<size_t>(in.seq[t])]);
      ASSERT_NE(seq, nullptr);
      const auto& wanted = seq->request->spec.adapter;
      ASSERT_EQ(slots[t] < 0, wanted == nullptr);
      if (wanted) {
        ASSERT_EQ(content_[slots[t]], wanted->id);
      }
      used.insert(slots[t]);
      ++rows;
    }
    mixed_steps += used.size() > 1;
  }
  std::map<int32_t, uint64_t> content_;
};

TEST(Adapters, ManyRequestsAndFewSlots) {
  PlanSet plans = adapter_plans(2);
  for (int in_flight : {1, 2})
    for (SchedPolicy policy :
         {SchedPolicy::kFcfs, SchedPolicy::kPriority, SchedPolicy::kCache, SchedPolicy::kFair}) {
      EngineConfig config = default_engine_config(plans, 256, 400);  // few blocks: preemptions
      EXPECT_EQ(config.adapter_slots, 2);
      config.policy = policy;
      config.max_in_flight = in_flight;
      NullOptions options = checked(in_flight);
      options.fail_every = 17;
      TestRun run(plans, config, options);
      SlotCheck check(run);
      Rng rng(7);
      std::vector<std::shared_ptr<const Adapter>> adapters = {nullptr};
      for (uint64_t id = 1; id <= 5; ++id) adapters.push_back(adapter(id));
      std::map<RequestId, RequestSpec> specs;
      for (RequestId id = 1; id <= 80; ++id) {
        RequestSpec spec =
            request(random_prompt(rng, 1000, 1 + static_cast<int64_t>(rng.below(40))),
                    1 + static_cast<int32_t>(rng.below(20)));
        spec.adapter = adapters[rng.below(adapters.size())];
        spec.priority = static_cast<int32_t>(rng.below(3));
        spec.n = 1 + static_cast<int32_t>(rng.below(2));
        specs[id] = spec;
        run.arrive(static_cast<Nanos>(rng.below(40)) * 1000, id, spec);
      }
      run.run();
      for (const auto& [id, spec] : specs)
        EXPECT_EQ((run.answers[{id, 0}].finish), Finish::kLength) << run.answers[{id, 0}].error;
      EXPECT_GT(check.rows, 1000);
      EXPECT_GT(check.mixed_steps, 10);
      EXPECT_GT(run.core.stats().adapter_loads, 2);
      EXPECT_EQ(run.core.stats().running_adapters, "");
    }
}

TEST(Adapters, AreNamedWhileTheyRunAndWait) {
  PlanSet plans = adapter_plans(1);
  TestRun run(plans, default_engine_config(plans, 256, 4096), checked());
  int64_t both = 0;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions&) {
    std::string running;
    for (int32_t row = 0; row < 64; ++row)
      if (const Sequence* s = run.core.sequence_in_row(row))
        running = s->request->spec.adapter->name;
    const EngineStats& stats = run.core.stats();
    EXPECT_EQ(stats.running_adapters, running);
    both += !running.empty() && !stats.waiting_adapters.empty();
    EXPECT_EQ(stats.running_adapters + stats.waiting_adapters == "", run.core.idle());
  };
  for (RequestId id = 1; id <= 6; ++id) {
    RequestSpec spec = request({1, 2, 3}, 10);
    spec.adapter = adapter(1 + id % 2);
    run.arrive(static_cast<Nanos>(id) * 1000000, id, spec);
  }
  run.run();
  EXPECT_GT(both, 5);
}

TEST(Adapters, AWaitingAdapterIsNotPassedOverForEver) {
  PlanSet plans = adapter_plans(1);
  EngineConfig config = default_engine_config(plans, 256, 4096);
  config.starvation_bound = 4;
  TestRun run(plans, config, checked());
  run.fixed_step_seconds = 1e-3;
  auto busy = adapter(1), late = adapter(2);
  Nanos late_end = 0, last_start = 0;
  run.simulator.observe([&](Nanos now, std::span<const Event>, Actions& actions) {
    for (const Delta& d : actions.deltas())
      if (d.request == 2 && d.finish != Finish::kNone) late_end = now;
    for (const SubmitAction& s : actions.submits)
      for (int32_t row : s.inputs->row)
        if (run.core.sequence_in_row(row)->request->id == 60) last_start = now;
  });
  for (RequestId id = 1; id <= 60; ++id) {
    RequestSpec spec = request({static_cast<int32_t>(id), 5, 6}, 8);
    spec.adapter = id == 2 ? late : busy;
    run.simulator.at(static_cast<Nanos>(id) * 2'000'000, Event::arrival(id, std::move(spec)));
  }
  run.simulator.run();
  EXPECT_GT(late_end, 0);
  EXPECT_LT(late_end, last_start);
}

// The same prompt with different adapters, and with salts that look like the engine's own marks.
TEST(Adapters, CachedBlocksBelongToOneAdapter) {
  PlanSet plans = adapter_plans(4);
  EngineConfig config = default_engine_config(plans, 256, 4096);
  TestRun run(plans, config, checked());
  std::map<RequestId, int32_t> cached;
  run.on_advance = [&](Nanos, std::span<const Event>, Actions& actions) {
    for (const Delta& d : actions.deltas())
      if (d.position == 0 && !d.ids.empty()) cached[d.request] = d.cached_tokens;
  };
  Rng rng(5);
  const std::vector<int32_t> prompt = random_prompt(rng, 1000, 60);
  auto a = adapter(1), again = adapter(9);
  struct Case {
    std::shared_ptr<const Adapter> adapter;
    std::string salt;
    bool hit;
  };
  const Case cases[] = {{nullptr, "", false},
                        {a, "", false},
                        {again, "", false},
                        {a, "x", false},
                        {nullptr, std::string("\0001\0", 3), false},
                        {nullptr, std::string("\0001\0x", 4), false},
                        {nullptr, "", true},
                        {a, "", true},
                        {again, "", true},
                        {a, "x", true},
                        {nullptr, std::string("\0001\0", 3), true}};
  RequestId id = 0;
  for (const Case& c : cases) {
    RequestSpec spec = request(prompt, 2);
    spec.adapter = c.adapter;
    spec.cache_salt = c.salt;
    ++id;
    run.arrive(static_cast<Nanos>(id) * kSecond, id, std::move(spec));
  }
  run.run();
  id = 0;
  for (const Case& c : cases) {
    ++id;
    EXPECT_EQ(cached[id] > 0, c.hit) << "request " << id;
  }
}

TEST(Adapters, AModelWithoutSlotsRefuses) {
  EngineConfig config = default_engine_config(fake_plan_set(), 256, 1024);
  RequestSpec spec = request({1, 2}, 2);
  spec.adapter = adapter(1);
  EXPECT_THROW(check_request(config, spec), Error);
}

// A recorded run with adapters gives the same actions.
TEST(Adapters, Replay) {
  PlanSet plans = adapter_plans(1);
  EngineConfig config = default_engine_config(plans, 256, 1024);
  TestRun run(plans, config, checked());
  run.keep_actions = true;
  for (RequestId id = 1; id <= 6; ++id) {
    RequestSpec spec = request({1, 2, static_cast<int32_t>(id)}, 4);
    if (id % 3 != 0) spec.adapter = adapter(id % 3);
    run.arrive(0, id, std::move(spec));
  }
  run.run();
  EXPECT_NE(run.actions.find(" adapter=0:1"), std::string::npos);
  EXPECT_NE(run.actions.find(" adapter=0:2"), std::string::npos);
  EngineCore core(config);
  EXPECT_EQ(run.log.replay(core), run.actions);
}

// A slot that could not be filled: its requests end with the error, others are not affected.
class NoAdapters final : public Executable {
 public:
  explicit NoAdapters(std::unique_ptr<Executable> inner) : inner_(std::move(inner)) {}
  Ticket submit(const StepInputs& step) override { return inner_->submit(step); }
  void collect(Ticket ticket, StepResult& out) override { inner_->collect(ticket, out); }
  const MemoryLedger& memory() const override { return inner_->memory(); }

 private:
  std::unique_ptr<Executable> inner_;
};

TEST(Adapters, ASlotThatCannotBeFilledFailsItsRequestsOnly) {
  static SteadyClock clock;
  PlanSet plans = adapter_plans(1);
  EngineConfig config = default_engine_config(plans, 256, 1024);
  auto executable = std::make_unique<NoAdapters>(null_for(plans, config, checked()));
  LocalEngine engine(plans, std::move(executable), config, clock);
  std::mutex mutex;
  std::map<int, Delta> last;
  for (int i = 0; i < 4; ++i) {
    RequestSpec spec = request({1, 2, i}, 4);
    if (i % 2 == 1) spec.adapter = adapter(1);
    engine.submit(std::move(spec), [&, i](Delta&& d) {
      std::lock_guard lock(mutex);
      if (d.finish != Finish::kNone) last[i] = std::move(d);
    });
  }
  engine.stop(LocalEngine::Stop::kDrain);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(last[i].finish, i % 2 == 1 ? Finish::kError : Finish::kLength) << i;
    EXPECT_EQ(last[i].error.find("cannot hold adapters") != std::string::npos, i % 2 == 1)
        << last[i].error;
  }
}

}  // namespace
}  // namespace tokamak
