#include "base/error.h"
#include "graph/rule.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

constexpr int64_t kMaxFill = 1 << 16;  // elements of a constant that a rule makes

class Builder {
 public:
  Builder(const RewriteRule& rule, const RuleMatch& match, Module& module, Function& fn,
          const std::string& name, const std::function<Ref(Ref)>& simplify)
      : rule_(rule), match_(match), module_(module), fn_(fn), name_(name), simplify_(simplify) {}

  std::optional<Ref> run() {
    try {
      std::optional<Ref> r = build(rule_.replacement, true);
      if (!r || !same_extents(fn_.type(*r), fn_.type(match_.vars.back()))) return std::nullopt;
      return r;
    } catch (const Error& e) {
      if (e.code() == ErrorCode::kInternal) throw;
      return std::nullopt;  // the op's own type rule refused it
    }
  }

 private:
  std::optional<Ref> build(size_t index, bool root) {
    const RuleTerm& t = rule_.terms[index];
    switch (t.kind) {
      case RuleTerm::Kind::kVar:
        return match_.vars[t.var];
      case RuleTerm::Kind::kNumber:
        return constant(t.number, {});
      case RuleTerm::Kind::kScalar:
      case RuleTerm::Kind::kFill: {
        auto value = attr(t, "value");
        if (!value || !value->is_number()) return std::nullopt;
        std::vector<int64_t> dims;
        if (t.kind == RuleTerm::Kind::kFill) {
          auto list = attr(t, "dims");
          if (!list || !list->is_array()) return std::nullopt;
          int64_t n = 1;
          for (const Value& d : list->as_array()) {
            if (!d.is_int() || d.as_int() < 0 || d.as_int() > kMaxFill) return std::nullopt;
            dims.push_back(d.as_int());
            if ((n *= d.as_int()) > kMaxFill) return std::nullopt;
          }
        }
        auto dtype = attr(t, "dtype");
        return constant(value->as_double(), dims, dtype == Value("i32"));
      }
      case RuleTerm::Kind::kRecipe:
        return recipe(t);
      case RuleTerm::Kind::kOp:
        return op(t, root);
    }
    return std::nullopt;
  }

  std::optional<Value> attr(const RuleTerm& t, std::string_view key) const {
    for (const auto& [k, e] : t.attrs)
      if (k == key) return evaluate_expr(e, rule_, match_, fn_, nullptr);
    return std::nullopt;
  }

  std::optional<Ref> op(const RuleTerm& t, bool root) {
    std::vector<Ref> inputs;
    for (size_t i : t.inputs) {
      auto in = build(i, false);
      if (!in) return std::nullopt;
      inputs.push_back(*in);
    }
    Value attrs = Value::object();
    for (const auto& [key, e] : t.attrs) {
      auto v = evaluate_expr(e, rule_, match_, fn_, nullptr);
      if (!v) return std::nullopt;
      attrs.set(key, *v);
    }
    std::vector<Ref> out =
        fn_.add_multi(t.op->name, std::move(inputs), std::move(attrs), root ? name_ : "");
    if (t.output >= out.size()) return std::nullopt;
    return root || !simplify_ ? out[t.output] : simplify_(out[t.output]);
  }

  Ref constant(double value, const std::vector<int64_t>& dims, bool integer = false) {
    ConstantDecl c;
    if (integer) {
      c.type.dtype = DType::kI32;
      c.name = fmt::format("i.{}", static_cast<int32_t>(value));
    } else {
      c.name = fmt::format("c.{}", double_text(static_cast<double>(static_cast<float>(value))));
    }
    size_t n = 1;
    for (int64_t d : dims) {
      c.name += fmt::format("{}{}", c.type.dims.empty() ? "." : "x", d);
      c.type.dims.push_back({"n", d, false});
      n *= static_cast<size_t>(d);
    }
    c.values.assign(n, value);
    std::string made = c.name;
    module_.add_constant(std::move(c));
    return fn_.constant(made);
  }

