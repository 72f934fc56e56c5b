#pragma once
// What this machine's GPU does, measured with the backend's own kernels.
#include <string>

#include "plan/machine.h"

namespace tokamak::cuda {

// Takes about `seconds`; each figure is the best of several tries. The machine is called "cuda "
// and `name` (empty: the GPU's own), by which the cost model knows that the figures are of a GPU.
Machine measure_gpu(double seconds, const std::string& name);

}  // namespace tokamak::cuda
