#include "loop/evaluate.h"

#include <cmath>

#include "base/error.h"
#include "loop/bounds.h"
#include "ops/meaning.h"

namespace tokamak::loop {
namespace {

Attrs attrs_of(const Instr& instr) {
  const OpInfo& info = op_info(instr.op);
  Attrs attrs = Value::object();
  if (info.kind == OpKind::kReduce) attrs.set("axis", 0), attrs.set("keep", 1);
  if (info.key.empty()) return attrs;
  attrs.set(info.key, info.value.empty() ? Value(instr.number) : Value(info.value));
  return attrs;
}

template <class S>
class Evaluator {
 public:
  Evaluator(const Program& program, const std::map<std::string, int64_t, std::less<>>& symbols,
            std::span<const TensorRef<S>> in, std::span<const TensorRef<S>> out)
      : p_(program), in_(in), out_(out) {
    TK_CHECK(in.size() == p_.in.size() && out.size() == p_.out.size());
    std::vector<std::string> order = program_symbols(program);
    std::vector<int64_t> values, in_elements, out_elements;
    for (const std::string& s : order) {
      auto it = symbols.find(s);
      if (it == symbols.end())
        fail(ErrorCode::kInvalidArgument, "loop program: the symbol {} has no value", s);
      values.push_back(it->second);
    }
    for (const TensorRef<S>& t : in) in_elements.push_back(t.elements());
    for (const TensorRef<S>& t : out) out_elements.push_back(t.elements());
    bounds_ = Bounds(program, order);
    bounds_.bind(values, in_elements, out_elements);
    for (const Instr& i : p_.code) {
      int64_t n = i.type.form == Form::kTile ? bounds_.columns() : 1;
      Value& v = values_.emplace_back();
      v.dims = {n};
      if (i.type.elem == Elem::kI32)
        v.i.resize(static_cast<size_t>(n));
      else
        v.f.resize(static_cast<size_t>(n));
      attrs_.push_back(attrs_of(i));
    }
  }

  void run() {
    for (size_t s = 0; s < p_.stores.size(); ++s)
      if (p_.stores[s].to.by >= 0) clear(out_[s]);
    if (bounds_.columns() == 0) return;
    for (int64_t r = 0; r < bounds_.row_count(); ++r) {
      bounds_.row_indices(r, row_);
      for (size_t i = 0; i < p_.code.size(); ++i) step(i);
      for (size_t s = 0; s < p_.stores.size(); ++s) store(s);
    }
  }

 private:
  struct Value {
    std::vector<int64_t> dims;
    std::vector<double> f;
    std::vector<int32_t> i;
    TensorRef<double> ref() {
      return {dims, i.empty() ? f.data() : nullptr, i.empty() ? nullptr : i.data()};
    }
  };

  static void clear(const TensorRef<S>& t) {
    if (t.i)
      std::fill_n(t.i, t.elements(), 0);
    else
      std::fill_n(t.f, t.elements(), S(0));
  }

  // Element of column 0; -1: the row is absent.
  int64_t start(const BoundAccess& b, int32_t by) const {
    int64_t at = bounds_.row_offset(b, row_);
    if (by < 0) return at;
    int64_t g = values_[static_cast<size_t>(by)].i[0];
    if (g >= b.limit)
      fail(ErrorCode::kOutOfRange, "loop program: row {} is beyond the limit {}", g, b.limit);
    return g < 0 ? -1 : at + b.by * g;
  }

  void step(size_t id) {
    const Instr& instr = p_.code[id];
    Value& y = values_[id];
    switch (instr.op) {
      case Op::kConst:
        if (y.i.empty())
          y.f[0] = instr.number;
        else
          y.i[0] = static_cast<int32_t>(instr.number);
        break;
      case Op::kColumns:
        y.f[0] = static_cast<double>(bounds_.columns());
        break;
      case Op::kIndex: {
        const BoundAccess& b = bounds_.of_instr(id);
        int64_t at = bounds_.row_offset(b, row_);
        for (int32_t& v : y.i) v = static_cast<int32_t>(at), at += b.column;
        break;
      }
      case Op::kLoad:
        load(id, instr, y);
        break;
      case Op::kSumSquares: {
        const std::vector<double>& x = values_[instr.in[0]].f;
        y.f[0] = dot(x.data(), x.data(), static_cast<int64_t>(x.size()));
        break;
      }
      case Op::kMin: {
        const std::vector<double>& x = values_[instr.in[0]].f;
        y.f[0] = x[0];
        for (double v : x) y.f[0] = std::isnan(y.f[0]) || y.f[0] < v ? y.f[0] : v;
        break;
      }
      default:
        by_meaning(id, instr, y);
    }
    if constexpr (std::is_same_v<S, float>)
      if (instr.type.elem == Elem::kF32)
        for (double& v : y.f) v = static_cast<float>(v);
  }

  void load(size_t id, const Instr& instr, Value& y) {
    const BoundAccess& b = bounds_.of_instr(id);
    const TensorRef<S>& t = in_[instr.access.param];
    int64_t at = start(b, instr.access.by);
    auto fill = [&](auto& to, const auto* from) {
      for (auto& v : to) {
        v = 0;
        if (at < 0) continue;
        v = from[at];
        at += b.column;
      }
    };
    if (y.i.empty())
      fill(y.f, t.f);
    else
      fill(y.i, t.i);
  }

  void by_meaning(size_t id, const Instr& instr, Value& y) {
    Operand<double> in[3], out;
    for (size_t k = 0; k < instr.in.size(); ++k) in[k].tensor = values_[instr.in[k]].ref();
    out.tensor = y.ref();
    const OpDef* op = find_op(op_info(instr.op).graph_op);
    op->f64({{in, instr.in.size()}, {&out, 1}, attrs_[id]});
  }

  void store(size_t s) {
    const Store& to = p_.stores[s];
    const BoundAccess& b = bounds_.of_store(s);
    const TensorRef<S>& t = out_[s];
    Value& v = values_[to.value];
    int64_t at = start(b, to.to.by), n = b.column == 0 ? 1 : bounds_.columns();
    if (at < 0) return;
    for (int64_t j = 0; j < n; ++j, at += b.column) {
      size_t from = v.dims[0] == 1 ? 0 : static_cast<size_t>(j);
      if (t.i)
        t.i[at] = v.i[from];
      else
        t.f[at] = static_cast<S>(v.f[from]);
    }
  }

  const Program& p_;
  std::span<const TensorRef<S>> in_, out_;
  Bounds bounds_;
  std::vector<Value> values_;
  std::vector<Attrs> attrs_;
  int64_t row_[kMaxRowAxes] = {};
};

}  // namespace

template <class S>
void evaluate_program(const Program& program,
                      const std::map<std::string, int64_t, std::less<>>& symbols,
                      std::span<const TensorRef<S>> in, std::span<const TensorRef<S>> out) {
  Evaluator<S>(program, symbols, in, out).run();
}
template void evaluate_program(const Program&, const std::map<std::string, int64_t, std::less<>>&,
                               std::span<const TensorRef<float>>,
                               std::span<const TensorRef<float>>);
template void evaluate_program(const Program&, const std::map<std::string, int64_t, std::less<>>&,
                               std::span<const TensorRef<double>>,
                               std::span<const TensorRef<double>>);
template void evaluate_program(const Program&, const std::map<std::string, int64_t, std::less<>>&,
                               std::span<const TensorRef<Traced>>,
                               std::span<const TensorRef<Traced>>);

}  // namespace tokamak::loop