  // A weight made from a weight: its recipe with one more step.
  std::optional<Ref> recipe(const RuleTerm& t) {
    auto from = build(t.inputs.at(0), false);
    if (!from || t.attrs.size() != 1 || fn_.node(from->node).op->name != "weight")
      return std::nullopt;
    WeightDecl w = *module_.find_weight(fn_.node(from->node).attrs.at("name").as_string());
    if (w.recipe.sources.empty()) w.recipe.sources = {w.name};
    auto v = evaluate_expr(t.attrs[0].second, rule_, match_, fn_, nullptr);
    if (!v || !step_of(t.attrs[0].first, *v, w)) return std::nullopt;
    if (!simplify_recipe(w.recipe.steps))
      w.name += fmt::format(" | {}", recipe_text({{}, {w.recipe.steps.back()}}).substr(2));
    else
      w.name = recipe_text(w.recipe);
    // The same tensor may exist already under another name.
    Recipe shorter = w.recipe;
    if (!shorter.steps.empty() && shorter.steps.back().kind == RecipeStep::Kind::kReshape)
      shorter.steps.pop_back();
    for (const WeightDecl& have : module_.weights) {
      Recipe from_file = have.recipe;
      if (from_file.sources.empty()) from_file.sources = {have.name};
      if ((from_file == w.recipe || from_file == shorter) &&
          same_extents(Type::of(have.type), Type::of(w.type)))
        return fn_.weight(have.name);
    }
    if (module_.find_weight(w.name)) return std::nullopt;
    module_.add_weight(w);
    return fn_.weight(w.name);
  }

  // Removes steps at the end that undo each other; returns whether there were any.
  static bool simplify_recipe(std::vector<RecipeStep>& steps) {
    using Kind = RecipeStep::Kind;
    size_t n = steps.size();
    if (n < 2 || steps[n - 1].kind != steps[n - 2].kind) return false;
    if (steps[n - 1].kind == Kind::kTranspose) {
      steps.resize(n - 2);
      return true;
    }
    if (steps[n - 1].kind != Kind::kReshape) return false;
    steps.erase(steps.end() - 2);
    return true;
  }

  // Never an implicit requantisation: arithmetic is for f32 weights, bytes of a block stay
  // together.
  static bool step_of(const std::string& kind, const Value& v, WeightDecl& w) {
    using Kind = RecipeStep::Kind;
    RecipeStep step{};
    TensorType& type = w.type;
    bool plain = !is_block_type(type.dtype);
    if (kind == "scale" || kind == "add") {
      if (type.dtype != DType::kF32 || !v.is_number()) return false;
      step.kind = kind == "scale" ? Kind::kScale : Kind::kAddScalar;
      step.value = v.as_double();
    } else if (kind == "transpose") {
      if (!plain || type.rank() != 2) return false;
      step.kind = Kind::kTranspose;
      std::swap(type.dims[0], type.dims[1]);
    } else if (kind == "slice_rows") {
      if (!v.is_array() || v.size() != 2 || type.rank() < 1) return false;
      step.kind = Kind::kSliceRows;
      step.a = v.as_array()[0].as_int();
      step.b = v.as_array()[1].as_int();
      type.dims[0].extent = step.b - step.a;
    } else if (kind == "reshape") {
      if (!plain || !v.is_array()) return false;
      step.kind = Kind::kReshape;
      type.dims.clear();
      for (const Value& d : v.as_array()) {
        if (!d.is_int()) return false;
        step.dims.push_back(d.as_int());
        type.dims.push_back({fmt::format("a{}", type.dims.size()), d.as_int(), false});
      }
    } else if (kind == "cast") {
      auto dtype = v.is_string() ? dtype_from_name(v.as_string()) : std::nullopt;
      if (!plain || !dtype) return false;
      step.kind = Kind::kCast;
      step.dtype = type.dtype = *dtype;
    } else {
      return false;
    }
    w.recipe.steps.push_back(std::move(step));
    return true;
  }

  const RewriteRule& rule_;
  const RuleMatch& match_;
  Module& module_;
  Function& fn_;
  const std::string& name_;
  const std::function<Ref(Ref)>& simplify_;
};

}  // namespace

bool same_extents(const Type& a, const Type& b) {
  if (a.kind != b.kind || a.name != b.name) return false;
  if (a.tensor.dtype != b.tensor.dtype || a.tensor.rank() != b.tensor.rank()) return false;
  for (size_t i = 0; i < a.tensor.dims.size(); ++i)
    if (a.tensor.dims[i].extent != b.tensor.dims[i].extent ||
        a.tensor.dims[i].bound != b.tensor.dims[i].bound)
      return false;
  return true;
}

std::optional<Ref> build_replacement(const RewriteRule& rule, const RuleMatch& match,
                                     Module& module, Function& fn, const std::string& name,
                                     const std::function<Ref(Ref)>& simplify) {
  return Builder(rule, match, module, fn, name, simplify).run();
}

}  // namespace tokamak
