#include "backend/cpu/region.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak::cpu {
namespace {

using loop::Instr;
using Source = EpilogueStep::Source;

// One element after the other, row by row: the index of a tensor that has the program's own shape.
bool is_dense(const loop::Program& p, const loop::Access& a) {
  SymExpr row = 0;
  for (size_t i = 0; i < p.rows.size(); ++i)
    row = row * p.rows[i] + SymExpr::symbol(loop::row_variable(i));
  return a.by < 0 &&
         a.index == row * p.columns + SymExpr::symbol(std::string(loop::kColumnVariable));
}

[[noreturn]] void refuse(const OpSite& site, std::string_view what) {
  fail(ErrorCode::kUnsupported, "{}: {} has no form for {}", site.label, site.kernel->name, what);
}

const std::vector<uint32_t>& inputs_only(const Region& region, const RegionPiece& piece,
                                         const OpSite& site) {
  for (uint32_t v : piece.in) {
    if (v >= region.inputs) refuse(site, "a program that reads what the region computes");
    if (site.in[v].weight && !site.in[v].data)
      refuse(site, fmt::format("weight {} in a packed layout", site.in[v].weight->name));
  }
  return piece.in;
}

}  // namespace

RowProgram::RowProgram(const Region& region, const RegionPiece& piece, const OpSite& site)
    : params_(inputs_only(region, piece, site)),
      plan_(*piece.program, site.kernels, site, true, params_) {
  const loop::Program& p = plan_.program;
  for (const loop::Store& s : p.stores)
    if (!is_dense(p, s.to)) refuse(site, fmt::format("a result at [{}]", s.to.index.text()));
  std::vector<std::string> order;
  for (const SymbolDecl& s : site.symbols) order.push_back(s.name);
  bounds_ = loop::Bounds(p, order);
  if (!p.columns.is_constant()) refuse(site, "rows of symbolic length");
  columns_ = *p.columns.constant();
  most_rows_ = loop::row_count(p).upper(site.symbols);
  by_row_.assign(params_.size(), true);
  for (const Instr& i : p.code)
    if (i.op == loop::Op::kLoad && !is_dense(p, i.access)) by_row_[i.access.param] = false;
  for (size_t i = 0; i < params_.size(); ++i)  // with a single row [c] is also the index of a row
    if (site.in[params_[i]].weight) by_row_[i] = false;
  in_elements_.resize(params_.size());
  out_elements_.assign(p.out.size(), INT64_MAX);  // rows go where run_row is told
  direct_ = find_direct();
}

RowProgram::Direct RowProgram::find_direct() const {
  const loop::Program& p = plan_.program;
  if (!plan_.uncut_rows || !plan_.once.empty() || p.stores.size() != 1) return {};
  std::span<const LoopStep> steps = plan_.phases[0].tile;
  Direct out;
  auto input = [&](uint32_t value, bool by_row) -> int32_t {
    const Instr& i = p.code[value];
    bool found = plan_.places[value].kind == LoopPlace::Kind::kInput && i.access.by < 0 &&
                 by_row_[i.access.param] == by_row &&
                 (by_row || i.access.index == SymExpr::symbol(std::string(loop::kColumnVariable)));
    return found ? static_cast<int32_t>(params_[i.access.param]) : -1;
  };
  uint32_t value = p.stores[0].value;
  if (!steps.empty() && steps[0].to == value &&
      (steps[0].kind == LoopStep::Kind::kRmsNorm || steps[0].kind == LoopStep::Kind::kLayerNorm)) {
    const LoopStep& norm = steps[0];
    out.norm = norm.kind;
    out.eps = norm.number;
    out.weight = input(norm.in[1], false);
    if (norm.tile[2]) out.bias = input(norm.in[2], false);
    if (out.weight < 0 || (norm.tile[2] && out.bias < 0)) return {};
    value = norm.in[0];
    steps = steps.subspan(1);
  }
  out.x = input(value, true);
  out.stored = p.out[0].dtype;
  // What is left: the store of an encoded row. A norm alone is computed where it is stored.
  bool encoded = out.stored == DType::kQ8A || out.stored == DType::kBF16;
  bool whole = encoded ? steps.size() == 1 && steps[0].kind == LoopStep::Kind::kStore
                       : steps.empty() && out.stored == DType::kF32;
  out.holds = whole && out.x >= 0;
  return out;
}

