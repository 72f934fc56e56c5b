#include <algorithm>

#include "base/error.h"
#include "compile/lower/lower.h"
#include "compile/planner/planner.h"
#include "graph/region.h"
#include "plan/dispatch.h"
#include "plan/region.h"
#include "tensor/plane.h"

namespace tokamak {
namespace {

// Builds one plan. A value lives in the arena unless it is an input, a weight, a state or a reshape
// of one.
class Emitter {
 public:
  Emitter(PlanSet& set, const Function& fn, const Backend& backend, std::vector<GuardRange> guard)
      : set_(set), fn_(fn), backend_(backend) {
    plan_.function = fn.name();
    plan_.guard = std::move(guard);
    for (const SymbolDecl& s : fn.module().symbols) {
      SymbolDecl bounded = s;
      for (const GuardRange& g : plan_.guard)
        if (g.symbol == s.name) bounded = {s.name, g.lo, g.hi, g.multiple};
      bounds_.push_back(bounded);
    }
  }

  void run() {
    places_.resize(fn_.nodes().size());
    count_uses();
    for (NodeId id = 0; id < fn_.nodes().size(); ++id) place(id);
    assign_arena();
    set_.plans.push_back(std::move(plan_));
  }

 private:
  struct Place {
    CallArg arg;
    int value = -1;  // index into values_ when in the arena
  };

  struct ArenaValue {
    uint32_t slot;       // index into lifetimes_; shared with the value it replaces in place
    uint32_t uses_left;  // 0: nobody reads it any more
  };

  // How often each node's outputs are read, through reshapes; results are read at the end.
  void count_uses() {
    uses_.resize(fn_.nodes().size());
    for (NodeId id = 0; id < uses_.size(); ++id) uses_[id].resize(fn_.node(id).outputs.size());
    auto uses = [&](Ref r) -> uint32_t& { return uses_[r.node][r.output]; };
    for (const Function::Result& r : fn_.results()) ++uses(r.ref);
    for (NodeId id = static_cast<NodeId>(uses_.size()); id-- > 0;) {
      const Node& node = fn_.node(id);
      bool alias = node.op->name == "reshape" && !is_weight(node.inputs[0]);
      for (Ref in : node.inputs) uses(in) += alias ? uses_[id][0] : 1;
    }
  }

  void place(NodeId id) {
    const Node& node = fn_.node(id);
    std::string_view op = node.op->name;
    if (op == "input") {
      places_[id] = {place_input(node)};
    } else if (op == "weight" || op == "constant") {
      places_[id] = {Place{}};  // resolved at the use: the kernel chooses the layout
    } else if (op == "reshape" && !is_weight(node.inputs[0])) {
      Place p = at(node.inputs[0]);  // same bytes, other extents
      p.arg.dims = extents(node.outputs[0].tensor);
      places_[id] = {p};
    } else {
      place_call(id);
    }
  }

  Place place_input(const Node& node) {
    const std::string& name = node.attrs.at("name").as_string();
    const Type& type = node.outputs[0];
    CallArg arg;
    if (type.kind == Type::Kind::kState) {
      arg.kind = CallArg::Kind::kState;
      arg.index = index_of(set_.states, type.name);
    } else if (type.kind == Type::Kind::kView) {
      arg.kind = CallArg::Kind::kView;
      arg.index = index_of(set_.groups, type.name);
    } else {
      arg.kind = CallArg::Kind::kInput;
      arg.dtype = type.tensor.dtype;
      arg.dims = extents(type.tensor);
      arg.index = intern(set_.inputs, name, [&] { return InputEntry{name, arg.dtype, arg.dims}; });
    }
    return {arg, -1};
  }

