#include "graph/evaluate.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "graph/region.h"
#include "ops/meaning.h"
#include "tensor/plane.h"

namespace tokamak {

int64_t element_count(const std::vector<int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

namespace {

std::vector<int64_t> extents(const TensorType& type, const SymbolValues& symbols) {
  std::vector<int64_t> dims;
  for (const Dim& d : type.dims) dims.push_back(d.extent.eval(symbols));
  return dims;
}

bool is_int(DType dtype) { return dtype == DType::kI32; }

template <class S>
EvalTensor<S> allocate(const TensorType& type, const SymbolValues& symbols) {
  EvalTensor<S> t;
  t.dims = extents(type, symbols);
  auto n = static_cast<size_t>(element_count(t.dims));
  t.integer = is_int(type.dtype);
  if (t.integer)
    t.i.resize(n);
  else
    t.f.resize(n);
  return t;
}

// Tensors without elements have no memory; meanings get a valid pointer that they do not read.
template <class S>
TensorRef<S> tensor_ref(EvalTensor<S>& t) {
  static S nothing{};
  static int32_t no_integers = 0;
  if (t.integer) return {t.dims, nullptr, t.i.empty() ? &no_integers : t.i.data()};
  return {t.dims, t.f.empty() ? &nothing : t.f.data(), nullptr};
}

template <class S>
class Interpreter {
 public:
  Interpreter(const Function& fn, const EvalInputs<S>& inputs, const EvalVisitor<S>& visit)
      : fn_(fn), inputs_(inputs), visit_(visit) {}

  EvalResults<S> run() {
    values_.resize(fn_.nodes().size());
    for (NodeId id = 0; id < values_.size(); ++id) step(id);
    EvalResults<S> results;
    for (const Function::Result& r : fn_.results()) {
      const Value& v = values_[r.ref.node][r.ref.output];
      if (v.state)
        results.states[r.name] = *v.state;
      else
        results.tensors[r.name] = *v.tensor;
    }
    return results;
  }

  std::vector<EvalTensor<S>> run(std::span<const Ref> wanted) {
    values_.resize(fn_.nodes().size());
    std::vector<bool> needed(values_.size());
    for (Ref r : wanted) needed[r.node] = true;
    for (size_t id = needed.size(); id-- > 0;)
      if (needed[id])
        for (Ref r : fn_.node(static_cast<NodeId>(id)).inputs) needed[r.node] = true;
    for (NodeId id = 0; id < values_.size(); ++id)
      if (needed[id]) step(id);
    std::vector<EvalTensor<S>> out;
    for (Ref r : wanted) out.push_back(*values_[r.node][r.output].tensor);
    return out;
  }

 private:
  struct Value {  // shared: a reshape or a result does not copy
    std::shared_ptr<EvalTensor<S>> tensor;
    std::shared_ptr<EvalState<S>> state;
    const EvalView* view = nullptr;
  };
  struct Bound {
    Operand<S> operand;
    std::vector<typename StateRef<S>::Plane> planes;
  };

  template <class Map>
  const auto& need(const Map& map, const std::string& name, std::string_view what) const {
    auto it = map.find(name);
    if (it == map.end()) fail(ErrorCode::kInvalidArgument, "{} {} has no value", what, name);
    return it->second;
  }

  void step(NodeId id) {
    const Node& node = fn_.node(id);
    if (node.op->tier == Tier::kStructural) {
      values_[id] = {structural(node)};
    } else if (is_region(node)) {
      run_region(id, node);
    } else {
      run_op(id, node);
    }
    if (visit_ && !is_region(node))  // the nodes of a region's body were visited
      for (const Value& v : values_[id])
        if (v.tensor) visit_(node, *v.tensor);
  }

  Value structural(const Node& node) {
    const std::string& name = node.attrs.at("name").as_string();
    const Type& type = node.outputs[0];
    Value v;
    if (node.op->name == "weight") {
      v.tensor = std::make_shared<EvalTensor<S>>(
          evaluate_weight(*fn_.module().find_weight(name), inputs_));
    } else if (node.op->name == "constant") {
      v.tensor = std::make_shared<EvalTensor<S>>(constant(*fn_.module().find_constant(name)));
    } else if (type.kind == Type::Kind::kState) {
      v.state = std::make_shared<EvalState<S>>(need(inputs_.states, type.name, "state"));
    } else if (type.kind == Type::Kind::kView) {
      v.view = &need(inputs_.views, type.name, "view");
    } else {
      v.tensor = std::make_shared<EvalTensor<S>>(need(inputs_.tensors, name, "input"));
      TK_CHECK(v.tensor->dims == extents(type.tensor, inputs_.symbols), "input {}", name);
    }
    return v;
  }

  EvalTensor<S> constant(const ConstantDecl& decl) const {
    EvalTensor<S> t = allocate<S>(decl.type, inputs_.symbols);
    for (size_t i = 0; i < decl.values.size(); ++i) {
      if (is_int(decl.type.dtype)) {
        t.i[i] = static_cast<int32_t>(decl.values[i]);
      } else if constexpr (std::is_same_v<S, Field>) {
        if (!std::isfinite(decl.values[i]))
          fail(ErrorCode::kUnsupported, "{} is not a number of the finite field", decl.values[i]);
        t.f[i] = Field::from_double(decl.values[i]);
      } else {
        t.f[i] = static_cast<S>(decl.values[i]);
      }
    }
    return t;
  }

  void run_op(NodeId id, const Node& node) {
    Meaning<S> meaning = meaning_of<S>(*node.op);
    if (!meaning)
      fail(ErrorCode::kUnsupported, "{} has no meaning over this scalar", node.op->name);
    std::vector<Value> in, out;
    for (Ref r : node.inputs) in.push_back(values_[r.node][r.output]);
    for (const Type& type : node.outputs) {
      Value v;
      if (type.kind == Type::Kind::kState)
        v.state = std::make_shared<EvalState<S>>(*in[0].state);  // versions do not share memory
      else
        v.tensor = std::make_shared<EvalTensor<S>>(allocate<S>(type.tensor, inputs_.symbols));
      out.push_back(std::move(v));
    }
    if (node.op->writes_state && !node.op->recurrent) round_planes(node, in);
    if (node.op->reads_state) check_step(node, in);
    std::vector<Bound> bound;
    bound.reserve(in.size() + out.size());
    std::vector<Operand<S>> in_operands, out_operands;
    for (const Value& v : in) in_operands.push_back(bound.emplace_back(bind(v)).operand);
    for (const Value& v : out) out_operands.push_back(bound.emplace_back(bind(v)).operand);
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i].tensor) out_operands[i].tensor.storage = node.outputs[i].tensor.dtype;
    meaning({in_operands, out_operands, node.attrs});
    values_[id] = std::move(out);
  }

  // A region computes what its body computes.
  void run_region(NodeId id, const Node& node) {
    const Function& body = region_body(fn_.module(), node.attrs);
    EvalInputs<S> inputs;
    inputs.symbols = inputs_.symbols;
    for (size_t i = 0; i < body.inputs().size(); ++i) {
      const Value& v = values_[node.inputs[i].node][node.inputs[i].output];
      const Node& input = body.node(body.inputs()[i]);
      if (v.state)
        inputs.states[input.outputs[0].name] = *v.state;
      else if (v.view)
        inputs.views[input.outputs[0].name] = *v.view;
      else
        inputs.tensors[input.attrs.at("name").as_string()] = *v.tensor;
    }
    EvalResults<S> made = Interpreter<S>(body, inputs, visit_).run();
    for (const Function::Result& r : body.results()) {
      Value v;
      if (body.type(r.ref).kind == Type::Kind::kState)
        v.state = std::make_shared<EvalState<S>>(std::move(made.states.at(r.name)));
      else
        v.tensor = std::make_shared<EvalTensor<S>>(std::move(made.tensors.at(r.name)));
      values_[id].push_back(std::move(v));
    }
  }

  // The meaning of attend does not check that sequences, rows and lengths are consistent.
  static void check_step(const Node& node, const std::vector<Value>& in) {
    const EvalView& view = *in[2].view;
    const std::vector<int32_t>&seq = in[4].tensor->i, &q_start = in[6].tensor->i,
          &kv_len = in[7].tensor->i;
    auto rows = static_cast<int32_t>(seq.size());
    auto sequences = static_cast<int32_t>(kv_len.size());
    bool fits = view.stride * sequences <= static_cast<int64_t>(view.table.size());
    for (int32_t b : seq) fits &= b >= 0 && b < sequences;
    for (size_t b = 0; fits && b < kv_len.size(); ++b)
      fits = q_start[b] >= 0 && q_start[b] <= q_start[b + 1] && q_start[b + 1] <= rows &&
             kv_len[b] >= q_start[b + 1] - q_start[b] && kv_len[b] <= view.stride * view.block_size;
    if (!fits)
      fail(ErrorCode::kInvalidArgument, "{}: seq, q_start and kv_len do not belong to one step",
           node.op->name);
  }

  // append stores what the plane's type can hold. The oracle over double and the field keep
  // everything: they check algebra, not rounding.
  void round_planes(const Node& node, std::vector<Value>& in) {
    if constexpr (std::is_same_v<S, float>) {
      const StateDecl* state = fn_.module().find_state(node.outputs[0].name);
      for (size_t p = 0; p < state->planes.size(); ++p) {
        auto rounded = std::make_shared<EvalTensor<S>>(*in[4 + p].tensor);
        const TensorType& type = state->planes[p].type;
        int64_t width = type.rank() == 0 ? 1 : type.extent(-1).eval(inputs_.symbols);
        round_plane(type.dtype, width, rounded->f);
        in[4 + p].tensor = std::move(rounded);
      }
    }
  }

  static Bound bind(const Value& v) {
    Bound b;
    if (v.state) {
      for (auto& p : v.state->planes)
        b.planes.push_back({p.name, p.data.data(), element_count(p.dims), p.dims});
      b.operand.state = {b.planes, v.state->slots};
    } else if (v.view) {
      b.operand.view = {v.view->table.data(), v.view->stride, v.view->block_size};
    } else {
      b.operand.tensor = tensor_ref(*v.tensor);
    }
    return b;
  }

  const Function& fn_;
  const EvalInputs<S>& inputs_;
  const EvalVisitor<S>& visit_;
  std::vector<std::vector<Value>> values_;
};

}  // namespace

