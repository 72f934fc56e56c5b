// Lowered programs by their meaning against the meaning of the body: the same bits.
#include <algorithm>

#include "base/rng.h"
#include "compile/lower/formula.h"
#include "compile/lower/lower_test_util.h"
#include "compile/simplify/random_graph.h"
#include "loop/evaluate.h"

namespace tokamak {
namespace {

using testing::first_difference;

// Runs the program on the body's inputs and compares each result.
void compare_to_body(const Function& body, const loop::Program& program,
                     const EvalInputs<float>& inputs) {
  EvalResults<float> want = evaluate<float>(body, inputs);
  std::vector<EvalTensor<float>> in_values, out_values;
  for (NodeId id : body.inputs())
    in_values.push_back(inputs.tensors.at(body.node(id).attrs.at("name").as_string()));
  for (const Function::Result& r : body.results()) {
    EvalTensor<float>& t = out_values.emplace_back(want.tensors.at(r.name));
    std::fill(t.f.begin(), t.f.end(), 77.0f);
    std::fill(t.i.begin(), t.i.end(), 77);
  }
  auto refs = [](std::vector<EvalTensor<float>>& list) {
    std::vector<TensorRef<float>> out;
    for (EvalTensor<float>& t : list)
      out.push_back({t.dims, t.integer ? nullptr : t.f.data(), t.integer ? t.i.data() : nullptr});
    return out;
  };
  std::vector<TensorRef<float>> in = refs(in_values), out = refs(out_values);
  loop::evaluate_program<float>(program, inputs.symbols, in, out);
  for (size_t r = 0; r < out_values.size(); ++r) {
    const std::string& name = body.results()[r].name;
    const EvalTensor<float>& expected = want.tensors.at(name);
    if (program.out[r].dtype == DType::kQ8A) continue;  // holds what is quantised later
    EXPECT_EQ(out_values[r].i, expected.i) << name;
    int64_t at = first_difference(out_values[r].f, expected.f);
    ASSERT_EQ(at, -1) << name << ": " << out_values[r].f[static_cast<size_t>(at)] << " for "
                      << expected.f[static_cast<size_t>(at)] << "\n"
                      << print_function(body) << loop::print_program(program);
  }
}

EvalInputs<float> random_values_for(const Function& body, SymbolValues symbols, uint64_t seed,
                                    Values kind) {
  Rng rng(seed);
  return convert_inputs<float>(random_inputs(body, std::move(symbols), rng, kind));
}

TEST(Lower, CasesHaveTheMeaningOfTheirBody) {
  for (const testing::BodyCase& c : testing::body_cases())
    for (int64_t columns : {1, 7, 32}) {
      SCOPED_TRACE(fmt::format("{} of {} columns", c.name, columns));
      Module m = testing::body_module(c, columns);
      const Function& body = *m.find_function("body");
      LoweredRegion lowered = lower_region(body);
      ASSERT_TRUE(lowered) << lowered.reason;
      std::string text = loop::print_program(*lowered.program);
      EXPECT_EQ(loop::print_program(loop::parse_program(text)), text);
      for (Values kind : {Values::kNormal, Values::kMixed, Values::kNasty})
        compare_to_body(body, *lowered.program,
                        random_values_for(body, {{"T", 3}, {"S", 2}}, 5, kind));
    }
}

TEST(Lower, IntegersComparisonsAndReductions) {
  Module m = parse_module(R"(module m format 1
symbol T in 1..64
symbol S in 1..64
constant one : i32[] = [1]
constant low : f32[n=1] = [-1000]
func body {
  %0 = input x : f32[t=T, s=S]
  %1 = input pos : i32[t=T]
  %2 = iota() {n="S"}
  %3 = reshape(%1) {dims=["T", 1], axes=["t", "one"]}
  %4 = compare(%2, %3) {kind="le"}
  %5 = select(%4, %0, $low)
  %6 = reduce_max(%5) {axis=-1, keep=1}
  %7 = reduce_mean(%0) {axis=1, keep=0}
  %8 = reduce_sum(%0) {axis=1}
  %9 = sub(%5, %6)
  %10 = cast(%9) {dtype="f16"}
  %11 = cast(%10) {dtype="bf16"}
  %12 = cast(%11) {dtype="i32"}
  %13 = add(%12, $one)
  %14 = cast(%13) {dtype="f32"}
  %15 = mul(%14, %6)
  return top = %6
  return mean = %7
  return total = %8
  return half = %10
  return number = %13
  return out = %15
}
)");
  const Function& body = *m.find_function("body");
  LoweredRegion lowered = lower_region(body);
  ASSERT_TRUE(lowered) << lowered.reason;
  EXPECT_EQ(lowered.program->columns.text(), "S");
  for (uint64_t seed = 0; seed < 5; ++seed)
    compare_to_body(body, *lowered.program,
                    random_values_for(body, {{"T", 4}, {"S", 9}}, seed, Values::kNormal));
}

TEST(Lower, ReadsThroughReshapesAndOtherAxes) {
  Module m = parse_module(R"(module m format 1
symbol T in 1..64
func body {
  %0 = input x : f32[t=T, d=12]
  %1 = input w : f32[d=12]
  %2 = input y : f32[t=T, h=3, k=4]
  %3 = rms_norm(%0, %1) {eps=1e-05}
  %4 = reshape(%3) {dims=["T", 3, 4], axes=["t", "h", "k"]}
  %5 = add(%4, %2)
  return out = %5
}
func over_first {
  %0 = input x : f32[a=5, t=T]
  %1 = reduce_sum(%0) {axis=0}
  %2 = exp(%1)
  return out = %2
}
)");
  for (const auto& fn : m.functions) {
    LoweredRegion lowered = lower_region(*fn);
    ASSERT_TRUE(lowered) << lowered.reason;
    compare_to_body(*fn, *lowered.program, random_values_for(*fn, {{"T", 5}}, 3, Values::kNormal));
  }
}

TEST(Lower, QuantizedResultsGetTheirValues) {
  Module m = parse_module(R"(module m format 1
symbol T in 1..64
func body {
  %0 = input x : f32[t=T, d=64]
  %1 = input w : f32[d=64]
  %2 = rms_norm(%0, %1) {eps=1e-05}
  %3 = quantize(%2) {format="q8a"}
  return out = %3
  return plain = %2
}
)");
  LoweredRegion lowered = lower_region(*m.find_function("body"));
  ASSERT_TRUE(lowered) << lowered.reason;
  EXPECT_EQ(lowered.program->out[0].dtype, DType::kQ8A);
  EXPECT_EQ(lowered.program->stores[0].value, lowered.program->stores[1].value);
}

TEST(Lower, SaysWhyNot) {
  struct {
    const char *body, *reason;
  } cases[] = {
      {"%0 = input x : f32[t=T, d=8]\n%1 = input w : f32[n=4, d=8]\n%2 = linear(%0, %1)\n"
       "%3 = silu(%2)\nreturn out = %3\n",
       "%2 (linear): it does not work row by row"},
      {"%0 = input x : f32[t=T, d=8]\n%1 = input w : f32[d=8]\n%2 = input v : f32[k=4]\n"
       "%3 = rms_norm(%0, %1) {eps=1e-05}\n"
       "%4 = reshape(%3) {dims=[\"T\", 2, 4], axes=[\"t\", \"h\", \"k\"]}\n"
       "%5 = rms_norm(%4, %2) {eps=1e-05}\nreturn out = %5\n",
       "as one index per axis"},
      {"%0 = input x : f32[t=T, d=8]\n%1 = input y : f32[d=8]\n%2 = exp(%0)\n%3 = exp(%1)\n"
       "return out = %2\nreturn other = %3\n",
       "result other has 8 elements"},
      {"%0 = input x : q4_0[t=T, d=32]\n%1 = exp(%0)\nreturn out = %1\n", "q4_0"},
      {"%0 = input x : f32[t=T, d=8]\n%1 = input i : i32[n=3]\n%2 = exp(%0)\n"
       "%3 = gather(%2, %1) {axis=0}\nreturn out = %3\n",
       "rows can be read by index from an input only"},
      {"%0 = input x : f32[t=T, d=8]\n%1 = exp(%0)\n", "it has no result"},
  };
  for (const auto& c : cases) {
    std::string text =
        fmt::format("module m format 1\nsymbol T in 1..64\nfunc body {{\n{}}}\n", c.body);
    Module m = parse_module(text);
    LoweredRegion lowered = lower_region(*m.find_function("body"));
    EXPECT_FALSE(lowered) << text;
    EXPECT_NE(lowered.reason.find(c.reason), std::string::npos) << lowered.reason;
  }
}

// A piece of a random graph: a node and some of what it is made from; where it is cut, inputs.
class BodyCutter {
 public:
  BodyCutter(const Function& from, Module& to, Rng& rng)
      : from_(from), body_(to.add_function("body")), rng_(rng) {}

