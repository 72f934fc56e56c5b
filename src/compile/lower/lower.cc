#include "compile/lower/lower.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "compile/lower/formula.h"
#include "compile/lower/index_map.h"
#include "graph/text_format.h"
#include "ops/meaning.h"

namespace tokamak {
namespace {

using loop::Elem;
using loop::Form;
using LoopOp = loop::Op;
using LoopKind = LoopForm::Kind;

bool is_integer_type(const TensorType& t) { return t.dtype == DType::kI32; }

bool is_element_wise(const loop::OpInfo& info) {
  return info.kind == loop::OpKind::kUnary || info.kind == loop::OpKind::kBinary ||
         info.kind == loop::OpKind::kCompare || info.kind == loop::OpKind::kSelect;
}

// Lowers a body in one space: results ask for values at the points of the space, values ask their
// operands. Throws Error when something does not fit.
class RegionLowering {
 public:
  RegionLowering(const Function& body, IndexSpace space) : fn_(body), space_(std::move(space)) {}

  loop::Program run() {
    program_.rows = space_.rows();
    program_.columns = space_.columns();
    for (NodeId id : fn_.inputs()) {
      params_[id] = static_cast<uint32_t>(program_.in.size());
      program_.in.push_back(param(fn_.node(id).outputs[0]));
    }
    for (const Function::Result& r : fn_.results()) result(r);
    loop::verify_program(program_);
    return std::move(program_);
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kUnsupported, format, std::forward<Args>(args)...);
  }

  TensorType param(const Type& type) const {
    if (type.kind != Type::Kind::kTensor)
      refuse("a {} cannot be an input or a result", type.text());
    TensorType out = type.tensor;
    for (Dim& d : out.dims) {
      if (d.bound) refuse("{} has a device-valued extent", type.text());
      d.axis.clear();
    }
    return out;
  }

  void result(const Function::Result& r) {
    TensorType type = param(fn_.type(r.ref));
    Ref value = r.ref;
    if (fn_.node(value.node).op->loop.kind == LoopKind::kEncode)
      value = fn_.node(value.node).inputs[0];
    SymExpr rows = 1;
    for (const SymExpr& e : space_.rows()) rows = rows * e;
    bool whole = type.elements() == rows * space_.columns();
    if (!whole && type.elements() != rows)
      refuse("result {} has {} elements, which do not fit {} rows of {} columns", r.name,
             type.elements().text(), rows.text(), space_.columns().text());
    IndexMap map = whole ? space_.whole() : space_.per_row();
    loop::Store store;
    store.value = emit(value, map);
    store.to.param = static_cast<uint32_t>(program_.out.size());
    store.to.index = space_.expression(map);
    program_.out.push_back(std::move(type));
    program_.stores.push_back(std::move(store));
  }

  // --- Instructions

  uint32_t add(loop::Instr instr) {
    for (size_t i = 0; i < program_.code.size(); ++i)  // equal ones once
      if (program_.code[i] == instr) return static_cast<uint32_t>(i);
    if (program_.code.size() == loop::kMaxInstrs)
      refuse("it takes more than {} steps", loop::kMaxInstrs);
    program_.code.push_back(std::move(instr));
    return static_cast<uint32_t>(program_.code.size() - 1);
  }
  uint32_t add(LoopOp op, std::vector<uint32_t> in, Elem elem, double number = 0) {
    loop::Instr instr;
    instr.op = op;
    bool tile = false;
    for (uint32_t v : in) tile = tile || program_.code[v].type.form == Form::kTile;
    bool reduces = loop::op_info(op).kind == loop::OpKind::kReduce;
    if (reduces && !tile) refuse("it reduces values that are the same in all columns");
    instr.type = {elem, tile && !reduces ? Form::kTile : Form::kRow};
    instr.in = std::move(in);
    instr.number = number;
    return add(std::move(instr));
  }
  // The last step of a node: rounded to f32, or once to the narrower type that the node stores.
  uint32_t finish(const Node& node, LoopOp op, std::vector<uint32_t> in, double number = 0) {
    DType stored = node.outputs[0].tensor.dtype;
    if (stored == DType::kI32) return add(op, std::move(in), Elem::kI32, number);
    if (stored == DType::kF32) return add(op, std::move(in), Elem::kF32, number);
    if (stored != DType::kF16 && stored != DType::kBF16)
      refuse("its result has type {}", dtype_name(stored));
    uint32_t wide = add(op, std::move(in), Elem::kWide, number);
    return add(stored == DType::kF16 ? LoopOp::kRoundF16 : LoopOp::kRoundBF16, {wide}, Elem::kF32);
  }
  uint32_t number(double value, Elem elem = Elem::kWide) {
    return add(LoopOp::kConst, {}, elem, value);
  }

