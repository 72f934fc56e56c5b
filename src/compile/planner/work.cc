#include "compile/planner/work.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tokamak {

std::vector<ShapeValues> design_shapes(const Function& fn) {
  const bool decode = std::any_of(fn.facts().begin(), fn.facts().end(),
                                  [](const Fact& f) { return f.input == "out_rows"; });
  std::vector<ShapeValues> out;
  for (int64_t size : decode ? std::vector<int64_t>{1, 8} : std::vector<int64_t>{16, 512}) {
    ShapeValues values;
    for (const SymbolDecl& s : fn.module().symbols) {
      bool few = !decode && (s.name == "B" || s.name == "R");
      int64_t v = std::clamp(few ? 1 : size, s.lo, s.hi) / s.multiple * s.multiple;
      values[s.name] = std::max(v, s.lo);
    }
    if (out.empty() || out.back() != values) out.push_back(std::move(values));
  }
  return out;
}

WorkMeter::WorkMeter(const Function& fn, std::vector<ShapeValues> shapes, std::vector<bool> weights,
                     double all_weight_bytes)
    : fn_(fn), shapes_(std::move(shapes)), all_weight_bytes_(all_weight_bytes) {
  size_t nodes = fn.nodes().size();
  weight_.assign(nodes, false);
  sizes_.resize(nodes);
  flops_.resize(nodes);
  for (size_t i = 0; i < weights.size(); ++i) weight_[fn.inputs()[i]] = weights[i];
  for (NodeId id = 0; id < nodes; ++id) {
    const Node& node = fn.node(id);
    weight_[id] = weight_[id] || is_weight(node);
    for (const Type& t : node.outputs) {
      bool tensor = t.kind == Type::Kind::kTensor;
      SymExpr count = tensor ? t.tensor.elements() : SymExpr(0),
              bytes = tensor ? t.tensor.bytes() : SymExpr(0),
              last = tensor && t.tensor.rank() > 0 ? t.tensor.extent(-1) : SymExpr(1);
      for (const ShapeValues& s : shapes_)
        sizes_[id].push_back({static_cast<double>(count.eval(s)),
                              static_cast<double>(bytes.eval(s)),
                              static_cast<double>(last.eval(s))});
    }
    flops_[id].assign(shapes_.size(), 0);
    if (!is_call_node(fn_, node) || !node.op->flops) continue;
    std::vector<Type> in;
    for (Ref r : node.inputs) in.push_back(fn.type(r));
    SymExpr flops = node.op->flops(in, node.outputs);
    for (size_t s = 0; s < shapes_.size(); ++s)
      flops_[id][s] = static_cast<double>(flops.eval(shapes_[s]));
  }
  if (all_weight_bytes_ == 0)
    for (NodeId id = 0; id < nodes; ++id)
      if (weight_[id]) all_weight_bytes_ += sizes_[id][0].bytes;
}

double WorkMeter::vector_ops(NodeId id, size_t shape) const {
  const Node& node = fn_.node(id);
  if (!is_call_node(fn_, node)) return 0;  // an alias costs nothing, inside a region too
  double n = 0;
  for (uint32_t o = 0; o < node.outputs.size(); ++o) n += elements({id, o}, shape);
  if (node.op->writes_state)
    for (auto i = static_cast<size_t>(node.op->first_plane); i < first_ordering_input(fn_, node);
         ++i)
      n += elements(node.inputs[i], shape);
  return n * node.op->element_ops;
}

// A kernel reads at most as many matrices of a stack as it has rows.
double WorkMeter::read_bytes(const Node& node, size_t operand, double rows, size_t shape) const {
  double all = bytes(node.inputs[operand], shape);
  OperandRead read = node.op->reads ? node.op->reads(operand, node.attrs) : OperandRead{};
  if (read.kind != OperandRead::Kind::kRowPerRow) return all;
  auto slices = fn_.tensor(node.inputs[operand]).extent(0).constant();
  return slices && *slices > 0 ? all * std::min(1.0, rows / static_cast<double>(*slices)) : all;
}

