#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/test_models.h"

namespace tokamak {

struct GraphTestAccess {
  static std::vector<Node>& nodes(Function& fn) { return fn.nodes_; }
  static std::vector<Function::Result>& results(Function& fn) { return fn.results_; }
};

namespace {

Function& step(Module& m) { return *m.find_function("step"); }
std::vector<Node>& nodes(Module& m) { return GraphTestAccess::nodes(step(m)); }
std::vector<Function::Result>& results(Module& m) { return GraphTestAccess::results(step(m)); }

// The first node with this name or op.
Node& node(Module& m, std::string_view name) {
  for (Node& n : nodes(m))
    if (n.name == name || n.op->name == name) return n;
  throw std::logic_error("no such node");
}

struct Broken {
  const char* message;
  void (*change)(Module&);
};

void expect_refused(const Broken& c, Module m) {
  c.change(m);
  try {
    verify_module(m);
    ADD_FAILURE() << "accepted: " << c.message;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << e.what();
    EXPECT_NE(std::string(e.what()).find(c.message), std::string::npos)
        << c.message << "\n  " << e.what();
  }
}

TEST(Verify, AcceptsWhatIsRight) {
  verify_module(tiny_decoder(3));
  verify_module(two_writes());
  verify_module(Module("empty"));
}

TEST(Verify, RefusesBrokenDeclarations) {
  const Broken cases[] = {
      {"symbol T: \"T\" is declared twice", [](Module& m) { m.symbols[1].name = "T"; }},
      {"cannot name a symbol", [](Module& m) { m.symbols[1].name = "a b"; }},
      {"is empty or negative", [](Module& m) { m.symbols[0].lo = 1000; }},
      {"symbol T: the multiple", [](Module& m) { m.symbols[0].multiple = 0; }},
      {"\"full\" is declared twice", [](Module& m) { m.groups.push_back(m.groups[0]); }},
      {"group full: the window is negative", [](Module& m) { m.groups[0].window = -1; }},
      {"group full: blocks", [](Module& m) { m.groups[0].block_size = 0; }},
      {"\"kv.0\" is declared twice", [](Module& m) { m.states[1].name = "kv.0"; }},
      {"state kv.0: group \"none\" is not declared", [](Module& m) { m.states[0].group = "none"; }},
      {"state kv.0: it has no planes", [](Module& m) { m.states[0].planes.clear(); }},
      {"state kv.0: \"k\" is declared twice", [](Module& m) { m.states[0].planes[1].name = "k"; }},
      {"plane k: f16[kvh=T, hd=4] must have constant extents",
       [](Module& m) { m.states[0].planes[0].type.dims[0].extent = SymExpr::symbol("T"); }},
      {"weight embd: \"embd\" is declared twice", [](Module& m) { m.weights[1].name = "embd"; }},
      {"weight embd: f32[v=32, d=-8] must have",
       [](Module& m) { m.weights[0].type.dims[1].extent = -8; }},
      {"weight embd: q4_0", [](Module& m) { m.weights[0].type.dtype = DType::kQ4_0; }},
      {"constant rope: it has type f32[n=2], but 3 values",
       [](Module& m) { m.constants[0].values.push_back(1); }},
      {"constant rope: it must be f32 or i32",
       [](Module& m) { m.constants[0].type.dtype = DType::kF16; }},
      {"\"step\" is declared twice",
       [](Module& m) { m.functions.push_back(std::make_unique<Function>(&m, "step")); }},
      {"it belongs to another module",
       [](Module& m) {
         static const Module other("other");
         m.functions.push_back(std::make_unique<Function>(&other, "x"));
       }},
  };
  for (const Broken& c : cases) expect_refused(c, tiny_decoder(2));
}

const Broken kBrokenNodes[] = {
    {"(embed): input 0 is not defined before it",
     [](Module& m) { node(m, "embed").inputs[0].node = static_cast<NodeId>(nodes(m).size() - 1); }},
    {"(embed): input 1 is not defined before it",
     [](Module& m) { node(m, "embed").inputs[1].output = 1; }},
    {"(embed): input 1 is not defined before it",
     [](Module& m) { node(m, "embed").inputs[1] = {}; }},
    {"(embed): embed: takes 2", [](Module& m) { node(m, "embed").inputs.pop_back(); }},
    {"(rms_norm): rms_norm: attribute \"eps\" is missing",
     [](Module& m) { node(m, "rms_norm").attrs = Value::object(); }},
    {"(rms_norm): rms_norm: unknown attribute \"zeta\"",
     [](Module& m) { node(m, "rms_norm").attrs.set("zeta", 1); }},
    {"(rms_norm): ",
     [](Module& m) {
       node(m, "rms_norm").attrs = Value::Object{{"eps", "small"}};
     }},
    {"sorted keys",
     [](Module& m) {
       auto& attrs = node(m, "reshape").attrs.as_object();
       std::swap(attrs[0], attrs[1]);
     }},
    {"its type is f32[t=T, n=9], the op gives f32[t=T, n=8]",
     [](Module& m) { node(m, "blk.0.q").outputs[0].tensor.dims[1].extent = 9; }},
    {"(embed): its type is f32[x=T, d=8], the op gives",
     [](Module& m) { node(m, "embed").outputs[0].tensor.dims[0].axis = "x"; }},
    {"symbol T is not declared", [](Module& m) { m.symbols[0].name = "U"; }},
    {"(weight): \"nothing\" is not declared",
     [](Module& m) {
       node(m, "weight").attrs = Value::Object{{"name", "nothing"}};
     }},
    {"(constant): \"nothing\" is not declared",
     [](Module& m) {
       node(m, "constant").attrs = Value::Object{{"name", "nothing"}};
     }},
    {"node @embd (weight): its type is f32[v=32, d=8], declared is f16[v=32, d=8]",
     [](Module& m) { m.weights[0].type.dtype = DType::kF16; }},
    {"it must have a name", [](Module& m) { node(m, "weight").attrs = Value::object(); }},
    {"input \"ids\" is declared twice",
     [](Module& m) {
       nodes(m)[1].attrs = Value::Object{{"name", "ids"}};
     }},
    {"the extent -2 is negative",
     [](Module& m) { step(m).add_input("late", tensor_type("f32[n=-2]")); }},
    {"device-valued extent",
     [](Module& m) {
       nodes(m)[0].outputs[0].tensor.dims[0].bound = true;  // ids
     }},
    {"two results are named \"hidden\"",
     [](Module& m) {
       results(m).push_back({"hidden", results(m)[0].ref});
     }},
    {"result gone does not exist",
     [](Module& m) {
       results(m).push_back({"gone", {9999, 0}});
     }},
    {"result v is a view",
     [](Module& m) { step(m).set_result("v", step(m).find_input("view.full")); }},
    {"a fact about \"none\"", [](Module& m) { step(m).facts().push_back({"none"}); }},
    {"two facts about seq",
     [](Module& m) {
       step(m).facts() = {{"seq"}, {"seq"}};
     }},
};

TEST(Verify, RefusesBrokenNodes) {
  for (const Broken& c : kBrokenNodes) expect_refused(c, tiny_decoder(2));
  expect_refused({"(?): it has no op", [](Module& m) { nodes(m).back().op = nullptr; }},
                 tiny_decoder(1));
}

TEST(Verify, RefusesBrokenStateUse) {
  const Broken cases[] = {
      {"node %11 (attend): it reads a version that %12 replaces; list this read "
       "among the inputs of that write",
       [](Module& m) { node(m, "second").inputs.pop_back(); }},
      {"it reads a version that",  // named as a plane is not named as a read
       [](Module& m) {
         Node& n = node(m, "second");
         n.inputs = {n.inputs[0], n.inputs[1], n.inputs[2], n.inputs[3], n.inputs[6], n.inputs[6]};
       }},
      {"(attend): it reads a version that %10 has replaced",
       [](Module& m) { node(m, "read").inputs[1] = step(m).find_input("kv.0"); }},
      {"this version of state kv.0 was already replaced by %10",
       [](Module& m) { node(m, "second").inputs[0] = step(m).find_input("kv.0"); }},
      {"function step: result kv.0 is not the last version: %12 replaces it",
       [](Module& m) { results(m)[1].ref = node(m, "second").inputs[0]; }},
      {"it takes state kv.0 but does not return its last version",
       [](Module& m) { results(m).pop_back(); }},
      {"state kv.0 is returned under the name other",
       [](Module& m) { results(m)[1].name = "other"; }},
      {"state \"gone\" is not declared",
       [](Module& m) { step(m).add_input("gone", Type::state("gone")); }},
      {"group \"gone\" is not declared",
       [](Module& m) { step(m).add_input("gone", Type::view("gone")); }},
      {"state kv.0 is taken twice",
       [](Module& m) { step(m).add_input("again", Type::state("kv.0")); }},
      {"state kv.0 is in group other, the view is of full",
       [](Module& m) {
         m.groups.push_back({"other", 0, 16});
         m.states[0].group = "other";
       }},
      {"plane k of kv.0 holds", [](Module& m) { m.states[0].planes[0].type.dims[1].extent = 5; }},
      {"append",
       [](Module& m) {
         m.states[0].planes.push_back({"z", tensor_type("f32[a=3]").tensor});
       }},
      {"attend", [](Module& m) { m.states[0].planes[1].name = "values"; }},
      {"(scale): ",
       [](Module& m) {
         Node& n = node(m, "read");
         n.op = find_op("scale");
         n.attrs = Value::Object{{"value", 1.0}};
         n.inputs = {n.inputs[1]};
       }},
  };
  for (const Broken& c : cases) expect_refused(c, two_writes());
}

// Nodes have the numbers of the text they were read from, whatever the printer would call them.
TEST(Verify, NamesNodesAsTheTextDoes) {
  const std::string text = R"(module m format 1
symbol T in 1..6
group full window 0 block 4
state kv in full per_token {k: f32[h=1, d=4], v: f32[h=1, d=4]}
func step {
  %100 = input state : state<kv>
  %200 = input view : view<full>
  %300 = input seq : i32[t=T]
  %400 = input slot : i32[t=T]
  %500 = input k : f32[t=T, h=1, d=4]
  %600 = append(%100, %200, %300, %400, %500, %500)
  %700 = append(%100, %200, %300, %400, %500, %500)
  return kv = %700
}
)";
  Module m = parse_module(text);
  try {
    verify_module(m);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "function step, node %700 (append): this version of state kv was already replaced "
                 "by %600");
  }
}

}  // namespace
}  // namespace tokamak