  uint32_t access(LoopOp op, uint32_t param, const IndexMap& map, Elem elem) {
    loop::Instr instr;
    instr.op = op;
    instr.access = {param, space_.expression(map), map.by, map.limit};
    instr.type = {elem, space_.depends(map.index, space_.column()) ? Form::kTile : Form::kRow};
    return add(std::move(instr));
  }

  // --- Values

  uint32_t emit(Ref ref, const IndexMap& map) {
    std::string key =
        fmt::format("{}.{} {} {}", ref.node, ref.output, space_.expression(map).text(), map.by);
    if (auto it = done_.find(key); it != done_.end()) return it->second;
    uint32_t made = 0;
    const Node& node = fn_.node(ref.node);
    try {
      made = emit_node(node, ref.node, map);
    } catch (const Error& e) {  // say where, once
      std::string what = e.what();
      if (what.starts_with("%") || what.starts_with("$")) throw;
      throw Error(e.code(),
                  fmt::format("{} ({}): {}", node_label(fn_, ref.node), node.op->name, what));
    }
    return done_[key] = made;
  }

  const std::vector<Dim>& dims(Ref r) const { return fn_.tensor(r).dims; }

  uint32_t emit_node(const Node& node, NodeId id, const IndexMap& map) {
    for (const Type& t : node.outputs)
      if (t.kind != Type::Kind::kTensor) refuse("it is not a tensor");
    if (node.op->role == OpDef::Role::kConstant) return constant(node);
    if (node.op->role == OpDef::Role::kInput) {
      const TensorType& t = program_.in[params_.at(id)];
      if (is_block_type(t.dtype)) refuse("{} has to be decoded", t.text());
      return access(LoopOp::kLoad, params_.at(id), map,
                    is_integer_type(t) ? Elem::kI32 : Elem::kF32);
    }
    switch (node.op->loop.kind) {
      case LoopKind::kSame:
        return emit(node.inputs[0], map);
      case LoopKind::kBroadcast:
        return operand(node, 0, map);
      case LoopKind::kTranspose:
        return emit_transpose(node, map);
      case LoopKind::kSlice:
        return emit_slice(node, map);
      case LoopKind::kGather:
        return emit_gather(node, map);
      case LoopKind::kIota:
        if (map.by >= 0) refuse("elements that count rows cannot be read by index");
        return access(LoopOp::kIndex, 0, map, Elem::kI32);
      case LoopKind::kRow:
        return emit_rows(node, map);
      case LoopKind::kReduce:
        return emit_reduce(node, map);
      case LoopKind::kCast:
        return emit_cast(node, map);
      case LoopKind::kElement:
        return emit_elements(node, map);
      case LoopKind::kNone:
      case LoopKind::kEncode:
        break;
    }
    refuse("it does not work row by row");
  }

  uint32_t constant(const Node& node) {
    const ConstantDecl* c = fn_.module().find_constant(node.attrs.at("name").as_string());
    if (!c || c->values.size() != 1) refuse("a constant of several elements has to be an input");
    return number(c->values[0], is_integer_type(c->type) ? Elem::kI32 : Elem::kF32);
  }

  uint32_t operand(const Node& node, size_t i, const IndexMap& map) {
    return emit(node.inputs[i],
                space_.broadcast(map, node.outputs[0].tensor.dims, dims(node.inputs[i])));
  }

  uint32_t emit_elements(const Node& node, const IndexMap& map) {
    if (!node.op->loop.formula.empty())
      return emit_formula(node, [&](size_t i) { return operand(node, i, map); });
    for (size_t k = 0; k < static_cast<size_t>(LoopOp::kCount); ++k) {
      const loop::OpInfo& info = loop::op_info(static_cast<LoopOp>(k));
      if (!is_element_wise(info) || info.graph_op != node.op->name) continue;
      if (!info.value.empty() && node.attrs.at(info.key).as_string() != info.value) continue;
      std::vector<uint32_t> in;
      for (size_t i = 0; i < node.inputs.size(); ++i) in.push_back(operand(node, i, map));
      double number =
          !info.key.empty() && info.value.empty() ? node.attrs.at(info.key).as_double() : 0.0;
      return finish(node, info.op, std::move(in), number);
    }
    refuse("it does not work row by row");
  }

