#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "graph/evaluate.h"
#include "graph/input_numbers.h"
#include "graph/rule_verify.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

constexpr int64_t kFlatExtent = 1728;  // all triples of twelve integers

struct Misfit {};  // the random choices do not fit together

bool calls(const std::vector<RuleExpr>& list, std::string_view what) {
  return std::any_of(list.begin(), list.end(), [&](const RuleExpr& e) {
    return (e.kind == RuleExpr::Kind::kCall && e.name == what) || calls(e.args, what);
  });
}
bool asks(const RewriteRule& rule, std::string_view what) { return calls(rule.conditions, what); }

class InstanceMaker {
 public:
  InstanceMaker(const RewriteRule& rule, const RuleLiterals& literals, const InstanceStyle& style,
                Rng& rng)
      : rule_(rule), literals_(literals.near), all_(literals), style_(style), rng_(rng) {
    quantizes_ = std::any_of(rule.terms.begin(), rule.terms.end(),
                             [](const RuleTerm& t) { return t.op && t.op->name == "quantize"; });
  }

  std::optional<RuleInstance> make() {
    out_.fn = &out_.module.add_function("f");
    if (style_.extents == Extents::kLarge) large_ = 1 + rng_.below(2);
    if (style_.extents == Extents::kSmall && rng_.below(4) == 0)
      equal_ = 2 + static_cast<int64_t>(rng_.below(2));
    if (style_.extents == Extents::kHuge || style_.extents == Extents::kVast) large_ = 1;
    match_.vars.resize(rule_.vars.size() + 1);
    built_.resize(rule_.terms.size());
    try {
      choose_shapes();
      choose_universe();
      for (size_t v = 0; v < rule_.vars.size(); ++v) match_.vars[v] = variable(rule_.vars[v]);
      choose_numbers();
      out_.root = term(rule_.pattern);
      if (style_.extents == Extents::kVast && large_ > 0) throw Misfit();
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
    static constexpr int64_t kLarge[] = {16, 17, 40, 100}, kHuge[] = {257, 300, 513, 300};
    if (quantizes_ && rng_.below(2)) return 32 * (1 + static_cast<int64_t>(rng_.below(2)));
    if (equal_ > 0) return equal_;
    const bool vast = style_.extents == Extents::kVast;
    if (large_ > 0 && rng_.below(vast ? 2 : 4) > 0) {
      --large_;
      if (vast) return style_.vast;
      if (!all_.extents.empty() && rng_.below(4) == 0)
        if (int64_t n = all_.extents[rng_.below(all_.extents.size())]; n < kVastExtent) return n;
      return (style_.extents == Extents::kHuge ? kHuge : kLarge)[rng_.below(4)];
    }
    bool few = style_.extents == Extents::kDeep || style_.extents == Extents::kFlat || vast;
    return kExtents[rng_.below(few ? 5 : std::size(kExtents))];
  }

  int64_t stretched(const std::string& name, int64_t n) const {
    return style_.stretch && style_.stretch->first == name ? style_.stretch->second : n;
  }

  // The shape that variables without one have, or a part of it.
  void choose_universe() {
    bool used = std::any_of(rule_.vars.begin(), rule_.vars.end(), [](const RuleVar& v) {
      return !v.shaped && v.kind != RuleVar::Kind::kScalar && v.kind != RuleVar::Kind::kState;
    });
    if (!used) return;
    if (style_.extents == Extents::kFlat) {
      universe_ = {kFlatExtent};
      return;
    }
    static constexpr size_t kRanks[] = {0, 1, 1, 2, 2, 3, 3, 4};
    size_t rank = style_.extents == Extents::kDeep ? 3 + rng_.below(6)
                  : equal_ > 0                     ? 2 + rng_.below(2)
                                                   : kRanks[rng_.below(8)];
    std::vector<int64_t> named;  // so that variables with and without a shape fit together
    for (const auto& [name, value] : match_.names) {
      if (value.is_int()) named.push_back(value.as_int());
      if (value.is_array())
        for (const Value& d : value.as_array()) named.push_back(d.as_int());
    }
    for (; rank > 0; --rank)
      universe_.push_back(!named.empty() && rng_.below(4) > 0 ? named[rng_.below(named.size())]
                                                              : extent());
    if (!universe_.empty() && large_ == 0 && rng_.below(5) < 1)
      universe_.assign(universe_.size(), 2 + static_cast<int64_t>(rng_.below(2)));
  }

  void choose_shapes() {
    const auto& names = rule_.shape_names;
    const std::string flat =
        style_.extents == Extents::kFlat && !names.empty() ? names[rng_.below(names.size())] : "";
    for (const RuleVar& v : rule_.vars)
      for (const ShapeItem& item : v.shape) {
        if (item.kind == ShapeItem::Kind::kName && !match_.find(item.name))
          match_.bind(item.name, stretched(item.name, item.name == flat ? kFlatExtent : extent()));
        if (item.kind == ShapeItem::Kind::kSplat && !match_.find(item.name)) {
          Value dims = Value::array();
          uint64_t most = style_.extents == Extents::kDeep ? 8 : 3;
          for (size_t n = rng_.below(most); n > 0; --n) dims.push(extent());
          match_.bind(item.name, dims);
        }
      }
  }

  // Attributes that depend on no type are drawn first: others may be computed from them.
  void choose_numbers() {
    static constexpr std::string_view kFree[] = {
        "value", "scale", "eps",         "cap",    "p",       "keep", "causal",
        "dtype", "kind",  "approximate", "window", "softcap", "chunk"};
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
      if (equal_ > 0)
        skip = rng_.below(2);
      else if (rng_.below(3) > 0 || style_.extents == Extents::kFlat)
        skip = 0;
      dims.assign(universe_.begin() + static_cast<std::ptrdiff_t>(skip), universe_.end());
      for (int64_t& d : dims)
        if (rng_.below(5) == 0 && style_.extents != Extents::kFlat) d = 1;
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
    if (v.dtype == "any") return style_.integers ? DType::kI32 : kAny[rng_.below(6)];
    if (v.dtype == "float") return kAny[rng_.below(5)];
    return *dtype_from_name(v.dtype);
  }

  // A number that the rule leaves open. Each call is counted, so that one of them can be set.
  double choose(double random) {
    double v = random;
    if (style_.set && style_.set->first == out_.numbers.size()) v = style_.set->second;
    out_.numbers.push_back(v);
    return v;
  }
  double number() {
    static constexpr double kPlain[] = {0.5,  -0.5, 1.0,   -1.0, 2.0,  3.0,  0.1,
                                        -1.7, 1e-3, 100.0, 0.0,  0.97, 1.05, -4096.0};
    if (style_.powers)
      return choose((rng_.below(2) ? 1 : -1) *
                    std::ldexp(1.0, static_cast<int>(rng_.below(7)) - 3));
    double plain = kPlain[rng_.below(std::size(kPlain))];
    static constexpr int kPowers[] = {-98, -60, -20, 20, 60, 98};  // whose products underflow
    if (asks(rule_, "pow2") && rng_.below(2))
      return choose(std::ldexp(1.0, kPowers[rng_.below(std::size(kPowers))]));
    if (!literals_.empty() && rng_.below(2)) plain = literals_[rng_.below(literals_.size())];
    return choose(style_.nasty ? random_value(rng_, Values::kNasty) : plain);
  }
  // One of a list, or a literal of the rule; never negative.
  double one_of(std::initializer_list<double> list) {
    double v = list.begin()[rng_.below(list.size())];
    if (!literals_.empty() && rng_.below(3) == 0)
      v = std::abs(literals_[rng_.below(literals_.size())]);
    return choose(v);
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
    if (!splat && n % 2 == 0 && asks(rule_, "repeated"))
      std::copy_n(c.values.begin(), n / 2, c.values.begin() + static_cast<std::ptrdiff_t>(n / 2));
    if (!splat && dims.size() == 2 && dims[0] == dims[1] && n > 0 && asks(rule_, "rotation")) {
      const int64_t distances[] = {0, 1, -1, dims[0] / 2, -dims[0] / 2};
      c.values = rotation_matrix(dims[0], dims[0] % 2 ? 0 : distances[rng_.below(5)]);
    }
    if (integer) {
      c.type.dtype = DType::kI32;
      static constexpr double kIntegers[] = {0, 1,   0,        1,          -1,           2,
                                             7, 300, 16777217, 2147483647, -2147483648.0};
      auto pick = [&] {
        const std::vector<double>* lists[] = {&all_.found, &literals_, &all_.solutions};
        const std::vector<double>& from = *lists[rng_.below(3)];
        double v = from.empty() ? 0.5 : from[rng_.below(from.size())];
        if (&from == &all_.solutions) v += static_cast<double>(rng_.below(3)) - 1;
        bool whole = v == std::floor(v) && std::abs(v) < 0x1p31;
        return whole && rng_.below(4) ? v : kIntegers[rng_.below(std::size(kIntegers))];
      };
      out_.integers.push_back(out_.numbers.size());
      double all = std::clamp(std::floor(choose(pick())), -0x1p31, 0x1p31 - 1);
      for (double& v : c.values) v = splat ? all : pick();
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
    const bool vast = style_.extents == Extents::kVast;
    if (elements > (style_.stretch ? kMaxVastElements : vast ? 1 << 19 : 1 << 15)) throw Misfit();
    if (v.kind == RuleVar::Kind::kConst)
      return constant(v.name, dims, rng_.below(2), number(), v.dtype == "i32");
    TensorType type{dtype(v), {}};
    for (int64_t d : dims) type.dims.push_back({"x", d, false});
    note(fmt::format("{}: {}", v.name, type.text()));
    if (v.kind == RuleVar::Kind::kWeight) {
      out_.module.add_weight({v.name, type, {{v.name}, {}}});
      return out_.fn->weight(v.name);
    }
    // Where the rule asks, half of the integers are known not to be negative.
    if (type.dtype == DType::kI32 && asks(rule_, "natural") && rng_.below(2))
      out_.fn->facts().push_back({v.name, Fact::Kind::kNatural});
    return out_.fn->add_input(v.name, Type::of(std::move(type)));
  }

  // A state with the declared planes; else with planes k and v as wide as the first tensor of three
  // axes that is declared, and with a number of heads that divides its heads.
  Ref state(const RuleVar& v) {
    if (out_.module.groups.empty()) out_.module.groups.push_back({"g", 0, 4});
    if (v.kind == RuleVar::Kind::kView) return out_.fn->add_input(v.name, Type::view("g"));
    if (!v.planes.empty()) {
      std::vector<int64_t> widths = shape(v);
      std::vector<PlaneDecl> planes;
      for (size_t p = 0; p < widths.size(); ++p)
        planes.push_back({v.planes[p], {DType::kF32, {{"d", widths[p], false}}}});
      out_.module.states.push_back({v.name, "g", {}, std::move(planes)});
      return out_.fn->add_input(v.name, Type::state(v.name));
    }
    int64_t heads = 1, width = 4;
    auto query = std::find_if(rule_.vars.begin(), rule_.vars.end(), [](const RuleVar& other) {
      return other.shaped && other.shape.size() == 3;
    });
    if (query != rule_.vars.end()) {
      std::vector<int64_t> dims = shape(*query);
      width = dims[2];
      std::vector<int64_t> possible;
      for (int64_t n = 1; n <= std::min<int64_t>(dims[1], 8); ++n)
        if (dims[1] % n == 0) possible.push_back(n);
      heads = possible[rng_.below(possible.size())];
    }
    int64_t value_width = rng_.below(4) == 0 ? extent() : width;
    auto plane = [&](int64_t d) {
      return TensorType{DType::kF32, {{"h", heads, false}, {"d", d, false}}};
    };
    out_.module.states.push_back(
        {v.name, "g", {}, {{"k", plane(width)}, {"v", plane(value_width)}}});
    note(fmt::format("{}: {} heads", v.name, heads));
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
      double by = style_.jitter && t.near ? rng_.uniform(-9e-7, 9e-7) : 0;
      r = constant(fmt::format("k{}", index), dims, true, t.number * (1 + by));
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
          if (key == "n") v = Value(stretched(expr.name, v->as_int()));
          match_.bind(expr.name, *v);
        }
      } else {
        v = evaluate_expr(expr, rule_, match_, *out_.fn, nullptr);
        bool near = expr.kind == RuleExpr::Kind::kCall && expr.name == "~";
        if (v && near && style_.jitter && v->is_number())
          v = Value(v->as_double() * (1 + rng_.uniform(-9e-7, 9e-7)));
      }
      if (!v) throw Misfit();
      attrs.set(key, *v);
      if (key == "dims") last_rank_ = v->size();
    }
    if (!t.open) return attrs;
    for (size_t i = 0; i < t.op->attr_names.size(); ++i) {
      std::string_view key = t.op->attr_names[i];
      bool required = i < static_cast<size_t>(t.op->required_attrs);
      if (attrs.has(key) || key == kStorageAttr) continue;
      if (required || (default_attr(*t.op, key) && rng_.below(2)))
        attrs.set(key, sample(*t.op, key, in));
    }
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
    if (key == "eps") return one_of({0.0, 1e-6, 1e-5, 1e-3, 0.1, 1.0, 100.0});
    if (key == "cap") return one_of({0.5, 2.0, 30.0, 1e-3, 1e4});
    if (key == "softcap") return one_of({0.0, 0.5, 30.0});
    if (key == "window" || key == "chunk") return window();
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
    if (key == "k" && !dims.empty())
      return 1 + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(dims.back())));
    if (key == "count") return 1 + static_cast<int64_t>(rng_.below(4));
    throw Misfit();
  }

  // On a long axis mostly one that hides something there.
  int64_t window() {
    std::vector<int64_t> named = all_.extents;
    const bool vast = style_.extents == Extents::kVast;
    if (vast) std::erase_if(named, [&](int64_t n) { return n + 2 > style_.vast; });
    if (!named.empty() && rng_.below(3) < (vast ? 2 : 1)) return named[rng_.below(named.size())];
    return std::array<int64_t, 6>{0, 1, 3, 16, 17, 40}[rng_.below(6)];
  }
  Value permutation(size_t n) {
    std::vector<int64_t> p(n);
    std::iota(p.begin(), p.end(), 0);
    for (size_t i = n; i > 1; --i) std::swap(p[i - 1], p[rng_.below(i)]);
    return Value(Value::Array(p.begin(), p.end()));
  }
  // Up to the largest extent; the type rule of the op rejects what does not fit the axis.
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
    if (uint64_t way = equal_ > 0 ? 2 + rng_.below(4) : rng_.below(8);
        way < 3) {  // the same extents, or in another order
      for (size_t i = 0; i < dims.size(); ++i)
        out.push(way == 0 ? dims[i] : dims[dims.size() - 1 - i]);
    } else if (way < 5) {  // one axis more
      size_t at = rng_.below(dims.size() + 1);
      for (size_t i = 0; i <= dims.size(); ++i) {
        if (i == at) out.push(int64_t{1});
        if (i < dims.size()) out.push(dims[i]);
      }
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
  Value axes() const {  // for the dims drawn before it: attributes come in the op's order
    Value out = Value::array();
    for (size_t i = 0; i < last_rank_; ++i) out.push(fmt::format("a{}", i));
    return out;
  }

  const RewriteRule& rule_;
  const std::vector<double>& literals_;
  const RuleLiterals& all_;
  const InstanceStyle& style_;
  Rng& rng_;
  uint64_t large_ = 0;      // extents that may still be large
  bool quantizes_ = false;  // some extents are whole blocks
  int64_t equal_ = 0;       // of all axes, so that a wrong axis still has a fitting shape
  RuleInstance out_;
  RuleMatch match_;
  std::vector<Ref> built_;
  std::vector<int64_t> universe_;
  size_t last_rank_ = 0;
};

}  // namespace

bool is_small(const Function& fn, int64_t most) {
  int64_t total = 0;
  for (const Node& node : fn.nodes())
    for (const Type& t : node.outputs)
      if (t.kind == Type::Kind::kTensor) {
        int64_t n = t.tensor.elements().constant().value_or(most);
        if (n >= most || (total += n) >= most) return false;
      }
  return true;
}

std::optional<RuleInstance> make_instance(const RewriteRule& rule, const RuleLiterals& literals,
                                          const InstanceStyle& style, Rng& rng) {
  return InstanceMaker(rule, literals, style, rng).make();
}

}  // namespace tokamak
