#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/test_models.h"

namespace tokamak {
namespace {

void expect_round_trip(const Module& m) {
  const std::string text = print_module(m);
  Module again = parse_module(text);
  ASSERT_EQ(print_module(again), text);
  EXPECT_EQ(again.symbols, m.symbols);
  EXPECT_EQ(again.groups, m.groups);
  EXPECT_EQ(again.states, m.states);
  EXPECT_EQ(again.weights, m.weights);
  ASSERT_EQ(again.functions.size(), m.functions.size());
  for (size_t i = 0; i < m.functions.size(); ++i) {
    EXPECT_EQ(structural_hash(*again.functions[i]), structural_hash(*m.functions[i]));
    EXPECT_EQ(again.functions[i]->facts(), m.functions[i]->facts());
  }
}

TEST(GraphText, ModelsRoundTrip) {
  Module m = tiny_decoder(2);
  specialize_decode(m);
  specialize_verify(m, 2);
  expect_round_trip(m);
  expect_round_trip(two_writes());
  expect_round_trip(Module(""));
}

TEST(GraphText, OneNodePerLine) {
  const std::string text = print_module(tiny_decoder(1));
  for (const char* line : {
           "module tiny format 1\n",
           "\nsymbol T in 1..512\n",
           "\ngroup full window 0 block 16\n",
           "\nstate kv.0 in full per_token {k: f16[kvh=1, hd=4], v: f16[kvh=1, hd=4]}\n",
           "\nweight blk.0.q : f32[n=8, k=8] from blk.0.q.weight\n",
           "\nconstant rope : f32[n=2] = [1, 0.1]\n",
           "\nfunc step {\n  provenance \"models/tiny\"\n  %0 = input ids : i32[t=T]\n",
           "\n  %8 = input kv.0 : state<kv.0>\n  %9 = embed(%0, @embd) : f32[t=T, d=8]  # "
           "token_embd\n",
           "\n  %10 = rms_norm(%9, @blk.0.norm) {eps=1e-05} : f32[t=T, d=8]  # blk.0.norm\n",
           ", $rope)",
           "\n  return kv.0 = %19\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(GraphText, StrangeNamesNumbersAndRecipes) {
  Module m("a \"strange\"\nname \x01 \xff");
  m.symbols = {{"T", 0, INT64_MAX, 32}, {"N.full", 1, 1, 1}};
  m.groups = {{"g/1", 7, 3}, {"", 0, 1}};
  const TensorType plane = tensor_type("q8_0[64]").tensor;
  m.states = {{"s t", "g/1", StateDecl::Growth::kPerSequence, {{"p 1", plane}, {"", plane}}},
              {"none", "", {}, {}}};
  using Kind = RecipeStep::Kind;
  Recipe r{{"a b", "c+d", "plain.name-0/x"}, {}};
  r.steps = {{Kind::kConcatRows, 0, 0, 0, {}, {}},
             {Kind::kSliceRows, -3, INT64_MAX, 0, {}, {}},
             {Kind::kSliceRows, 1, 2, 0, {}, {6}},
             {Kind::kPermuteRows, 9, 0, 0, {}, {}},
             {Kind::kPermuteRows, 2, 4, 0, {}, {}},
             {Kind::kTranspose, 0, 0, 0, {}, {}},
             {Kind::kAddScalar, 0, 0, 1.0, {}, {}},
             {Kind::kScale, 0, 0, -1e-300, {}, {}},
             {Kind::kCast, 0, 0, 0, DType::kBF16, {}},
             {Kind::kReshape, 0, 0, 0, {}, {2, 3}},
             {Kind::kReshape, 0, 0, 0, {}, {}},
             {Kind::kScaleColumns, 0, 0, 0, {}, {}, "a b"},
             {Kind::kScaleColumns, 0, 0, 1.5, {}, {}, "norm"},
             {Kind::kJoinMxfp4, 0, 0, 0, {}, {}, "a scales"},
             {Kind::kJoinGroups, 4, 5, 0.125, DType::kNF4G64, {8, 64, 1, 64, 256}},
             {Kind::kSortGroups, 12, 0, 0, {}, {}}};
  m.add_weight({"weight", tensor_type("iq2_xxs[n=1, k=256]").tensor, r});
  m.add_weight({"no recipe", tensor_type("f32[]").tensor, {}});
  m.add_weight(
      {"only steps", tensor_type("f32[]").tensor, {{}, {{Kind::kTranspose, 0, 0, 0, {}, {}}}}});
  m.add_weight({"", tensor_type("f32[0]").tensor, {{""}, {}}});
  std::vector<double> values;
  for (int i = 0; i < 40; ++i) values.push_back(std::pow(10000.0, -i / 20.0));
  const double inf = std::numeric_limits<double>::infinity();
  for (double v : {0.0, -0.0, inf, -inf, std::nan(""), 1e-45, 3.4028234e38, 16777217.0})
    values.push_back(v);
  m.add_constant({"weight", tensor_type("f32[n=48]").tensor, values});
  m.add_constant({"ints", tensor_type("i32[2, 2]").tensor, {-2147483648.0, 2147483647, 0, 1}});
  m.add_constant({"void", tensor_type("f32[0]").tensor, {}});
  expect_round_trip(m);
  const std::string text = print_module(m);
  Module again = parse_module(text);
  for (size_t i = 0; i < values.size(); ++i) {
    const double a = again.constants[0].values[i], b = m.constants[0].values[i];
    EXPECT_TRUE((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)))
        << i;
  }
  EXPECT_NE(text.find("\nconstant weight : f32[n=48] = [1, 0.63095737, 0.3981"), std::string::npos)
      << text;
  size_t longest = 0;
  for (size_t at = text.find("constant weight"), end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    longest = std::max(longest, end - at);
  }
  EXPECT_LE(longest, 100u);
}

TEST(GraphText, AttributesKeepTheirTypes) {
  Module m("attrs");
  Function& fn = m.add_function("f");
  Ref x = fn.add_input("x", tensor_type("f32[n=4]"));
  for (double v :
       {1.0, 0.1, 1e300, -0.0, 5e-324, 1e-5, 123456789.0, std::nan(""),
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    x = fn.add("scale", {x}, Value::Object{{"value", v}}, fmt::format("scaled by {}", v));
  }
  x = fn.add("scale", {x}, Value::Object{{"value", 1}});
  fn.set_result("x", x);
  const std::string text = print_module(m);
  for (const char* part :
       {"{value=1.0}", "{value=1}", "{value=0.1}", "{value=1e+300}", "{value=-0.0}",
        "{value=5e-324}", "{value=123456789.0}", "{value=nan}", "{value=inf}", "{value=-inf}"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(print_module(parse_module(text)), text);
}

TEST(GraphText, NamesAndProvenanceAreKept) {
  Module m("p");
  Function& fn = m.add_function("f");
  Ref x = fn.add_input("x", tensor_type("f32[n=4]"));
  fn.set_provenance("models/p");
  x = fn.add("exp", {x}, {}, "a name");
  x = fn.add("log", {x});
  fn.set_provenance(std::vector<std::string>{"models/p", "rule fold @ 17"});
  x = fn.add("neg", {x}, {}, "n");
  fn.set_provenance("");
  x = fn.add("abs", {x});
  fn.set_result("x", x);
  const std::string text = print_module(m);
  EXPECT_NE(text.find("  provenance \"models/p\"\n"), std::string::npos);
  EXPECT_NE(text.find("# \"a name\"\n"), std::string::npos);
  EXPECT_NE(text.find("# n [\"models/p\", \"rule fold @ 17\"]\n"), std::string::npos);
  EXPECT_NE(text.find("# []\n"), std::string::npos);
  Module again = parse_module(text);
  EXPECT_EQ(print_module(again), text);
  for (NodeId id = 0; id < fn.nodes().size(); ++id) {
    EXPECT_EQ(again.functions[0]->node(id).provenance, fn.node(id).provenance);
    EXPECT_EQ(again.functions[0]->node(id).name, fn.node(id).name);
  }
}

TEST(GraphText, HandWrittenTextIsForgiving) {
  Module m = parse_module(
      "// a comment\n\n  module m format 1 // more\r\n"
      "symbol T in 1 .. 8\n"
      "weight w : f32[ n = 4 , k=2*1 ]\n"
      "constant c : f32[n=3] = [1,\n   2, // two\n   3]\n"
      "func f {\n"
      "%7 = input x : f32[t=T, k=2]\n"
      "%3 = linear( %7,\n      @w )\n"
      "%4 = linear(%7, @w)   # named\n"
      "%9 = add(%3, %4) : f32[t=T, n=4]\n"
      "return y = %9\n"
      "return w = @w\n"
      "}\n");
  const Function& fn = *m.find_function("f");
  EXPECT_EQ(fn.nodes().size(), 4u);
  EXPECT_EQ(print_function(fn),
            "func f {\n"
            "  %0 = input x : f32[t=T, k=2]\n"
            "  %1 = linear(%0, @w) : f32[t=T, n=4]  # named\n"
            "  %2 = add(%1, %1) : f32[t=T, n=4]\n"
            "  return y = %2\n"
            "  return w = @w\n"
            "}\n");
}

const std::string kHead = "module m format 1\nsymbol T in 1..8\nweight w : f32[n=4, k=2]\n";
const std::string kOpen = kHead + "func f {\n  %0 = input x : f32[t=T, k=2]\n";  // lines 4 and 5
const std::pair<std::string, std::string> kBadTexts[] = {
    {"", "line 1: expected \"module\", found the end of the text"},
    {"modul m", "line 1: expected \"module\", found \"modul m\""},
    {"module m format 2\n", "line 1: this text form is newer"},
    {"module m format 1 x\n", "line 1: expected the end of the line, found \"x\""},
    {"module m format 1\n\nfoo\n",
     "line 3: expected symbol, group, state, weight, constant or func"},
    {"module \"m\n", "line 1: a string without its end"},
    {"module \"\\q\" format 1\n", "line 1: an unknown escape"},
    {kHead + "symbol T in 1..2\n", "line 4: symbol \"T\" is declared twice"},
    {kHead + "symbol min in 1..2\n", "line 4: \"min\" cannot name a symbol"},
    {kHead + "symbol X in 1\n", "line 4: expected '..', found the end of the line"},
    {kHead + "symbol X in 1..99999999999999999999\n", "line 4: expected an integer of 64 bits"},
    {kHead + "weight w : f32[n=1]\n", "line 4: weight \"w\" is declared twice"},
    {kHead + "weight v : f33[n=1]\n", "line 4: tensor type: expected an element type"},
    {kHead + "weight v : f32[n=1] from\n", "line 4: expected the name of a tensor"},
    {kHead + "weight v : f32[n=1] from a | melt\n", "line 4: there is no recipe step \"melt\""},
    {kHead + "weight v : f32[n=1] from a | cast(x)\n", "line 4: cast to an unknown element type"},
    {kHead + "group g window 0\n", "line 4: expected \"block\", found the end of the line"},
    {kHead + "state s in g sometimes {}\n", "line 4: expected per_token or per_sequence"},
    {kHead + "constant c : f32[n=2] = [1]\n",
     "line 4: constant \"c\" has type f32[n=2], but 1 values"},
    {kHead + "constant c : f32[n=1] = [1e99]\n", "line 4: expected a number, found \"1e99]\""},
    {kHead + "constant c : f16[n=1] = [1]\n", "line 4: constant \"c\" must be f32 or i32"},
    {kOpen, "line 6: expected a node (%1 = ...), return, fact, provenance or '}'"},
    {kOpen + "  %0 = exp(%0)\n}\n", "line 6: %0 is defined twice"},
    {kOpen + "  %1 = exp(%2)\n}\n", "line 6: %2 is not defined before its use"},
    {kOpen + "  %1 = exp(%0.1)\n}\n", "line 6: %0 has no output 1"},
    {kOpen + "  %1 = exp(%99999999999)\n}\n", "line 6: a number beyond 32 bits"},
    {kOpen + "  %1 = exp(x)\n}\n",
     "line 6: expected an operand (%1, @weight or $constant), found \"x)\""},
    {kOpen + "  %1 = exp(%0\n}\n", "line 7: expected ',' or ')', found \"}\""},
    {kOpen + "  %1 = flip(%0)\n}\n",
     "line 6: %1: there is no op \"flip\"; docs/ops.md lists the ops"},
    {kOpen + "  %1 = weight()\n}\n", "line 6: %1: weight is part of the function's frame"},
    {kOpen + "  %1 = linear(%0, @v)\n}\n", "line 6: weight \"v\" is not declared"},
    {kOpen + "  %1 = linear(%0, $v)\n}\n", "line 6: constant \"v\" is not declared"},
    {kOpen + "  %1 = linear(%0, @w) : f32[t=T, n=5]\n}\n",
     "line 6: %1: linear gives f32[t=T, n=4], the text says f32[t=T, n=5]"},
    {kOpen + "  %1 = linear(%0)\n}\n", "line 6: %1: linear: takes 2 to 3 inputs, got 1"},
    {kOpen + "  %1 = scale(%0) {value=1, value=2}\n}\n",
     "line 6: %1: attribute \"value\" is given twice"},
    {kOpen + "  %1 = scale(%0) {value=}\n}\n", "line 6: expected a value"},
    {kOpen + "  %1 = scale(%0) {value=1 ; }\n", "line 6: expected ',' or '}', found \"; }\""},
    {kOpen + "  %1 = exp(%0) #\n}\n", "line 6: expected the node's name or [its provenance]"},
    {kOpen + "  %1 = input x : f32[]\n}\n",
     "line 6: %1: function f: input \"x\" is declared twice"},
    {kOpen + "  return a = %0\n  return a = %0\n}\n", "line 7: result \"a\" is returned twice"},
    {kOpen + "  return a = %0\n  %1 = exp(%0)\n}\n", "line 7: a node after return"},
    {kOpen + "}\nfunc f {\n}\n", "line 7: func \"f\" is declared twice"},
    {kOpen + "  fact x = 3\n}\n", "line 6: expected \"iota\", found \"3\""},
};

TEST(GraphText, ErrorsNameLineAndExpectation) {
  for (const auto& [text, message] : kBadTexts) {
    try {
      parse_module(text);
      ADD_FAILURE() << "accepted, expected " << message;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).substr(0, message.size()), message);
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << e.what();
    }
  }
}

TEST(GraphText, HostileSizesAreRefused) {
  const std::string head = "module m format 1\n";
  std::string deep = head + "func f {\n%0 = iota() {n=";
  for (int i = 0; i < 100000; ++i) deep += '[';
  EXPECT_THROW(parse_module(deep), Error);
  std::string objects = head + "func f {\n%0 = iota() {n=";
  for (int i = 0; i < 100000; ++i) objects += "{a=";
  EXPECT_THROW(parse_module(objects), Error);
  std::string rank = head + "weight w : f32[1";
  for (int i = 0; i < 100000; ++i) rank += ",1";
  EXPECT_THROW(parse_module(rank + "]\n"), Error);
  std::string inputs = head + "func f {\n%0 = input x : f32[]\n%1 = concat(%0";
  for (int i = 0; i < 100000; ++i) inputs += ",%0";
  EXPECT_THROW(parse_module(inputs + ")\n}\n"), Error);
}

}  // namespace
}  // namespace tokamak
