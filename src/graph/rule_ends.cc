#include "base/error.h"
#include "graph/rewrite.h"
#include "graph/rule_verify.h"

namespace tokamak {
namespace {

class EndCheck {
 public:
  EndCheck(const RewriteRule& rule, Rng& rng) : rule_(rule), rng_(rng) {}

  bool run(RuleInstance& x) {
    for (int i = 0; i < 3 && x.module.states.empty(); ++i) {
      Module module = x.module.clone();
      Function& fn = module.add_function("nested");
      if (nest(x, module, fn) && !ends(module, fn)) return false;
    }
    x.fn->set_result("right", x.root);
    return ends(x.module, *x.fn);
  }

 private:
  bool ends(Module& module, Function& fn) const {
    RewriteOptions options;
    options.budget = 200;
    RewriteStats stats = Rewriter(module, {&rule_}, options).run(fn);
    return !stats.exhausted && stats.cycles.empty() && stats.rounds < options.rounds;
  }

  // Copies the pattern with stand-ins for its inputs; false: they do not fit.
  bool nest(const RuleInstance& x, Module& module, Function& to) {
    std::vector<std::vector<Ref>> now(x.root.node + 1);
    try {
      for (NodeId id = 0; id < now.size(); ++id) {
        const Node& node = x.fn->node(id);
        std::vector<Ref> in;
        for (Ref r : node.inputs) in.push_back(now[r.node][r.output]);
        if (node.op->name == "input")
          now[id] = {stand_in(x, node, module, to)};
        else
          now[id] = copy_of(node, to, in);
      }
    } catch (const Error& e) {
      if (e.code() == ErrorCode::kInternal) throw;
      return false;
    }
    to.set_result("right", now[x.root.node][x.root.output]);
    return true;
  }

  static std::vector<Ref> copy_of(const Node& node, Function& to, const std::vector<Ref>& in) {
    if (node.op->name == "weight") return {to.weight(node.attrs.at("name").as_string())};
    if (node.op->name == "constant") return {to.constant(node.attrs.at("name").as_string())};
    return to.add_multi(node.op->name, in, node.attrs);
  }

  Ref stand_in(const RuleInstance& x, const Node& input, Module& module, Function& to) {
    const std::string name = input.attrs.at("name").as_string();
    const Type& type = input.outputs[0];
    DType dtype = type.tensor.dtype;
    uint64_t choice = rng_.below(4);
    if (choice == 0 && (dtype == DType::kF32 || dtype == DType::kI32)) {
      ConstantDecl c{"nested." + name, type.tensor, {}};
      for (int64_t n = type.tensor.elements().constant().value(); n > 0; --n)
        c.values.push_back(static_cast<double>(2 + rng_.below(5)));
      module.add_constant(c);
      return to.constant(c.name);
    }
    std::vector<NodeId> fitting;
    for (NodeId id = 0; id <= x.root.node; ++id)
      if (const Node& node = x.fn->node(id);
          node.op->tier != Tier::kStructural && !node.inputs.empty() && node.outputs.size() == 1 &&
          node.outputs[0].tensor.dtype == dtype && same_extents(node.outputs[0], type))
        fitting.push_back(id);
    if (choice == 1 || fitting.empty()) return to.add_input(name, type);
    const Node& node = x.fn->node(fitting[rng_.below(fitting.size())]);
    std::vector<Ref> in;
    for (Ref r : node.inputs) {
      const Node& from = x.fn->node(r.node);
      in.push_back(from.op->name == "constant" || from.op->name == "weight"
                       ? copy_of(from, to, {})[0]
                       : to.add_input(fmt::format("{}.{}", name, in.size()), x.fn->type(r)));
    }
    return to.add(node.op->name, std::move(in), node.attrs);
  }

  const RewriteRule& rule_;
  Rng& rng_;
};

}  // namespace

bool rule_ends(const RewriteRule& rule, RuleInstance& instance, Rng& rng) {
  return EndCheck(rule, rng).run(instance);
}

}  // namespace tokamak
