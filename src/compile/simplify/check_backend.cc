#include "compile/simplify/check_backend.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compile/planner/planner.h"
#include "graph/evaluate.h"
#include "graph/region.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

// `out_rows` is not one of them: the step has one row, which holds all values of the result.
bool is_step_input(std::string_view name) {
  for (std::string_view known : {"ids", "pos", "seq", "slot", "q_start", "kv_len"})
    if (name == known) return true;
  return false;
}

// A function with one result, whose extents are numbers and whose inputs are those of a step.
class ConcreteRun {
 public:
  ConcreteRun(const Function& fn, const EvalInputs<float>& inputs, Backend& backend)
      : module_(fn.module().clone()), inputs_(inputs), backend_(backend) {
    std::map<std::string, SymExpr, std::less<>> with;
    for (const auto& [name, value] : inputs.symbols) with.emplace(name, SymExpr(value));
    source_ = &specialize(module_, fn.name(), "concrete function", with, {});
    for (const auto& [name, t] : inputs.sources) add_source(name, t);
    make_step();
  }

  std::vector<float> run(const std::string& result, int64_t elements) {
    Module m = module_.clone();
    m.symbols.clear();
    for (WeightDecl& w : m.weights)
      if (w.recipe.sources.empty()) w.recipe.sources = {w.name};
    std::set<std::string> bodies = body_names(m);
    std::erase_if(m.functions, [&](const auto& f) { return !bodies.contains(f->name()); });
    Function& fn = m.add_function("step");
    copy(m, fn, result, elements);
    PlanSet set;
    set.model = m.name;
    set.backend = backend_.name();
    set.hidden = elements;
    set.context = 1 << 20;
    LoadOptions load;
    declare(m, set, load);
    std::vector<PlanRequest> requests(1);
    requests[0].function = &fn;
    plan_functions(set, requests, backend_, Machine{});
    check_plan_set(set);
    StepResult out;
    auto executable = backend_.load(set, weights_, load);
    executable->collect(executable->submit(step_), out);
    return std::move(out.hidden);
  }

 private:
  void add_bytes(const std::string& name, DType dtype, const EvalTensor<float>& t) {
    if (dtype == DType::kF32 || !can_encode(dtype)) return weights_.add_f32(name, t.dims, t.f);
    std::vector<std::byte> bytes(dtype_bytes(dtype, static_cast<int64_t>(t.f.size())));
    encode_row(dtype, t.f.data(), bytes.data(), static_cast<int64_t>(t.f.size()));
    weights_.add(name, dtype, t.dims, std::move(bytes));
  }

  // A source has the type of the first weight that takes it without arithmetic.
  void add_source(const std::string& name, const EvalTensor<float>& t) {
    DType dtype = DType::kF32;
    for (const WeightDecl& w : module_.weights) {
      bool takes = (w.recipe.sources.empty() && w.name == name) ||
                   std::count(w.recipe.sources.begin(), w.recipe.sources.end(), name) > 0;
      bool plain = std::none_of(w.recipe.steps.begin(), w.recipe.steps.end(), [](auto& s) {
        using Kind = RecipeStep::Kind;
        return s.kind == Kind::kScale || s.kind == Kind::kAddScalar || s.kind == Kind::kCast ||
               s.kind == Kind::kUnitRows || s.kind == Kind::kTernary;
      });
      if (!takes || !plain) continue;
      dtype = w.type.dtype;
      break;
    }
    add_bytes(name, dtype, t);
  }

