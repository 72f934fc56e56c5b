// Linked into the program for tests/cuda_backend/serve_emulated_test.py: after SIGUSR1 every call
// of the fake driver answers as if a kernel had crashed.
#include <csignal>

#include "backend/cuda/emulator/fake_driver.h"

namespace {

constexpr int kIllegalAddress = 700;

void lose_device(int) {
  tokamak::cuda::FakeDriver& f = tokamak::cuda::fake_driver();
  f.failure = kIllegalAddress;
  f.lost = true;
  f.fail_at = f.calls;
}

const auto kHandled = std::signal(SIGUSR1, lose_device);

}  // namespace
