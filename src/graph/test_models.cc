#include "graph/test_models.h"

#include <fmt/format.h>

namespace tokamak {

Type tensor_type(std::string_view text) {
  size_t pos = 0;
  return Type::of(parse_tensor_type(text, pos));
}

Type i32_type(std::string axis, std::string_view extent) {
  return Type::of({DType::kI32, {{std::move(axis), SymExpr::parse(extent), false}}});
}

namespace {

struct Frame {
  Ref ids, pos, seq, slot, q_start, kv_len, out_rows, view;
};

Frame add_frame(Function& fn) {
  return {fn.add_input("ids", i32_type("t", "T")),
          fn.add_input("pos", i32_type("t", "T")),
          fn.add_input("seq", i32_type("t", "T")),
          fn.add_input("slot", i32_type("t", "T")),
          fn.add_input("q_start", i32_type("b", "B + 1")),
          fn.add_input("kv_len", i32_type("b", "B")),
          fn.add_input("out_rows", i32_type("r", "R")),
          fn.add_input("view.full", Type::view("full"))};
}

void declare(Module& m, int layers) {
  m.symbols = {{"T", 1, 512, 1}, {"B", 1, 64, 1}, {"R", 1, 64, 1}};
  m.groups = {{"full", 0, 16}};
  const TensorType plane = tensor_type("f16[kvh=1, hd=4]").tensor;
  for (int l = 0; l < layers; ++l) {
    m.states.push_back({fmt::format("kv.{}", l),
                        "full",
                        StateDecl::Growth::kPerToken,
                        {{"k", plane}, {"v", plane}}});
  }
}

void add_weight(Module& m, std::string name, std::string_view type) {
  m.add_weight({name, tensor_type(type).tensor, {{name + ".weight"}, {}}});
}

Ref split(Function& fn, Ref x, int heads) {
  return fn.add("reshape", {x},
                Value::Object{{"dims", Value::Array{fn.tensor(x).extent(0).text(), heads, 4}},
                              {"axes", Value::Array{"t", "h", "hd"}}});
}

Ref layer(Module& m, Function& fn, const Frame& f, int l, Ref x, double eps) {
  const std::string blk = fmt::format("blk.{}.", l), state_name = fmt::format("kv.{}", l);
  const std::pair<const char*, const char*> weights[] = {{"q", "f32[n=8, k=8]"},
                                                         {"k", "f32[n=4, k=8]"},
                                                         {"v", "f32[n=4, k=8]"},
                                                         {"o", "f32[n=8, k=8]"},
                                                         {"norm", "f32[n=8]"}};
  for (auto [name, type] : weights) add_weight(m, blk + name, type);
  Ref h =
      fn.add("rms_norm", {x, fn.weight(blk + "norm")}, Value::Object{{"eps", eps}}, blk + "norm");
  Ref q = split(fn, fn.add("linear", {h, fn.weight(blk + "q")}, {}, blk + "q"), 2);
  Ref k = split(fn, fn.add("linear", {h, fn.weight(blk + "k")}, {}, blk + "k"), 1);
  Ref v = split(fn, fn.add("linear", {h, fn.weight(blk + "v")}, {}, blk + "v"), 1);
  q = fn.add("rope", {q, f.pos, fn.constant("rope")});
  k = fn.add("rope", {k, f.pos, fn.constant("rope")});
  Ref state = fn.find_input(state_name);
  state = fn.add("append", {state, f.view, f.seq, f.slot, k, v}, {}, blk + "append");
  fn.set_result(state_name, state);
  Ref a = fn.add("attend", {q, state, f.view, f.pos, f.seq, f.slot, f.q_start, f.kv_len},
                 Value::Object{{"scale", 0.5}}, blk + "attend");
  a = fn.add("reshape", {a},
             Value::Object{{"dims", Value::Array{fn.tensor(a).extent(0).text(), 8}},
                           {"axes", Value::Array{"t", "d"}}});
  return fn.add("add", {x, fn.add("linear", {a, fn.weight(blk + "o")}, {}, blk + "o")});
}

}  // namespace

Module tiny_decoder(int layers, double eps) {
  Module m("tiny");
  declare(m, layers);
  add_weight(m, "embd", "f32[v=32, d=8]");
  m.add_constant({"rope", tensor_type("f32[n=2]").tensor, {1, 0.1}});
  Function& fn = m.add_function("step");
  fn.set_provenance("models/tiny");
  Frame f = add_frame(fn);
  for (const StateDecl& s : m.states) fn.add_input(s.name, Type::state(s.name));
  Ref x = fn.add("embed", {f.ids, fn.weight("embd")}, {}, "token_embd");
  for (int l = 0; l < layers; ++l) x = layer(m, fn, f, l, x, eps);
  Ref rows = fn.add("gather", {x, f.out_rows}, Value::Object{{"axis", 0}}, "out_rows");
  fn.set_result("logits", fn.add("linear", {rows, fn.weight("embd")}, {}, "logits"));
  fn.set_result("hidden", rows);
  return m;
}

Module two_writes() {
  Module m("two_writes");
  declare(m, 1);
  Function& fn = m.add_function("step");
  Frame f = add_frame(fn);
  Ref state = fn.add_input("kv.0", Type::state("kv.0"));
  Ref q = fn.add_input("q", tensor_type("f32[t=T, h=1, d=4]"));
  Ref first = fn.add("append", {state, f.view, f.seq, f.slot, q, q}, {}, "first");
  Ref read = fn.add("attend", {q, first, f.view, f.pos, f.seq, f.slot, f.q_start, f.kv_len},
                    Value::Object{{"scale", 1.0}}, "read");
  Ref second = fn.add("append", {first, f.view, f.seq, f.slot, read, q, read}, {}, "second");
  fn.set_result("out", read);
  fn.set_result("kv.0", second);
  return m;
}

}  // namespace tokamak