  void make_step() {
    auto take = [&](const char* name, std::vector<int32_t>& to, std::vector<int32_t> otherwise) {
      auto it = inputs_.tensors.find(name);
      to = it == inputs_.tensors.end() ? std::move(otherwise) : it->second.i;
    };
    step_.out_rows = {0};
    size_t rows = 1;
    for (const char* name : {"ids", "pos", "seq", "slot"})
      if (auto it = inputs_.tensors.find(name); it != inputs_.tensors.end())
        rows = std::max(rows, it->second.i.size());
    take("q_start", step_.q_start, {0, static_cast<int32_t>(rows)});
    // An encoder has several sequences, but neither slots nor lengths.
    std::vector<int32_t> seq, slot, kv_len(step_.q_start.size() - 1, 0);
    for (size_t b = 0; b < kv_len.size(); ++b)
      for (int32_t i = 0; i < step_.q_start[b + 1] - step_.q_start[b]; ++i) {
        seq.push_back(static_cast<int32_t>(b));
        slot.push_back(i);
      }
    take("seq", step_.seq, seq);
    take("slot", step_.slot, slot);
    take("pos", step_.pos, step_.slot);
    take("ids", step_.ids, std::vector<int32_t>(step_.seq.size(), 0));
    for (size_t i = 0; i < std::min(step_.slot.size(), seq.size()); ++i) {
      int32_t& length = kv_len[static_cast<size_t>(seq[i])];
      length = std::max(length, step_.slot[i] + 1);
    }
    take("kv_len", step_.kv_len, kv_len);
    for (size_t b = 0; b < step_.kv_len.size(); ++b) step_.row.push_back(static_cast<int32_t>(b));
    SampleRow sample;
    sample.mode = SampleRow::Mode::kHidden;
    step_.samples.assign(step_.out_rows.size(), sample);
    for (const GroupDecl& g : module_.groups) {
      const EvalView& view = inputs_.views.at(g.name);
      step_.tables.push_back({view.table, static_cast<int32_t>(view.stride)});
    }
  }

  void copy(Module& m, Function& fn, const std::string& result, int64_t elements) {
    std::vector<std::vector<Ref>> now(source_->nodes().size());
    std::vector<bool> needed = needed_nodes(*source_);
    for (NodeId id = 0; id < now.size(); ++id) {
      const Node& node = source_->node(id);
      if (node.op->role == OpDef::Role::kInput) {
        now[id] = {input(m, fn, node)};
      } else if (node.op->tier == Tier::kStructural) {
        const std::string& name = node.attrs.at("name").as_string();
        now[id] = {node.op->role == OpDef::Role::kWeight ? fn.weight(name) : fn.constant(name)};
      } else if (needed[id]) {
        std::vector<Ref> in;
        size_t count =
            node.op->writes_state ? first_ordering_input(*source_, node) : node.inputs.size();
        for (size_t i = 0; i < count; ++i)
          in.push_back(now[node.inputs[i].node][node.inputs[i].output]);
        now[id] = copy_node(fn, node, std::move(in));
      }
    }
    for (const Function::Result& r : source_->results()) {
      Ref ref = now[r.ref.node][r.ref.output];
      if (source_->type(r.ref).kind == Type::Kind::kState) fn.set_result(r.name, ref);
      if (r.name != result) continue;
      if (fn.node(ref.node).op->tier == Tier::kStructural)  // a plan returns the output of a kernel
        ref = fn.add("scale", {ref}, Value::Object{{"value", 1.0}});
      ref = fn.add("reshape", {ref},
                   Value::Object{{"dims", Value::Array{int64_t{1}, elements}},
                                 {"axes", Value::Array{"r", "d"}}});
      fn.set_result("hidden", ref);
    }
  }

  Ref input(Module& m, Function& fn, const Node& node) {
    const std::string& name = node.attrs.at("name").as_string();
    const Type& type = node.outputs[0];
    if (type.kind != Type::Kind::kTensor || is_step_input(name)) return fn.add_input(name, type);
    const EvalTensor<float>& t = inputs_.tensors.at(name);
    std::string made = "input " + name;
    if (type.tensor.dtype == DType::kI32) {
      m.add_constant({made, type.tensor, {t.i.begin(), t.i.end()}});
      return fn.constant(made);
    }
    if (!weights_.find(made)) add_bytes(made, type.tensor.dtype, t);
    m.add_weight({made, type.tensor, {{made}, {}}});
    return fn.weight(made);
  }