  void place_call(NodeId id) {
    const Node& node = fn_.node(id);
    const KernelDesc& kernel = select_kernel(fn_, node, backend_);
    KernelCall call;
    call.kernel = intern(set_.kernels, kernel.name, [&] {
      return KernelEntry{kernel.name, kernel.abi, kernel.numeric_class};
    });
    call.op = is_region(node) ? "region" : node.op->name;
    call.attrs = is_region(node) ? region_call_attrs(node) : node.attrs;
    call.label = node.name.empty() ? std::string(node.op->name) : node.name;
    auto index = static_cast<uint32_t>(plan_.calls.size());
    for (Ref in : node.inputs) call.in.push_back(argument(in, kernel, index));
    for (uint32_t o = 0; o < node.outputs.size(); ++o) {
      places_[id].push_back(place_output(id, o, index, kernel));
      call.out.push_back(places_[id].back().arg);
    }
    plan_.calls.push_back(std::move(call));
  }

  // The dying input whose place output 0 can take; -1 when there is none.
  int replaced_value(const Node& node, const KernelDesc& kernel) const {
    if (!kernel.in_place || node.outputs[0].kind != Type::Kind::kTensor) return -1;
    const TensorType& out = node.outputs[0].tensor;
    auto same = [&](Ref in) {
      const Type& t = fn_.type(in);
      return t.kind == Type::Kind::kTensor && t.tensor.dtype == out.dtype &&
             extents(t.tensor) == extents(out);
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Ref in = node.inputs[i];
      if (is_weight(in) || !same(in) || !same(node.inputs[0])) continue;
      int value = at(in).value;
      if (value >= 0 && values_[static_cast<size_t>(value)].uses_left == 0) return value;
    }
    return -1;
  }

  Place place_output(NodeId id, uint32_t output, uint32_t call, const KernelDesc& kernel) {
    const Node& node = fn_.node(id);
    const Type& type = node.outputs[output];
    if (type.kind == Type::Kind::kState) {  // the next version lives where the state lives
      CallArg arg;
      arg.kind = CallArg::Kind::kState;
      arg.index = index_of(set_.states, type.name);
      return {arg, -1};
    }
    CallArg arg;
    arg.kind = CallArg::Kind::kArena;
    arg.index = static_cast<uint32_t>(values_.size());
    arg.dtype = type.tensor.dtype;
    arg.dims = extents(type.tensor);
    int replaced = output == 0 ? replaced_value(node, kernel) : -1;
    if (replaced >= 0) {
      values_.push_back({values_[static_cast<size_t>(replaced)].slot, uses_[id][output]});
      lifetimes_[values_.back().slot].last = call;
    } else {
      values_.push_back({static_cast<uint32_t>(lifetimes_.size()), uses_[id][output]});
      auto bytes = static_cast<uint64_t>(type.tensor.bytes().upper(bounds_));
      lifetimes_.push_back({bytes, call, call});
    }
    return {arg, static_cast<int>(arg.index)};
  }

  CallArg argument(Ref in, const KernelDesc& kernel, uint32_t call) {
    if (is_weight(in)) return weight_argument(in, kernel);
    const Place& p = at(in);
    if (p.value >= 0) {
      ArenaValue& v = values_[static_cast<size_t>(p.value)];
      lifetimes_[v.slot].last = call;
      --v.uses_left;
    }
    return p.arg;
  }

  // A matrix that two kernels want in two layouts (tied embeddings) is two entries of one source.
  CallArg weight_argument(Ref in, const KernelDesc& kernel) {
    const Node& node = fn_.node(in.node);
    const std::string& name = node.attrs.at("name").as_string();
    const TensorType& type = node.outputs[0].tensor;
    std::string layout = type.rank() >= 2 ? kernel.weight_layout : "";
    auto it = std::find_if(set_.weights.begin(), set_.weights.end(), [&](const WeightEntry& w) {
      return w.name == name && w.layout == layout;
    });
    if (it == set_.weights.end()) {
      WeightEntry entry{name, type.dtype, {}, {}, {}, layout};
      for (const Dim& d : type.dims) entry.dims.push_back(d.extent.constant().value());
      if (const ConstantDecl* c = fn_.module().find_constant(name);
          c && node.op->name == "constant")
        entry.constant = c->values;
      else
        entry.recipe = fn_.module().find_weight(name)->recipe;
      set_.weights.push_back(std::move(entry));
      it = set_.weights.end() - 1;
    }
    CallArg arg;
    arg.kind = CallArg::Kind::kWeight;
    arg.index = static_cast<uint32_t>(it - set_.weights.begin());
    arg.dtype = type.dtype;
    arg.dims = extents(type);
    return arg;
  }