  Function& cut(NodeId root) {
    body_.set_result("out", copy({root, 0}, 0));
    if (rng_.below(3) == 0) {  // and a value inside it
      std::vector<Ref> made;
      for (const auto& [r, ref] : done_) made.push_back(ref);
      body_.set_result("inner", made[rng_.below(made.size())]);
    }
    return body_;
  }

 private:
  Ref copy(Ref r, int depth) {
    if (auto it = done_.find(r); it != done_.end()) return it->second;
    const Node& node = from_.node(r.node);
    Ref made;
    bool plain = node.op->tier != Tier::kStructural && node.outputs.size() == 1 &&
                 !node.op->reads_state && !node.op->writes_state && node.op->name != "linear" &&
                 node.op->name != "matmul" && node.op->name != "concat" && node.op->name != "rope";
    if (node.op->name == "constant" && node.outputs[0].tensor.elements() == SymExpr(1)) {
      made = body_.constant(node.attrs.at("name").as_string());
    } else if (!plain || depth > 6 || (depth > 0 && rng_.below(6) == 0)) {
      made = body_.add_input(fmt::format("in{}", done_.size()), from_.type(r));
    } else {
      std::vector<Ref> in;
      for (Ref i : node.inputs) in.push_back(copy(i, depth + 1));
      made = body_.add(node.op->name, in, node.attrs);
    }
    return done_[r] = made;
  }