RowRunner::RowRunner(const RowProgram& program, const Tensor* in, const KernelTable& kernels,
                     uint8_t* scratch)
    : program_(program), in_(in), kernels_(kernels), scratch_(scratch) {
  if (!program.direct_.holds)
    loop_.emplace(program.plan_, program.bounds_, kernels, in, nullptr, scratch, program.params_);
}

void RowRunner::run_row(int64_t row, uint8_t* const* to) {
  const RowProgram::Direct& d = program_.direct_;
  if (!d.holds) return loop_->run_row(row, to);
  int64_t n = program_.columns_;
  bool encoded = d.stored != DType::kF32;
  const float* x = in_[d.x].f32() + row * n;
  if (d.norm != LoopStep::Kind::kStore) {
    auto* y = reinterpret_cast<float*>(encoded ? scratch_ : to[0]);
    const float* weight = in_[d.weight].f32();
    if (d.norm == LoopStep::Kind::kRmsNorm)
      kernels_.rms_norm(x, weight, y, n, d.eps);
    else
      kernels_.layer_norm(x, weight, d.bias < 0 ? nullptr : in_[d.bias].f32(), y, n, d.eps);
    x = y;
  }
  if (encoded) encode_activations(kernels_, d.stored, x, n, to[0]);
}

void RowProgram::bind(const Tensor* in, const StepContext& context) {
  for (size_t i = 0; i < params_.size(); ++i) in_elements_[i] = in[params_[i]].elements();
  bounds_.bind(context.symbols, in_elements_, out_elements_);
  rows_ = bounds_.row_count();
}

int64_t RowProgram::row_bytes(size_t output) const {
  return static_cast<int64_t>(dtype_bytes(plan_.program.out[output].dtype, columns_));
}

int RowProgram::row_input() const {
  int found = -1;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!by_row_[i]) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(params_[i]);
  }
  return found;
}

void RowProgram::touch(const Tensor* in, int64_t row, int64_t end, AccessList& list) const {
  for (size_t i = 0; i < params_.size(); ++i) {
    const Tensor& t = in[params_[i]];
    if (by_row_[i])
      list.read_rows(t, static_cast<int64_t>(dtype_bytes(t.dtype, columns_)), row, end);
    else
      list.read(t);
  }
}

void EpilogueStep::run(const float* a, const float* b, float* to, int64_t n) const {
  if (kind == Kind::kUnary) return unary.run(a, to, n, unary.parameter);
  if (in[1].kind == Source::Kind::kNumber) return binary_scalar(a, in[1].number, to, n);
  if (in[0].kind == Source::Kind::kNumber) {
    std::fill_n(to, n, in[0].number);
    a = to;
  }
  binary(a, b, to, n);
}

namespace {

class EpilogueReader {
 public:
  EpilogueReader(const Region& region, const RegionPiece& piece, const OpSite& site,
                 int64_t columns, uint32_t& next)
      : region_(region), piece_(piece), p_(*piece.program), site_(site), next_(next) {
    if (p_.columns != SymExpr(columns))
      refuse(site, fmt::format("rows of {} after {} columns", p_.columns.text(), columns));
  }

  std::vector<EpilogueStep> run() {
    sources_.resize(p_.code.size());
    for (uint32_t id = 0; id < p_.code.size(); ++id) read(id);
    for (size_t s = 0; s < p_.stores.size(); ++s) read_store(s);
    return std::move(steps_);
  }

 private:
  std::string name(uint32_t id) const {
    return fmt::format("%{} ({}) of its loop program", id, loop::op_info(p_.code[id].op).name);
  }