  // The body as data: backends do not see graphs.
  Value region_call_attrs(const Node& node) const {
    const Function& body = region_body(fn_.module(), node.attrs);
    if (node.attrs.get_string("kind", "") == "loop")
      return Value::Object{{"kind", "loop"},
                           {"program", loop::print_program(*lower_region(body).program)}};
    RegionProgram program;
    program.kind = node.attrs.get_string("kind", "");
    program.inputs = static_cast<uint32_t>(body.inputs().size());
    std::vector<uint32_t> first(body.nodes().size());
    uint32_t inputs = 0, next = program.inputs;
    for (NodeId id = 0; id < body.nodes().size(); ++id) {
      const Node& inner = body.node(id);
      if (inner.op->name == "input") {
        first[id] = inputs++;
        continue;
      }
      RegionStep step{std::string(inner.op->name),
                      inner.attrs,
                      {},
                      next,
                      static_cast<uint32_t>(inner.outputs.size())};
      for (Ref r : inner.inputs) step.in.push_back(first[r.node] + r.output);
      first[id] = next;
      next += step.outputs;
      program.steps.push_back(std::move(step));
    }
    for (const Function::Result& r : body.results())
      program.results.push_back(first[r.ref.node] + r.ref.output);
    return region_attrs(program);
  }

  void assign_arena() {
    for (const Function::Result& r : fn_.results()) {
      if (fn_.type(r.ref).kind != Type::Kind::kTensor) continue;
      const Place& p = at(r.ref);
      if (p.value >= 0) lifetimes_[values_[static_cast<size_t>(p.value)].slot].last = UINT32_MAX;
      plan_.outputs.push_back({r.name, p.arg});
    }
    Packing packing = pack_arena(lifetimes_);
    auto fix = [&](CallArg& arg) {
      if (arg.kind == CallArg::Kind::kArena) arg.offset = packing.offsets[values_[arg.index].slot];
    };
    for (KernelCall& call : plan_.calls) {
      std::for_each(call.in.begin(), call.in.end(), fix);
      std::for_each(call.out.begin(), call.out.end(), fix);
    }
    for (PlanOutput& o : plan_.outputs) fix(o.arg);
    plan_.arena_bytes = packing.peak;
    plan_.arena_lower_bound = packing.lower_bound;
    plan_.arena_method = std::move(packing.method);
    set_.arena_bytes = std::max(set_.arena_bytes, packing.peak);
  }

  bool is_weight(Ref r) const {
    std::string_view op = fn_.node(r.node).op->name;
    return op == "weight" || op == "constant";
  }
  const Place& at(Ref r) const { return places_[r.node][r.output]; }

  static std::vector<SymExpr> extents(const TensorType& type) {
    std::vector<SymExpr> out;
    for (const Dim& d : type.dims) out.push_back(d.extent);
    return out;
  }
  template <class Entries>
  static uint32_t index_of(const Entries& entries, std::string_view name) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (entries[i].name == name) return static_cast<uint32_t>(i);
    TK_CHECK(false, "{} is not in the plan set", name);
    return 0;
  }
  template <class Entries, class Make>
  static uint32_t intern(Entries& entries, std::string_view name, Make make) {
    for (size_t i = 0; i < entries.size(); ++i)
      if (entries[i].name == name) return static_cast<uint32_t>(i);
    entries.push_back(make());
    return static_cast<uint32_t>(entries.size() - 1);
  }

