#include "backend/cuda/launches.h"

#include <algorithm>
#include <cstdlib>

#include "backend/cuda/cost.h"
#include "backend/cuda/decode_plan.h"
#include "backend/cuda/few_rows_launch.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/layer_launches.h"
#include "base/error.h"
#include "plan/dispatch.h"

namespace tokamak::cuda {
namespace {

// An H100 and an H200 have these. Plans are made without a device; an executable asks its own.
constexpr int kHopperBlocks = 132, kHopperSharedBytes = 232448;

LaunchMatch refused(std::string why) { return {0, 0, std::move(why)}; }
LaunchMatch whole(const Plan& plan) { return {0, static_cast<uint32_t>(plan.calls.size()), {}}; }

// The decoder as the persistent kernel reads it.
std::optional<PlannedDecoder> stream_decoder(const PlanSet& set, const Plan& plan, bool fp8,
                                             std::string& why) {
  if (plan.function != "decode") {
    why = "it runs the function decode";
    return std::nullopt;
  }
  std::optional<PlannedDecoder> decoder = find_streamed(set, plan, why);
  if (!decoder || !fp8) return decoder;
  if (decoder->type != DecodeWeight::kBf16) {
    why = "the weights are not bf16";
    return std::nullopt;
  }
  read_as_fp8(*decoder);
  return decoder;
}

template <bool kFp8>
LaunchMatch match_stream(const LaunchDesc&, const PlanSet& set, const Plan& plan) {
  std::string why;
  std::optional<PlannedDecoder> decoder = stream_decoder(set, plan, kFp8, why);
  if (!decoder) return refused(why);
  const auto batch = static_cast<int>(std::min<int64_t>(most_of(set, plan, "B"), kMaxBatch));
  try {
    DecodeStream::check_fits(kHopperBlocks, kHopperSharedBytes, decoder->shape,
                             product_types(set, *decoder), batch);
  } catch (const Error& e) {
    return refused(e.what());
  }
  return whole(plan);
}

LaunchMatch match_layers(const LaunchDesc&, const PlanSet& set, const Plan& plan) {
  if (plan.function == kLayersFunction) return refused("it returns no logits of inner layers");
  std::string why;
  return LayerLaunches::find(set, plan, why) ? whole(plan) : refused(why);
}

double matrix_elements(const PlanSet& set, uint32_t weight) {
  const WeightEntry& w = set.weights.at(weight);
  return static_cast<double>(w.dims.at(0)) * static_cast<double>(w.dims.at(1));
}

// Rows that the products of all layers take at most.
double most_few_rows(const PlanSet& set, const PlannedDecoder& decoder) {
  int most = few_rows_type(DType::kBF16)->most_rows();
  for (const PlannedLayer& l : decoder.layers)
    for (uint32_t w : l.products())
      if (const FewRowsType* type = few_rows_type(set.weights.at(w).dtype))
        most = std::min(most, type->most_rows());
      else
        return static_cast<double>(kMostFewRows);
  return most;
}

DecoderWork work_of(const PlanSet& set, const Plan& plan, const PlannedDecoder& decoder) {
  const DecoderShape& s = decoder.shape;
  const bool decode = plan.function == "decode";
  const auto rows = static_cast<double>(most_of(set, plan, decode ? "B" : "T")),
             outputs = static_cast<double>(most_of(set, plan, decode ? "B" : "R"));
  const bool expands =
      rows > static_cast<double>(kMostFewRows) || !LayerLaunches::reads_as_stored(set, decoder);
  DecoderWork out;
  out.few_rows = decode ? most_few_rows(set, decoder) : static_cast<double>(kMostFewRows);
  out.layers = s.layers;
  out.rows = rows;
  out.row_bytes = 2.0 * (8 * s.hidden + 4 * s.heads * s.head_dim + 2 * s.qkv_rows() + 5 * s.mlp);
  auto add_product = [&](uint32_t w, double of_rows) {
    out.weight_bytes += static_cast<double>(weight_bytes(set.weights.at(w)));
    out.flops += 2 * of_rows * matrix_elements(set, w);
    if (is_expandable(set.weights.at(w).dtype) && !expands) out.decoded += matrix_elements(set, w);
  };
  for (const PlannedLayer& l : decoder.layers)
    for (uint32_t w : l.products()) {
      add_product(w, rows);
      if (expands && is_expandable(set.weights.at(w).dtype))
        out.expanded_bytes += 2 * matrix_elements(set, w);
    }
  add_product(decoder.head, outputs);
  return out;
}

template <bool kFp8>
double stream_cost(const LaunchDesc&, const PlanSet& set, const Plan& plan,
                   const Machine& machine) {
  std::string why;
  const PlannedDecoder decoder = stream_decoder(set, plan, kFp8, why).value();
  DecoderWork work = work_of(set, plan, decoder);
  work.weight_bytes = streamed_bytes(set, decoder);
  return stream_seconds(work, machine);
}

double layers_cost(const LaunchDesc&, const PlanSet& set, const Plan& plan,
                   const Machine& machine) {
  std::string why;
  return layers_seconds(work_of(set, plan, LayerLaunches::find(set, plan, why).value()), machine);
}

std::vector<CudaLaunch> make_launches() {
  const char* stream_steps =
      "each sequence has one more token at its end, no hidden states, no padding; of more than 4 "
      "sequences where fused layers do not";
  const std::vector<GuardRange> few = {{"B", 1, kMaxBatch}};
  return {
      {{.name = "cuda.decode_stream",
        .numeric_class = "values of a decoder stored as bf16, f32 sums in parts per multiprocessor",
        .steps = stream_steps,
        .guard = few,
        .needs = "sm_90a",
        .match = match_stream<false>,
        .cost = stream_cost<false>},
       LaunchKind::kStream},
      {{.name = "cuda.decode_stream.fp8",
        .numeric_class = "values of a decoder stored as bf16, weights as e4m3 with a scale per "
                         "row, f32 sums in parts per multiprocessor",
        .steps = stream_steps,
        .guard = few,
        .needs = "sm_90a+fp8",
        .match = match_stream<true>,
        .cost = stream_cost<true>},
       LaunchKind::kStreamFp8},
      {{.name = "cuda.decoder_layers",
        .numeric_class = "values of a decoder and sums of parts of a product stored as bf16",
        .steps = "rows are the last tokens of their sequences, no hidden states, no padding",
        .guard = {},
        .match = match_layers,
        .cost = layers_cost},
       LaunchKind::kLayers},
  };
}

bool switched_off(const char* variable) {
  const char* value = std::getenv(variable);
  return value && std::string_view(value) == "0";
}

}  // namespace

std::span<const CudaLaunch> cuda_launches() {
  static const std::vector<CudaLaunch> list = make_launches();
  return list;
}

std::vector<LaunchDesc> listed_launches() {
  std::vector<LaunchDesc> out;
  for (const CudaLaunch& l : cuda_launches()) {
    if (switched_off(l.kind == LaunchKind::kLayers ? "TOKAMAK_CUDA_LAYERS" : "TOKAMAK_CUDA_STREAM"))
      continue;
    out.push_back(l.desc);
  }
  return out;
}

LaunchKind planned_launch(const PlanSet& set, const Plan& plan, const PlanLaunch& launch) {
  const KernelEntry& entry = set.kernels.at(launch.kernel);
  std::string known;
  for (const CudaLaunch& l : cuda_launches()) {
    if (l.desc.name == entry.name && l.desc.abi == entry.abi) {
      if (launch.first == 0 && launch.calls == plan.calls.size()) return l.kind;
      fail(ErrorCode::kUnsupported,
           "plan {}: {} runs all calls of a plan, not {} of {} from {} on: compile the model again",
           plan_name(plan), entry.name, launch.calls, plan.calls.size(), launch.first);
    }
    known += fmt::format("{}{} (version {})", known.empty() ? "" : ", ", l.desc.name, l.desc.abi);
  }
  fail(ErrorCode::kUnsupported,
       "plan {} asks for the launch {} (version {}); the cuda backend of this program has {}: "
       "compile the model again",
       plan_name(plan), entry.name, entry.abi, known);
}

std::vector<const Plan*> plans_with(const PlanSet& set, LaunchKind kind) {
  std::vector<const Plan*> out;
  for (const Plan& plan : set.plans)
    if (std::any_of(plan.launches.begin(), plan.launches.end(),
                    [&](const PlanLaunch& l) { return planned_launch(set, plan, l) == kind; }))
      out.push_back(&plan);
  return out;
}

int64_t most_of(const PlanSet& set, const Plan& plan, std::string_view symbol) {
  for (const GuardRange& g : plan.guard)
    if (g.symbol == symbol) return g.hi;
  for (const SymbolDecl& s : set.symbols)
    if (s.name == symbol) return s.hi;
  return 1;
}

}  // namespace tokamak::cuda