  const Function& from_;
  Function& body_;
  Rng& rng_;
  std::map<Ref, Ref> done_;
};

TEST(Lower, RandomBodiesHaveTheirMeaning) {
  size_t lowered_bodies = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Module source = random_graph(seed);
    const Function& fn = *source.find_function("step");
    Rng rng(seed);
    for (int k = 0; k < 6; ++k) {
      auto root = static_cast<NodeId>(rng.below(fn.nodes().size()));
      if (fn.node(root).op->tier == Tier::kStructural ||
          fn.type({root, 0}).kind != Type::Kind::kTensor)
        continue;
      Module m("cut");
      m.symbols = source.symbols;
      m.constants.clear();
      for (const ConstantDecl& c : source.constants) m.add_constant(c);
      Function& body = BodyCutter(fn, m, rng).cut(root);
      LoweredRegion lowered = lower_region(body);
      if (!lowered) {
        ++refused;
        EXPECT_FALSE(lowered.reason.empty());
        continue;
      }
      ++lowered_bodies;
      SCOPED_TRACE(fmt::format("seed {} body {}", seed, k));
      SymbolValues symbols = random_symbols(body, rng);
      for (const SymbolDecl& s : m.symbols) symbols.emplace(s.name, s.lo);
      compare_to_body(body, *lowered.program,
                      random_values_for(body, symbols, seed, Values::kNormal));
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(lowered_bodies, 100u) << refused << " refused";
}

// An op says what it is as a formula; the lowering knows no norm by its name.
TEST(Formula, NamesAreSharedAndAbsentOperandsDropOut) {
  Formula f = parse_formula("d = sub(a, max(a)); add(mul(d, b), c)", 3);
  EXPECT_EQ(f.terms[f.root].op, loop::Op::kAdd);
  EXPECT_EQ(f.terms.size(), 7u);  // a, max, sub, b, mul, c, add
  Formula without = parse_formula("d = sub(a, max(a)); add(mul(d, b), c)", 2);
  EXPECT_EQ(without.terms[without.root].op, loop::Op::kMul);
}

TEST(Formula, WrongOnesAreErrors) {
  for (const char* text : {"", "a", "mul(a)", "mul(a, b", "melt(a)", "sub(a, c)",
                           "x = c; mul(a, x)", "mul(a, b) c", "columns", "load(a)"})
    EXPECT_THROW(parse_formula(text, 2), Error) << text;
}

// Every op that claims a loop form has one that can be read.
TEST(Formula, EveryOpHasAValidOne) {
  size_t formulas = 0;
  for (const OpDef* op : all_ops()) {
    EXPECT_TRUE(op->loop.kind == LoopForm::Kind::kNone || has_loop_form(*op)) << op->name;
    if (op->loop.formula.empty()) continue;
    ++formulas;
    for (int inputs = op->min_inputs; inputs <= op->max_inputs; ++inputs)
      EXPECT_NO_THROW(parse_formula(op->loop.formula, static_cast<size_t>(inputs))) << op->name;
  }
  EXPECT_GE(formulas, 7u);
}

}  // namespace
}  // namespace tokamak