  PlanSet& set_;
  const Function& fn_;
  const Backend& backend_;
  Plan plan_;
  std::vector<SymbolDecl> bounds_;
  std::vector<std::vector<Place>> places_;
  std::vector<std::vector<uint32_t>> uses_;  // per node and output
  std::vector<ArenaValue> values_;
  std::vector<Lifetime> lifetimes_;  // per slot
};

}  // namespace

namespace {

bool stored_narrow(const Node& node) { return node.op->storage && node.attrs.has(kStorageAttr); }

}  // namespace

const KernelDesc* find_kernel(const Function& fn, const Node& node, const Backend& backend) {
  if (is_region(node)) {
    std::string prefix = fmt::format("region.{}(", node.attrs.get_string("kind", ""));
    const std::vector<Node>& body = region_body(fn.module(), node.attrs).nodes();
    bool narrow = std::any_of(body.begin(), body.end(), stored_narrow);
    for (const KernelDesc& k : backend.kernels())
      if (k.pattern.starts_with(prefix) && (!narrow || k.any_storage)) return &k;
    return nullptr;
  }
  std::vector<DType> dtypes;
  for (Ref in : node.inputs) {
    const Type& t = fn.type(in);
    dtypes.push_back(t.kind == Type::Kind::kTensor ? t.tensor.dtype : DType::kU8);
  }
  bool narrow = stored_narrow(node);
  for (const KernelDesc& k : backend.kernels())
    if (kernel_matches(k, node.op->name, dtypes) && (!narrow || k.any_storage)) return &k;
  return nullptr;
}

const KernelDesc& select_kernel(const Function& fn, const Node& node, const Backend& backend) {
  if (const KernelDesc* kernel = find_kernel(fn, node, backend)) return *kernel;
  std::string types;
  for (Ref in : node.inputs) {
    const Type& t = fn.type(in);
    types += fmt::format(
        "{}{}", types.empty() ? "" : ", ",
        t.kind == Type::Kind::kTensor ? std::string(dtype_name(t.tensor.dtype)) : t.text());
  }
  std::string stored;
  if (stored_narrow(node))
    stored = fmt::format(" stored as {}", dtype_name(node.outputs[0].tensor.dtype));
  fail(ErrorCode::kUnsupported, "backend {} has no kernel for {}({}){}, needed by {}",
       backend.name(), node.op->name, types, stored, node.name.empty() ? fn.name() : node.name);
}

void declare_tables(PlanSet& set, const Module& module) {
  set.symbols = module.symbols;
  for (const GroupDecl& g : module.groups) set.groups.push_back({g.name, g.window, g.block_size});
  for (const StateDecl& s : module.states) {
    StateEntry entry{s.name, 0, s.growth == StateDecl::Growth::kPerSequence, {}};
    while (set.groups[entry.group].name != s.group) ++entry.group;
    for (const PlaneDecl& p : s.planes) {
      PlaneEntry plane{p.name, p.type.dtype, {}, plane_bytes(p.type)};
      for (const Dim& d : p.type.dims) plane.dims.push_back(d.extent.constant().value());
      entry.planes.push_back(std::move(plane));
    }
    set.states.push_back(std::move(entry));
  }
}

void emit_plan(PlanSet& set, const Function& function, const Backend& backend,
               std::vector<GuardRange> guard) {
  count_compile();
  auto without_kernel = [&](const Node& node) {
    if (!is_region(node)) return false;
    bool loop = node.attrs.get_string("kind", "") == "loop";
    return !find_kernel(function, node, backend) ||
           (loop && !lower_region(region_body(function.module(), node.attrs)));
  };
  if (std::none_of(function.nodes().begin(), function.nodes().end(), without_kernel)) {
    Emitter(set, function, backend, std::move(guard)).run();
    return;
  }
  // A region is what its body computes: op by op where nobody runs it in one.
  Module module = function.module().clone();
  Function& copy = *module.find_function(function.name());
  inline_regions(module, copy, without_kernel);
  Emitter(set, copy, backend, std::move(guard)).run();
}

}  // namespace tokamak
