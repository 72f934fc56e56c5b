#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "graph/evaluate.h"
#include "graph/rule_verify.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

struct Misfit {};  // the random choices do not fit together

class InstanceMaker {
 public:
  InstanceMaker(const RewriteRule& rule, Rng& rng, bool nasty, bool powers)
      : rule_(rule), rng_(rng), nasty_(nasty), powers_(powers) {}

  std::optional<RuleInstance> make() {
    out_.fn = &out_.module.add_function("f");
    for (size_t i = rng_.below(5); i > 0; --i) universe_.push_back(extent());
    if (!universe_.empty() && rng_.below(3) == 0)  // wrong axes hide behind different extents
      universe_.assign(universe_.size(), 2 + static_cast<int64_t>(rng_.below(2)));
    match_.vars.resize(rule_.vars.size() + 1);
    built_.resize(rule_.terms.size());
    try {
      choose_shapes();
      for (size_t v = 0; v < rule_.vars.size(); ++v) match_.vars[v] = variable(rule_.vars[v]);
      choose_numbers();
      out_.root = term(rule_.pattern);
    } catch (const Misfit&) {
      return std::nullopt;
    } catch (const Error& e) {
      if (e.code() == ErrorCode::kInternal) throw;
      return std::nullopt;
    }
    out_.vars = match_.vars;
    for (const auto& [name, value] : match_.names)
      note(fmt::format("{} = {}", name, value_text(value)));
    return std::move(out_);
  }

 private:
  void note(const std::string& text) { out_.text += (out_.text.empty() ? "" : ", ") + text; }
  int64_t extent() {
    static constexpr int64_t kExtents[] = {1, 1, 2, 2, 3, 4, 4, 5, 6, 8};
    return kExtents[rng_.below(std::size(kExtents))];
  }

  void choose_shapes() {
    for (const RuleVar& v : rule_.vars)
      for (const ShapeItem& item : v.shape) {
        if (item.kind == ShapeItem::Kind::kName && !match_.find(item.name))
          match_.bind(item.name, extent());
        if (item.kind == ShapeItem::Kind::kSplat && !match_.find(item.name)) {
          Value dims = Value::array();
          for (size_t n = rng_.below(3); n > 0; --n) dims.push(extent());
          match_.bind(item.name, dims);
        }
      }
  }

  // Attributes that depend on no type are drawn first: others may be computed from them.
  void choose_numbers() {
    static constexpr std::string_view kFree[] = {"value", "scale",  "eps",   "cap",  "p",
                                                 "keep",  "causal", "dtype", "kind", "approximate"};
    for (const RuleTerm& t : rule_.terms)
      for (const auto& [key, expr] : t.attrs)
        if (t.op && expr.kind == RuleExpr::Kind::kName && !match_.find(expr.name) &&
            std::find(std::begin(kFree), std::end(kFree), key) != std::end(kFree))
          match_.bind(expr.name, sample(*t.op, key, {}));
  }

  std::vector<int64_t> shape(const RuleVar& v) {
    std::vector<int64_t> dims;
    if (!v.shaped) {  // part of a common shape, so that it broadcasts with the others
      size_t skip = rng_.below(universe_.size() + 1);
      if (rng_.below(3) > 0) skip = 0;
      dims.assign(universe_.begin() + static_cast<std::ptrdiff_t>(skip), universe_.end());
      for (int64_t& d : dims)
        if (rng_.below(8) == 0) d = 1;
      return dims;
    }
    for (const ShapeItem& item : v.shape) {
      if (item.kind == ShapeItem::Kind::kNumber) dims.push_back(item.number);
      if (item.kind == ShapeItem::Kind::kAny) dims.push_back(extent());
      if (item.kind == ShapeItem::Kind::kName) dims.push_back(match_.find(item.name)->as_int());
      if (item.kind == ShapeItem::Kind::kSplat)
        for (const Value& d : match_.find(item.name)->as_array()) dims.push_back(d.as_int());
    }
    return dims;
  }

  DType dtype(const RuleVar& v) {
    static constexpr DType kAny[] = {DType::kF32, DType::kF32,  DType::kF32,
                                     DType::kF16, DType::kBF16, DType::kI32};
    if (v.dtype == "any") return kAny[rng_.below(6)];
    if (v.dtype == "float") return kAny[rng_.below(5)];
    return *dtype_from_name(v.dtype);
  }

