// A norm's weight scales the columns of the matrices that follow: W (w * y) = (W diag w) y. If only
// matrices read the norm, its weight moves into their recipes and is replaced by ones, shared by
// all norms of that size. Only f32 matrices: a quantised one would have to be requantised, a 16-bit
// one would round or grow.
#include <map>
#include <optional>
#include <set>

#include "base/channels.h"
#include "compile/pass.h"

namespace tokamak {
namespace {

std::vector<std::string> sources_of(const WeightDecl& w) {
  return w.recipe.sources.empty() ? std::vector{w.name} : w.recipe.sources;
}

// The recipe steps that apply the norm's weight to a matrix; nullopt if the weight's recipe does
// more than add and then scale.
std::optional<std::vector<RecipeStep>> column_steps(const WeightDecl& norm) {
  using Kind = RecipeStep::Kind;
  if (sources_of(norm).size() != 1) return std::nullopt;
  RecipeStep columns{}, scale{};
  columns.kind = Kind::kScaleColumns;
  scale.kind = Kind::kScale;
  columns.tensor = sources_of(norm)[0];
  scale.value = 1;
  for (const RecipeStep& step : norm.recipe.steps) {
    if (step.kind == Kind::kCast && step.dtype == DType::kF32) continue;
    if (step.kind == Kind::kReshape && step.dims.size() == 1) continue;  // leading ones
    if (step.kind == Kind::kScale)
      scale.value *= step.value;
    else if (step.kind == Kind::kAddScalar && scale.value == 1)
      columns.value += step.value;
    else
      return std::nullopt;
  }
  if (scale.value == 1) return std::vector{columns};
  return std::vector{columns, scale};
}

class NormFolder {
 public:
  NormFolder(Module& module, Function& fn, const PassContext& context)
      : module_(module), fn_(fn), context_(context) {
    std::vector<bool> needed = needed_nodes(fn);
    for (NodeId id = 0; id < fn.nodes().size(); ++id)
      if (needed[id])
        for (size_t i = 0; i < fn.node(id).inputs.size(); ++i)
          readers_[fn.node(id).inputs[i]].push_back({id, i});
    for (const Function::Result& r : fn.results()) results_.insert(r.ref);
  }

  void run() {
    size_t left = context_.firings_left ? *context_.firings_left : SIZE_MAX, fired = 0;
    for (NodeId id = 0; id < fn_.nodes().size() && fired < left; ++id) {
      const Node& node = fn_.node(id);
      if (node.op->gain == 0 || !weight_of(gain_of(node)) || !readers_.contains(Ref{id, 0}))
        continue;
      std::string reason = why_not(id);
      note(id, reason);
      if (!reason.empty()) continue;
      choose(id);
      ++fired;
      if (context_.last_firing) *context_.last_firing = fmt::format("{} %{}", node.op->name, id);
    }
    if (context_.firings_left) *context_.firings_left -= fired;
    if (context_.timing) context_.timing->fired += fired;
    if (fired == 0) return;
    apply();
    remove_dead_code(module_, fn_, context_);  // the weights that are no longer read
  }

 private:
  static Ref gain_of(const Node& norm) { return norm.inputs[norm.op->gain]; }

  const WeightDecl* weight_of(Ref r) const {
    const Node& node = fn_.node(r.node);
    return node.op->role == OpDef::Role::kWeight
               ? module_.find_weight(node.attrs.at("name").as_string())
               : nullptr;
  }