template <class S>
EvalResults<S> evaluate(const Function& function, const EvalInputs<S>& inputs,
                        const EvalVisitor<S>& visit) {
  return Interpreter<S>(function, inputs, visit).run();
}
template EvalResults<float> evaluate(const Function&, const EvalInputs<float>&,
                                     const EvalVisitor<float>&);
template EvalResults<double> evaluate(const Function&, const EvalInputs<double>&,
                                      const EvalVisitor<double>&);
template EvalResults<Field> evaluate(const Function&, const EvalInputs<Field>&,
                                     const EvalVisitor<Field>&);

template <class S>
std::vector<EvalTensor<S>> evaluate_refs(const Function& function, const EvalInputs<S>& inputs,
                                         std::span<const Ref> refs, const EvalVisitor<S>& visit) {
  return Interpreter<S>(function, inputs, visit).run(refs);
}
template std::vector<EvalTensor<float>> evaluate_refs(const Function&, const EvalInputs<float>&,
                                                      std::span<const Ref>,
                                                      const EvalVisitor<float>&);
template std::vector<EvalTensor<double>> evaluate_refs(const Function&, const EvalInputs<double>&,
                                                       std::span<const Ref>,
                                                       const EvalVisitor<double>&);
template std::vector<EvalTensor<Field>> evaluate_refs(const Function&, const EvalInputs<Field>&,
                                                      std::span<const Ref>,
                                                      const EvalVisitor<Field>&);