  void read(uint32_t id) {
    const Instr& i = p_.code[id];
    const loop::OpInfo& info = loop::op_info(i.op);
    if (i.type.elem == loop::Elem::kI32) refuse(site_, name(id));
    if (i.op == loop::Op::kConst) {
      sources_[id] = {Source::Kind::kNumber, 0, static_cast<float>(i.number)};
      return;
    }
    if (i.op == loop::Op::kLoad) return read_load(id);
    if (i.type.form != loop::Form::kTile) refuse(site_, name(id));
    EpilogueStep step;
    if (info.kind == loop::OpKind::kUnary) {
      Value attrs = Value::object();
      if (!info.key.empty())
        attrs.set(info.key, info.value.empty() ? Value(i.number) : Value(info.value));
      step.unary = find_unary(site_.kernels, info.graph_op, attrs);
      if (!step.unary.run) refuse(site_, name(id));
    } else if (info.kind == loop::OpKind::kBinary) {
      auto which = static_cast<size_t>(i.op) - static_cast<size_t>(loop::Op::kAdd);
      step.kind = EpilogueStep::Kind::kBinary;
      step.binary = site_.kernels.binary[which];
      step.binary_scalar = site_.kernels.binary_scalar[which];
    } else {
      refuse(site_, name(id));
    }
    for (size_t k = 0; k < i.in.size(); ++k) step.in[k] = sources_[i.in[k]];
    step.out = place(id);
    sources_[id] = {Source::Kind::kRows, step.out, 0};
    steps_.push_back(step);
  }

  void read_load(uint32_t id) {
    const loop::Access& a = p_.code[id].access;
    uint32_t value = piece_.in[a.param];
    const TensorType& type = region_.values[value].tensor;
    bool column = a.by < 0 && a.index == SymExpr::symbol(std::string(loop::kColumnVariable));
    bool weight = value < region_.inputs && site_.in[value].weight;
    if (weight && !site_.in[value].data)
      refuse(site_, fmt::format("weight {} in a packed layout", site_.in[value].weight->name));
    bool dense = is_dense(p_, a);
    if (type.dtype != DType::kF32 && !weight) refuse(site_, name(id));
    if (!dense && !(column && value < region_.inputs)) refuse(site_, name(id));
    sources_[id] = {dense ? Source::Kind::kRows : Source::Kind::kColumn, value, 0};
  }

  // Where a value goes: the output that it is stored to, or a place inside.
  uint32_t place(uint32_t id) {
    for (size_t s = 0; s < p_.stores.size(); ++s)
      if (p_.stores[s].value == id && p_.out[s].dtype == DType::kF32) return piece_.out[s];
    return next_++;
  }

  void read_store(size_t s) {
    const loop::Store& store = p_.stores[s];
    const Source& from = sources_[store.value];
    if (!is_dense(p_, store.to) || from.kind != Source::Kind::kRows)
      refuse(site_, fmt::format("a result at [{}]", store.to.index.text()));
    if (!region_.is_result(piece_.out[s])) refuse(site_, "a value that another anchor reads");
    if (p_.out[s].dtype == DType::kF32) {
      if (from.value != piece_.out[s]) refuse(site_, "a value that is stored twice");
      return;
    }
    EpilogueStep step;
    step.kind = EpilogueStep::Kind::kQuantize;
    step.in[0] = from;
    step.out = piece_.out[s];
    bool blocks = p_.out[s].dtype == DType::kQ8A && *p_.columns.constant() % kQuantBlock == 0;
    if (!blocks && p_.out[s].dtype != DType::kBF16)
      refuse(site_, fmt::format("a result of type {}", p_.out[s].text()));
    steps_.push_back(step);
  }

  const Region& region_;
  const RegionPiece& piece_;
  const loop::Program& p_;
  const OpSite& site_;
  uint32_t& next_;
  std::vector<Source> sources_;
  std::vector<EpilogueStep> steps_;
};

}  // namespace

std::vector<EpilogueStep> read_epilogue(const Region& region, const RegionPiece& piece,
                                        const OpSite& site, int64_t columns, uint32_t& next) {
  return EpilogueReader(region, piece, site, columns, next).run();
}

}  // namespace tokamak::cpu
