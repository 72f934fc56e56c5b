#include "plan/plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/dispatch.h"
#include "plan/embedding_spec.h"
#include "plan/model_source.h"

namespace tokamak {
namespace {

CallArg arena(uint32_t value, uint64_t offset, std::vector<SymExpr> dims) {
  return {CallArg::Kind::kArena, value, offset, DType::kF32, std::move(dims)};
}

const SymExpr kT = SymExpr::symbol("T");

// neg(x), then a matrix.
Region sample_region() {
  auto type = [](std::vector<SymExpr> dims) {
    TensorType t;
    for (SymExpr& d : dims) t.dims.push_back({"x", d, false});
    return Type::of(t);
  };
  Region region;
  region.inputs = 2;
  region.values = {type({kT, 8}), type({8, 8}), type({kT, 8}), type({kT, 8})};
  RegionPiece program, matrix;
  program.program = std::make_shared<loop::Program>(loop::parse_program(R"(loop 1
rows T
columns 8
in0 : f32[T, 8]
out0 : f32[T, 8]
%0 = load in0[c + 8*r0] : f32 tile
%1 = neg %0 : f32 tile
store out0[c + 8*r0] = %1
)"));
  program.in = {0}, program.out = {2};
  matrix.op = "linear";
  matrix.attrs = Value::Object{{"x", 1}};
  matrix.in = {2, 1}, matrix.out = {3};
  region.pieces = {program, matrix};
  region.results = {3};
  return region;
}

// embed -> append, attend -> a region; 16 tokens at most.
PlanSet sample() {
  PlanSet set;
  set.model = "tiny";
  set.backend = "ref";
  set.symbols = {{"T", 1, 64, 1}, {"B", 1, 8, 1}, {"R", 1, 8, 1}};
  set.inputs = {{"ids", DType::kI32, {kT}}};
  set.groups = {{"full", 0, 16}, {"window", 32, 16}};
  set.states = {
      {"kv.0", 0, false, {{"k", DType::kF16, {2, 4}, 16}, {"v", DType::kF16, {2, 4}, 16}}}};
  set.weights = {{"w", DType::kF32, {8, 8}, {{"w.file"}, {}}, {}, ""},
                 {"c", DType::kF32, {2}, {}, {1, 2}, ""}};
  set.kernels = {{"ref.any", 1, "f32"}};
  CallArg ids{CallArg::Kind::kInput, 0, 0, DType::kI32, {kT}};
  CallArg w{CallArg::Kind::kWeight, 0, 0, DType::kF32, {8, 8}};
  CallArg state{CallArg::Kind::kState, 0, 0, DType::kF32, {}};
  CallArg view{CallArg::Kind::kView, 0, 0, DType::kF32, {}};
  Plan plan;
  plan.function = "step";
  plan.guard = {{"T", 1, 16, 1}, {"B", 1, 8, 1}, {"R", 1, 8, 1}};
  plan.arena_bytes = 1024;
  plan.calls = {{.op = "embed", .in = {ids, w}, .out = {arena(0, 0, {kT, 8})}, .label = "embd"},
                {.op = "append", .in = {state, view, arena(0, 0, {kT, 8})}, .out = {state}},
                {.op = "attend",
                 .in = {arena(0, 0, {kT, 8}), state, view},
                 .out = {arena(1, 512, {kT, 8})},
                 .label = {}},
                {.op = "region",
                 .attrs = {},
                 .region = 0,
                 .code = 0,
                 .in = {arena(1, 512, {kT, 8}), w},
                 .out = {arena(2, 0, {kT, 8})},
                 .label = "out"}};
  set.regions = {sample_region()};
  set.code = {{"x86-64+avx2", "f", "-O2", "123", "\x01\x02"}};
  plan.outputs = {{"logits", arena(2, 0, {kT, 8})}};
  set.plans = {plan};
  set.arena_bytes = 1024;
  return set;
}

struct Broken {
  const char* message;
  void (*change)(PlanSet&);
};

TEST(CheckPlanSet, AcceptsTheSample) {
  check_plan_set(sample());
  PlanSet in_place = sample();
  in_place.plans[0].calls[3].out[0].offset = 512;
  in_place.plans[0].outputs[0].arg.offset = 512;
  check_plan_set(in_place);
}

const Broken kBrokenSets[] = {
    {"version 9", [](PlanSet& s) { s.version = 9; }},
    {"65 plans", [](PlanSet& s) { s.plans.resize(65, s.plans[0]); }},
    {"symbol 1: the name \"T\" is used twice", [](PlanSet& s) { s.symbols[1].name = "T"; }},
    {"is empty or negative", [](PlanSet& s) { s.symbols[0].hi = 0; }},
    {"multiple", [](PlanSet& s) { s.symbols[0].multiple = 0; }},
    {"the padded value is not the largest one",
     [](PlanSet& s) {
       s.plans[0].guard[0] = {"T", 1, 16, 3, 16};
     }},
    {"group 0: it has no name", [](PlanSet& s) { s.groups[0].name = ""; }},
    {"in blocks of 0 is not valid", [](PlanSet& s) { s.groups[0].block_size = 0; }},
    {"there is no group 7", [](PlanSet& s) { s.states[0].group = 7; }},
    {"no planes", [](PlanSet& s) { s.states[0].planes.clear(); }},
    {"plane k takes 16 bytes", [](PlanSet& s) { s.states[0].planes[0].bytes_per_token = 17; }},
    {"the extent -1 is negative", [](PlanSet& s) { s.states[0].planes[0].dims = {-1}; }},
    {"weight w: symbolic arithmetic",
     [](PlanSet& s) {
       s.weights[0].dims = {int64_t{1} << 40, int64_t{1} << 40};
     }},
    {"weight w: q4_0", [](PlanSet& s) { s.weights[0].dtype = DType::kQ4_0; }},
    {"is used twice", [](PlanSet& s) { s.weights.push_back(s.weights[0]); }},
    {"neither a source nor values", [](PlanSet& s) { s.weights[0].recipe.sources.clear(); }},
    {"both a source and values", [](PlanSet& s) { s.weights[1].recipe.sources = {"x"}; }},
    {"3 values for 8 bytes", [](PlanSet& s) { s.weights[1].constant.push_back(3); }},
    {"kernel 0: it has no name", [](PlanSet& s) { s.kernels[0].name = ""; }},
    {"ABI version 0", [](PlanSet& s) { s.kernels[0].abi = 0; }},
    {"plan 0 (): it names no function", [](PlanSet& s) { s.plans[0].function = ""; }},
    {"guard of X: the symbol is not declared",
     [](PlanSet& s) { s.plans[0].guard[0].symbol = "X"; }},
    {"guard of T: the symbol has two ranges", [](PlanSet& s) { s.plans[0].guard[1].symbol = "T"; }},
    {"guard of T: the range 1..0 is empty", [](PlanSet& s) { s.plans[0].guard[0].hi = 0; }},
    {"symbol T is not declared",
     [](PlanSet& s) { s.plans[0].guard.erase(s.plans[0].guard.begin()); }},
    {"T = B: the symbol has a range",
     [](PlanSet& s) {
       s.plans[0].bound_symbols = {{"T", "B"}};
     }},
    {"X = B: the symbol is not declared",
     [](PlanSet& s) {
       s.plans[0].bound_symbols = {{"X", "B"}};
     }},
    {"larger than the set's", [](PlanSet& s) { s.arena_bytes = 512; }},
    {"call 0 (embed): there is no kernel 1", [](PlanSet& s) { s.plans[0].calls[0].kernel = 1; }},
    {"it names no op", [](PlanSet& s) { s.plans[0].calls[0].op = ""; }},
    {"it has no output", [](PlanSet& s) { s.plans[0].calls[1].out.clear(); }},
    {"attributes must be", [](PlanSet& s) { s.plans[0].calls[0].attrs = 3; }},
    {"there is no input 4", [](PlanSet& s) { s.plans[0].calls[0].in[0].index = 4; }},
    {"input ids has another type",
     [](PlanSet& s) { s.plans[0].calls[0].in[0].dtype = DType::kF32; }},
    {"there is no weight 9", [](PlanSet& s) { s.plans[0].calls[0].in[1].index = 9; }},
    {"weight w has another",
     [](PlanSet& s) {
       s.plans[0].calls[0].in[1].dims = {8, 9};
     }},
    {"there is no state 1", [](PlanSet& s) { s.plans[0].calls[1].in[0].index = 1; }},
    {"there is no group 2", [](PlanSet& s) { s.plans[0].calls[1].in[1].index = 2; }},
    {"state kv.0 with the view of group window",
     [](PlanSet& s) { s.plans[0].calls[1].in[1].index = 1; }},
    {"a state that is not among its arguments",
     [](PlanSet& s) { s.plans[0].calls[1].in.erase(s.plans[0].calls[1].in.begin()); }},
    {"neither in the arena nor a state",
     [](PlanSet& s) { s.plans[0].calls[0].out = s.plans[0].calls[0].in; }},
    {"offset 8 is not aligned", [](PlanSet& s) { s.plans[0].calls[0].out[0].offset = 8; }},
    {"512 bytes at 576 leave the arena",
     [](PlanSet& s) { s.plans[0].calls[2].out[0].offset = 576; }},
    {"1024 bytes at 512 leave the arena", [](PlanSet& s) { s.plans[0].guard[0].hi = 32; }},
    {"an extent is negative", [](PlanSet& s) { s.plans[0].calls[0].out[0].dims = {SymExpr(-3)}; }},
    {"64 bits", [](PlanSet& s) { s.plans[0].guard[0].hi = INT64_MAX; }},
    {"attend): output 0 overlaps an input",
     [](PlanSet& s) { s.plans[0].calls[2].out[0].offset = 64; }},
    {"it reads value 1 at 512",
     [](PlanSet& s) {
       auto& calls = s.plans[0].calls;
       calls.insert(calls.begin() + 3, {.op = "iota", .out = {arena(7, 960, {1})}});
     }},
    {"it reads value 9 at 0", [](PlanSet& s) { s.plans[0].calls[1].in[2].index = 9; }},
    {"outputs 0 and 1 overlap",
     [](PlanSet& s) { s.plans[0].calls[0].out.push_back(arena(5, 448, {kT})); }},
    {"output logits: it reads value 1",
     [](PlanSet& s) {
       s.plans[0].calls[3].out[0].offset = 512;
       s.plans[0].outputs[0].arg = arena(1, 512, {kT, 8});
     }},
    {"there is no region 1", [](PlanSet& s) { s.plans[0].calls[3].region = 1; }},
    {"there is no region -2", [](PlanSet& s) { s.plans[0].calls[3].region = -2; }},
    {"it names no region", [](PlanSet& s) { s.plans[0].calls[3].region = -1; }},
    {"a single op with a region", [](PlanSet& s) { s.plans[0].calls[0].region = 0; }},
    {"it needs 64 bytes of scratch, the plans reserve 0",
     [](PlanSet& s) { s.plans[0].calls[3].scratch = 64; }},
    {"there is no code object 3", [](PlanSet& s) { s.plans[0].calls[3].code = 3; }},
    {"code 0: it names no target", [](PlanSet& s) { s.code[0].target = ""; }},
    {"code 0: it names no function", [](PlanSet& s) { s.code[0].entry = ""; }},
    {"input 1 is not the region's",
     [](PlanSet& s) { s.regions[0].values[1].tensor.dims.pop_back(); }},
    {"input 0 is not the region's",
     [](PlanSet& s) {
       s.plans[0].calls[3].in[0] = {CallArg::Kind::kState, 0, 0, DType::kF32, {}};
     }},
    {"region 0: region: value 3 is used before it is produced",
     [](PlanSet& s) { s.regions[0].pieces[1].in[0] = 3; }},
    {"value 9 is produced out of order", [](PlanSet& s) { s.regions[0].pieces[1].out[0] = 9; }},
    {"a piece without a result", [](PlanSet& s) { s.regions[0].pieces[1].out.clear(); }},
    {"an anchor without an op", [](PlanSet& s) { s.regions[0].pieces[1].op = ""; }},
    {"attributes of linear", [](PlanSet& s) { s.regions[0].pieces[1].attrs = 3; }},
    {"result 4 is not produced", [](PlanSet& s) { s.regions[0].results[0] = 4; }},
    {"2 results, the call has 1", [](PlanSet& s) { s.regions[0].results.push_back(2); }},
    {"3 inputs of 2 values",
     [](PlanSet& s) {
       s.regions[0].values.resize(2);
       s.regions[0].inputs = 3;
     }},
    {"values for", [](PlanSet& s) { s.regions[0].values.push_back(s.regions[0].values[0]); }},
    {"1 values have no type", [](PlanSet& s) { s.regions[0].values.pop_back(); }},
    {"2 inputs for a program with 1",
     [](PlanSet& s) {
       s.regions[0].pieces[0].in = {0, 0};
     }},
    {"output 0 of the loop program has type f32",
     [](PlanSet& s) { s.regions[0].values[2].tensor.dtype = DType::kI32; }},
    {"uses the symbol T, which is not declared",
     [](PlanSet& s) {
       for (auto* list : {&s.plans[0].guard}) (*list)[0].symbol = "S";
       s.symbols[0].name = "S";
     }},
    {"output : its name is empty", [](PlanSet& s) { s.plans[0].outputs[0].name = ""; }},
    {"an output must be a tensor",
     [](PlanSet& s) { s.plans[0].outputs[0].arg.kind = CallArg::Kind::kState; }},
};

TEST(CheckPlanSet, RefusesWhatIsBroken) {
  for (const Broken& c : kBrokenSets) {
    PlanSet set = sample();
    c.change(set);
    try {
      check_plan_set(set);
      ADD_FAILURE() << "accepted: " << c.message;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(c.message), std::string::npos)
          << c.message << " / " << e.what();
      EXPECT_NE(e.code(), ErrorCode::kInternal) << e.what();
    }
    EXPECT_FALSE(plan_set_text(set).empty());  // a dump shows broken plans too
  }
}

TEST(Regions, ProducersAndWholePrograms) {
  Region region = sample_region();
  EXPECT_EQ(region.producer(0), -1);
  EXPECT_EQ(region.producer(2), 0);
  EXPECT_EQ(region.producer(3), 1);
  EXPECT_TRUE(region.is_result(3));
  EXPECT_FALSE(region.is_result(2));
  EXPECT_EQ(region.whole_program(), nullptr);
  region.pieces.pop_back();
  region.values = {region.values[0], region.values[2]};
  region.inputs = 1;
  region.pieces[0].out = region.results = {1};
  check_region(region, 1, 1);
  EXPECT_EQ(region.whole_program(), region.pieces[0].program.get());
  check_region(region, 2, 1);  // the second input only orders the call
  EXPECT_THROW(check_region(region, 0, 1), Error);
  EXPECT_THROW(check_region(region, 1, 2), Error);
}

TEST(SelectPlan, TakesTheSmallestGuard) {
  PlanSet set;
  set.symbols = {{"T", 1, 512, 1}, {"B", 1, 64, 1}, {"R", 1, 64, 1}};
  auto add = [&](const char* function, std::vector<GuardRange> guard,
                 std::vector<std::pair<std::string, std::string>> bound = {}) {
    Plan p;
    p.function = function;
    p.guard = std::move(guard);
    p.bound_symbols = std::move(bound);
    set.plans.push_back(std::move(p));
  };
  add("step", {{"T", 1, 512, 1}, {"B", 1, 64, 1}, {"R", 1, 64, 1}});
  add("step", {{"T", 1, 64, 1}, {"B", 1, 64, 1}, {"R", 1, 64, 1}});
  add("step", {{"T", 16, 64, 16}, {"B", 1, 64, 1}, {"R", 1, 64, 1}});
  add("decode", {{"B", 1, 64, 1}}, {{"T", "B"}, {"R", "B"}});
  add("decode", {{"B", 1, 8, 1}}, {{"T", "B"}, {"R", "B"}});
  add("verify3", {{"B", 1, 64, 1}}, {{"T", "4*B"}, {"R", "4*B"}});
  add("odd", {{"B", 1, 64, 1}}, {{"T", "2*B + 1"}});
  auto pick = [&](const char* function, int64_t t, int64_t b, int64_t r) {
    const int64_t values[] = {t, b, r};
    return select_plan(set, function, values);
  };
  EXPECT_EQ(pick("step", 500, 3, 3), 0);
  EXPECT_EQ(pick("step", 63, 3, 3), 1);
  EXPECT_EQ(pick("step", 48, 3, 3), 2);
  EXPECT_EQ(pick("step", 513, 3, 3), -1);
  EXPECT_EQ(pick("decode", 8, 8, 8), 4);
  EXPECT_EQ(pick("decode", 9, 9, 9), 3);
  EXPECT_EQ(pick("decode", 9, 8, 8), -1);
  EXPECT_EQ(pick("verify3", 8, 2, 8), 5);
  EXPECT_EQ(pick("verify3", 8, 3, 8), -1);
  EXPECT_EQ(pick("odd", 7, 3, 1), 6);
  EXPECT_EQ(pick("odd", 8, 3, 1), -1);
  EXPECT_EQ(pick("nothing", 1, 1, 1), -1);
  // Padded to multiples: every size in the range, before any plan that pads nothing.
  add("step", {{"T", 65, 512, 64, 512}, {"B", 1, 65, 1}, {"R", 1, 64, 1}});
  EXPECT_EQ(pick("step", 65, 3, 3), 7);
  EXPECT_EQ(pick("step", 511, 3, 3), 7);
  EXPECT_EQ(pick("step", 64, 3, 3), 2);
  const int64_t odd[] = {65, 3, 3};
  EXPECT_EQ(select_plan(set, "step", odd, false), 0);
  EXPECT_EQ(plan_name(set.plans[7]), "step T=65..512 padded to multiples of 64 B<=65 R<=64");
}

TEST(PlanSizes, Bytes) {
  PlanSet set = sample();
  EXPECT_EQ(kv_bytes_per_token(set, 0), 32);
  EXPECT_EQ(kv_bytes_per_token(set, 1), 0);
  EXPECT_EQ(weight_bytes(set.weights[0]), 256);
  EXPECT_EQ(weight_bytes({"q", DType::kQ4_0, {3, 64}, {}, {}, ""}), 3 * 36);
}

TEST(PlanText, ShowsTheCalls) {
  PlanSet set = sample();
  set.plans[0].arena_lower_bound = 800;
  set.plans[0].arena_method = "first-fit by size";
  const std::string text = plan_set_text(set);
  for (const char* part : {"plans for tiny on ref, version 3", "symbol T in 1..64",
                           "input ids : i32[T]", "group full window 0 block 16, 32 bytes per token",
                           "state kv.0 in full per_token {k: f16[2, 4], v: f16[2, 4]}",
                           "weight w : f32[8, 8] from w.file", "weight c : f32[2] = 2 values",
                           "kernel ref.any abi 1 class \"f32\"",
                           "plan step for T in 1..16, B in 1..8, R in 1..8 {  // 4 calls, arena "
                           "1.0 KiB = 1024 bytes, lower "
                           "bound 800, gap 28.00 %, first-fit by size\n",
                           "v0@0:f32[T, 8] = ref.any(ids:i32[T], @w)  # embed embd",
                           "state<kv.0> = ref.any(state<kv.0>, view<full>, v0@0:f32[T, 8])",
                           "region 0 (%0 : f32[x=T, x=8], %1 : f32[x=8, x=8]) {\n  %2 : f32[x=T, "
                           "x=8] = loop(%0) {\n    loop 1\n",
                           "  %3 : f32[x=T, x=8] = linear(%2, %1) {\"x\":1}\n  return %3\n}\n",
                           "code 0 for x86-64+avx2 entry f options \"-O2\" hash 123, 2 B",
                           "= ref.any(v1@512:f32[T, 8], @w) region 0 code 0  # region out",
                           "return logits = v2@0:f32[T, 8]"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

// A source with plans and metadata only.
struct PlainSource final : ModelSource {
  PlanSet set;
  Value about;
  const PlanSet& plans() const override { return set; }
  const WeightSource& weights() const override { return table; }
  const TokenizerSpec& tokenizer() const override { return vocabulary; }
  const Value& metadata() const override { return about; }
  const EmbeddingSpec& embedding() const override { return vectors; }
  WeightTable table;
  TokenizerSpec vocabulary;
  EmbeddingSpec vectors;
};

TEST(ModelFacts, TensorsCountOnceAndTheCommonTypeIsNamed) {
  auto weight = [](const char* name, const char* source, DType dtype, std::vector<int64_t> dims) {
    WeightEntry w;
    w.name = name;
    w.dtype = dtype;
    w.dims = std::move(dims);
    w.recipe.sources = {source};
    return w;
  };
  PlainSource source;
  source.about = Value::Object{{"general.architecture", "qwen2"}};
  source.set.hidden = 64;
  source.set.layers = 3;
  source.set.weights = {weight("table", "embed", DType::kF16, {100, 64}),
                        weight("head", "embed", DType::kF16, {100, 64}),
                        weight("up", "up", DType::kQ4_0, {640, 64}),
                        weight("norm", "norm", DType::kF32, {64})};
  ModelFacts facts = facts_of(source);
  EXPECT_EQ(facts.parameters, 6400 + 40960 + 64);
  EXPECT_EQ(facts.quantization, "Q4_0");
  EXPECT_EQ(facts.format + " " + facts.architecture, "gguf qwen2");
  EXPECT_EQ(facts.hidden, 64);
  EXPECT_EQ(facts.layers, 3);
  source.about = Value::Object{{"model_type", "llama"}};
  EXPECT_EQ(facts_of(source).format + " " + facts_of(source).architecture, "safetensors llama");
  EXPECT_EQ(facts_of(PlainSource{}).parameters, 0);
}

TEST(ModelFacts, ParametersAreWrittenAsByOllama) {
  for (auto [parameters, text] :
       std::initializer_list<std::pair<int64_t, const char*>>{{0, ""},
                                                              {999, "999"},
                                                              {47424, "47K"},
                                                              {134515008, "134.52M"},
                                                              {22000000, "22M"},
                                                              {8030261248, "8.0B"},
                                                              {70000000000, "70B"}})
    EXPECT_EQ(parameters_text(parameters), text);
}

TEST(EmbeddingSpec, PromptForAKindOfText) {
  EmbeddingSpec spec;
  spec.prompts = {{"query", "Q: "}, {"passage", "P: "}, {"task", "T: "}};
  EXPECT_EQ(spec.prompt_for("query"), "Q: ");
  EXPECT_EQ(spec.prompt_for("document"), "P: ");
  EXPECT_EQ(spec.prompt_for("passage"), "P: ");
  EXPECT_EQ(spec.prompt_for("clustering"), "");
  spec.default_prompt = "task";
  EXPECT_EQ(spec.prompt_for("clustering"), "T: ");
  spec.prompts.erase(spec.prompts.begin());
  EXPECT_EQ(spec.prompt_for("query"), "T: ") << "never that of passages";
}

}  // namespace
}  // namespace tokamak
