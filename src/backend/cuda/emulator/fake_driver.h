#pragma once
// A CUDA driver without a GPU: device memory is host memory, and launches run the op kernels as
// they were compiled for the host (simt_host.h). Everything is done at once, in the calling thread.
// Tests can limit its memory and make any call fail.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tokamak::cuda {

constexpr int kFakeOutOfMemory = 2, kFakeLaunchFailed = 719, kFakeNotFound = 500;

struct FakeLaunch {
  std::string kernel;
  unsigned grid[3], threads;
};

// What tensor_map() of the fake leaves in the 128 bytes of a tensor map.
struct FakeTensorMap {
  void* address;
  uint32_t dims[4], box[4];
  uint64_t strides[3];  // bytes
  int rank, type, swizzle;
};
static_assert(sizeof(FakeTensorMap) <= 128);

// One per process. Not thread-safe.
struct FakeDriver {
  size_t memory = size_t{1} << 30;  // bytes of the device
  int version = 13000, devices = 1, capability = 90;
  bool init_fails = false;
  bool run_kernels = true;
  // The call with this number (from 0) and, if `lost`, all later ones that do work fail with
  // `failure`; -1: none.
  int64_t fail_at = -1;
  int failure = kFakeLaunchFailed;
  bool lost = false;

  // What happened.
  int64_t calls = 0;  // that can fail
  size_t in_use = 0, pinned = 0;
  int64_t live_modules = 0, live_streams = 0, live_events = 0, live_graphs = 0, contexts = 0;
  int64_t graph_launches = 0, allocations = 0;
  std::vector<FakeLaunch> launches;
};
FakeDriver& fake_driver();
// Makes the fake the driver of this process, in its initial state.
void install_fake_driver();
void reinstall_fake_driver();  // with the state that it has

}  // namespace tokamak::cuda
