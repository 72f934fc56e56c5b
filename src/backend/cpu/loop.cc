// Loop IR on the CPU: rows are split over the threads; a row is walked in tiles, and each
// instruction runs over a tile with the vector kernel that the op has alone, so a fused region
// gives the bits of its ops one by one. Intermediate values stay in a thread's scratch.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/loop_plan.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

using loop::BoundAccess;
using Kind = LoopStep::Kind;
using LoopCode = loop::Op;

int32_t to_int(float x) {  // towards zero; what does not fit saturates, NaN is 0
  if (std::isnan(x)) return 0;
  return static_cast<int32_t>(
      std::clamp(std::trunc(static_cast<double>(x)), -2147483648.0, 2147483647.0));
}

int32_t integer_op(LoopCode op, int32_t a, int32_t b) {
  auto x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
  switch (op) {
    case LoopCode::kAdd:
      return static_cast<int32_t>(x + y);
    case LoopCode::kSub:
      return static_cast<int32_t>(x - y);
    case LoopCode::kMul:
      return static_cast<int32_t>(x * y);
    case LoopCode::kDiv:
      return b == 0 ? 0 : static_cast<int32_t>(int64_t{a} / b);
    case LoopCode::kMaximum:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}

template <class T>
void compare_loop(LoopCode op, const T* a, int64_t step_a, const T* b, int64_t step_b, int32_t* y,
                  int64_t n) {
  auto each = [&](auto holds) {
    for (int64_t j = 0; j < n; ++j) y[j] = holds(a[j * step_a], b[j * step_b]) ? 1 : 0;
  };
  switch (op) {
    case LoopCode::kLt:
      return each([](T p, T q) { return p < q; });
    case LoopCode::kLe:
      return each([](T p, T q) { return p <= q; });
    case LoopCode::kEq:
      return each([](T p, T q) { return p == q; });
    case LoopCode::kNe:
      return each([](T p, T q) { return p != q; });
    case LoopCode::kGe:
      return each([](T p, T q) { return p >= q; });
    default:
      return each([](T p, T q) { return p > q; });
  }
}

FType float_type(DType dtype) {
  return dtype == DType::kF16 ? FType::kF16 : dtype == DType::kBF16 ? FType::kBF16 : FType::kF32;
}

}  // namespace

// Element of column 0; -1: the row is not there.
int64_t LoopRunner::row_start(const BoundAccess& b, int32_t by) const {
  int64_t start = bounds_.row_offset(b, row_);
  if (by < 0) return start;
  int64_t g = *i32(static_cast<uint32_t>(by), 0);
  if (g >= b.limit)
    fail(ErrorCode::kOutOfRange, "loop program: row {} is beyond the limit {}", g, b.limit);
  return g < 0 ? -1 : start + b.by * g;
}

void LoopRunner::set_places() {
  for (uint32_t id : plan_.inputs) {
    const BoundAccess& b = bounds_.of_instr(id);
    auto* data = static_cast<uint8_t*>(in_[plan_.program.code[id].access.param].data);
    places_[id] = {data + bounds_.row_offset(b, row_) * 4, 4};
  }
  for (size_t s = 0; s < plan_.program.stores.size(); ++s) {
    uint32_t value = plan_.program.stores[s].value;
    const LoopPlace& p = plan_.places[value];
    if (p.kind != LoopPlace::Kind::kOutput || p.slot != s) continue;
    auto* data = static_cast<uint8_t*>(out_[s].data);
    places_[value] = {data + bounds_.row_offset(bounds_.of_store(s), row_) * 4, 4};
  }
}

void LoopRunner::set_rows_by_index(const LoopPlan::Phase& phase) {
  for (uint32_t id : phase.rows_by_index) {
    const loop::Access& access = plan_.program.code[id].access;
    int64_t start = row_start(bounds_.of_instr(id), access.by);
    places_[id] = start < 0 ? Place{zeros_, 0}
                            : Place{static_cast<uint8_t*>(in_[access.param].data) + start * 4, 4};
  }
}

