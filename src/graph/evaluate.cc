#include "graph/evaluate.h"

#include <cmath>

#include "base/error.h"
#include "graph/region.h"
#include "ops/meaning.h"
#include "tensor/plane.h"

namespace tokamak {
namespace {

std::vector<int64_t> extents(const TensorType& type, const SymbolValues& symbols) {
  std::vector<int64_t> dims;
  for (const Dim& d : type.dims) dims.push_back(d.extent.eval(symbols));
  return dims;
}

int64_t count(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

bool is_int(DType dtype) { return dtype == DType::kI32; }

template <class S>
EvalTensor<S> allocate(const TensorType& type, const SymbolValues& symbols) {
  EvalTensor<S> t;
  t.dims = extents(type, symbols);
  auto n = static_cast<size_t>(count(t.dims));
  t.integer = is_int(type.dtype);
  if (t.integer)
    t.i.resize(n);
  else
    t.f.resize(n);
  return t;
}

// Tensors without elements have no memory; meanings get a place they do not look at.
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
  Interpreter(const Function& fn, const EvalInputs<S>& inputs) : fn_(fn), inputs_(inputs) {}

  EvalResults<S> run() {
    values_.resize(fn_.nodes().size());
    for (NodeId id = 0; id < values_.size(); ++id) step(id);
    for (const Function::Result& r : fn_.results()) {
      const Value& v = values_[r.ref.node][r.ref.output];
      if (v.state)
        results_.states[r.name] = *v.state;
      else
        results_.tensors[r.name] = *v.tensor;
    }
    return std::move(results_);
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
    for (const Value& v : values_[id])
      if (v.tensor) watch(*v.tensor);
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
          fail(ErrorCode::kUnsupported, "{} is not in the field", decl.values[i]);
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
        v.state = std::make_shared<EvalState<S>>(*in[0].state);  // a version is a value
      else
        v.tensor = std::make_shared<EvalTensor<S>>(allocate<S>(type.tensor, inputs_.symbols));
      out.push_back(std::move(v));
    }
    if (node.op->writes_state) round_planes(node, in);
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

  // A region is what its body computes.
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
    EvalResults<S> made = Interpreter<S>(body, inputs).run();
    results_.largest = std::max(results_.largest, made.largest);
    for (const Function::Result& r : body.results()) {
      Value v;
      if (body.type(r.ref).kind == Type::Kind::kState)
        v.state = std::make_shared<EvalState<S>>(std::move(made.states.at(r.name)));
      else
        v.tensor = std::make_shared<EvalTensor<S>>(std::move(made.tensors.at(r.name)));
      values_[id].push_back(std::move(v));
    }
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
        b.planes.push_back({p.name, p.data.data(), count(p.dims), p.dims});
      b.operand.state = {b.planes, v.state->slots};
    } else if (v.view) {
      b.operand.view = {v.view->table.data(), v.view->stride, v.view->block_size};
    } else {
      b.operand.tensor = tensor_ref(*v.tensor);
    }
    return b;
  }

  void watch(const EvalTensor<S>& t) {
    if constexpr (!std::is_same_v<S, Field>)
      for (S x : t.f)
        if (double m = std::abs(static_cast<double>(x)); std::isfinite(m))
          results_.largest = std::max(results_.largest, m);
  }

  const Function& fn_;
  const EvalInputs<S>& inputs_;
  std::vector<std::vector<Value>> values_;
  EvalResults<S> results_;
};

}  // namespace

template <class S>
EvalResults<S> evaluate(const Function& function, const EvalInputs<S>& inputs) {
  return Interpreter<S>(function, inputs).run();
}
template EvalResults<float> evaluate(const Function&, const EvalInputs<float>&);
template EvalResults<double> evaluate(const Function&, const EvalInputs<double>&);
template EvalResults<Field> evaluate(const Function&, const EvalInputs<Field>&);

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

}  // namespace tokamak
