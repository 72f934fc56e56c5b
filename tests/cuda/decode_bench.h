#pragma once
// Parts of the device test program.
#include <vector>

#include "bench_util.h"
#include "reference.h"

namespace tokamak::cuda {

struct DecodeContext {
  Device& device;
  const Filler& filler;
  const Stream& stream;
  std::vector<char> kernels;  // the kernel file of the part
  Report& report;
};
using AttentionContext = DecodeContext;  // with decode_attention.fatbin
using SampleContext = DecodeContext;     // with sample.fatbin
using FewRowsContext = DecodeContext;    // with few_rows.fatbin
using PrefillContext = DecodeContext;    // with prefill_attention.fatbin
void check_decode(DecodeContext& context);
void check_decode_tiny(DecodeContext& context);
void check_decode_large(DecodeContext& context);
void check_decode_one(DecodeContext& context);
void time_decode_one(DecodeContext& context);
void time_decode(DecodeContext& context);
void check_attention(AttentionContext& context);
void time_attention(AttentionContext& context);
void check_prefill(PrefillContext& context);
void time_prefill(PrefillContext& context);
void check_sample(SampleContext& context);
void time_sample(SampleContext& context);
void check_few_rows(FewRowsContext& context, bool tiny);
void time_few_rows(FewRowsContext& context);
void time_fused(FewRowsContext& context, const std::vector<char>& layer_kernels);

}  // namespace tokamak::cuda
