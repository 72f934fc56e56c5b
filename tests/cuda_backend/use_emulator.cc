// Linked into programs that test the cuda backend: without TOKAMAK_TEST_GPU the driver is the fake
// one, which runs the kernels in the emulator.
#include <cstdlib>
#include <memory>

#include "backend/cuda/driver.h"
#include "backend/cuda/emulator/fake_driver.h"

namespace {

// The GPU's context outlives the tests: making one takes most of a second.
const std::unique_ptr<tokamak::cuda::Device> kDevice = [] {
  if (std::getenv("TOKAMAK_TEST_GPU")) return std::make_unique<tokamak::cuda::Device>(0);
  tokamak::cuda::install_fake_driver();
  return std::unique_ptr<tokamak::cuda::Device>();
}();

}  // namespace
