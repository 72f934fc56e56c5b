#include "backend/cpu/cost.h"

#include <algorithm>

#include "backend/cpu/linear_kernel.h"

namespace tokamak::cpu {
namespace {

// Below this much work a kernel stays on one core.
constexpr double kForkElements = 2 * 16384;
constexpr double kForkProducts = 2 * 96 * 1024;
// Elements of a prologue that every core computes for itself instead of waiting for the others.
constexpr double kRedundantElements = 8192;
constexpr double kPackOps = 2;  // per element, to bring activations into tiles

double spread(double ops, bool parallel, const Machine& m) {
  return ops / m.vector_ops * (parallel ? 1 : m.cores);
}

double weight_bandwidth(const KernelWork& work, const Machine& m) {
  return m.level_of(work.all_weight_bytes / 2).bandwidth;
}

double move_seconds(const ValueWork& v, const KernelWork& work, const Machine& m) {
  return v.bytes / (v.weight ? weight_bandwidth(work, m) : m.level_of(v.bytes).bandwidth);
}

// Everything that enters and leaves; `matrices`: weights that the products stream are counted
// there.
double outside_traffic(const KernelWork& work, bool matrices, const Machine& m) {
  double seconds = 0;
  for (const ValueWork& v : work.in)
    if (!matrices || !v.matrix) seconds += move_seconds(v, work, m);
  for (const ValueWork& v : work.out) seconds += move_seconds(v, work, m);
  return seconds;
}

// The level that holds a row of everything that stays inside a region.
const MachineLevel& row_level(const KernelWork& work, const Machine& m) {
  return m.level_of(work.inside_row_bytes / 2);
}

double traffic(const KernelWork& work, bool matrices, const Machine& m) {
  return outside_traffic(work, matrices, m) + 2 * work.inside_bytes / row_level(work, m).bandwidth;
}

// Row by row: what stays inside costs nothing while a row of it fits the nearest cache.
double row_traffic(const KernelWork& work, const Machine& m) {
  bool near = &row_level(work, m) == &m.levels.front();
  return near ? outside_traffic(work, false, m) : traffic(work, false, m);
}

// The dot products or the stream of weights, whichever takes longer.
double product_seconds(const OpWork& op, const KernelWork& work, const Machine& m) {
  // Matrix instructions multiply half as many bf16 numbers as bytes.
  double rate = op.activations == DType::kQ8A     ? m.i8_ops
                : op.activations == DType::kBF16  ? m.i8_ops / 2
                : op.weights == DType::kInt16G128 ? 2 * m.f32_flops
                                                  : m.f32_flops;
  return std::max(op.flops / rate, op.weight_bytes / weight_bandwidth(work, m));
}

}  // namespace

double matrix_cost(const KernelDesc&, const KernelWork& work, const Machine& m) {
  double seconds = m.call_seconds;
  for (const OpWork& op : work.ops) {
    if (op.flops / 2 >= kForkProducts) seconds += m.barrier_seconds;
    seconds += product_seconds(op, work, m) + spread(op.in_elements * kPackOps, false, m);
  }
  return seconds + traffic(work, true, m);
}

double linears_cost(const KernelDesc&, const KernelWork& work, const Machine& m) {
  double seconds = m.call_seconds, products = 0, before = 0, after = 0, size = 0, rows = 0;
  bool prologue = false;
  for (const OpWork& op : work.ops) {
    if (op.part == OpWork::Part::kAnchor) {
      seconds += product_seconds(op, work, m);
      products += op.flops / 2;
      size = op.in_elements;
      rows = op.rows;
    } else {
      prologue = prologue || op.part == OpWork::Part::kBefore;
      (op.part == OpWork::Part::kBefore ? before : after) += op.vector_ops;
    }
  }
  // Either every core makes the activations for itself, or all of them once and wait.
  bool parallel = products >= kForkProducts;
  bool redundant = rows <= 4 || size <= (prologue ? kRedundantElements : 4 * kRedundantElements);
  if (parallel) seconds += m.barrier_seconds * (redundant ? 1 : 2);
  seconds += spread(before + size * kPackOps, parallel && !redundant, m);
  return seconds + spread(after, parallel, m) + traffic(work, true, m);
}

uint64_t linears_scratch(const KernelWork& work) {
  for (const OpWork& op : work.ops)
    if (op.part == OpWork::Part::kAnchor && op.rows > 0) {
      auto rows = static_cast<int64_t>(op.rows), k = static_cast<int64_t>(op.in_elements) / rows;
      // Tiles may lie together in groups of 16 rows; one group is not shared.
      int64_t unit = rows > 16 ? 16 : kTile, tiles = (rows + unit - 1) / unit * (unit / kTile);
      return static_cast<uint64_t>(tiles * most_tile_bytes(op.activations, k));
    }
  return 0;
}

uint64_t lora_scratch(const KernelWork& work) {
  for (const OpWork& op : work.ops)
    if (op.part == OpWork::Part::kAnchor && op.rows > 0) {
      double rank = op.flops / (2 * (op.in_elements + op.elements));
      return static_cast<uint64_t>(op.rows * rank + 0.5) * sizeof(float);
    }
  return 0;
}

double rows_cost(const KernelDesc&, const KernelWork& work, const Machine& m) {
  double ops = 0, touched = 0;
  for (const OpWork& op : work.ops) {
    ops += op.vector_ops;
    touched += op.elements;
  }
  bool parallel = touched >= kForkElements;
  double seconds = m.call_seconds + spread(ops, parallel, m) + (parallel ? m.barrier_seconds : 0);
  return seconds + row_traffic(work, m);
}

double loop_cost(const KernelDesc& kernel, const KernelWork& work, const Machine& m) {
  double rows = 0;
  for (const OpWork& op : work.ops) rows = std::max(rows, op.rows);
  double steps = rows * static_cast<double>(work.ops.size() + work.in.size() + work.out.size());
  return rows_cost(kernel, work, m) + m.loop_seconds + steps * m.loop_step_seconds;
}

uint64_t attend_scratch(const KernelWork&) { return kSegmentSumBytes; }

double attend_cost(const KernelDesc&, const KernelWork& work, const Machine& m) {
  double ops = 0;
  for (const OpWork& op : work.ops) ops += op.vector_ops;
  return m.call_seconds + m.barrier_seconds + spread(ops, true, m) + traffic(work, false, m);
}

// About three passes over the logits, whatever the stages are.
double sample_cost(const KernelDesc&, const KernelWork& work, const Machine& m) {
  double elements = 0;
  for (const OpWork& op : work.ops) elements = std::max(elements, op.in_elements);
  return m.call_seconds + spread(3 * elements, true, m) + traffic(work, false, m);
}

// Copied, sorted and rounded in double, on one thread.
double defined_cost(const KernelDesc&, const KernelWork& work, const Machine& m) {
  constexpr double kOperationsPerElement = 100;
  double ops = 0;
  for (const OpWork& op : work.ops) ops += op.in_elements * kOperationsPerElement;
  return m.call_seconds + spread(ops, false, m) + traffic(work, false, m);
}

}  // namespace tokamak::cpu