OpWork WorkMeter::op_work(NodeId id, OpWork::Part part, size_t shape) const {
  const Node& node = fn_.node(id);
  OpWork w;
  w.op = node.op->name;
  w.part = part;
  w.flops = flops_[id][shape];
  w.vector_ops = vector_ops(id, shape);
  w.elements = elements({id, 0}, shape);
  if (!node.inputs.empty()) {
    const ValueSize& x = size_of(node.inputs[0], shape);
    w.in_elements = x.elements;
    w.rows = x.last > 0 ? x.elements / x.last : 0;
    const Type& t = fn_.type(node.inputs[0]);
    if (t.kind == Type::Kind::kTensor) w.activations = t.tensor.dtype;
  }
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (weight(node.inputs[i])) {
      w.weight_bytes += read_bytes(node, i, w.rows, shape);
      w.weights = fn_.type(node.inputs[i]).tensor.dtype;
    }
  return w;
}

KernelWork WorkMeter::work(const std::vector<NodeId>& nodes, const std::vector<OpWork::Part>& parts,
                           const std::vector<Ref>& in, const std::vector<Ref>& out,
                           size_t shape) const {
  KernelWork w;
  w.all_weight_bytes = all_weight_bytes_;
  for (size_t i = 0; i < nodes.size(); ++i) {
    OpWork::Part part = parts.empty() ? OpWork::Part::kAnchor : parts[i];
    w.ops.push_back(op_work(nodes[i], part, shape));
    if (part == OpWork::Part::kAnchor && w.m == 0) {
      const ValueSize& y = size_of({nodes[i], 0}, shape);
      const Node& node = fn_.node(nodes[i]);
      w.n = y.last;
      w.m = y.last > 0 ? y.elements / y.last : 0;
      w.k = node.inputs.empty() ? 0 : size_of(node.inputs[0], shape).last;
    }
  }
  for (Ref r : in)
    w.in.push_back(
        {bytes(r, shape), weight(r),
         weight(r) && fn_.type(r).kind == Type::Kind::kTensor && fn_.tensor(r).rank() > 1});
  for (Ref r : out) w.out.push_back({bytes(r, shape)});
  for (NodeId id : nodes) {
    Ref r{id, 0};
    if (std::find(out.begin(), out.end(), r) != out.end()) continue;
    const ValueSize& v = size_of(r, shape);
    w.inside_bytes += v.bytes;
    if (v.elements > 0) w.inside_row_bytes += v.bytes / v.elements * v.last;
  }
  return w;
}

bool guard_holds(const KernelDesc& kernel, const KernelWork& at_lo, const KernelWork& at_hi) {
  for (const ShapeGuard& g : kernel.guard) {
    auto of = [&](const KernelWork& w) {
      return g.extent == 'm' ? w.m : g.extent == 'n' ? w.n : w.k;
    };
    auto lo = static_cast<int64_t>(of(at_lo)), hi = static_cast<int64_t>(of(at_hi));
    if (lo < g.lo || hi > g.hi) return false;
    // Between the two any value may come, unless there is only one.
    if (g.multiple > 1 && (lo != hi || lo % g.multiple != 0)) return false;
  }
  return true;
}

std::string guard_text(const KernelDesc& kernel) {
  std::string out;
  auto add = [&](std::string text) { out += (out.empty() ? "" : ", ") + std::move(text); };
  for (const ShapeGuard& g : kernel.guard) {
    if (g.lo > 0) add(fmt::format("{} >= {}", g.extent, g.lo));
    if (g.hi < std::numeric_limits<int64_t>::max()) add(fmt::format("{} <= {}", g.extent, g.hi));
    if (g.multiple > 1) add(fmt::format("{} % {} = 0", g.extent, g.multiple));
  }
  return out;
}

}  // namespace tokamak