  double number() {
    static constexpr double kPlain[] = {0.5, -0.5, 1.0,  -1.0,  2.0, 3.0,
                                        0.1, -1.7, 1e-3, 100.0, 0.0};
    if (powers_)
      return (rng_.below(2) ? 1 : -1) * std::ldexp(1.0, static_cast<int>(rng_.below(7)) - 3);
    return nasty_ ? random_value(rng_, Values::kNasty) : kPlain[rng_.below(std::size(kPlain))];
  }

  Ref constant(const std::string& name, const std::vector<int64_t>& dims, bool splat, double value,
               bool integer = false) {
    ConstantDecl c;
    c.name = name;
    size_t n = 1;
    for (int64_t d : dims) {
      c.type.dims.push_back({"n", d, false});
      n *= static_cast<size_t>(d);
    }
    c.values.assign(n, value);
    if (!splat)
      for (double& v : c.values) v = number();
    if (integer) {
      c.type.dtype = DType::kI32;
      static constexpr double kIntegers[] = {0, 1, 0, 1, -1, 2, 7, 2147483647};
      double all = kIntegers[rng_.below(std::size(kIntegers))];
      for (double& v : c.values) v = splat ? all : kIntegers[rng_.below(std::size(kIntegers))];
    }
    out_.module.add_constant(std::move(c));
    return out_.fn->constant(name);
  }

  Ref variable(const RuleVar& v) {
    if (v.kind == RuleVar::Kind::kState || v.kind == RuleVar::Kind::kView) return state(v);
    if (v.kind == RuleVar::Kind::kScalar) {
      std::vector<int64_t> dims(rng_.below(3), 1);
      Ref r = constant(v.name, dims, true, number());
      note(fmt::format("{} = {}", v.name, *splat_value(*out_.fn, r)));
      return r;
    }
    std::vector<int64_t> dims = shape(v);
    double elements = 1;
    for (int64_t d : dims) elements *= static_cast<double>(d);
    if (elements > 1 << 18) throw Misfit();
    if (v.kind == RuleVar::Kind::kConst)
      return constant(v.name, dims, rng_.below(2), number(), v.dtype == "i32");
    TensorType type{dtype(v), {}};
    for (int64_t d : dims) type.dims.push_back({"x", d, false});
    note(fmt::format("{}: {}", v.name, type.text()));
    if (v.kind == RuleVar::Kind::kWeight) {
      out_.module.add_weight({v.name, type, {{v.name}, {}}});
      return out_.fn->weight(v.name);
    }
    return out_.fn->add_input(v.name, Type::of(std::move(type)));
  }

  // A state with planes k and v as wide as the first tensor of three axes that is declared.
  Ref state(const RuleVar& v) {
    if (out_.module.groups.empty()) out_.module.groups.push_back({"g", 0, 4});
    if (v.kind == RuleVar::Kind::kView) return out_.fn->add_input(v.name, Type::view("g"));
    int64_t width = 4;
    for (const RuleVar& other : rule_.vars)
      if (other.shaped && other.shape.size() == 3 && width == 4) width = shape(other)[2];
    TensorType plane{DType::kF32, {{"h", 1, false}, {"d", width, false}}};
    out_.module.states.push_back({v.name, "g", {}, {{"k", plane}, {"v", plane}}});
    return out_.fn->add_input(v.name, Type::state(v.name));
  }

  Ref term(size_t index) {
    if (built_[index].valid()) return built_[index];
    const RuleTerm& t = rule_.terms[index];
    Ref r;
    if (t.kind == RuleTerm::Kind::kVar) {
      r = match_.vars[t.var];
    } else if (t.kind == RuleTerm::Kind::kNumber) {
      std::vector<int64_t> dims(rng_.below(2), 1);
      r = constant(fmt::format("k{}", index), dims, true, t.number);
    } else {
      std::vector<Ref> in;
      for (size_t i : t.inputs) in.push_back(term(i));
      if (is_commutative(*t.op) && rng_.below(2)) std::swap(in[0], in[1]);
      Attrs attrs = attributes(t, in);
      std::vector<Ref> outputs = out_.fn->add_multi(t.op->name, std::move(in), std::move(attrs));
      if (t.output >= outputs.size()) throw Misfit();
      r = outputs[t.output];
    }
    return built_[index] = r;
  }

  Attrs attributes(const RuleTerm& t, const std::vector<Ref>& in) {
    Value attrs = Value::object();
    for (const auto& [key, expr] : t.attrs) {
      std::optional<Value> v;
      const auto& shapes = rule_.shape_names;
      if (expr.kind == RuleExpr::Kind::kName &&
          std::find(shapes.begin(), shapes.end(), expr.name) == shapes.end()) {
        if (const Value* bound = match_.find(expr.name)) {
          v = *bound;
        } else {
          v = sample(*t.op, key, in);
          match_.bind(expr.name, *v);
        }
      } else {
        v = evaluate_expr(expr, rule_, match_, *out_.fn, nullptr);
      }
      if (!v) throw Misfit();
      attrs.set(key, *v);
      if (key == "dims") last_rank_ = v->size();
    }
    if (t.open)
      for (int i = 0; i < t.op->required_attrs; ++i)
        if (std::string_view key = t.op->attr_names[static_cast<size_t>(i)]; !attrs.has(key))
          attrs.set(key, sample(*t.op, key, in));
    return attrs;
  }

