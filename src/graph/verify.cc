#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "graph/attrs.h"
#include "graph/region.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

[[noreturn]] void bad(std::string_view where, std::string_view what) {
  fail(ErrorCode::kInvalidArgument, "{}: {}", where, what);
}

using Names = std::unordered_set<std::string_view>;

void need_unique(Names& names, std::string_view name, std::string_view where) {
  if (name.empty()) bad(where, "the name is empty");
  if (!names.insert(name).second) bad(where, fmt::format("\"{}\" is declared twice", name));
}

void need_constant_extents(const TensorType& type, std::string_view where) {
  for (const Dim& d : type.dims) {
    auto n = d.extent.constant();
    if (!n || *n < 0 || d.bound) {
      bad(where, fmt::format("{} must have constant extents", type.text()));
    }
  }
  try {
    type.bytes();  // whole blocks, and no overflow
  } catch (const Error& e) {
    bad(where, e.what());
  }
}

void verify_declarations(const Module& m) {
  Names symbols, groups, states, weights, constants;
  for (const SymbolDecl& s : m.symbols) {
    const std::string where = fmt::format("symbol {}", s.name);
    need_unique(symbols, s.name, where);
    SymExpr::symbol(s.name);
    if (s.multiple < 1) bad(where, "the multiple must be at least 1");
    if (s.lo < 0 || s.lo > s.hi)
      bad(where, fmt::format("the range {}..{} is empty or negative", s.lo, s.hi));
  }
  for (const GroupDecl& g : m.groups) {
    const std::string where = fmt::format("group {}", g.name);
    need_unique(groups, g.name, where);
    if (g.window < 0) bad(where, "the window is negative");
    if (g.block_size < 1) bad(where, "blocks must hold at least one token");
  }
  for (const StateDecl& s : m.states) {
    const std::string where = fmt::format("state {}", s.name);
    need_unique(states, s.name, where);
    if (!groups.contains(s.group)) bad(where, fmt::format("group \"{}\" is not declared", s.group));
    if (s.planes.empty()) bad(where, "it has no planes");
    Names planes;
    for (const PlaneDecl& p : s.planes) {
      need_unique(planes, p.name, where);
      need_constant_extents(p.type, fmt::format("{}, plane {}", where, p.name));
    }
  }
  for (const WeightDecl& w : m.weights) {
    const std::string where = fmt::format("weight {}", w.name);
    need_unique(weights, w.name, where);
    need_constant_extents(w.type, where);
  }
  for (const ConstantDecl& c : m.constants) {
    const std::string where = fmt::format("constant {}", c.name);
    need_unique(constants, c.name, where);
    need_constant_extents(c.type, where);
    if (c.type.dtype != DType::kF32 && c.type.dtype != DType::kI32)
      bad(where, "it must be f32 or i32");
    if (c.type.elements() != SymExpr(static_cast<int64_t>(c.values.size()))) {
      bad(where, fmt::format("it has type {}, but {} values", c.type.text(), c.values.size()));
    }
  }
}

class FunctionVerifier {
 public:
  explicit FunctionVerifier(const Function& fn) : fn_(fn), module_(fn.module()) {
    for (const SymbolDecl& s : module_.symbols) symbols_.insert(s.name);
    for (const GroupDecl& g : module_.groups) groups_.insert(g.name);
    for (const StateDecl& s : module_.states) states_.emplace(s.name, &s);
  }

  void run() {
    consumed_by_.resize(fn_.nodes().size(), UINT32_MAX);
    for (id_ = 0; id_ < fn_.nodes().size(); ++id_) {
      const Node& node = fn_.node(id_);
      if (!node.op) bad_node("it has no op");
      verify_inputs(node);
      if (node.op->tier == Tier::kStructural) {
        verify_structural(node);
      } else {
        verify_types(node);
        verify_state_use(node);
      }
      for (const Type& t : node.outputs) verify_type(t);
    }
    verify_signature();
    verify_reads();
    verify_results();
    verify_facts();
  }

 private:
  [[noreturn]] void bad_node(std::string_view what) const {
    std::string_view op = fn_.node(id_).op ? fn_.node(id_).op->name : "?";
    bad(fmt::format("function {}, node {} ({})", fn_.name(), label(id_), op), what);
  }
  [[noreturn]] void bad_function(std::string_view what) const {
    bad(fmt::format("function {}", fn_.name()), what);
  }

