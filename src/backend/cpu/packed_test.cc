// Weights packed ahead of time for this and for other levels, buckets with padding, and eager
// execution: all give the bits that a plain load gives.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/test_model.h"
#include "backend/cpu/weight_store.h"
#include "backend/ref/ref_backend.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// What a bundle is to a backend, in memory.
class PackedTable final : public WeightSource {
 public:
  PackedTable(Backend& backend, const TestModel& model) : packing_(backend.packing()) {
    backend.pack_weights(
        plans_for(backend, model.plans), model.weights,
        [&](const WeightEntry& entry, const PackedWeight& packed) {
          Copy& c = copies_[{entry.name, entry.layout}];
          for (auto field : {&PackedWeight::matrix, &PackedWeight::plain, &PackedWeight::rows}) {
            c.bytes.emplace_back((packed.*field).begin(), (packed.*field).end());
            c.view.*field = c.bytes.back();
          }
        });
  }
  const TensorView* find(std::string_view) const override { return nullptr; }
  std::vector<std::string> names() const override { return {}; }
  const PackedWeight* packed(std::string_view name, std::string_view layout) const override {
    auto it = copies_.find({std::string(name), std::string(layout)});
    return it == copies_.end() ? nullptr : &it->second.view;
  }
  std::string_view packing() const override { return packing_; }
  void shorten(const std::string& name, const std::string& layout) {
    PackedWeight& v = copies_.at({name, layout}).view;
    v.matrix = v.matrix.first(v.matrix.size() - 1);
  }

 private:
  struct Copy {
    std::vector<std::vector<std::byte>> bytes;
    PackedWeight view;
  };
  std::string packing_;
  std::map<std::pair<std::string, std::string>, Copy> copies_;
};

TestModel mixed_model(double softcap = 0) {
  TestModelOptions o;
  o.weights = {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K,
               DType::kQ5_0, DType::kQ5_1, DType::kF16,  DType::kF32,  DType::kBF16,
               DType::kQ3_K, DType::kQ2_K, DType::kMXFP4};
  o.window = 8;
  o.softcap = softcap;
  o.max_tokens = 32;
  o.layers = 2;
  o.vocab = 70;
  return TestModel(o);
}

std::unique_ptr<Backend> level(const char* name) {
  ::setenv("TOKAMAK_ISA", name, 1);
  BackendOptions options;
  options.threads = 2;
  auto backend = make_cpu_backend(options);
  ::unsetenv("TOKAMAK_ISA");
  return backend;
}

struct PackedRun {
  std::vector<float> logits;  // of every row of every step
  MemoryLedger memory;
  DispatchStats dispatch;
};

// Two sequences in steps of several shapes.
PackedRun run_steps(Backend& backend, const PlanSet& plans, const WeightSource& weights,
                    bool eager = false) {
  constexpr int32_t kBlocks = 4;
  LoadOptions options;
  options.blocks.assign(plans.groups.size(), 2 * kBlocks);
  options.max_rows = 8;
  options.eager = eager;
  auto executable = backend.load(plans_for(backend, plans), weights, options);
  TestSequence a{{}, 0, 0, 0, {}}, b{{}, kBlocks, 0, 1, {}};
  for (int32_t i = 0; i < 40; ++i) {
    a.tokens.push_back(i * 7 % 70);
    b.tokens.push_back(i * 11 % 70);
  }
  PackedRun out;
  constexpr std::pair<int32_t, int32_t> kSteps[] = {{5, 0}, {1, 13}, {1, 1},
                                                    {0, 1}, {9, 3},  {16, 16}};
  for (auto [from_a, from_b] : kSteps) {
    StepInputs step;
    std::vector<const TestSequence*> used;
    for (auto [sequence, count] : {std::pair{&a, from_a}, {&b, from_b}}) {
      if (count == 0) continue;
      add_to_step(step, *sequence, count);
      used.push_back(sequence);
      sequence->done += count;
    }
    set_tables(step, used, plans.groups.size(), kBlocks);
    StepResult result;
    executable->collect(executable->submit(step), result);
    EXPECT_EQ(result.logits.size(), step.ids.size() * static_cast<size_t>(plans.vocab));
    out.logits.insert(out.logits.end(), result.logits.begin(), result.logits.end());
  }
  out.memory = executable->memory();
  out.dispatch = executable->dispatch();
  return out;
}

