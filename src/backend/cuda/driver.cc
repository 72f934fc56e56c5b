#include "backend/cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace tokamak::cuda {
namespace {

// Values of the driver's enumerations.
constexpr int kOutOfMemory = 2;
constexpr int kAttributeMultiprocessors = 16, kAttributeMajor = 75, kAttributeMinor = 76,
              kAttributeSharedOptIn = 97;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr int kOldestDriver = 12000;

DriverCalls load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail(ErrorCode::kUnavailable, "no CUDA driver: libcuda.so.1 cannot be loaded ({})", dlerror());
  DriverCalls calls{};
  auto find = [&](auto& function, const char* name) {
    void* symbol = dlsym(library, name);
    if (!symbol) fail(ErrorCode::kUnavailable, "the CUDA driver has no {}: update it", name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(calls.init, "cuInit");
  find(calls.driver_version, "cuDriverGetVersion");
  find(calls.error_string, "cuGetErrorString");
  find(calls.device_count, "cuDeviceGetCount");
  find(calls.device_get, "cuDeviceGet");
  find(calls.device_name, "cuDeviceGetName");
  find(calls.device_attribute, "cuDeviceGetAttribute");
  find(calls.context_retain, "cuDevicePrimaryCtxRetain");
  find(calls.context_release, "cuDevicePrimaryCtxRelease_v2");
  find(calls.context_set, "cuCtxSetCurrent");
  find(calls.memory_info, "cuMemGetInfo_v2");
  find(calls.allocate, "cuMemAlloc_v2");
  find(calls.release, "cuMemFree_v2");
  find(calls.copy_in, "cuMemcpyHtoD_v2");
  find(calls.copy_out, "cuMemcpyDtoH_v2");
  find(calls.set_words, "cuMemsetD32_v2");
  find(calls.module_load, "cuModuleLoadData");
  find(calls.module_unload, "cuModuleUnload");
  find(calls.module_function, "cuModuleGetFunction");
  find(calls.module_global, "cuModuleGetGlobal_v2");
  find(calls.function_set, "cuFuncSetAttribute");
  find(calls.function_get, "cuFuncGetAttribute");
  find(calls.blocks_per_multiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(calls.launch, "cuLaunchKernel");
  find(calls.launch_cooperative, "cuLaunchCooperativeKernel");
  find(calls.stream_create, "cuStreamCreate");
  find(calls.stream_destroy, "cuStreamDestroy_v2");
  find(calls.stream_wait, "cuStreamSynchronize");
  find(calls.event_create, "cuEventCreate");
  find(calls.event_destroy, "cuEventDestroy_v2");
  find(calls.event_record, "cuEventRecord");
  find(calls.event_wait, "cuEventSynchronize");
  find(calls.event_elapsed, "cuEventElapsedTime");
  return calls;
}

}  // namespace

const DriverCalls& driver() {
  static const DriverCalls calls = [] {
    DriverCalls loaded = load_driver();
    if (loaded.init(0) != 0)
      fail(ErrorCode::kUnavailable, "the CUDA driver does not start: is there a GPU?");
    int version = 0;
    loaded.driver_version(&version);
    if (version < kOldestDriver)
      fail(ErrorCode::kUnavailable, "the CUDA driver is version {}.{}; {}.0 or newer is needed",
           version / 1000, version % 1000 / 10, kOldestDriver / 1000);
    return loaded;
  }();
  return calls;
}

void check(int result, std::string_view what) {
  if (result == 0) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  fail(result == kOutOfMemory ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
       "CUDA: {}: {} (error {})", what, text ? text : "unknown error", result);
}

Device::Device(int ordinal) {
  int count = 0;
  check(driver().device_count(&count), "counting devices");
  if (ordinal < 0 || ordinal >= count)
    fail(ErrorCode::kNotFound, "GPU {} does not exist: the driver sees {}", ordinal, count);
  check(driver().device_get(&device_, ordinal), "opening the device");
  Handle context = nullptr;
  check(driver().context_retain(&context, device_), "making a context");
  check(driver().context_set(context), "using the context");
}
Device::~Device() { driver().context_release(device_); }

std::string Device::name() const {
  std::array<char, 256> text{};
  check(driver().device_name(text.data(), static_cast<int>(text.size()) - 1, device_), "its name");
  return text.data();
}
int Device::attribute(int which) const {
  int value = 0;
  check(driver().device_attribute(&value, which, device_), "reading a device attribute");
  return value;
}
int Device::multiprocessors() const { return attribute(kAttributeMultiprocessors); }
int Device::shared_memory_limit() const { return attribute(kAttributeSharedOptIn); }
int Device::capability() const {
  return attribute(kAttributeMajor) * 10 + attribute(kAttributeMinor);
}

Buffer::Buffer(size_t bytes) : bytes_((bytes + 255) / 256 * 256) {
  if (bytes_ == 0) return;
  if (driver().allocate(&address_, bytes_) != 0) {
    size_t free = 0, total = 0;
    driver().memory_info(&free, &total);
    fail(ErrorCode::kResourceExhausted, "the GPU has no {} MB left: {} of {} MB are free",
         bytes_ >> 20, free >> 20, total >> 20);
  }
  zero();
}
Buffer::~Buffer() {
  if (address_) driver().release(address_);
}
Buffer& Buffer::operator=(Buffer&& o) noexcept {
  std::swap(address_, o.address_);
  std::swap(bytes_, o.bytes_);
  return *this;
}
void Buffer::write(const void* from, size_t bytes, size_t at) {
  TK_CHECK(at + bytes <= bytes_);
  check(driver().copy_in(address_ + at, from, bytes), "copying to the device");
}
void Buffer::read(void* to, size_t bytes, size_t at) const {
  TK_CHECK(at + bytes <= bytes_);
  check(driver().copy_out(to, address_ + at, bytes), "copying from the device");
}
void Buffer::zero() { check(driver().set_words(address_, 0, bytes_ / 4), "clearing a buffer"); }

Module::Module(const void* cubin) {
  check(driver().module_load(&module_, cubin), "loading a kernel file");
}
Module::~Module() { driver().module_unload(module_); }

Handle Module::function(const char* name, int shared_bytes) const {
  Handle found = nullptr;
  check(driver().module_function(&found, module_, name), name);
  if (shared_bytes > 0)
    check(driver().function_set(found, kFunctionMaxDynamicShared, shared_bytes), name);
  return found;
}
void Module::write_global(const char* name, const void* from, size_t bytes) const {
  DeviceAddress to = 0;
  size_t size = 0;
  check(driver().module_global(&to, &size, module_, name), name);
  TK_CHECK(bytes <= size, "{} has {} bytes, not {}", name, size, bytes);
  check(driver().copy_in(to, from, bytes), name);
}

}  // namespace tokamak::cuda
