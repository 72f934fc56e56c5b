// The interpreter of Loop IR: a row is taken whole or walked in tiles, and each instruction runs
// over it with the vector kernel that the op has alone, so a fused region gives the bits of its ops
// one by one. Intermediate values stay in a thread's scratch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

float neutral(Reduce reduction) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return reduction == Reduce::kMax ? -kInfinity : reduction == Reduce::kMin ? kInfinity : 0.0f;
}

FType float_type(DType dtype) {
  return dtype == DType::kF16 ? FType::kF16 : dtype == DType::kBF16 ? FType::kBF16 : FType::kF32;
}

}  // namespace

LoopRunner::LoopRunner(const LoopPlan& plan, const loop::Bounds& bounds, const KernelTable& kernels,
                       const Tensor* in, const Tensor* out, uint8_t* scratch,
                       std::span<const uint32_t> params)
    : plan_(plan), bounds_(bounds), kernels_(kernels), in_(in), out_(out), params_(params) {
  auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(scratch) % kLoopAlign);
  scratch += (kLoopAlign - address) % kLoopAlign;
  places_ = reinterpret_cast<Place*>(scratch);
  lanes_ = reinterpret_cast<float*>(scratch + plan.lanes_at);
  zeros_ = scratch + plan.zeros_at;
  if (plan.gathers) std::memset(zeros_, 0, static_cast<size_t>(plan.tile) * 4);
  for (const LoopPlan::Start& s : plan.starts) places_[s.value] = {scratch + s.offset, s.step};
  static_assert(sizeof(Place) == 16);
}

// Element of column 0; -1: there is no such row.
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
    auto* data = static_cast<uint8_t*>(input(plan_.program.code[id].access.param).data);
    places_[id] = {data + bounds_.row_offset(b, row_) * 4, 4};
  }
  for (size_t s : plan_.direct_stores) {
    uint32_t value = plan_.program.stores[s].value;
    places_[value] = {output(s, bounds_.row_offset(bounds_.of_store(s), row_)), 4};
  }
}

uint8_t* LoopRunner::output(size_t store, int64_t index) const {
  DType dtype = plan_.program.out[store].dtype;
  if (to_) index -= bounds_.row_offset(bounds_.of_store(store), row_);
  int64_t bytes = dtype == DType::kQ8A ? index / kQuantBlock * kActivationBlock
                                       : index * (float_type(dtype) == FType::kF32 ? 4 : 2);
  return (to_ ? to_[store] : static_cast<uint8_t*>(out_[store].data)) + bytes;
}

void LoopRunner::find_row(uint32_t load) {
  const loop::Access& access = plan_.program.code[load].access;
  int64_t start = row_start(bounds_.of_instr(load), access.by);
  places_[load] = start < 0 ? Place{zeros_, 0}
                            : Place{static_cast<uint8_t*>(input(access.param).data) + start * 4, 4};
}

void LoopRunner::run_phases(int64_t from, int64_t to) {
  for (const LoopPlan::Phase& phase : plan_.phases) {
    for (const LoopStep& s : phase.row) run_step(s, 0, 1);
    for (uint32_t id : phase.rows_by_index) find_row(id);
    if (phase.tile.empty()) continue;
    for (const LoopStep& s : phase.tile)
      if (s.kind == Kind::kReduce) std::fill_n(lanes_ + s.reduce * 16, 16, neutral(s.reduction));
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

// Along the innermost axis every place moves by its own step.
void LoopRunner::next_row() {
  size_t axis = plan_.program.rows.size() - 1;
  int64_t before = row_[axis];
  bounds_.next_row(row_);
  if (row_[axis] != before + 1) return set_places();
  for (uint32_t id : plan_.inputs) places_[id].base += bounds_.of_instr(id).rows[axis] * 4;
  for (size_t s : plan_.direct_stores)
    places_[plan_.program.stores[s].value].base += bounds_.of_store(s).rows[axis] * 4;
}

void LoopRunner::run(int64_t begin, int64_t end) {
  for (const LoopStep& s : plan_.once) run_step(s, 0, 1);
  int64_t columns = bounds_.columns();
  if (plan_.whole_rows) {
    bounds_.row_indices(begin, row_);
    set_places();
    for (int64_t row = begin;;) {
      if (plan_.uncut_rows)
        for (const LoopStep& s : plan_.phases[0].tile) run_step(s, 0, s.one ? 1 : columns);
      else
        run_phases(0, columns);
      if (++row >= end) return;
      next_row();
    }
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

void LoopRunner::run_row(int64_t row, uint8_t* const* to) {
  to_ = to;
  run(row, row + 1);
  to_ = nullptr;
}

void LoopRunner::run_step(const LoopStep& s, int64_t column, int64_t n) {
  switch (s.kind) {
    case Kind::kUnary:
      if (n == 1 && s.op == LoopCode::kRsqrt) {  // same rounding as the vector kernel
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
    case Kind::kReduceRow:
      return reduce_row(s, n);
    case Kind::kRmsNorm:
      return kernels_.rms_norm(f32(s.in[0], 0), f32(s.in[1], 0), f32(s.to, 0), n, s.number);
    case Kind::kLayerNorm:
      return kernels_.layer_norm(f32(s.in[0], 0), f32(s.in[1], 0),
                                 s.tile[2] ? f32(s.in[2], 0) : nullptr, f32(s.to, 0), n, s.number);
    case Kind::kSoftmax:
      return kernels_.softmax(f32(s.in[0], 0), f32(s.to, 0), n);
    case Kind::kFindRow:
      return find_row(s.to);
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

void LoopRunner::reduce_row(const LoopStep& s, int64_t n) {
  auto which = static_cast<int>(s.reduction);
  alignas(64) float lanes[16];
  std::fill_n(lanes, 16, neutral(s.reduction));
  kernels_.reduce[which](f32(s.in[0], 0), n, lanes);
  *f32(s.to, 0) = kernels_.join_lanes[which](lanes);
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
    case loop::OpKind::kSelect: {  // copies bits of any type
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
  const Tensor& t = input(access.param);
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
  int64_t start = row_start(b, plan_.program.stores[s.to].to.by);
  if (start < 0) return;
  start += b.column * column;
  uint8_t* at = output(s.to, start);
  const float* x = f32(s.in[0], s.tile[0] ? column : 0);
  int64_t step = s.tile[0] ? 1 : 0;
  DType dtype = plan_.program.out[s.to].dtype;
  if (dtype == DType::kQ8A) return kernels_.quantize_row(x, n, at);
  FType type = float_type(dtype);
  if (type == FType::kF32) {
    auto* to = reinterpret_cast<int32_t*>(at);
    const auto* from = reinterpret_cast<const int32_t*>(x);
    for (int64_t j = 0; j < n; ++j) to[j * b.column] = from[j * step];
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(at);
  auto narrow = kernels_.narrow[static_cast<int>(type)];
  if (b.column == 1 && step == 1) return narrow(x, to, n);
  for (int64_t j = 0; j < n; ++j) narrow(x + j * step, to + j * b.column, 1);
}

}  // namespace tokamak::cpu
