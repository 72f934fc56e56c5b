#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "compile/planner/choose.h"
#include "plan/dispatch.h"
#include "tensor/plane.h"

namespace tokamak {
namespace {

using RegionTable = std::map<std::string, int32_t>;  // of PlanSet::regions, by text

// Builds one plan. A value lives in the arena unless it is an input, a weight, a state or a reshape
// of one.
class Emitter {
 public:
  Emitter(PlanSet& set, const PlanRequest& request, size_t index, const KernelSet& kernels,
          const KernelChooser& chooser, RegionTable& regions)
      : set_(set),
        fn_(chooser.function(index)),
        index_(index),
        kernels_(kernels),
        chooser_(chooser),
        regions_(regions) {
    plan_.function = request.plan_function();
    plan_.guard = request.guard;
    plan_.bound_symbols = request.bound_symbols;
    bounds_ = symbol_bounds(set_, plan_);
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
    uint32_t uses_left;  // 0: its last reader has run
  };

  // How often each node's outputs are read, through reshapes; results are read at the end.
  void count_uses() {
    uses_.resize(fn_.nodes().size());
    for (NodeId id = 0; id < uses_.size(); ++id) uses_[id].resize(fn_.node(id).outputs.size());
    auto uses = [&](Ref r) -> uint32_t& { return uses_[r.node][r.output]; };
    for (const Function::Result& r : fn_.results()) ++uses(r.ref);
    for (NodeId id = static_cast<NodeId>(uses_.size()); id-- > 0;) {
      const Node& node = fn_.node(id);
      bool alias = is_alias(fn_, node);
      for (Ref in : node.inputs) uses(in) += alias ? uses_[id][0] : 1;
    }
  }

  void place(NodeId id) {
    const Node& node = fn_.node(id);
    if (is_weight(node)) {
      places_[id] = {Place{}};  // resolved at the use: the kernel chooses the layout
    } else if (node.op->tier == Tier::kStructural) {
      places_[id] = {place_input(node)};
    } else if (is_alias(fn_, node)) {
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
    const KernelChooser::Choice& choice = chooser_.choice(index_, node);
    const KernelDesc& kernel = *choice.kernel;
    KernelCall call;
    call.scratch = choice.scratch;
    plan_.seconds += choice.seconds;
    set_.scratch_bytes = std::max(set_.scratch_bytes, call.scratch);
    call.kernel = intern(set_.kernels, kernel.name, [&] {
      return KernelEntry{kernel.name, kernel.abi, kernel.numeric_class};
    });
    call.op = is_region(node) ? "region" : node.op->name;
    if (is_region(node))
      call.region = intern_region(region_body(fn_.module(), node.attrs));
    else
      call.attrs = node.attrs;
    call.label = node.name.empty() ? std::string(node.op->name) : node.name;
    auto index = static_cast<uint32_t>(plan_.calls.size());
    size_t count = node.op->writes_state ? first_ordering_input(fn_, node) : node.inputs.size();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      CallArg arg = weight(node.inputs[i]) ? weight_argument(node, i, kernel)
                                           : argument(node.inputs[i], index);
      if (i < count) call.in.push_back(std::move(arg));  // the rest only orders the write
    }
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
      if (weight(in) || !same(in) || !same(node.inputs[0])) continue;
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

  CallArg argument(Ref in, uint32_t call) {
    const Place& p = at(in);
    if (p.value >= 0) {
      ArenaValue& v = values_[static_cast<size_t>(p.value)];
      lifetimes_[v.slot].last = call;
      --v.uses_left;
    }
    return p.arg;
  }

  CallArg weight_argument(const Node& user, size_t operand, const KernelDesc& kernel) {
    const Node& node = fn_.node(user.inputs[operand].node);
    const std::string& name = node.attrs.at("name").as_string();
    const TensorType& type = node.outputs[0].tensor;
    bool packed = type.rank() >= 2 && kernels_.packs(kernel, fn_, user, operand);
    std::string layout = packed ? kernel.weight_layout : "";
    auto it = std::find_if(set_.weights.begin(), set_.weights.end(),
                           [&](const WeightEntry& w) { return w.name == name; });
    TK_CHECK(it == set_.weights.end() || it->layout == layout, "weight {} in two layouts", name);
    if (it == set_.weights.end()) {
      WeightEntry entry{name, type.dtype, {}, {}, {}, layout};
      for (const Dim& d : type.dims) entry.dims.push_back(d.extent.constant().value());
      const WeightDecl* decl = fn_.module().find_weight(name);
      if (decl && node.op->role == OpDef::Role::kWeight)
        entry.recipe = decl->recipe;
      else
        entry.constant = fn_.module().find_constant(name)->values;
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
  int32_t intern_region(const Function& body) {
    const std::optional<Region>& region = kernels_.region_of(body);
    TK_CHECK(region.has_value(), "{} has no form for a plan", body.name());
    auto [it, fresh] = regions_.try_emplace(region_text(*region), 0);
    if (fresh) {
      it->second = static_cast<int32_t>(set_.regions.size());
      set_.regions.push_back(*region);
    }
    return it->second;
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
    if (plan_.function != kSampleFunction)  // has an arena of its own
      set_.arena_bytes = std::max(set_.arena_bytes, packing.peak);
  }

  bool weight(Ref r) const { return is_weight(fn_.node(r.node)); }
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
  const size_t index_;  // of the request
  const KernelSet& kernels_;
  const KernelChooser& chooser_;
  RegionTable& regions_;
  Plan plan_;
  std::vector<SymbolDecl> bounds_;
  std::vector<std::vector<Place>> places_;
  std::vector<std::vector<uint32_t>> uses_;  // per node and output
  std::vector<ArenaValue> values_;
  std::vector<Lifetime> lifetimes_;  // per slot
};

// Blocks of KV may be shared only between plans that round in the same places. Fusing is exact: a
// region counts as its ops.
std::string numerics_id(const PlanSet& set, const KernelChooser& chooser, const Backend& backend) {
  std::set<std::string> folds;  // factors that were multiplied into weights
  for (const WeightEntry& w : set.weights)
    for (const RecipeStep& s : w.recipe.steps)
      if (s.kind == RecipeStep::Kind::kScale || s.kind == RecipeStep::Kind::kScaleColumns)
        folds.insert(w.name + recipe_to_text({{}, {s}}));
  Hash128 hash;
  hash.add(backend.isa());
  for (const std::string& c : chooser.numeric_classes()) hash.add(c);
  for (const std::string& f : folds) hash.add(f);
  for (const StateEntry& s : set.states)
    for (const PlaneEntry& p : s.planes) hash.add(dtype_name(p.dtype));
  return hash.hex();
}

}  // namespace

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

void plan_functions(PlanSet& set, const std::vector<PlanRequest>& requests, const Backend& backend,
                    const Machine& machine, FusionReport* report) {
  KernelSet kernels(backend);
  KernelChooser chooser(kernels, machine, requests);
  RegionTable regions;
  for (size_t i = 0; i < requests.size(); ++i) {
    count_compile();
    Emitter(set, requests[i], i, kernels, chooser, regions).run();
  }
  set.numerics_id = numerics_id(set, chooser, backend);
  if (report) report->choices = chooser.report();
}

Machine compile_machine(const CompileOptions& options) {
  return options.machine.empty() ? Machine{} : load_machine_file(options.machine);
}

}  // namespace tokamak
