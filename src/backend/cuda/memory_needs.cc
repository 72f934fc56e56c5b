#include "backend/cuda/memory_needs.h"

#include <algorithm>

#include "backend/cuda/blas.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/layer_launches.h"
#include "backend/cuda/stream_decoder.h"
#include "backend/cuda/table_sampler.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr uint64_t kReserve = uint64_t{512} << 20;  // context, kernels, graphs, staging

uint64_t megabytes(uint64_t bytes) { return bytes >> 20; }

}  // namespace

int32_t padded_stride(int64_t blocks) {
  constexpr int64_t kStep = 64;
  return static_cast<int32_t>((blocks + kStep - 1) / kStep * kStep);
}

TableSize TableSize::of(const PlanSet& plans, uint32_t group) {
  constexpr int64_t kUsualContext = 8192;  // of plans that do not say
  const int64_t size = plans.groups.at(group).block_size,
                context = plans.context > 0 ? plans.context : kUsualContext;
  TableSize out;
  for (const SymbolDecl& s : plans.symbols)
    if (s.name == "B") out.rows = s.hi + 1;  // a sequence of padding
  out.stride = padded_stride((context + size - 1) / size);
  return out;
}

MemoryNeeds MemoryNeeds::of(const PlanSet& plans) {
  MemoryNeeds out;
  for (const WeightEntry& w : plans.weights) out.weights += static_cast<uint64_t>(weight_bytes(w));
  out.values = plans.arena_bytes + scratch_bytes(plans) + TableSampler::bytes_for(plans);
  for (uint32_t g = 0; g < plans.groups.size(); ++g) out.values += TableSize::of(plans, g).bytes();
  out.fast_paths =
      Blas::kWorkspaceBytes + LayerLaunches::bytes_for(plans) + StreamDecoder::bytes_for(plans);
  return out;
}

void check_memory(const Device& device, const PlanSet& plans, const std::vector<int64_t>& blocks) {
  const MemoryNeeds needs = MemoryNeeds::of(plans);
  uint64_t kv = 0;
  for (uint32_t g = 0; g < blocks.size(); ++g)
    kv += static_cast<uint64_t>(blocks[g]) * static_cast<uint64_t>(block_bytes(plans, g));
  const uint64_t free = device.free_memory(), all = needs.weights + needs.values + kv;
  if (all <= free) return;
  fail(
      ErrorCode::kResourceExhausted,
      "the model needs {} MB of GPU memory (weights {}, KV cache {}, values between ops {}); {} of "
      "{} MB are free. A smaller KV cache (--kv-cache-memory, --context), fewer tokens in a step "
      "(--max-num-batched-tokens) or smaller weights take less",
      megabytes(all), megabytes(needs.weights), megabytes(kv), megabytes(needs.values),
      megabytes(free), megabytes(device.total_memory()));
}

uint64_t kv_bytes_within(const Device& device, const PlanSet& plans, double share) {
  const MemoryNeeds needs = MemoryNeeds::of(plans);
  const uint64_t total = device.total_memory(),
                 free = std::min<uint64_t>(device.free_memory(), total);
  const auto allowed = static_cast<uint64_t>(static_cast<double>(total) * share);
  const uint64_t taken = total - free + needs.total() + kReserve;
  if (taken < allowed) return allowed - taken;
  fail(ErrorCode::kResourceExhausted,
       "no GPU memory is left for the KV cache: {:g} of {} MB are {} MB, other programs use {} MB, "
       "and "
       "the model takes {} MB without it (weights {}, values between ops {}, other {})",
       share, megabytes(total), megabytes(allowed), megabytes(total - free),
       megabytes(needs.total() + kReserve), megabytes(needs.weights), megabytes(needs.values),
       megabytes(needs.fast_paths + kReserve));
}

}  // namespace tokamak::cuda