  // The op's own formula; what is inside it is not rounded.
  template <class Operand>
  uint32_t emit_formula(const Node& node, Operand&& operand) {
    Formula formula = parse_formula(node.op->loop.formula, node.inputs.size());
    std::vector<std::optional<uint32_t>> made(formula.terms.size());
    auto emit_args = [&](auto& self, const Formula::Term& call) -> std::vector<uint32_t> {
      std::vector<uint32_t> in;
      for (size_t arg : call.args) {
        const Formula::Term& t = formula.terms[arg];
        std::optional<uint32_t>& value = made[arg];
        if (!value) switch (t.kind) {
            case Formula::Term::Kind::kCall:
              value = add(t.op, self(self, t), Elem::kWide);
              break;
            case Formula::Term::Kind::kOperand:
              value = operand(t.operand);
              break;
            case Formula::Term::Kind::kColumns:
              value = add(LoopOp::kColumns, {}, Elem::kWide);
              break;
            case Formula::Term::Kind::kNumber:
              value = number(t.number);
              break;
            case Formula::Term::Kind::kAttribute:
              value = number(node.attrs.at(t.attribute).as_double());
              break;
          }
        in.push_back(*value);
      }
      return in;
    };
    const Formula::Term& root = formula.terms[formula.root];
    return finish(node, root.op, emit_args(emit_args, root));
  }

  uint32_t emit_cast(const Node& node, const IndexMap& map) {
    bool from_int = is_integer_type(fn_.tensor(node.inputs[0]));
    DType to = node.outputs[0].tensor.dtype;
    uint32_t x = operand(node, 0, map);
    if (to == DType::kI32) return from_int ? x : add(LoopOp::kToI32, {x}, Elem::kI32);
    if (from_int) x = add(LoopOp::kToF32, {x}, Elem::kF32);
    if (to == DType::kF16) return add(LoopOp::kRoundF16, {x}, Elem::kF32);
    if (to == DType::kBF16) return add(LoopOp::kRoundBF16, {x}, Elem::kF32);
    return x;
  }

  uint32_t emit_reduce(const Node& node, const IndexMap& map) {
    const std::vector<Dim>& x = dims(node.inputs[0]);
    size_t axis = axis_of(node.attrs, x.size());
    bool keep = node.attrs.get_int("keep", 0) != 0;
    if (x[axis].extent != space_.columns())
      refuse("it reduces {} elements, a row has {}", x[axis].extent.text(),
             space_.columns().text());
    std::vector<LinearIndex> axes = space_.split(map, node.outputs[0].tensor.dims);
    if (keep) axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(axis));
    for (const LinearIndex& a : axes)
      if (space_.depends(a, space_.column())) refuse("each column would need its own reduction");
    axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(axis), space_.variable(space_.column()));
    IndexMap elements = space_.join(map, axes, x);
    return emit_formula(node, [&](size_t i) { return emit(node.inputs[i], elements); });
  }

  // Norms and softmax.
  uint32_t emit_rows(const Node& node, const IndexMap& map) {
    const std::vector<Dim>& x = dims(node.inputs[0]);
    std::vector<LinearIndex> axes = space_.split(map, x);
    bool along = axes.back() == space_.variable(space_.column()) ||
                 (space_.columns() == SymExpr(1) && axes.back() == space_.zero());
    if (x.back().extent != space_.columns() || !along)
      refuse("its rows have {} columns, those of the region {}", x.back().extent.text(),
             space_.columns().text());
    axes.pop_back();
    for (const LinearIndex& a : axes)
      if (space_.depends(a, space_.column())) refuse("each column would need its own row");
    IndexMap column = space_.constant();
    column.index = space_.variable(space_.column());
    return emit_formula(node,
                        [&](size_t i) { return emit(node.inputs[i], i == 0 ? map : column); });
  }

  uint32_t emit_slice(const Node& node, const IndexMap& map) {
    std::vector<LinearIndex> axes = space_.split(map, node.outputs[0].tensor.dims);
    const std::vector<Dim>& x = dims(node.inputs[0]);
    LinearIndex& a = axes[axis_of(node.attrs, x.size())];
    const Value& start = node.attrs.at("start");
    a.offset = a.offset +
               (start.is_string() ? SymExpr::parse(start.as_string()) : SymExpr(start.as_int()));
    return emit(node.inputs[0], space_.join(map, axes, x));
  }

  uint32_t emit_transpose(const Node& node, const IndexMap& map) {
    std::vector<LinearIndex> axes = space_.split(map, node.outputs[0].tensor.dims);
    std::vector<LinearIndex> from(axes.size(), space_.zero());
    const Value::Array& perm = node.attrs.at("perm").as_array();
    for (size_t i = 0; i < axes.size(); ++i) from[static_cast<size_t>(perm[i].as_int())] = axes[i];
    return emit(node.inputs[0], space_.join(map, from, dims(node.inputs[0])));
  }

  // An absent row is zero in the tensor itself only, so nothing may be computed before it.
  uint32_t emit_gather(const Node& node, const IndexMap& map) {
    std::vector<LinearIndex> axes = space_.split(map, node.outputs[0].tensor.dims);
    Ref source = node.inputs[0];
    for (;;) {
      const Node& from = fn_.node(source.node);
      if (from.op->role == OpDef::Role::kInput) break;
      if (!from.op->alias) refuse("rows can be read by index from an input only");
      source = from.inputs[0];
    }
    if (map.by >= 0) refuse("it reads rows by index from rows that are read by index");
    const std::vector<Dim>&x = dims(node.inputs[0]), &index = dims(node.inputs[1]);
    size_t axis = axis_of(node.attrs, x.size());
    auto first = axes.begin() + static_cast<std::ptrdiff_t>(axis),
         last = first + static_cast<std::ptrdiff_t>(index.size());
    IndexMap where = space_.join(map, {first, last}, index);
    if (space_.depends(where.index, space_.column()))
      refuse("each column would need its own index");
    IndexMap to = map;
    to.by = static_cast<int32_t>(emit(node.inputs[1], where));
    to.limit = x[axis].extent;
    axes.erase(first, last);
    axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(axis), space_.variable(space_.by()));
    return emit(node.inputs[0], space_.join(to, axes, x));
  }

  const Function& fn_;
  IndexSpace space_;
  loop::Program program_;
  std::map<NodeId, uint32_t> params_;
  std::map<std::string, uint32_t> done_;
};