  std::vector<int64_t> dims_of(const std::vector<Ref>& in) const {
    if (in.empty()) throw Misfit();
    std::vector<int64_t> dims;
    for (const Dim& d : out_.fn->tensor(in[0]).dims) dims.push_back(d.extent.constant().value());
    return dims;
  }

  Value sample(const OpDef& op, std::string_view key, const std::vector<Ref>& in) {
    if (key == "dtype") {
      static constexpr const char* kTypes[] = {"f32", "f32", "f16", "bf16", "i32"};
      return kTypes[rng_.below(5)];
    }
    if (key == "kind") {
      static constexpr const char* kKinds[] = {"lt", "le", "eq", "ne", "ge", "gt"};
      return kKinds[rng_.below(6)];
    }
    if (key == "approximate") return rng_.below(2) ? "tanh" : "none";
    if (key == "format") return "q8a";
    if (key == "eps") return std::array{0.0, 1e-6, 1e-5, 1e-3, 0.1}[rng_.below(5)];
    if (key == "cap") return std::array{0.5, 2.0, 30.0}[rng_.below(3)];
    if (key == "value" || key == "scale" || key == "p") return number();
    if (key == "keep" || key == "causal") return static_cast<int64_t>(rng_.below(2));
    if (key == "n") return extent();
    std::vector<int64_t> dims = dims_of(in);
    if (key == "axis") {
      if (dims.empty()) throw Misfit();
      return static_cast<int64_t>(rng_.below(dims.size()));
    }
    if (key == "perm") return permutation(dims.size());
    if (key == "start" || key == "end") return border(key, dims);
    if (key == "dims") return op.name == "broadcast" ? wider(dims) : factors(dims);
    if (key == "axes") return axes();
    throw Misfit();
  }

  Value permutation(size_t n) {
    std::vector<int64_t> p(n);
    std::iota(p.begin(), p.end(), 0);
    for (size_t i = n; i > 1; --i) std::swap(p[i - 1], p[rng_.below(i)]);
    return Value(Value::Array(p.begin(), p.end()));
  }
  // Borders are drawn from the smallest extent: whether they fit the axis, the op's rule says.
  Value border(std::string_view key, const std::vector<int64_t>& dims) {
    int64_t most = dims.empty() ? 0 : *std::max_element(dims.begin(), dims.end());
    if (key == "start")
      return static_cast<int64_t>(rng_.below(static_cast<uint64_t>(most / 2 + 1)));
    return static_cast<int64_t>(rng_.below(static_cast<uint64_t>(most + 1)));
  }
  Value factors(const std::vector<int64_t>& dims) {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    Value out = Value::array();
    if (rng_.below(4) == 0) {
      for (int64_t d : dims) out.push(d);
    } else {
      for (size_t left = rng_.below(3); left > 0; --left) {
        int64_t d = extent();
        if (d == 0 || n % d != 0) continue;
        out.push(d);
        n /= d;
      }
      if (n > 1 || rng_.below(2)) out.push(n);
    }
    last_rank_ = out.size();
    return out;
  }
  Value wider(const std::vector<int64_t>& dims) {
    Value out = Value::array();
    for (size_t n = rng_.below(2); n > 0; --n) out.push(extent());
    for (int64_t d : dims) out.push(d == 1 ? extent() : d);
    last_rank_ = out.size();
    return out;
  }
  Value axes() const {  // of the dims drawn just before: attributes come in the op's order
    Value out = Value::array();
    for (size_t i = 0; i < last_rank_; ++i) out.push(fmt::format("a{}", i));
    return out;
  }

  const RewriteRule& rule_;
  Rng& rng_;
  bool nasty_, powers_;
  RuleInstance out_;
  RuleMatch match_;
  std::vector<Ref> built_;
  std::vector<int64_t> universe_;
  size_t last_rank_ = 0;
};

}  // namespace

std::optional<RuleInstance> make_instance(const RewriteRule& rule, Rng& rng, bool nasty,
                                          bool powers) {
  return InstanceMaker(rule, rng, nasty, powers).make();
}

}  // namespace tokamak
