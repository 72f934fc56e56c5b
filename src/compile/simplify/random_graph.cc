#include "compile/simplify/random_graph.h"

#include "base/error.h"
#include "base/rng.h"
#include "graph/rule.h"

namespace tokamak {
namespace {

TensorType tensor_of(std::string_view text) {
  size_t pos = 0;
  return parse_tensor_type(text, pos);
}

class Maker {
 public:
  explicit Maker(uint64_t seed) : rng_(seed), module_(fmt::format("random.{}", seed)) {}

  Module make() {
    declare();
    fn_ = &module_.add_function("step");
    inputs();
    size_t steps = 8 + rng_.below(30);
    for (size_t i = 0; i < steps; ++i) {
      try {
        size_t kind = rng_.below(8);
        Ref r = kind < 3 ? single() : kind < 6 ? idiom() : state();
        if (r.valid() && fn_->type(r).kind == Type::Kind::kTensor) pool_.push_back(r);
      } catch (const Error& e) {
        TK_CHECK(e.code() != ErrorCode::kInternal, "{}", e.what());
      }
    }
    for (size_t i = 0; i < 4; ++i) fn_->set_result(fmt::format("out{}", i), pick());
    fn_->set_result("last", pool_.back());
    for (size_t s = 0; s < versions_.size(); ++s)
      fn_->set_result(module_.states[s].name, versions_[s]);
    return std::move(module_);
  }

 private:
  void declare() {
    module_.symbols = {{"T", 1, 6, 1}, {"B", 1, 3, 1}};
    module_.groups = {{"full", 0, 4}};
    for (const char* type : {"f16[h=2, d=4]", "f32[h=1, d=4]"})
      module_.states.push_back({fmt::format("kv.{}", module_.states.size()),
                                "full",
                                {},
                                {{"k", tensor_of(type)}, {"v", tensor_of(type)}}});
    for (const char* type : {"f32[n=8, k=8]", "f16[n=8, k=8]", "f32[n=8]", "f32[n=8]"}) {
      std::string name = fmt::format("w{}", module_.weights.size());
      module_.add_weight({name, tensor_of(type), {{name}, {}}});
    }
    module_.add_constant({"freq", tensor_of("f32[n=2]"), {1, 0.1}});
    module_.add_constant({"ones", tensor_of("f32[n=8]"), std::vector<double>(8, 1.0)});
    for (double v : {0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 8.0, 1e-5, 0.7071067811865476,
                     0.7978845608028654, 0.044715})
      module_.add_constant({fmt::format("s{}", module_.constants.size() - 2),
                            tensor_of(rng_.below(2) ? "f32[]" : "f32[n=1]"),
                            {v}});
  }

  void inputs() {
    auto i32 = [&](const char* name, const char* type) {
      return fn_->add_input(name, Type::of(tensor_of(type)));
    };
    pos_ = i32("pos", "i32[t=T]");
    seq_ = i32("seq", "i32[t=T]");
    slot_ = i32("slot", "i32[t=T]");
    q_start_ = i32("q_start", "i32[b=B + 1]");
    kv_len_ = i32("kv_len", "i32[b=B]");
    index_ = i32("index", "i32[m=3]");
    for (const char* type : {"f32[t=T, d=8]", "f32[t=T, d=8]", "f32[t=T, h=2, d=4]", "f32[d=8]",
                             "f32[a=3, b=8]", "f16[t=T, d=8]"})
      pool_.push_back(fn_->add_input(fmt::format("x{}", pool_.size()), Type::of(tensor_of(type))));
    view_ = fn_->add_input("view", Type::view("full"));
    for (const StateDecl& s : module_.states)
      versions_.push_back(fn_->add_input(s.name, Type::state(s.name)));
  }

