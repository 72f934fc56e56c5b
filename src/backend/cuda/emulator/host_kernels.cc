// The op kernels, compiled for the host. They register themselves by name.
#include "backend/cuda/emulator/simt_host.h"
// clang-format off
#include "backend/cuda/ops/op_element.cu"
#include "backend/cuda/ops/op_rows.cu"
#include "backend/cuda/ops/op_linear.cu"
#include "backend/cuda/ops/op_linear_mma.cu"
#include "backend/cuda/ops/op_attend.cu"
#include "backend/cuda/ops/op_flash.cu"
#include "backend/cuda/ops/op_layer.cu"
#include "backend/cuda/ops/op_experts.cu"
#include "backend/cuda/ops/op_latent.cu"
#include "backend/cuda/ops/op_recurrent.cu"
#include "backend/cuda/ops/op_scan.cu"
#include "backend/cuda/ops/op_pack.cu"
#include "backend/cuda/sample.cu"
// clang-format on

namespace tokamak::cuda::simt {

void link_host_kernels() {}

}  // namespace tokamak::cuda::simt
