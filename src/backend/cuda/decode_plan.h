#pragma once
// Recognises a decode plan that the persistent kernel can run (decode_stream.h): a dense decoder of
// norms, rotated and grouped attention and gated products. It reads the calls of the plan and
// nothing else, so no model is known by name.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/decode_stream.h"
#include "plan/plan.h"

namespace tokamak::cuda {

// Indices of PlanSet::weights; kNoWeight: the model has none.
constexpr uint32_t kNoWeight = ~0u;
struct PlannedLayer {
  uint32_t attention_norm = kNoWeight, mlp_norm = kNoWeight;
  uint32_t query_norm = kNoWeight, key_norm = kNoWeight;
  uint32_t q = kNoWeight, k = kNoWeight, v = kNoWeight;
  uint32_t q_bias = kNoWeight, k_bias = kNoWeight, v_bias = kNoWeight;
  uint32_t out = kNoWeight, gate = kNoWeight, up = kNoWeight, down = kNoWeight;
  uint32_t state = 0;
  std::array<uint32_t, 7> products() const { return {q, k, v, out, gate, up, down}; }
};
struct PlannedDecoder {
  DecoderShape shape;
  DecodeWeight type = DecodeWeight::kBf16;  // of the kernel of the layers; set by find_streamed()
  DecodeWeight head_type = DecodeWeight::kBf16;
  bool expands_head = false;  // it is kept as bf16, too: the kernel does not read its type
  uint32_t embedding = kNoWeight, final_norm = kNoWeight, head = kNoWeight, frequencies = kNoWeight;
  uint32_t group = 0;  // of the KV cache
  std::vector<PlannedLayer> layers;
};

// bf16 weights of its products become FP8. One type for all of them is also one launch.
void read_as_fp8(PlannedDecoder& decoder);

// How the kernel takes a product of these weights, which are concatenated: kK8 where one of them
// has more than four bits.
DecodeWeight matrix_type(const PlanSet& plans, DecodeWeight kernel,
                         const std::vector<uint32_t>& parts);
// Types of the decoder's products without their weights, for DecodeStream::check_fits().
DecoderWeights product_types(const PlanSet& plans, const PlannedDecoder& decoder);

// Bytes of the weights as the kernel reads them; packed: only of those that are kept a second time
// for it.
double streamed_bytes(const PlanSet& plans, const PlannedDecoder& decoder, bool packed = false);

// Nothing where a plan is no such decoder; `why` then says what was found instead. Its weights may
// have any type.
std::optional<PlannedDecoder> find_decoder(const PlanSet& plans, const Plan& plan,
                                           std::string& why);
// The same, with weights that the persistent kernel reads.
std::optional<PlannedDecoder> find_streamed(const PlanSet& plans, const Plan& plan,
                                            std::string& why);

}  // namespace tokamak::cuda
