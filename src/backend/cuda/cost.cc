#include "backend/cuda/cost.h"

#include <algorithm>

namespace tokamak::cuda {
namespace {

// Per second; of an H200 unless a machine file says otherwise.
constexpr double kProductShare = 0.82;  // of the memory's speed that a library's product reaches

struct Rates {
  double launch_seconds = 4e-6;
  double memory = 4.5e12;  // bytes that reads reach
  double cache = 8e12;     // of values that stay in the 50 MB cache
  double cache_bytes = 30e6;
  double vector_ops = 1.5e13;
  double f32_flops = 2e13;     // of the dot products in f32
  double tensor_flops = 7e14;  // of products of 16-bit values
  double i8_ops = 6e13;
  double attend_flops = 4e12;

  explicit Rates(const Machine& m) {
    if (!m.name.starts_with(kGpuMachine)) return;
    launch_seconds = m.call_seconds;
    memory = m.memory().bandwidth;
    cache = m.levels.front().bandwidth;
    if (m.levels.size() > 1) cache_bytes = 0.6 * m.levels.front().capacity;
    vector_ops = m.vector_ops;
    f32_flops = m.f32_flops;
    i8_ops = m.i8_ops;
    attend_flops = 0.2 * m.f32_flops;
    tensor_flops = 35 * m.f32_flops;
  }
  double cost(const KernelWork& work, double arithmetic) const {
    double traffic = 0;
    for (const auto* list : {&work.in, &work.out})
      for (const ValueWork& v : *list)
        traffic += v.bytes / (v.weight || v.bytes > cache_bytes ? memory : cache);
    return launch_seconds + std::max(arithmetic, traffic);
  }
};

}  // namespace

double rows_cost(const KernelDesc&, const KernelWork& work, const Machine& machine) {
  const Rates rates(machine);
  double ops = 0;
  for (const OpWork& op : work.ops) ops += op.vector_ops;
  return rates.cost(work, ops / rates.vector_ops);
}

double linear_cost(const KernelDesc&, const KernelWork& work, const Machine& machine) {
  Rates rates(machine);
  rates.memory *= kProductShare;
  double seconds = 0;
  for (const OpWork& op : work.ops)
    seconds += op.flops / (op.activations == DType::kQ8A   ? rates.i8_ops
                           : op.activations == DType::kF32 ? rates.f32_flops
                                                           : rates.tensor_flops);
  return rates.cost(work, seconds);
}

double decoded_cost(const KernelDesc&, const KernelWork& work, const Machine& machine) {
  const Rates rates(machine);
  double seconds = 0;
  // Weights per second, from whole steps on an H200: blocks of 210 bytes come two bytes at a time.
  constexpr double kQ6Rate = 4.6e11;
  for (const OpWork& op : work.ops) {
    seconds += op.flops / rates.f32_flops;
    if (op.weights == DType::kQ6_K && op.rows > 0) seconds += op.flops / (2 * op.rows) / kQ6Rate;
  }
  return rates.cost(work, seconds);
}

// Only those rows of a table are read that are asked for.
double gather_cost(const KernelDesc&, const KernelWork& work, const Machine& machine) {
  double bytes = 0;
  for (const ValueWork& v : work.out) bytes += 2 * v.bytes;
  const Rates rates(machine);
  return rates.launch_seconds + bytes / rates.memory;
}

double attend_cost(const KernelDesc&, const KernelWork& work, const Machine& machine) {
  const Rates rates(machine);
  double flops = 0;
  for (const OpWork& op : work.ops) flops += op.flops;
  return rates.cost(work, flops / rates.attend_flops);
}

// The constants fit steps of 8B and 1.7B models on an H200, 1 to 8 sequences, within 15 %: weights
// come at the memory's speed, and in each layer the multiprocessors wait for each other's values.
double stream_seconds(const DecoderWork& work, const Machine& machine) {
  constexpr double kValueRate = 3e11;  // bytes per second
  const Rates rates(machine);
  const double several = work.rows > 1 ? 7e-6 + 2.1e-6 * work.rows : 0;
  const double waiting = 12e-6 + several + work.rows * work.row_bytes / kValueRate;
  return rates.launch_seconds + work.weight_bytes / rates.memory + work.layers * waiting;
}

// As above, 1 to 128 sequences: weights come at nearly the memory's speed while a layer's other
// launches, which wait for each other, run. Products of more rows cost what a library's do.
double layers_seconds(const DecoderWork& work, const Machine& machine) {
  const Rates rates(machine);
  const bool few = work.rows <= work.few_rows;
  const double share = !few ? kProductShare : work.rows <= 32 ? 0.91 : work.rows <= 64 ? 0.8 : 0.74;
  constexpr double kDecodeRate = 2.4e12;  // weights per second
  const double products = std::max({work.weight_bytes / (share * rates.memory),
                                    work.flops / rates.tensor_flops, work.decoded / kDecodeRate});
  const double between =
      few ? 27e-6 + work.rows * 0.33e-6 : 38e-6 + work.rows * work.row_bytes / rates.cache;
  const double expanding = 2 * work.expanded_bytes / rates.memory;
  return 2 * rates.launch_seconds + products + expanding + work.layers * between;
}

}  // namespace tokamak::cuda
