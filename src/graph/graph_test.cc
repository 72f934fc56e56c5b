#include "graph/graph.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/test_models.h"

namespace tokamak {
namespace {

TEST(Function, PureNodesAreOne) {
  Module m = tiny_decoder(1);
  Function& fn = *m.find_function("step");
  const size_t before = fn.nodes().size();
  Ref x = fn.find_input("ids");
  Ref a = fn.add("embed", {x, fn.weight("embd")}, {}, "a second name");
  EXPECT_EQ(fn.nodes().size(), before);
  EXPECT_EQ(fn.node(a.node).name, "token_embd");
  EXPECT_EQ(fn.weight("embd"), fn.weight("embd"));
  Ref scaled = fn.add("scale", {a}, Value::Object{{"value", 0.0}});
  EXPECT_EQ(fn.add("scale", {a}, Value::Object{{"value", 0.0}}), scaled);
  EXPECT_NE(fn.add("scale", {a}, Value::Object{{"value", -0.0}}), scaled);
  EXPECT_EQ(fn.nodes().size(), before + 2);
}

TEST(Function, WritesAreNeverMerged) {
  Module m = tiny_decoder(1);
  Function fn(&m, "writes");
  Ref state = fn.add_input("kv.0", Type::state("kv.0")),
      view = fn.add_input("view", Type::view("full"));
  Ref seq = fn.add_input("seq", i32_type("t", "T")),
      slot = fn.add_input("slot", i32_type("t", "T"));
  Ref k = fn.add_input("k", tensor_type("f32[t=T, h=1, d=4]"));
  Ref one = fn.add("append", {state, view, seq, slot, k, k});
  Ref two = fn.add("append", {state, view, seq, slot, k, k});
  EXPECT_NE(one, two);
}

TEST(Function, AttributesAreSortedAndChecked) {
  Module m = tiny_decoder(1);
  Function& fn = *m.find_function("step");
  Ref x = fn.find_input("ids");
  Ref r = fn.add("reshape", {x},
                 Value::Object{{"dims", Value::Array{"T", 1}}, {"axes", Value::Array{"t", "n"}}});
  EXPECT_EQ(fn.node(r.node).attrs.as_object()[0].first, "axes");
  EXPECT_EQ(fn.tensor(r).text(), "i32[t=T, n=1]");
  auto message = [&](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([&] { fn.add("nonsense", {x}); }),
            "there is no op \"nonsense\"; docs/ops.md lists the ops");
  EXPECT_NE(message([&] { fn.add("scale", {x}); }).find("scale"), std::string::npos);
  EXPECT_NE(message([&] { fn.add("weight", {}); }).find("frame"), std::string::npos);
  EXPECT_NE(message([&] {
              fn.add("add", {x, Ref{9999, 0}});
            }).find("does not exist"),
            std::string::npos);
  EXPECT_NE(message([&] {
              fn.add("add", {x, Ref{x.node, 1}});
            }).find("does not exist"),
            std::string::npos);
  EXPECT_NE(message([&] { fn.weight("none"); }).find("not declared"), std::string::npos);
  EXPECT_NE(message([&] { fn.constant("none"); }).find("not declared"), std::string::npos);
  EXPECT_NE(message([&] {
              fn.add_input("ids", i32_type("t", "T"));
            }).find("input \"ids\" is declared twice"),
            std::string::npos);
  Value twice = Value::Object{{"value", 1.0}, {"value", 2.0}};
  EXPECT_NE(message([&] { fn.add("scale", {fn.weight("embd")}, twice); }).find("given twice"),
            std::string::npos);
  Value strange = Value::Object{{"dims", Value::Array{"T"}}, {"axes", Value::Array{"a b"}}};
  EXPECT_NE(message([&] { fn.add("reshape", {x}, strange); }).find("name an axis"),
            std::string::npos);
}

TEST(Module, DeclarationsAndLookups) {
  Module m("m");
  size_t pos = 0;
  TensorType two = parse_tensor_type("f32[n=2]", pos);
  m.add_weight({"w", two, {}});
  EXPECT_THROW(m.add_weight({"w", two, {}}), Error);
  m.add_constant({"c", two, {0.1, 2}});
  EXPECT_EQ(m.find_constant("c")->values[0], static_cast<double>(0.1f));
  m.add_constant({"c", two, {0.1, 2}});
  EXPECT_EQ(m.constants.size(), 1u);
  EXPECT_THROW(m.add_constant({"c", two, {0.1, 3}}), Error);
  EXPECT_THROW(m.add_constant({"d", two, {0.1}}), Error);
  EXPECT_THROW(m.add_constant({"e", {DType::kI32, two.dims}, {1.5, 0}}), Error);
  EXPECT_THROW(m.add_constant({"e", {DType::kI32, two.dims}, {3e9, 0}}), Error);
  EXPECT_THROW(m.add_constant({"e", {DType::kF16, two.dims}, {1, 0}}), Error);
  EXPECT_TRUE(m.find_weight("w"));
  EXPECT_FALSE(m.find_weight("c"));
  m.weights.push_back({"pushed", two, {}});
  EXPECT_TRUE(m.find_weight("pushed"));
  m.add_function("f");
  EXPECT_THROW(m.add_function("f"), Error);
}

TEST(Module, CloneAndMoveKeepFunctionsAtHome) {
  Module m = tiny_decoder(2);
  const std::string text = print_module(m);
  Module copy = m.clone();
  copy.find_function("step")->add("scale", {copy.find_function("step")->weight("embd")},
                                  Value::Object{{"value", 2.0}});
  EXPECT_EQ(print_module(m), text);
  EXPECT_NE(print_module(copy), text);
  Module moved = std::move(m);
  EXPECT_EQ(&moved.find_function("step")->module(), &moved);
  EXPECT_EQ(print_module(moved), text);
  verify_module(moved);
  verify_module(copy);
}

TEST(Versions, ReadsAndOrderingInputs) {
  Module m = two_writes();
  const Function& fn = *m.find_function("step");
  NodeId second = 0;
  for (NodeId id = 0; id < fn.nodes().size(); ++id)
    if (fn.node(id).op->writes_state) second = id;
  const Node& write = fn.node(second);
  ASSERT_EQ(first_ordering_input(fn, write), 6u);
  std::vector<Ref> reads = reads_of(fn, write.inputs[0]);
  ASSERT_EQ(reads.size(), 1u);
  EXPECT_EQ(write.inputs[6], reads[0]);
}

TEST(Stats, CountsWork) {
  Module m = tiny_decoder(2);
  const Function& fn = *m.find_function("step");
  GraphStats s = graph_stats(fn, {{"T", 5}, {"B", 2}, {"R", 1}});
  EXPECT_EQ(s.nodes, fn.nodes().size());
  EXPECT_EQ(s.per_op["attend"], 2u);
  EXPECT_EQ(s.per_op["append"], 2u);
  double weights = 0;
  for (const WeightDecl& w : m.weights) weights += static_cast<double>(*w.type.bytes().constant());
  weights += static_cast<double>(*m.constants[0].type.bytes().constant());
  EXPECT_EQ(s.weight_bytes, weights);
  GraphStats twice = graph_stats(fn, {{"T", 10}, {"B", 2}, {"R", 2}});
  EXPECT_GT(s.flops, 0);
  EXPECT_EQ(twice.flops, 2 * s.flops);
  EXPECT_EQ(twice.activation_bytes, 2 * s.activation_bytes);
}

TEST(StructuralHash, SeesStructureOnly) {
  Module m = tiny_decoder(2);
  Function& fn = *m.find_function("step");
  const uint64_t hash = structural_hash(fn);
  EXPECT_EQ(structural_hash(*parse_module(print_module(m)).find_function("step")), hash);
  fn.set_provenance("elsewhere");
  fn.add("scale", {fn.weight("embd")}, Value::Object{{"value", 2.0}});  // not used
  EXPECT_EQ(structural_hash(fn), hash);
  EXPECT_NE(structural_hash(*tiny_decoder(1).find_function("step")), hash);
  Module other = tiny_decoder(2, 1e-6);
  EXPECT_NE(structural_hash(*other.find_function("step")), hash);
  specialize_decode(m);
  EXPECT_NE(structural_hash(*m.find_function("decode")), hash);
}

}  // namespace
}  // namespace tokamak
