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
  std::vector<char> kernels;  // decode_stream.cubin
  Report& report;
};
void check_decode(DecodeContext& context);
void check_decode_large(DecodeContext& context);
void time_decode(DecodeContext& context);

}  // namespace tokamak::cuda
