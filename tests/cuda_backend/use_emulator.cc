// Linked into programs that test the cuda backend: without TOKAMAK_TEST_GPU the driver is the fake
// one, which runs the kernels in the emulator.
#include <cstdlib>

#include "backend/cuda/emulator/fake_driver.h"

namespace {

const bool kInstalled = [] {
  if (std::getenv("TOKAMAK_TEST_GPU")) return false;
  tokamak::cuda::install_fake_driver();
  return true;
}();

}  // namespace