bool same_bits_of(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

TEST(PackedWeights, HalvesKnowWhetherTheyAreFinite) {
  ThreadPool pool(2);
  const KernelTable& table = *available_tables().back();
  constexpr int64_t n = 19, k = 33;
  for (int64_t bad : {int64_t{-1}, int64_t{0}, int64_t{32}, n * k - 1})
    for (uint16_t half : {0x7c00, 0xfc01}) {
      std::vector<uint16_t> halves(n * k, 0xbbff);
      if (bad >= 0) halves[static_cast<size_t>(bad)] = half;
      std::vector<std::byte> bytes(halves.size() * 2);
      std::memcpy(bytes.data(), halves.data(), bytes.size());
      WeightTable source;
      source.add("w", DType::kF16, {n, k}, bytes);
      WeightEntry entry{"w", DType::kF16, {n, k}, {}, {}, kFloatPanels};
      entry.recipe.sources = {"w"};
      Weight w = load_cpu_weight(entry, source, table, pool);
      EXPECT_EQ(w.finite_f16, table.hdot1x4 && bad < 0) << bad;
    }
}

TEST(Packed, EveryLevelReadsWhatEveryLevelPacked) {
  TestModel model = mixed_model();
  std::map<std::string, PackedRun> plain;
  for (const KernelTable* t : available_tables())
    plain[t->name] = run_steps(*level(t->name), model.plans, model.weights);
  for (const KernelTable* from : available_tables()) {
    PackedTable table(*level(from->name), model);
    for (const KernelTable* to : available_tables()) {
      PackedRun run = run_steps(*level(to->name), model.plans, table);
      EXPECT_TRUE(same_bits_of(run.logits, plain[to->name].logits)) << from->name << to->name;
      EXPECT_GT(run.memory.mapped, 0u);
      EXPECT_TRUE(from != to || run.memory.mapped + 4096 >= run.memory.weights) << from->name;
    }
  }
}

TEST(Packed, NamesOfPackingsAreRead) {
  for (const KernelTable* t : available_tables()) {
    auto style = parse_packing(packing_name(t->style));
    ASSERT_TRUE(style.has_value()) << t->name;
    EXPECT_EQ(style->group, t->style.group);
    EXPECT_EQ(style->vector, t->style.vector);
    EXPECT_EQ(style->xor4, t->style.xor4);
    EXPECT_EQ(style->xor8, t->style.xor8);
    EXPECT_EQ(style->row_nibbles, t->style.row_nibbles);
  }
  for (const char* name : {"", "cpu.panel16/2 group=8 vector=16 xor8=0 xor4=8",
                           "cpu.panel16/1 group=0 vector=16 xor8=0 xor4=8",
                           "cpu.panel16/1 group=8 vector=7 xor8=0 xor4=8",
                           "cpu.panel16/1 group=8 vector=16 xor8=0 xor4=99",
                           "cpu.panel16/1 group=8 vector=16 xor8=0 xor4=8 ",
                           "cpu.panel16/1 group=8 vector=16 xor8=0 xor4=8 nibbles=columns"})
    EXPECT_FALSE(parse_packing(name).has_value()) << name;
}

TEST(Packed, AWeightOfTheWrongSizeIsRefused) {
  TestModel model = mixed_model();
  auto backend = level("scalar");
  PackedTable table(*backend, model);
  for (const WeightEntry& w : model.plans.weights)
    if (w.name == "embd") table.shorten(w.name, w.layout);
  EXPECT_THROW(run_steps(*backend, model.plans, table), Error);
}

TEST(Packed, RefTakesRowsAndNothingElse) {
  TestModel model = mixed_model();
  auto ref = make_ref_backend({});
  PackedTable rows(*ref, model), panels(*level("scalar"), model);
  EXPECT_TRUE(same_bits_of(run_steps(*ref, model.plans, rows).logits,
                           run_steps(*ref, model.plans, model.weights).logits));
  EXPECT_THROW(run_steps(*ref, model.plans, panels), Error);
}

TEST(Eager, TheSameBitsWithoutAnArena) {
  TestModel model = mixed_model(30.0);
  auto backend = level(available_tables().back()->name);
  PackedRun planned = run_steps(*backend, model.plans, model.weights);
  PackedRun eager = run_steps(*backend, model.plans, model.weights, true);
  EXPECT_TRUE(same_bits_of(planned.logits, eager.logits));
  EXPECT_EQ(eager.memory.arena, 0u);
  EXPECT_GT(planned.memory.arena, 0u);
}

// A plan for up to 16 rows that pads, and the general one for everything else.
PlanSet with_bucket(const PlanSet& plans) {
  PlanSet out = plans;
  Plan bucket = plans.plans[0];
  for (GuardRange& g : bucket.guard) {
    if (g.symbol == "T") g = {"T", 1, 16, 1, 16};
    if (g.symbol == "B") g.hi += 1;
  }
  out.plans.push_back(bucket);
  return out;
}

TEST(Buckets, PaddingChangesNoBit) {
  TestModel model = mixed_model();
  PlanSet bucketed = with_bucket(model.plans);
  auto ref = make_ref_backend({}), cpu = level(available_tables().back()->name);
  for (Backend* backend : {ref.get(), cpu.get()}) {
    PackedRun plain = run_steps(*backend, model.plans, model.weights);
    PackedRun padded = run_steps(*backend, bucketed, model.weights);
    EXPECT_TRUE(same_bits_of(plain.logits, padded.logits)) << backend->name();
    EXPECT_EQ(plain.dispatch.padded_rows, 0);
    EXPECT_EQ(plain.dispatch.fallbacks, 0);
    EXPECT_EQ(plain.dispatch.rows, 66);
    // Steps of 5, 14, 2, 1 and 12 rows are padded to 16; the one of 32 has no bucket.
    EXPECT_EQ(padded.dispatch.rows, 66);
    EXPECT_EQ(padded.dispatch.padded_rows, 11 + 2 + 14 + 15 + 4);
    EXPECT_EQ(padded.dispatch.fallbacks, 1);
    EXPECT_EQ(padded.dispatch.steps[0], 1);
    EXPECT_EQ(padded.dispatch.steps[1], 5);
    EXPECT_EQ(padded.dispatch.compiles, 0);
  }
}

}  // namespace
}  // namespace tokamak::cpu