void LoopRunner::run_phases(int64_t from, int64_t to) {
  for (const LoopPlan::Phase& phase : plan_.phases) {
    for (const LoopStep& s : phase.row) run_step(s, 0, 1);
    set_rows_by_index(phase);
    if (phase.tile.empty()) continue;
    for (const LoopStep& s : phase.tile)
      if (s.kind == Kind::kReduce) {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        float start = s.reduction == Reduce::kMax   ? -kInfinity
                      : s.reduction == Reduce::kMin ? kInfinity
                                                    : 0.0f;
        std::fill_n(lanes_ + s.reduce * 16, 16, start);
      }
    for (int64_t column = from; column < to; column += plan_.tile) {
      int64_t n = std::min(plan_.tile, to - column);
      for (const LoopStep& s : phase.tile) run_step(s, column, n);
    }
    for (const LoopStep& s : phase.tile)
      if (s.kind == Kind::kReduce)
        *f32(s.to, 0) = kernels_.join_lanes[static_cast<int>(s.reduction)](lanes_ + s.reduce * 16);
  }
  if (from == 0)
    for (const LoopStep& s : plan_.row_stores) store(s, 0, 1);
}

void LoopRunner::run(int64_t begin, int64_t end) {
  for (const LoopStep& s : plan_.once) run_step(s, 0, 1);
  int64_t columns = bounds_.columns();
  if (plan_.whole_rows) {
    bounds_.row_indices(begin, row_);
    for (int64_t row = begin; row < end; ++row, bounds_.next_row(row_)) {
      set_places();
      run_phases(0, columns);
    }
    return;
  }
  int64_t tiles = (columns + plan_.tile - 1) / plan_.tile;
  for (int64_t unit = begin; unit < end;) {
    int64_t row = unit / tiles, stop = std::min(end, (row + 1) * tiles);
    bounds_.row_indices(row, row_);
    set_places();
    run_phases(unit % tiles * plan_.tile, std::min(columns, (stop - row * tiles) * plan_.tile));
    unit = stop;
  }
}

void LoopRunner::run_step(const LoopStep& s, int64_t column, int64_t n) {
  switch (s.kind) {
    case Kind::kUnary:
      if (n == 1 && s.op == LoopCode::kRsqrt) {  // rounded alike, without a vector
        *f32(s.to, column) = 1.0f / std::sqrt(*f32(s.in[0], column));
        return;
      }
      return s.unary.run(f32(s.in[0], column), f32(s.to, column), n, s.unary.parameter);
    case Kind::kBinary:
      return s.binary(f32(s.in[0], column), f32(s.in[1], column), f32(s.to, column), n);
    case Kind::kBinaryRight:
      return s.binary_scalar(f32(s.in[0], column), *f32(s.in[1], 0), f32(s.to, column), n);
    case Kind::kBinaryLeft:
      std::fill_n(f32(s.to, column), n, *f32(s.in[0], 0));
      return s.binary(f32(s.to, column), f32(s.in[1], column), f32(s.to, column), n);
    case Kind::kBinaryRow:
      return run_binary_row(s);
    case Kind::kScaleMul:
      return kernels_.scale_mul(f32(s.in[0], column), *f32(s.in[1], 0), f32(s.in[2], column),
                                f32(s.to, column), n);
    case Kind::kReduce:
      return kernels_.reduce[static_cast<int>(s.reduction)](f32(s.in[0], column), n,
                                                            lanes_ + s.reduce * 16);
    case Kind::kRound:
      return round(s, column, n);
    case Kind::kGeneric:
      return run_generic(s, column, n);
    case Kind::kLoad:
      return load(s, column, n);
    case Kind::kIndex: {
      const BoundAccess& b = bounds_.of_instr(s.to);
      int64_t value = bounds_.row_offset(b, row_) + b.column * column;
      int32_t* y = i32(s.to, column);
      for (int64_t j = 0; j < n; ++j, value += b.column) y[j] = static_cast<int32_t>(value);
      return;
    }
    case Kind::kConst:
      if (plan_.program.code[s.to].type.elem == loop::Elem::kI32)
        *i32(s.to, 0) = static_cast<int32_t>(plan_.program.code[s.to].number);
      else
        *f32(s.to, 0) =
            s.op == LoopCode::kColumns ? static_cast<float>(bounds_.columns()) : s.number;
      return;
    case Kind::kStore:
      return store(s, column, n);
  }
}