  Ref pick() { return pool_[rng_.below(3) ? rng_.below(pool_.size()) : pool_.size() - 1]; }
  Ref op(std::string_view name, std::vector<Ref> in, Attrs attrs = {}) {
    if (is_commutative(*find_op(name)) && rng_.below(2)) std::swap(in[0], in[1]);
    if (find_op(name)->storage && rng_.below(8) == 0) {  // stored narrow
      if (attrs.is_null()) attrs = Value::object();
      attrs.set(kStorageAttr, rng_.below(2) ? "f16" : "bf16");
    }
    return fn_->add(name, std::move(in), std::move(attrs));
  }
  Ref number(double v) {
    for (const ConstantDecl& c : module_.constants)
      if (c.values.size() == 1 && c.values[0] == static_cast<double>(static_cast<float>(v)))
        return fn_->constant(c.name);
    module_.add_constant({fmt::format("k{}", module_.constants.size()), tensor_of("f32[]"), {v}});
    return fn_->constant(module_.constants.back().name);
  }
  Ref times(Ref x, double v) {  // in one of three spellings
    size_t how = rng_.below(3);
    if (how == 0) return op("mul", {x, number(v)});
    if (how == 1 && v != 0) return op("div", {x, number(1 / v)});
    return op("scale", {x}, Value::Object{{"value", v}});
  }
  int64_t rank(Ref r) const { return fn_->tensor(r).rank(); }
  Attrs last(int64_t keep, Ref x) {
    return Value::Object{{"axis", rng_.below(2) ? -1 : rank(x) - 1}, {"keep", keep}};
  }
  Ref reduce(const char* name, Ref x) {  // over the last axis, kept
    if (rank(x) == 0) return x;
    if (rng_.below(2)) return op(name, {x}, last(1, x));
    Value dims = Value::array(), axes = Value::array();
    for (int64_t i = 0; i < rank(x); ++i) {
      bool end = i + 1 == rank(x);
      dims.push(end ? Value(1) : Value(fn_->tensor(x).extent(static_cast<int>(i)).text()));
      axes.push(fmt::format("a{}", i));
    }
    return op("reshape", {op(name, {x}, last(0, x))},
              Value::Object{{"dims", dims}, {"axes", axes}});
  }

  Ref single() {
    static constexpr const char* kUnary[] = {"neg",  "abs", "square", "tanh",    "sigmoid",  "relu",
                                             "silu", "cos", "sin",    "softmax", "identity", "exp"};
    static constexpr const char* kBinary[] = {"add", "sub", "mul", "div", "maximum", "minimum"};
    Ref x = pick();
    // Drawn in a fixed order: compilers evaluate arguments in different ones.
    auto one_of = [&](const auto& names) -> const char* {
      return names[rng_.below(std::size(names))];
    };
    switch (rng_.below(12)) {
      case 0:
      case 1:
        return op(one_of(kUnary), {x});
      case 2:
      case 3: {
        const char* name = one_of(kBinary);
        return op(name, {x, pick()});
      }
      case 4: {
        const char* name = one_of(kBinary);
        return op(name, {x, fn_->constant(fmt::format("s{}", rng_.below(12)))});
      }
      case 5:
        return times(x, std::array{0.5, -1.0, 1.0, 3.0, 0.25}[rng_.below(5)]);
      case 6:
        return op("cast", {x},
                  Value::Object{{"dtype", std::array{"f32", "f16", "bf16"}[rng_.below(3)]}});
      case 7:
        return rank(x) == 2 ? op("transpose", {x}, Value::Object{{"perm", Value::Array{1, 0}}})
                            : op("transpose", {x}, Value::Object{{"perm", Value::Array{1, 0, 2}}});
      case 8:
        return rng_.below(2) ? op("reshape", {x},
                                  Value::Object{{"dims", Value::Array{"T", 2, 4}},
                                                {"axes", Value::Array{"t", "h", "d"}}})
                             : op("reshape", {x},
                                  Value::Object{{"dims", Value::Array{"T", 8}},
                                                {"axes", Value::Array{"t", "d"}}});
      case 9: {
        auto start = static_cast<int64_t>(rng_.below(4));
        return op(
            "slice", {x},
            Value::Object{
                {"axis", -1}, {"start", start}, {"end", 4 + static_cast<int64_t>(rng_.below(5))}});
      }
      case 10:
        return op("concat", {x, pick()}, Value::Object{{"axis", rank(x) - 1}});
      default:
        return rng_.below(2) ? op("linear", {x, fn_->weight(rng_.below(2) ? "w0" : "w1")})
                             : op("dropout", {x}, Value::Object{{"p", 0.1}});
    }
  }