  void declare(const Module& m, PlanSet& set, LoadOptions& load) {
    declare_tables(set, m);
    for (const GroupDecl& g : m.groups)
      load.blocks.push_back(static_cast<int64_t>(inputs_.views.at(g.name).table.size()));
  }

  Module module_;
  const EvalInputs<float>& inputs_;
  Backend& backend_;
  const Function* source_ = nullptr;
  WeightTable weights_;
  StepInputs step_;
};

EvalInputs<double> widen_inputs(const EvalInputs<float>& inputs) {
  EvalInputs<double> out;
  out.symbols = inputs.symbols;
  out.views = inputs.views;
  for (const auto& [name, t] : inputs.tensors)
    out.tensors[name] = {t.dims, {t.f.begin(), t.f.end()}, t.i, t.integer};
  for (const auto& [name, t] : inputs.sources)
    out.sources[name] = {t.dims, {t.f.begin(), t.f.end()}, t.i, t.integer};
  for (const auto& [name, s] : inputs.states) {
    out.states[name].slots = s.slots;
    for (const auto& p : s.planes)
      out.states[name].planes.push_back({p.name, p.dims, {p.data.begin(), p.data.end()}});
  }
  return out;
}

// A backend starts with empty states.
void empty_states(EvalInputs<float>& inputs) {
  for (auto& [name, state] : inputs.states)
    for (auto& plane : state.planes) std::fill(plane.data.begin(), plane.data.end(), 0.0f);
}

// Random positions may be negative; those of a step are not.
void count_positions(EvalInputs<float>& inputs) {
  auto it = inputs.tensors.find("pos");
  if (it == inputs.tensors.end() || !inputs.views.empty()) return;
  for (int32_t& p : it->second.i) p = std::abs(p % 64);
}

// A step returns float32; other results are not compared.
void keep_f32(const Function& fn, EvalResults<float>& results) {
  for (const Function::Result& r : fn.results())
    if (fn.type(r.ref).kind == Type::Kind::kTensor && fn.tensor(r.ref).dtype != DType::kF32)
      results.tensors.erase(r.name);
  if (results.tensors.empty())
    fail(ErrorCode::kUnsupported, "function {} has no f32 result that a backend could return",
         fn.name());
}

// A backend does not return its states. To compare them, the last version of every state with
// planes k and v is read by an attention with a fixed query, whose result depends on all keys and
// values that the step sees. Not added where the function lacks an input that attention needs.
Function& with_probes(Module& module, const Function& fn, const SymbolValues& symbols) {
  std::map<std::string, SymExpr, std::less<>> with;
  for (const auto& [name, value] : symbols) with.emplace(name, SymExpr(value));
  Function& out = specialize(module, fn.name(), "with probes", with, {});
  std::vector<Function::Result> results = out.results();
  for (const Function::Result& r : results) {
    if (out.type(r.ref).kind != Type::Kind::kState) continue;
    const StateDecl* state = module.find_state(out.type(r.ref).name);
    std::vector<Ref> in = {Ref{}, r.ref, Ref{}};
    for (NodeId id : out.inputs())
      if (const Type& t = out.node(id).outputs[0];
          t.kind == Type::Kind::kView && t.name == state->group)
        in[2] = {id, 0};
    for (const char* name : {"pos", "seq", "slot", "q_start", "kv_len"})
      in.push_back(out.find_input(name));
    auto plane = std::find_if(state->planes.begin(), state->planes.end(),
                              [](const PlaneDecl& p) { return p.name == "k"; });
    bool complete = std::all_of(in.begin() + 1, in.end(), [](Ref i) { return i.valid(); });
    if (!complete || plane == state->planes.end() || plane->type.rank() != 2) continue;
    ConstantDecl query{"probe " + state->name, {DType::kF32, plane->type.dims}, {}};
    query.type.dims.insert(query.type.dims.begin(), out.tensor(in[3]).dims[0]);
    Rng rng(1);
    for (int64_t n = query.type.elements().constant().value(); n > 0; --n)
      query.values.push_back(rng.normal());
    module.add_constant(query);
    in[0] = out.constant(query.name);
    out.set_result(query.name, out.add("attend", in, Value::Object{{"scale", 1.0}}));
  }
  return out;
}