// The spaces worth a try: rows that something reduces first, then the results, then everything
// else.
std::vector<IndexSpace> candidate_spaces(const Function& fn) {
  std::vector<IndexSpace> out;
  std::set<std::string> seen;
  auto add = [&](const std::vector<Dim>& dims, size_t axis) {
    std::vector<SymExpr> rows;
    std::string key = dims.empty() ? "1" : dims[axis].extent.text();
    for (size_t d = 0; d < dims.size(); ++d) {
      if (d == axis || dims[d].extent == SymExpr(1)) continue;
      rows.push_back(dims[d].extent);
      key += ", " + rows.back().text();
    }
    if (rows.size() > loop::kMaxRowAxes || !seen.insert(key).second) return;
    out.emplace_back(std::move(rows), dims.empty() ? SymExpr(1) : dims[axis].extent);
  };
  auto last = [&](Ref r) {
    if (fn.type(r).kind != Type::Kind::kTensor) return;
    const std::vector<Dim>& dims = fn.tensor(r).dims;
    add(dims, dims.empty() ? 0 : dims.size() - 1);
  };
  for (const Node& node : fn.nodes()) {
    LoopKind kind = node.op->loop.kind;
    if (kind == LoopKind::kRow || kind == LoopKind::kEncode) last(node.inputs[0]);
    if (kind == LoopKind::kReduce) {
      const std::vector<Dim>& dims = fn.tensor(node.inputs[0]).dims;
      add(dims, axis_of(node.attrs, dims.size()));
    }
  }
  for (const Function::Result& r : fn.results()) last(r.ref);
  for (NodeId id = 0; id < fn.nodes().size(); ++id) last({id, 0});
  return out;
}

}  // namespace

bool has_loop_form(const OpDef& op) {
  if (op.loop.kind != LoopKind::kElement || !op.loop.formula.empty())
    return op.loop.kind != LoopKind::kNone;
  for (size_t k = 0; k < static_cast<size_t>(LoopOp::kCount); ++k)
    if (const loop::OpInfo& info = loop::op_info(static_cast<LoopOp>(k));
        is_element_wise(info) && info.graph_op == op.name)
      return true;
  return false;
}

LoweredRegion lower_region(const Function& body) {
  constexpr size_t kTries = 8;
  LoweredRegion out;
  if (body.results().empty()) {
    out.reason = "it has no result";
    return out;
  }
  try {
    std::vector<IndexSpace> spaces = candidate_spaces(body);
    for (size_t i = 0; i < std::min(spaces.size(), kTries); ++i) {
      try {
        out.program = RegionLowering(body, spaces[i]).run();
        out.reason.clear();
        return out;
      } catch (const Error& e) {
        if (out.reason.empty()) out.reason = e.what();  // of the most natural space
      }
    }
  } catch (const Error& e) {
    out.reason = e.what();
  }
  return out;
}

}  // namespace tokamak