  // Empty: the weight can move.
  std::string why_not(NodeId id) const {
    const Node& node = fn_.node(id);
    Ref value{id, 0};
    if (node.inputs.size() > node.op->gain + 1) return "the norm adds a bias after its weight";
    if (results_.contains(value)) return "the norm is a result of the function";
    for (auto [reader, index] : readers_.at(value)) {
      const Node& linear = fn_.node(reader);
      if (!linear.op->product || index != 0)
        return fmt::format("{} reads the norm, not only matrices", linear.op->name);
      const WeightDecl* matrix = weight_of(linear.inputs[1]);
      if (!matrix) return "a matrix after the norm is computed, not a weight";
      DType dtype = matrix->type.dtype;
      if (is_block_type(dtype))
        return fmt::format("{} matrices would have to be requantised", dtype_name(dtype));
      if (dtype != DType::kF32)
        return fmt::format("{} matrices would have to be rounded again, or kept as f32",
                           dtype_name(dtype));
      for (auto [other, at] : readers_.at(linear.inputs[1]))
        if (!fn_.node(other).op->product || at != 1 || fn_.node(other).inputs[0] != value)
          return "a matrix after the norm is also used elsewhere and would be needed twice";
    }
    if (!column_steps(*weight_of(gain_of(node))))
      return "the weight's recipe is not a + b * tensor";
    return "";
  }

  void note(NodeId id, const std::string& reason) const {
    const Node& node = fn_.node(id);
    if (!reason.empty() && context_.timing) ++context_.timing->refused[reason];
    if (!log::channel_enabled("rewrite")) return;
    std::string name = node.name.empty() ? fmt::format("%{}", id) : node.name;
    log::channel("rewrite", fmt::format("{}: weight of {} {}", fn_.name(), name,
                                        reason.empty() ? "folded into the matrices that follow"
                                                       : "not folded: " + reason));
  }

  void choose(NodeId id) {
    norms_.insert(id);
    auto steps = column_steps(*weight_of(gain_of(fn_.node(id))));
    for (auto [reader, index] : readers_.at(Ref{id, 0}))
      matrices_[reader] = folded(*weight_of(fn_.node(reader).inputs[1]), *steps);
  }

  // The weight with the steps appended to its own; the same tensor may already exist.
  std::string folded(WeightDecl w, const std::vector<RecipeStep>& steps) {
    w.recipe.sources = sources_of(w);
    w.recipe.steps.insert(w.recipe.steps.end(), steps.begin(), steps.end());
    for (const WeightDecl& have : module_.weights)
      if (have.recipe == w.recipe && have.type == w.type) return have.name;
    w.name += recipe_to_text({{}, steps});
    while (module_.find_weight(w.name)) w.name += "'";
    std::string name = w.name;
    module_.add_weight(std::move(w));
    return name;
  }

  std::string ones(const TensorType& type) {
    std::vector<double> values(static_cast<size_t>(type.extent(0).constant().value()), 1.0);
    for (const ConstantDecl& have : module_.constants)
      if (have.values == values && have.type.dtype == DType::kF32 && have.type.rank() == 1)
        return have.name;
    std::string name = fmt::format("ones.{}", values.size());
    while (module_.find_constant(name)) name += "'";
    module_.add_constant({name, {DType::kF32, type.dims}, std::move(values)});
    return name;
  }

  void apply() {
    const Node* first = fn_.nodes().data();
    rebuild(module_, fn_, [&](Function& to, const Node& node, const std::vector<Ref>& in) {
      auto id = static_cast<NodeId>(&node - first);
      std::vector<Ref> inputs = in;
      if (norms_.contains(id))
        inputs[node.op->gain] = to.constant(ones(to.tensor(in[node.op->gain])));
      if (auto it = matrices_.find(id); it != matrices_.end()) inputs[1] = to.weight(it->second);
      if (inputs != in) {
        std::vector<std::string> provenance = node.provenance;
        provenance.push_back(fmt::format("fold-norms @ {}", id));
        to.set_provenance(std::move(provenance));
      }
      return copy_node(to, node, inputs);
    });
  }

  struct Reader {
    NodeId node;
    size_t index;
  };
  Module& module_;
  Function& fn_;
  const PassContext& context_;
  std::map<Ref, std::vector<Reader>> readers_;
  std::set<Ref> results_;
  std::set<NodeId> norms_;                  // norms whose weight becomes ones
  std::map<NodeId, std::string> matrices_;  // linear -> its new weight
};

}  // namespace

void fold_norms(Module& module, Function& function, const PassContext& context) {
  NormFolder(module, function, context).run();
}

}  // namespace tokamak
