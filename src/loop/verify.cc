#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "loop/program.h"

namespace tokamak::loop {
namespace {

// Variables of index expressions; they are not symbols and extents must not use them.
bool is_variable(std::string_view name) {
  if (name == kColumnVariable || name == kByVariable) return true;
  for (size_t i = 0; i < kMaxRowAxes; ++i)
    if (name == row_variable(i)) return true;
  return false;
}

class Verifier {
 public:
  explicit Verifier(const Program& program) : p_(program) {}

  void run() {
    where_ = "loop program";
    if (p_.rows.size() > kMaxRowAxes || p_.in.size() > kMaxParams || p_.out.size() > kMaxParams ||
        p_.code.size() > kMaxInstrs)
      bad("more than {} row axes, {} inputs or outputs, or {} instructions", kMaxRowAxes,
          kMaxParams, kMaxInstrs);
    for (const SymExpr& r : p_.rows) extent(r);
    extent(p_.columns);
    for (const TensorType& t : p_.in) param(t, false);
    for (const TensorType& t : p_.out) param(t, true);
    for (size_t i = 0; i < p_.code.size(); ++i) {
      where_ = fmt::format("loop program, %{} ({})", i, op_info(p_.code[i].op).name);
      instr(p_.code[i], i);
    }
    where_ = "loop program";
    if (p_.out.empty()) bad("no output");
    if (p_.stores.size() != p_.out.size())
      bad("{} stores for {} outputs", p_.stores.size(), p_.out.size());
    for (size_t i = 0; i < p_.stores.size(); ++i) {
      where_ = fmt::format("loop program, store of out{}", i);
      store(p_.stores[i], i);
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kInvalidArgument, "{}: {}", where_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  void extent(const SymExpr& e) const {
    for (const std::string& s : e.symbols())
      if (is_variable(s)) bad("the extent {} uses {}, a loop variable", e.text(), s);
    if (auto n = e.constant(); n && *n < 0) bad("a negative extent {}", *n);
  }

  void param(const TensorType& t, bool output) const {
    bool plain = t.dtype == DType::kF32 || t.dtype == DType::kF16 || t.dtype == DType::kBF16 ||
                 t.dtype == DType::kI32;
    if (!plain && !(output && t.dtype == DType::kQ8A))
      bad("{} of type {}", output ? "an output" : "an input", dtype_name(t.dtype));
    for (const Dim& d : t.dims) {
      if (d.bound || !d.axis.empty()) bad("extents of {} have names or bounds", t.text());
      extent(d.extent);
    }
    (void)t.elements();  // bounded: throws when there are too many terms
  }

  const Instr& value(uint32_t id, size_t before) const {
    if (id >= before) bad("%{} is not defined before it", id);
    return p_.code[id];
  }

  void instr(const Instr& i, size_t at) const {
    const OpInfo& info = op_info(i.op);
    if (i.in.size() != static_cast<size_t>(info.inputs()))
      bad("{} operands, it takes {}", i.in.size(), info.inputs());
    for (uint32_t in : i.in) value(in, at);
    switch (info.kind) {
      case OpKind::kSource:
        return source(i, at);
      case OpKind::kReduce:
        if (type(i, 0).form != Form::kTile) bad("%{} is not a tile", i.in[0]);
        if (type(i, 0).elem == Elem::kI32) bad("integers cannot be reduced");
        need(i, floating(i), Form::kRow);
        if (auto n = p_.columns.constant(); n && *n == 0) bad("there are no columns");
        return;
      case OpKind::kUnary:
        return unary(i);
      case OpKind::kBinary:
        need(i, joined(i, 0, 1) ? Elem::kI32 : floating(i), form(i));
        return;
      case OpKind::kCompare:
        joined(i, 0, 1);
        need(i, Elem::kI32, form(i));
        return;
      case OpKind::kSelect:
        if (type(i, 0).elem != Elem::kI32) bad("the condition %{} is not i32", i.in[0]);
        need(i, joined(i, 1, 2) ? Elem::kI32 : floating(i), form(i));
        return;
    }
  }

  ValueType type(const Instr& i, size_t operand) const { return p_.code[i.in[operand]].type; }
  static Elem floating(const Instr& i) {  // f32 and wide are both valid; i32 is not
    return i.type.elem == Elem::kI32 ? Elem::kF32 : i.type.elem;
  }
  Form form(const Instr& i) const {
    bool tile = std::any_of(i.in.begin(), i.in.end(),
                            [&](uint32_t v) { return p_.code[v].type.form == Form::kTile; });
    return tile ? Form::kTile : Form::kRow;
  }
  // Whether both are integers; mixing integers and floats is an error.
  bool joined(const Instr& i, size_t a, size_t b) const {
    bool left = type(i, a).elem == Elem::kI32, right = type(i, b).elem == Elem::kI32;
    if (left != right) bad("%{} and %{} are an integer and a float", i.in[a], i.in[b]);
    return left;
  }
  void need(const Instr& i, Elem elem, Form form) const {
    if (i.type.elem != elem) bad("its type must be {}", elem == Elem::kI32 ? "i32" : "f32 or wide");
    if (i.type.form != form) bad("it gives a {}", form == Form::kTile ? "tile" : "row");
  }

  void unary(const Instr& i) const {
    bool from_int = type(i, 0).elem == Elem::kI32;
    if (i.op == Op::kToI32) return need(i, Elem::kI32, form(i));
    if (from_int != (i.op == Op::kToF32)) bad("%{} is {}i32", i.in[0], from_int ? "" : "not ");
    if (i.op == Op::kSoftcap && !(i.number > 0)) bad("the cap {} is not positive", i.number);
    need(i, floating(i), form(i));
  }

  void source(const Instr& i, size_t at) const {
    if (i.op == Op::kLoad) {
      if (i.access.param >= p_.in.size()) bad("there is no in{}", i.access.param);
      const TensorType& t = p_.in[i.access.param];
      Linear index = access(i.access, t, at);
      if (i.type.elem == Elem::kWide) bad("a load is not wide");
      need(i, t.dtype == DType::kI32 ? Elem::kI32 : Elem::kF32, form_of(index));
    } else if (i.op == Op::kIndex) {
      if (i.access.by >= 0) bad("an index cannot use rows by index");
      need(i, Elem::kI32, form_of(parts(i.access)));
    } else if (i.op == Op::kColumns) {
      need(i, floating(i), Form::kRow);
    } else {
      if (i.type.elem == Elem::kI32 &&
          !(std::trunc(i.number) == i.number && std::fabs(i.number) <= 2147483647.0))
        bad("{} is not an integer of 32 bits", i.number);
      need(i, i.type.elem == Elem::kI32 ? Elem::kI32 : floating(i), Form::kRow);
    }
  }

  static Form form_of(const Linear& index) {
    return index.column == SymExpr(0) ? Form::kRow : Form::kTile;
  }

  Linear parts(const Access& a) const {
    Linear out;
    try {
      out = linear_parts(a.index, p_.rows.size());
    } catch (const Error& e) {
      bad("{}", e.what());
    }
    std::vector<SymExpr> all = out.rows;
    all.insert(all.end(), {out.column, out.by, out.offset});
    for (const SymExpr& part : all)
      for (const std::string& s : part.symbols())
        if (is_variable(s))
          bad("the index {} uses {}, which is not a variable here", a.index.text(), s);
    if ((a.by >= 0) != (out.by != SymExpr(0)))
      bad("the index {} {} g", a.index.text(), a.by >= 0 ? "does not use" : "uses");
    return out;
  }

  // Inside the tensor for all rows and columns, as far as extents are constant; executors check
  // what depends on symbols.
  Linear access(const Access& a, const TensorType& t, size_t at) const {
    Linear out = parts(a);
    SymExpr last = out.offset;
    auto reach = [&](const SymExpr& coefficient, const SymExpr& extent) {
      if (coefficient == SymExpr(0)) return;
      if (auto k = coefficient.constant(); k && *k < 0)
        bad("the index {} counts backwards", a.index.text());
      last = last + coefficient * (extent - 1);
    };
    for (size_t i = 0; i < p_.rows.size(); ++i) reach(out.rows[i], p_.rows[i]);
    reach(out.column, p_.columns);
    if (a.by >= 0) {
      const ValueType by = value(static_cast<uint32_t>(a.by), at).type;
      if (by.elem != Elem::kI32 || by.form != Form::kRow) bad("%{} is not an i32 row", a.by);
      extent(a.limit);
      reach(out.by, a.limit);
    } else if (a.limit != SymExpr(0)) {
      bad("a limit without a row");
    }
    if (auto k = out.offset.constant(); k && *k < 0) bad("a negative offset {}", *k);
    if (auto rest = (t.elements() - last).constant(); rest && *rest < 1)
      bad("the index {} reaches element {} of {}", a.index.text(), last.text(),
          t.elements().text());
    return out;
  }

  void store(const Store& s, size_t at) const {
    if (s.to.param != at) bad("it must write out{}", at);
    const TensorType& t = p_.out[at];
    const ValueType v = value(s.value, p_.code.size()).type;
    if ((v.elem == Elem::kI32) != (t.dtype == DType::kI32))
      bad("the type of %{} does not fit {}", s.value, t.text());
    if (v.elem == Elem::kWide) bad("%{} is wide", s.value);
    Linear index = access(s.to, t, p_.code.size());
    if (v.form == Form::kTile && form_of(index) == Form::kRow && p_.columns != SymExpr(1))
      bad("the index {} has no column for the tile %{}", s.to.index.text(), s.value);
    if (t.dtype == DType::kQ8A && v.form == Form::kRow)
      bad("q8a needs a tile, %{} is a row", s.value);
    if (t.dtype == DType::kQ8A) quantized(s, index);
    if (s.to.by < 0) covers(s, index, t);
  }

  void quantized(const Store& s, const Linear& index) const {
    auto n = p_.columns.constant();
    if (!n || *n % 32 != 0 || index.column != SymExpr(1) || s.to.by >= 0)
      bad("q8a needs whole rows of a multiple of 32 columns");
    auto whole = [](const SymExpr& k) { return k.constant() && *k.constant() % 32 == 0; };
    if (!whole(index.offset) || !std::all_of(index.rows.begin(), index.rows.end(), whole))
      bad("rows of {} do not start at a block", s.to.index.text());
  }

  // Every element once: the strides of the axes nest (1, then the extent of the previous one, ...).
  void covers(const Store& s, const Linear& index, const TensorType& t) const {
    std::vector<std::pair<SymExpr, SymExpr>> axes;  // step, extent
    for (size_t i = 0; i < p_.rows.size(); ++i)
      if (p_.rows[i] != SymExpr(1)) axes.emplace_back(index.rows[i], p_.rows[i]);
    if (form_of(index) == Form::kTile && p_.columns != SymExpr(1))
      axes.emplace_back(index.column, p_.columns);
    SymExpr step = 1;
    while (!axes.empty()) {
      auto it = std::find_if(axes.begin(), axes.end(), [&](auto& a) { return a.first == step; });
      if (it == axes.end()) bad("the index {} does not write each element once", s.to.index.text());
      step = step * it->second;
      axes.erase(it);
    }
    if (step != t.elements() || index.offset != SymExpr(0))
      bad("the index {} writes {} elements of {}", s.to.index.text(), step.text(),
          t.elements().text());
  }

  const Program& p_;
  std::string where_;
};

}  // namespace

void verify_program(const Program& program) { Verifier(program).run(); }

std::vector<std::string> program_symbols(const Program& program) {
  std::set<std::string> names;
  auto add = [&](const SymExpr& e) {
    for (std::string& s : e.symbols())
      if (!is_variable(s)) names.insert(std::move(s));
  };
  for (const SymExpr& r : program.rows) add(r);
  add(program.columns);
  for (const auto* list : {&program.in, &program.out})
    for (const TensorType& t : *list)
      for (const Dim& d : t.dims) add(d.extent);
  auto of = [&](const Access& a) {
    add(a.index);
    add(a.limit);
  };
  for (const Instr& i : program.code) of(i.access);
  for (const Store& s : program.stores) of(s.to);
  return {names.begin(), names.end()};
}

}  // namespace tokamak::loop