  // The node's number in the text it was read from; otherwise the number that the printer gives it.
  std::string label(NodeId id) const {
    auto number = fn_.text_number(id);
    return number ? fmt::format("%{}", *number) : node_label(fn_, id);
  }

  bool exists(Ref r, NodeId before) const {
    return r.node < before && r.output < fn_.node(r.node).outputs.size();
  }

  void verify_inputs(const Node& node) const {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!exists(node.inputs[i], id_))
        bad_node(fmt::format("input {} is not defined before it", i));
    }
  }

  void verify_structural(const Node& node) const {
    const Value* name = node.attrs.find("name");
    if (!name || !name->is_string() || node.outputs.size() != 1 || !node.inputs.empty()) {
      bad_node("it must have a name, one output and no inputs");
    }
    if (node.op->name == "input") return;
    const TensorType* declared = nullptr;
    if (node.op->name == "weight") {
      const WeightDecl* w = module_.find_weight(name->as_string());
      if (w) declared = &w->type;
    } else {
      const ConstantDecl* c = module_.find_constant(name->as_string());
      if (c) declared = &c->type;
    }
    if (!declared) bad_node(fmt::format("\"{}\" is not declared", name->as_string()));
    if (node.outputs[0] != Type::of(*declared)) {
      bad_node(
          fmt::format("its type is {}, declared is {}", node.outputs[0].text(), declared->text()));
    }
  }

  // Arity, attributes, device-valued extents and types: the op's own rule, run again.
  void verify_types(const Node& node) const {
    const auto& attrs = node.attrs;
    if (!attrs.is_object() ||
        !std::is_sorted(attrs.as_object().begin(), attrs.as_object().end(),
                        [](const auto& a, const auto& b) { return a.first < b.first; })) {
      bad_node("attributes must be an object with sorted keys");
    }
    std::vector<Type> in;
    in.reserve(node.inputs.size());
    for (Ref r : node.inputs) in.push_back(fn_.type(r));
    auto plane = [&](std::string_view state, int index) -> std::optional<InferContext::Plane> {
      auto it = states_.find(state);
      if (it == states_.end() || static_cast<size_t>(index) >= it->second->planes.size()) return {};
      const PlaneDecl& p = it->second->planes[static_cast<size_t>(index)];
      return InferContext::Plane{p.name, &p.type};
    };
    std::vector<Type> inferred;
    try {
      inferred = is_region(node) ? region_types(module_, *node.op, in, attrs)
                                 : infer_types(*node.op, {in, attrs, plane});
    } catch (const Error& e) {
      bad_node(e.what());
    }
    if (inferred != node.outputs) {
      bad_node(fmt::format("its type is {}, the op gives {}", types_text(node.outputs),
                           types_text(inferred)));
    }
  }

  void verify_type(const Type& type) const {
    if (type.kind == Type::Kind::kState && !states_.contains(type.name)) {
      bad_node(fmt::format("state \"{}\" is not declared", type.name));
    }
    if (type.kind == Type::Kind::kView && !groups_.contains(type.name)) {
      bad_node(fmt::format("group \"{}\" is not declared", type.name));
    }
    for (const Dim& d : type.tensor.dims) {
      if (auto n = d.extent.constant(); n && *n < 0)
        bad_node(fmt::format("the extent {} is negative", *n));
      for (const std::string& s : d.extent.symbols()) {
        if (!symbols_.contains(s)) bad_node(fmt::format("symbol {} is not declared", s));
      }
    }
  }

  void verify_state_use(const Node& node) {
    std::string_view state, group;
    for (Ref r : node.inputs) {
      const Type& t = fn_.type(r);
      if (t.kind == Type::Kind::kState) {
        if (!node.op->reads_state && !node.op->writes_state) bad_node("it does not take a state");
        if (!state.empty()) bad_node("it takes two states");
        state = t.name;
      } else if (t.kind == Type::Kind::kView) {
        group = t.name;
      }
    }
    if (!node.op->reads_state && !node.op->writes_state) return;
    auto decl = states_.find(state);
    if (decl == states_.end()) bad_node("it takes no declared state");
    if (!group.empty() && decl->second->group != group) {
      bad_node(fmt::format("state {} is in group {}, the view is of {}", state, decl->second->group,
                           group));
    }
    if (!node.op->writes_state) return;
    const Ref version = node.inputs[0];
    if (consumed_by_[version.node] != UINT32_MAX) {
      bad_node(fmt::format("this version of state {} was already replaced by {}", state,
                           label(consumed_by_[version.node])));
    }
    consumed_by_[version.node] = id_;
  }

  // Reads of a version come before the write that replaces it, and that write names them.
  void verify_reads() {
    for (id_ = 0; id_ < fn_.nodes().size(); ++id_) {
      const Node& node = fn_.node(id_);
      if (!node.op->reads_state || node.op->writes_state) continue;
      for (Ref r : node.inputs) {
        if (fn_.type(r).kind != Type::Kind::kState) continue;
        const NodeId writer = consumed_by_[r.node];
        if (writer == UINT32_MAX) continue;
        const std::string by = label(writer);
        if (writer < id_) bad_node(fmt::format("it reads a version that {} has replaced", by));
        const Node& write = fn_.node(writer);
        const size_t first = first_ordering_input(fn_, write);
        const bool named = std::any_of(write.inputs.begin() + static_cast<std::ptrdiff_t>(first),
                                       write.inputs.end(), [&](Ref in) { return in.node == id_; });
        if (!named)
          bad_node(fmt::format(
              "it reads a version that {} replaces; list this read among the inputs of that write",
              by));
      }
    }
  }

  void verify_signature() {
    Names names, states;
    for (id_ = 0; id_ < fn_.nodes().size(); ++id_) {
      const Node& node = fn_.node(id_);
      if (node.op->name != "input") continue;
      const std::string& name = node.attrs.at("name").as_string();
      if (name.empty() || !names.insert(name).second) {
        bad_node(fmt::format("input \"{}\" is declared twice", name));
      }
      const Type& t = node.outputs[0];
      if (t.kind == Type::Kind::kState && !states.insert(t.name).second) {
        bad_node(fmt::format("state {} is taken twice", t.name));
      }
    }
  }

  void verify_results() {
    Names names;
    std::unordered_set<std::string_view> returned;
    for (const Function::Result& r : fn_.results()) {
      if (r.name.empty() || !names.insert(r.name).second) {
        bad_function(fmt::format("two results are named \"{}\"", r.name));
      }
      if (!exists(r.ref, static_cast<NodeId>(fn_.nodes().size()))) {
        bad_function(fmt::format("result {} does not exist", r.name));
      }
      const Type& t = fn_.type(r.ref);
      if (t.kind == Type::Kind::kView) bad_function(fmt::format("result {} is a view", r.name));
      if (t.kind != Type::Kind::kState) continue;
      if (r.name != t.name) {
        bad_function(fmt::format("state {} is returned under the name {}", t.name, r.name));
      }
      if (consumed_by_[r.ref.node] != UINT32_MAX) {
        bad_function(fmt::format("result {} is not the last version: {} replaces it", r.name,
                                 label(consumed_by_[r.ref.node])));
      }
      returned.insert(t.name);
    }
    for (NodeId id : fn_.inputs()) {
      const Type& t = fn_.node(id).outputs.at(0);
      if (t.kind == Type::Kind::kState && !returned.contains(t.name)) {
        bad_function(fmt::format("it takes state {} but does not return its last version", t.name));
      }
    }
  }

  void verify_facts() {
    Names names;
    for (const Fact& f : fn_.facts()) {
      Ref input = fn_.find_input(f.input);
      if (!input.valid()) {
        bad_function(fmt::format("a fact about \"{}\", which is not an input", f.input));
      }
      if (fn_.type(input).kind != Type::Kind::kTensor || fn_.tensor(input).dtype != DType::kI32) {
        bad_function(fmt::format("a fact about \"{}\", which is not an i32 tensor", f.input));
      }
      if (!names.insert(f.input).second) bad_function(fmt::format("two facts about {}", f.input));
    }
  }

  const Function& fn_;
  const Module& module_;
  Names symbols_, groups_;
  std::unordered_map<std::string_view, const StateDecl*> states_;
  std::vector<NodeId> consumed_by_;  // per node: the write that consumed the version it made
  NodeId id_ = 0;
};

}  // namespace

void verify_function(const Function& function) { FunctionVerifier(function).run(); }

void verify_module(const Module& module) {
  verify_declarations(module);
  Names names;
  for (const auto& f : module.functions) {
    need_unique(names, f->name(), "module " + module.name);
    if (&f->module() != &module) bad("function " + f->name(), "it belongs to another module");
    verify_function(*f);
  }
}

}  // namespace tokamak