// The same roundings as the vector kernels, which these four have in common with plain arithmetic.
void LoopRunner::run_binary_row(const LoopStep& s) {
  float a = *f32(s.in[0], 0), b = *f32(s.in[1], 0);
  float* y = f32(s.to, 0);
  switch (s.op) {
    case LoopCode::kAdd:
      *y = a + b;
      break;
    case LoopCode::kSub:
      *y = a - b;
      break;
    case LoopCode::kMul:
      *y = a * b;
      break;
    case LoopCode::kDiv:
      *y = a / b;
      break;
    default:
      s.binary(&a, &b, y, 1);
  }
}

void LoopRunner::run_generic(const LoopStep& s, int64_t column, int64_t n) {
  int64_t step[3];
  for (int k = 0; k < 3; ++k) step[k] = s.tile[k] ? 1 : 0;
  switch (loop::op_info(s.op).kind) {
    case loop::OpKind::kCompare:
      if (s.integer)
        return compare_loop(s.op, i32(s.in[0], column), step[0], i32(s.in[1], column), step[1],
                            i32(s.to, column), n);
      return compare_loop(s.op, f32(s.in[0], column), step[0], f32(s.in[1], column), step[1],
                          i32(s.to, column), n);
    case loop::OpKind::kSelect: {  // bits, whatever they are
      const int32_t *c = i32(s.in[0], column), *a = i32(s.in[1], column), *b = i32(s.in[2], column);
      int32_t* y = i32(s.to, column);
      for (int64_t j = 0; j < n; ++j) y[j] = c[j * step[0]] != 0 ? a[j * step[1]] : b[j * step[2]];
      return;
    }
    case loop::OpKind::kBinary: {
      const int32_t *a = i32(s.in[0], column), *b = i32(s.in[1], column);
      int32_t* y = i32(s.to, column);
      for (int64_t j = 0; j < n; ++j) y[j] = integer_op(s.op, a[j * step[0]], b[j * step[1]]);
      return;
    }
    default:
      break;
  }
  if (s.op == LoopCode::kToF32) {
    const int32_t* x = i32(s.in[0], column);
    float* y = f32(s.to, column);
    for (int64_t j = 0; j < n; ++j) y[j] = static_cast<float>(x[j]);
  } else if (s.integer) {
    std::memcpy(i32(s.to, column), i32(s.in[0], column), static_cast<size_t>(n) * 4);
  } else {
    const float* x = f32(s.in[0], column);
    int32_t* y = i32(s.to, column);
    for (int64_t j = 0; j < n; ++j) y[j] = to_int(x[j]);
  }
}

void LoopRunner::round(const LoopStep& s, int64_t column, int64_t n) {
  const float* x = f32(s.in[0], column);
  float* y = f32(s.to, column);
  uint16_t half[64];
  auto type = static_cast<int>(s.rounding);
  for (int64_t j = 0; j < n; j += 64) {
    int64_t part = std::min<int64_t>(64, n - j);
    kernels_.narrow[type](x + j, half, part);
    kernels_.widen[type](half, y + j, part);
  }
}

void LoopRunner::load(const LoopStep& s, int64_t column, int64_t n) {
  const BoundAccess& b = bounds_.of_instr(s.to);
  const loop::Access& access = plan_.program.code[s.to].access;
  const Tensor& t = in_[access.param];
  int64_t start = row_start(b, access.by);
  int32_t* y = i32(s.to, column);
  if (start < 0) {
    std::memset(y, 0, static_cast<size_t>(n) * 4);
    return;
  }
  start += b.column * column;
  FType type = t.weight ? FType::kF32 : float_type(t.dtype);
  if (type == FType::kF32) {
    const int32_t* from = t.i32() + start;
    for (int64_t j = 0; j < n; ++j) y[j] = from[j * b.column];
    return;
  }
  const auto* from = static_cast<const uint16_t*>(t.data) + start;
  auto widen = kernels_.widen[static_cast<int>(type)];
  if (b.column == 1) return widen(from, f32(s.to, column), n);
  for (int64_t j = 0; j < n; ++j) widen(from + j * b.column, f32(s.to, column) + j, 1);
}

