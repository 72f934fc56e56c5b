// Random graphs from a seed: whatever add() accepts must verify, print, parse and print again to
// the same text.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "graph/evaluate.h"
#include "graph/graph.h"
#include "graph/test_models.h"

namespace tokamak {
namespace {

class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : rng_(seed), module_(fmt::format("random.{}", seed)) {
    module_.symbols = {{"T", 1, 64, 1}, {"B", 1, 8, 1}, {"R", 1, 8, 1}};
    module_.groups = {{"full", 0, 16}, {"near", 32, 8}};
    const TensorType plane = tensor_type("f16[h=2, d=4]").tensor;
    for (size_t i = 0; i < 3; ++i) {
      module_.states.push_back(
          {fmt::format("kv.{}", i), i < 2 ? "full" : "near", {}, {{"k", plane}, {"v", plane}}});
    }
    for (const char* w :
         {"f32[n=8, k=8]", "q8_0[n=8, k=32]", "f32[n=8]", "f16[e=2, n=8, k=8]", "f32[n=32, k=8]"}) {
      const size_t i = module_.weights.size();
      module_.add_weight(
          {fmt::format("w {}", i), tensor_type(w).tensor, {{fmt::format("file.{}", i)}, {}}});
    }
    module_.add_constant({"freq", tensor_type("f32[n=2]").tensor, {1, 0.25}});
    module_.add_constant({"ints", tensor_type("i32[n=3]").tensor, {0, 2, 1}});
  }

  Module build() {
    fn_ = &module_.add_function("step");
    for (const char* name : {"ids", "pos", "seq", "slot"})
      pool_.push_back(fn_->add_input(name, i32_type("t", "T")));
    pool_.push_back(fn_->add_input("q_start", i32_type("b", "B + 1")));
    pool_.push_back(fn_->add_input("kv_len", i32_type("b", "B")));
    pool_.push_back(fn_->add_input("out_rows", i32_type("r", "R")));
    for (const char* type : {"f32[t=T, d=8]", "f32[t=T, h=2, d=4]", "f32[t=T, d=8]",
                             "i32[t=T, k=2]", "f32[t=T, k=2]"}) {
      pool_.push_back(fn_->add_input(fmt::format("x{}", pool_.size()), tensor_type(type)));
    }
    for (const GroupDecl& g : module_.groups)
      views_.push_back(fn_->add_input("view." + g.name, Type::view(g.name)));
    for (const StateDecl& s : module_.states)
      versions_.push_back(fn_->add_input(s.name, Type::state(s.name)));
    const size_t steps = 20 + rng_.below(120);
    for (size_t i = 0; i < steps; ++i) {
      if (rng_.below(9) == 0)
        fn_->set_provenance(rng_.below(3) == 0 ? "" : fmt::format("pass {}", rng_.below(3)));
      rng_.below(6) == 0 ? touch_state() : grow();
    }
    finish();
    return std::move(module_);
  }

 private:
  Ref any() { return pool_[rng_.below(pool_.size())]; }
  std::string label() {
    return rng_.below(2) == 0
               ? ""
               : fmt::format("n{}{}", rng_.below(3) == 0 ? " " : ".", rng_.below(99));
  }

  Attrs random_attrs(const OpDef& op) {
    Value::Object attrs;
    const size_t count = static_cast<size_t>(op.required_attrs) + rng_.below(2);
    for (size_t i = 0; i < count && i < op.attr_names.size(); ++i)
      attrs.emplace_back(op.attr_names[i], attr_value(op.attr_names[i]));
    return attrs;
  }

  Value attr_value(std::string_view name) {
    if (name == "dims")
      return rng_.below(2) == 0 ? Value::Array{"T", 2, 4} : Value::Array{"T", "8"};
    if (name == "axes")
      return rng_.below(2) == 0 ? Value::Array{"t", "h", "d"} : Value::Array{"t", ""};
    if (name == "perm") return rng_.below(2) == 0 ? Value::Array{1, 0} : Value::Array{2, 0, 1};
    if (name == "dtype") return rng_.below(2) == 0 ? "f16" : "f32";
    if (name == "format") return "q8a";
    if (name == kStorageAttr) return rng_.below(2) == 0 ? "f16" : "bf16";
    if (name == "approximate") return "tanh";
    if (name == "kind") return "le";
    if (name == "n" || name == "end") return rng_.below(2) == 0 ? Value("2*B + 3") : Value(2);
    if (name == "eps" || name == "value" || name == "cap") return rng_.uniform() * 3;
    return static_cast<int64_t>(rng_.below(3));
  }