// Kernels sum in another order than the meaning and round more often.
constexpr double kKernelRoundings = 16;

}  // namespace

CheckReport check_on_backend(const Function& before, const Function& after, Backend& backend,
                             const CheckOptions& options) {
  CheckReport report;
  for (int run = 0; run < options.runs; ++run) {
    Rng rng(options.seed * 1000003 + static_cast<uint64_t>(run));
    EvalInputs<float> inputs;
    EvalResults<float> want;
    Module module = before.module().clone(), optimised = after.module().clone();
    Function *one = nullptr, *other = nullptr;
    try {
      inputs = convert_inputs<float>(
          random_inputs(before, random_symbols(before, rng), rng, Values::kNormal));
      empty_states(inputs);
      count_positions(inputs);
      one = &with_probes(module, before, inputs.symbols);
      other = &with_probes(optimised, after, inputs.symbols);
      want = evaluate<float>(*one, inputs);
    } catch (const Error& e) {
      report.message = e.what();
      continue;
    }
    ++report.runs;
    keep_f32(*one, want);
    CheckOptions how = options;
    how.cls = std::max(options.cls, PassClass::kReal);
    ErrorBounds bounds = error_bounds(*one, *other, widen_inputs(inputs), kKernelRoundings);
    ConcreteRun concrete(*other, inputs, backend);
    EvalResults<float> have;
    for (const auto& [name, t] : want.tensors)
      have.tensors[name] = {
          t.dims, concrete.run(name, static_cast<int64_t>(t.f.size())), {}, false};
    want.states.clear();
    compare_runs(want, have, bounds, how, report);
  }
  return report;
}

std::vector<float> run_on_backend(const Function& function, const EvalInputs<float>& inputs,
                                  const std::string& result, Backend& backend) {
  for (const Function::Result& r : function.results())
    if (r.name == result)
      return ConcreteRun(function, inputs, backend)
          .run(result, function.tensor(r.ref).elements().eval(inputs.symbols));
  fail(ErrorCode::kInvalidArgument, "function {} has no result {}", function.name(), result);
}

CheckReport compare_on_backend(const Function& before, const Function& after, Backend& backend,
                               const CheckOptions& options) {
  CheckReport report;
  for (int run = 0; run < options.runs; ++run) {
    Rng rng(options.seed * 1000003 + static_cast<uint64_t>(run));
    EvalInputs<float> inputs = convert_inputs<float>(
        random_inputs(before, random_symbols(before, rng), rng, Values::kNormal));
    empty_states(inputs);
    Module first = before.module().clone(), second = after.module().clone();
    const Function &from = with_probes(first, before, inputs.symbols),
                   &to = with_probes(second, after, inputs.symbols);
    ConcreteRun one(from, inputs, backend), other(to, inputs, backend);
    EvalResults<float> want, have;
    for (const Function::Result& r : from.results()) {
      const Type& type = from.type(r.ref);
      if (type.kind != Type::Kind::kTensor || type.tensor.dtype != DType::kF32) continue;
      int64_t n = type.tensor.elements().eval(inputs.symbols);
      want.tensors[r.name] = {{n}, one.run(r.name, n), {}, false};
      have.tensors[r.name] = {{n}, other.run(r.name, n), {}, false};
    }
    ++report.runs;
    TK_CHECK(options.cls == PassClass::kExact);
    compare_runs(want, have, {}, options, report);
  }
  return report;
}

}  // namespace tokamak