void LoopRunner::store(const LoopStep& s, int64_t column, int64_t n) {
  const BoundAccess& b = bounds_.of_store(s.to);
  const Tensor& t = out_[s.to];
  int64_t start = row_start(b, plan_.program.stores[s.to].to.by);
  if (start < 0) return;
  start += b.column * column;
  const float* x = f32(s.in[0], s.tile[0] ? column : 0);
  int64_t step = s.tile[0] ? 1 : 0;
  if (t.dtype == DType::kQ8A) {
    auto* blocks = static_cast<uint8_t*>(t.data) + start / kQuantBlock * kActivationBlock;
    return kernels_.quantize_row(x, n, blocks);
  }
  FType type = float_type(t.dtype);
  if (type == FType::kF32) {
    auto* to = t.i32() + start;
    const auto* from = reinterpret_cast<const int32_t*>(x);
    for (int64_t j = 0; j < n; ++j) to[j * b.column] = from[j * step];
    return;
  }
  auto* to = static_cast<uint16_t*>(t.data) + start;
  auto narrow = kernels_.narrow[static_cast<int>(type)];
  if (b.column == 1 && step == 1) return narrow(x, to, n);
  for (int64_t j = 0; j < n; ++j) narrow(x + j * step, to + j * b.column, 1);
}

namespace {

class LoopOp final : public Op {
 public:
  LoopOp(loop::Program program, const OpSite& site)
      : plan_(std::move(program), site.kernels, site) {
    std::vector<std::string> order;
    for (const SymbolDecl& s : site.symbols) order.push_back(s.name);
    bounds_ = loop::Bounds(plan_.program, order);
    in_elements_.resize(plan_.program.in.size());
    out_elements_.resize(plan_.program.out.size());
  }
  int64_t scratch_bytes() const override { return plan_.scratch_bytes(); }