  Ref normalised(Ref x, bool centred) {
    Ref d = centred ? op("sub", {x, reduce("reduce_mean", x)}) : x;
    Ref s = rng_.below(2) ? op("square", {d}) : op("mul", {d, d});
    Ref e = op("add", {reduce("reduce_mean", s), number(1e-5)});
    Ref y = rng_.below(2)   ? op("mul", {d, op("rsqrt", {e})})
            : rng_.below(2) ? op("div", {d, op("sqrt", {e})})
                            : op("mul", {d, op("div", {number(1), op("sqrt", {e})})});
    if (rng_.below(2)) y = op("mul", {y, fn_->weight("w2")});
    if (rng_.below(3) == 0) y = op("add", {y, fn_->weight("w3")});
    return y;
  }

  Ref gelu(Ref x) {
    Ref inner =
        rng_.below(2)
            ? op("erf", {times(x, 0.7071067811865476)})
            : op("tanh", {times(op("add", {x, times(op("mul", {x, op("square", {x})}), 0.044715)}),
                                0.7978845608028654)});
    Ref one = op("add", {inner, number(1)});
    return rng_.below(2) ? op("mul", {times(x, 0.5), one}) : times(op("mul", {x, one}), 0.5);
  }

  Ref softmax(Ref x) {
    Ref e = op("exp", {op("sub", {x, reduce("reduce_max", x)})});
    return op("div", {e, reduce("reduce_sum", e)});
  }

  Ref idiom() {
    Ref x = pick();
    switch (rng_.below(8)) {
      case 0:
        return normalised(x, false);
      case 1:
        return normalised(x, true);
      case 2:
        return rng_.below(2) ? op("mul", {x, op("sigmoid", {x})})
                             : op("div", {x, op("add", {op("exp", {op("neg", {x})}), number(1)})});
      case 3:
        return gelu(x);
      case 4:
        return softmax(x);
      case 5: {  // attention over plain tensors
        Ref k = pick(),
            s = op("matmul",
                   {x, op("transpose", {k}, Value::Object{{"perm", Value::Array{1, 0}}})});
        return op("matmul", {softmax(times(s, 0.5)), k});
      }
      case 6:
        return op("add", {op("linear", {x, fn_->weight("w0")}), fn_->weight("w3")});
      default:
        return op("mul", {op("rms_norm", {x, fn_->constant("ones")}, Value::Object{{"eps", 1e-5}}),
                          op("add", {fn_->weight("w2"), number(1)})});
    }
  }

  Ref heads(Ref x, int64_t h) {
    return op(
        "reshape", {x},
        Value::Object{{"dims", Value::Array{"T", h, 4}}, {"axes", Value::Array{"t", "h", "d"}}});
  }

  Ref state() {
    size_t s = rng_.below(versions_.size());
    Ref x = heads(pick(), 2);
    if (rng_.below(2)) x = op("rope", {x, pos_, fn_->constant("freq")});
    if (rng_.below(2)) {
      if (rng_.below(2)) x = times(x, 0.5);
      return op("attend", {x, versions_[s], view_, pos_, seq_, slot_, q_start_, kv_len_},
                Value::Object{{"scale", 0.5}});
    }
    Ref k = s == 0 ? x : op("slice", {x}, Value::Object{{"axis", 1}, {"start", 0}, {"end", 1}});
    Ref v = s == 0 ? op("neg", {op("neg", {x})}) : k;
    std::vector<Ref> in = {versions_[s], view_, seq_, slot_, k, v};
    for (Ref r : reads_of(*fn_, versions_[s])) in.push_back(r);
    return versions_[s] = fn_->add("append", in);
  }

  Rng rng_;
  Module module_;
  Function* fn_ = nullptr;
  std::vector<Ref> pool_, versions_;
  Ref pos_, seq_, slot_, q_start_, kv_len_, index_, view_;
};

}  // namespace

Module random_graph(uint64_t seed) { return Maker(seed).make(); }

}  // namespace tokamak