  // A random op on random values; most combinations are refused, which is fine.
  void grow() {
    for (int attempt = 0; attempt < 60; ++attempt) {
      const OpDef* op = all_ops()[rng_.below(all_ops().size())];
      if (op->tier == Tier::kStructural || op->tier == Tier::kRegion || op->writes_state ||
          op->reads_state)
        continue;
      const size_t most = op->max_inputs < 0 ? 4 : static_cast<size_t>(op->max_inputs);
      const size_t least = static_cast<size_t>(op->min_inputs);
      std::vector<Ref> in(least + rng_.below(most - least + 1));
      for (Ref& r : in) {
        const size_t kind = rng_.below(8);
        r = kind == 0   ? fn_->weight(module_.weights[rng_.below(module_.weights.size())].name)
            : kind == 1 ? fn_->constant(module_.constants[rng_.below(2)].name)
                        : any();
      }
      try {
        std::vector<Ref> out = fn_->add_multi(op->name, in, random_attrs(*op), label());
        pool_.insert(pool_.end(), out.begin(), out.end());
        ops_seen.insert(op->name);
        return;
      } catch (const Error& e) {
        ASSERT_NE(e.code(), ErrorCode::kInternal) << e.what();
      }
    }
  }

  void touch_state() {
    const size_t s = rng_.below(versions_.size());
    const Ref view = views_[s < 2 ? 0 : 1], heads = fn_->find_input("x8");
    auto input = [&](const char* name) { return fn_->find_input(name); };
    if (rng_.below(2) == 0) {
      pool_.push_back(fn_->add("attend",
                               {heads, versions_[s], view, input("pos"), input("seq"),
                                input("slot"), input("q_start"), input("kv_len")},
                               Value::Object{{"scale", rng_.uniform()}}, label()));
    } else {
      std::vector<Ref> in = {versions_[s], view, input("seq"), input("slot"), heads, heads};
      for (Ref r : reads_of(*fn_, versions_[s])) in.push_back(r);
      versions_[s] = fn_->add("append", in, {}, label());
    }
  }

  void finish() {
    for (size_t i = 0; i < 3; ++i) fn_->set_result(fmt::format("out {}", i), any());
    for (size_t s = 0; s < versions_.size(); ++s)
      fn_->set_result(module_.states[s].name, versions_[s]);
  }

  Rng rng_;
  Module module_;
  Function* fn_ = nullptr;
  std::vector<Ref> pool_, views_, versions_;

 public:
  static inline std::set<std::string_view> ops_seen;
};

TEST(RandomGraphs, RoundTripAndVerify) {
  size_t nodes = 0;
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    Module m = RandomGraph(seed).build();
    if (HasFatalFailure()) return;
    nodes += m.functions[0]->nodes().size();
    ASSERT_NO_THROW(verify_module(m)) << print_module(m);
    const std::string text = print_module(m);
    Module again = parse_module(text);
    ASSERT_EQ(print_module(again), text) << "seed " << seed;
    ASSERT_NO_THROW(verify_module(again));
    ASSERT_EQ(structural_hash(*again.functions[0]), structural_hash(*m.functions[0]));
    ASSERT_EQ(print_module(m.clone()), text);
  }
  EXPECT_GT(nodes, 80u * 30);
  EXPECT_GT(RandomGraph::ops_seen.size(), 25u);  // the generator reaches most of the op table
}

TEST(RandomGraphs, SpecialisedOnesAreSoundToo) {
  int done = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Module m = RandomGraph(seed).build();
    try {
      specialize_decode(m);
    } catch (const Error& e) {
      ASSERT_NE(e.code(), ErrorCode::kInternal) << e.what();
      continue;  // an extent that was fine with T and B apart
    }
    ++done;
    verify_module(m);
    const std::string text = print_module(m);
    ASSERT_EQ(print_module(parse_module(text)), text) << "seed " << seed;
    ASSERT_EQ(text.find("=T", text.find("func decode")), std::string::npos);
  }
  EXPECT_GT(done, 20);
}

TEST(RandomGraphs, SymbolsTakeLargeValuesToo) {
  Module m("symbols");
  m.symbols = {{"T", 1, 512, 1}, {"N", 8, 4096, 8}, {"S", 2, 3, 1}};
  Function& fn = m.add_function("f");
  Rng rng(3);
  std::map<std::string, std::set<int64_t>> seen;
  for (int i = 0; i < 400; ++i)
    for (const auto& [name, value] : random_symbols(fn, rng)) seen[name].insert(value);
  EXPECT_EQ(*seen["T"].begin(), 1);
  EXPECT_GT(*seen["T"].rbegin(), 20);
  EXPECT_LE(*seen["T"].rbegin(), 512);
  for (int64_t n : seen["N"]) EXPECT_TRUE(n >= 8 && n <= 4096 && n % 8 == 0) << n;
  EXPECT_EQ(seen["S"], (std::set<int64_t>{2, 3}));
}

}  // namespace
}  // namespace tokamak