  void bind(const Tensor* in, const Tensor* out, const StepContext& c) override {
    for (size_t i = 0; i < in_elements_.size(); ++i) in_elements_[i] = in[i].elements();
    for (size_t i = 0; i < out_elements_.size(); ++i) out_elements_[i] = out[i].elements();
    bounds_.bind(c.symbols, in_elements_, out_elements_);
  }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    if (plan_.scatters && c.thread == 0)
      for (size_t s = 0; s < plan_.program.stores.size(); ++s)
        if (plan_.program.stores[s].to.by >= 0)
          std::memset(out[s].data, 0, dtype_bytes(out[s].dtype, out[s].elements()));
    auto [begin, end] = units(c);
    if (begin < end)
      LoopRunner(plan_, bounds_, c.kernels, in, out, c.thread_scratch()).run(begin, end);
  }

  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (plan_.scatters) {
      if (c.thread != 0) return;
      for (size_t i = 0; i < in_elements_.size(); ++i) list.read(in[i]);
      for (size_t i = 0; i < out_elements_.size(); ++i) list.write(out[i]);
      return;
    }
    auto [begin, end] = units(c);
    if (begin >= end) return;
    int64_t columns = bounds_.columns();
    if (plan_.whole_rows) return touch_rows(in, out, begin, end, 0, columns, list);
    // The rest of a row, whole rows, the beginning of one.
    int64_t tiles = (columns + plan_.tile - 1) / plan_.tile;
    while (begin < end) {
      int64_t row = begin / tiles, first = begin % tiles, stop = std::min(end, (row + 1) * tiles),
              next = row + 1;
      if (first == 0 && stop == (row + 1) * tiles) next = end / tiles, stop = next * tiles;
      touch_rows(in, out, row, next, first * plan_.tile,
                 std::min(columns, ((stop - 1) % tiles + 1) * plan_.tile), list);
      begin = stop;
    }
  }

 private:
  // Rows, or tiles of rows, of this thread.
  Part units(const StepContext& c) const {
    int64_t columns = bounds_.columns(), rows = columns == 0 ? 0 : bounds_.row_count();
    if (plan_.scatters) return c.thread == 0 ? Part{0, rows} : Part{};
    if (plan_.whole_rows)
      return c.part(rows, std::max<int64_t>(1, kLightGrain / (columns * plan_.cost + 1)));
    int64_t tiles = (columns + plan_.tile - 1) / plan_.tile;
    return c.part(rows * tiles, std::max<int64_t>(1, kLightGrain / (plan_.tile * plan_.cost)));
  }

  // Columns [from, to) of some rows.
  void touch_rows(const Tensor* in, const Tensor* out, int64_t row, int64_t end, int64_t from,
                  int64_t to, AccessList& list) const {
    const loop::Program& p = plan_.program;
    for (size_t i = 0; i < p.code.size(); ++i) {
      if (p.code[i].op != LoopCode::kLoad) continue;
      const Tensor& t = in[p.code[i].access.param];
      if (p.code[i].access.by >= 0)
        list.read(t);
      else
        touch_access(t, bounds_.of_instr(i), row, end, from, to, false, list);
    }
    for (size_t s = 0; s < p.stores.size(); ++s)
      touch_access(out[s], bounds_.of_store(s), row, end, from, to, true, list);
  }
  void touch_access(const Tensor& t, const BoundAccess& b, int64_t row, int64_t end, int64_t from,
                    int64_t to, bool write, AccessList& list) const {
    if (t.weight || !t.data) return;
    auto bytes = [&](int64_t elements) {
      if (t.dtype == DType::kQ8A) return elements / kQuantBlock * kActivationBlock;
      return elements * (t.dtype == DType::kF16 || t.dtype == DType::kBF16 ? 2 : 4);
    };
    auto start = [&](int64_t r) {
      int64_t at[loop::kMaxRowAxes] = {};
      bounds_.row_indices(r, at);
      return bounds_.row_offset(b, at) + b.column * from;
    };
    int64_t width = b.column * (to - from - 1) + 1;
    if (t.dtype == DType::kQ8A) width = to - from;
    Access a;
    a.write = write;
    auto base = reinterpret_cast<uintptr_t>(t.data);
    size_t axes = plan_.program.rows.size();
    bool dense = b.column <= 1;
    if (axes <= 1 && dense) {
      a.base = base + static_cast<uintptr_t>(bytes(start(row)));
      a.width = bytes(width);
      a.stride = axes == 1 ? bytes(b.rows[0]) : a.width;
      a.rows = a.stride == 0 ? 1 : end - row;
      return list.add(a);
    }
    if (dense && end - row <= kMostRows) {
      for (int64_t r = row; r < end; ++r) {
        a.base = base + static_cast<uintptr_t>(bytes(start(r)));
        a.width = a.stride = bytes(width);
        list.add(a);
      }
      return;
    }
    list.memory(t.data, static_cast<int64_t>(dtype_bytes(t.dtype, t.elements())), write, true);
  }

  static constexpr int64_t kMostRows = 16;  // that are listed one by one
  LoopPlan plan_;
  loop::Bounds bounds_;
  std::vector<int64_t> in_elements_, out_elements_;
};

// The call's arguments must be what the program was made for.
void check_arguments(const loop::Program& program, const OpSite& site) {
  auto check = [&](const std::vector<TensorType>& want, const std::vector<Tensor>& have,
                   std::string_view what) {
    if (want.size() != have.size())
      fail(ErrorCode::kCorrupt, "{}: its loop program has {} {}, the call {}", site.label,
           want.size(), what, have.size());
    for (size_t i = 0; i < want.size(); ++i) {
      auto elements = want[i].elements().constant();  // others are checked in every step
      if (want[i].dtype != have[i].dtype || (elements && *elements != have[i].elements()))
        fail(ErrorCode::kCorrupt, "{}: {} {} of its loop program is {}, the call has {}[{}]",
             site.label, what, i, want[i].text(), dtype_name(have[i].dtype), have[i].elements());
    }
  };
  check(program.in, site.in, "inputs");
  check(program.out, site.out, "outputs");
}

}  // namespace

std::unique_ptr<Op> make_loop_op(const OpSite& site) {
  if (site.op != "region" || !site.attrs.is_object()) return nullptr;
  const Value* text = site.attrs.find("program");
  if (!text || !text->is_string()) return nullptr;
  loop::Program program = loop::parse_program(text->as_string());
  check_arguments(program, site);
  return std::make_unique<LoopOp>(loop::merge_rows(program), site);
}

}  // namespace tokamak::cpu