std::optional<std::vector<EvalTensor<float>>> evaluate_node(
    const Node& node, std::span<const EvalTensor<float>> inputs) {
  std::vector<EvalTensor<float>> out;
  for (const Type& type : node.outputs) {
    if (type.kind != Type::Kind::kTensor) return std::nullopt;
    if (type.tensor.dtype != DType::kF32 && type.tensor.dtype != DType::kI32) return std::nullopt;
    out.push_back(allocate<float>(type.tensor, {}));
  }
  auto bind = [](EvalTensor<float>& t) {
    Operand<float> o;
    o.tensor = tensor_ref(t);
    return o;
  };
  std::vector<EvalTensor<float>> copies(inputs.begin(), inputs.end());
  std::vector<Operand<float>> in_operands, out_operands;
  for (EvalTensor<float>& t : copies) in_operands.push_back(bind(t));
  for (EvalTensor<float>& t : out) out_operands.push_back(bind(t));
  node.op->f32({in_operands, out_operands, node.attrs});
  return out;
}

namespace {

template <class S>
std::vector<S> convert(const std::vector<double>& from) {
  std::vector<S> to;
  to.reserve(from.size());
  for (double v : from) {
    if constexpr (std::is_same_v<S, Field>)
      to.push_back(Field::from_double(std::isfinite(v) ? v : 0.0));
    else
      to.push_back(static_cast<S>(v));
  }
  return to;
}

}  // namespace

template <class S>
EvalInputs<S> convert_inputs(const EvalInputs<double>& inputs) {
  EvalInputs<S> out;
  out.symbols = inputs.symbols;
  out.views = inputs.views;
  for (const auto& [name, t] : inputs.tensors)
    out.tensors[name] = {t.dims, convert<S>(t.f), t.i, t.integer};
  for (const auto& [name, t] : inputs.sources)
    out.sources[name] = {t.dims, convert<S>(t.f), {}, false};
  for (const auto& [name, s] : inputs.states) {
    EvalState<S>& state = out.states[name];
    state.slots = s.slots;
    for (const auto& p : s.planes) state.planes.push_back({p.name, p.dims, convert<S>(p.data)});
  }
  return out;
}
template EvalInputs<float> convert_inputs(const EvalInputs<double>&);
template EvalInputs<double> convert_inputs(const EvalInputs<double>&);
template EvalInputs<Field> convert_inputs(const EvalInputs<double>&);

}  // namespace tokamak
