#include "backend/cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace tokamak::cuda {
namespace {

// Values of the driver's enumerations.
constexpr int kOutOfMemory = 2, kNotFound = 500;
constexpr int kAttributeMultiprocessors = 16, kAttributeMajor = 75, kAttributeMinor = 76,
              kAttributeCacheBytes = 38, kAttributeSharedOptIn = 97;
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
  find(calls.copy_in_async, "cuMemcpyHtoDAsync_v2");
  find(calls.copy_out_async, "cuMemcpyDtoHAsync_v2");
  find(calls.copy_device_async, "cuMemcpyDtoDAsync_v2");
  find(calls.host_allocate, "cuMemAllocHost_v2");
  find(calls.host_release, "cuMemFreeHost");
  find(calls.device_memory, "cuDeviceTotalMem_v2");
  find(calls.module_load, "cuModuleLoadData");
  find(calls.module_unload, "cuModuleUnload");
  find(calls.module_function, "cuModuleGetFunction");
  find(calls.module_global, "cuModuleGetGlobal_v2");
  find(calls.function_set, "cuFuncSetAttribute");
  find(calls.function_get, "cuFuncGetAttribute");
  find(calls.blocks_per_multiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(calls.launch, "cuLaunchKernel");
  find(calls.launch_ex, "cuLaunchKernelEx");
  find(calls.launch_cooperative, "cuLaunchCooperativeKernel");
  find(calls.tensor_map, "cuTensorMapEncodeTiled");
  find(calls.stream_create, "cuStreamCreate");
  find(calls.stream_destroy, "cuStreamDestroy_v2");
  find(calls.stream_wait, "cuStreamSynchronize");
  find(calls.event_create, "cuEventCreate");
  find(calls.event_destroy, "cuEventDestroy_v2");
  find(calls.event_record, "cuEventRecord");
  find(calls.event_wait, "cuEventSynchronize");
  find(calls.event_elapsed, "cuEventElapsedTime");
  find(calls.capture_begin, "cuStreamBeginCapture_v2");
  find(calls.capture_end, "cuStreamEndCapture");
  find(calls.graph_instantiate, "cuGraphInstantiateWithFlags");
  find(calls.graph_launch, "cuGraphLaunch");
  find(calls.graph_destroy, "cuGraphDestroy");
  find(calls.graph_exec_destroy, "cuGraphExecDestroy");
  return calls;
}

}  // namespace

namespace {

// The first call to a driver, which tells whether it works.
const DriverCalls& started(const DriverCalls& calls) {
  if (calls.init(0) != 0)
    fail(ErrorCode::kUnavailable, "the CUDA driver does not start: is there a GPU?");
  int version = 0;
  calls.driver_version(&version);
  if (version < kOldestDriver)
    fail(ErrorCode::kUnavailable, "the CUDA driver is version {}.{}; {}.0 or newer is needed",
         version / 1000, version % 1000 / 10, kOldestDriver / 1000);
  return calls;
}

const DriverCalls* replaced = nullptr;

}  // namespace

const DriverCalls& driver() {
  if (replaced) return *replaced;
  static const DriverCalls calls = load_driver();
  static const DriverCalls& ready = started(calls);
  return ready;
}

void use_driver(const DriverCalls* calls) {
  replaced = nullptr;
  if (calls) replaced = &started(*calls);
}

std::string driver_text() {
  int version = 0;
  check(driver().driver_version(&version), "asking for the driver's version");
  return fmt::format("CUDA driver {}.{}", version / 1000, version % 1000 / 10);
}

namespace {

// Bad addresses and instructions, failed launches, hardware: the context is gone.
bool loses_device(int result) {
  constexpr int kUncorrectable = 214, kNvlink = 220, kContained = 221;
  constexpr int kIllegalAddress = 700, kTimeout = 702, kContextDestroyed = 709, kAssert = 710;
  constexpr int kStackError = 714, kLaunchFailed = 719;
  for (int lost :
       {kUncorrectable, kNvlink, kContained, kIllegalAddress, kTimeout, kContextDestroyed, kAssert})
    if (result == lost) return true;
  return result >= kStackError && result <= kLaunchFailed;
}

std::mutex lost_mutex;
std::function<void()> lost_action;

}  // namespace

void when_device_lost(std::function<void()> action) {
  std::lock_guard lock(lost_mutex);
  lost_action = std::move(action);
}

void check(int result, std::string_view what) {
  if (result == 0) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  const bool lost = loses_device(result);
  if (lost) {
    std::function<void()> action;
    {
      std::lock_guard lock(lost_mutex);
      action = std::exchange(lost_action, nullptr);
    }
    if (action) action();
  }
  fail(result == kOutOfMemory ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
       "CUDA: {}: {} (error {}){}", what, text ? text : "unknown error", result,
       lost ? "; this process can no longer use the GPU" : "");
}

namespace {

int device_attribute(int device, int which) {
  int value = 0;
  check(driver().device_attribute(&value, which, device), "reading a device attribute");
  return value;
}
std::string device_name(int device) {
  std::array<char, 256> text{};
  check(driver().device_name(text.data(), static_cast<int>(text.size()) - 1, device), "its name");
  return text.data();
}
int device_capability(int device) {
  return device_attribute(device, kAttributeMajor) * 10 + device_attribute(device, kAttributeMinor);
}

}  // namespace

std::vector<DeviceInfo> list_devices() {
  int count = 0;
  check(driver().device_count(&count), "counting devices");
  std::vector<DeviceInfo> out;
  for (int i = 0; i < count; ++i) {
    int device = 0;
    check(driver().device_get(&device, i), "opening the device");
    DeviceInfo info{device_name(device), device_capability(device),
                    device_attribute(device, kAttributeMultiprocessors), 0};
    check(driver().device_memory(&info.memory, device), "reading its memory size");
    out.push_back(std::move(info));
  }
  return out;
}

Device::Device(int ordinal) {
  int count = 0;
  check(driver().device_count(&count), "counting devices");
  if (ordinal < 0 || ordinal >= count)
    fail(ErrorCode::kNotFound, "GPU {} does not exist: the driver sees {}", ordinal, count);
  check(driver().device_get(&device_, ordinal), "opening the device");
  check(driver().context_retain(&context_, device_), "making a context");
  if (int result = driver().context_set(context_); result != 0) {
    driver().context_release(device_);
    check(result, "using the context");
  }
}
Device::~Device() { driver().context_release(device_); }

void Device::use() const { check(driver().context_set(context_), "using the context"); }

size_t Device::free_memory() const {
  size_t free = 0, total = 0;
  use();
  check(driver().memory_info(&free, &total), "reading free memory");
  return free;
}

size_t Device::total_memory() const {
  size_t bytes = 0;
  check(driver().device_memory(&bytes, device_), "reading its memory size");
  return bytes;
}
size_t Device::cache_bytes() const { return static_cast<size_t>(attribute(kAttributeCacheBytes)); }

std::string Device::name() const { return device_name(device_); }
int Device::attribute(int which) const { return device_attribute(device_, which); }
int Device::multiprocessors() const { return attribute(kAttributeMultiprocessors); }
int Device::shared_memory_limit() const { return attribute(kAttributeSharedOptIn); }
int Device::capability() const { return device_capability(device_); }

Buffer::Buffer(size_t bytes) : bytes_((bytes + 255) / 256 * 256) {
  if (bytes_ == 0) return;
  if (driver().allocate(&address_, bytes_) != 0) {
    size_t free = 0, total = 0;
    driver().memory_info(&free, &total);
    fail(ErrorCode::kResourceExhausted, "the GPU has no {} MB left: {} of {} MB are free",
         bytes_ >> 20, free >> 20, total >> 20);
  }
  if (int result = driver().set_words(address_, 0, bytes_ / 4); result != 0) {
    driver().release(address_);
    check(result, "clearing a buffer");
  }
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

PinnedBuffer::PinnedBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  if (driver().host_allocate(&data, bytes) != 0)
    fail(ErrorCode::kResourceExhausted, "no {} kB of pinned memory are left on the host",
         bytes >> 10);
  data_ = static_cast<std::byte*>(data);
}
PinnedBuffer::~PinnedBuffer() {
  if (data_) driver().host_release(data_);
}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

DeviceStream::DeviceStream() {
  constexpr unsigned kNonBlocking = 1;
  check(driver().stream_create(&stream_, kNonBlocking), "making a stream");
}
DeviceStream::~DeviceStream() { driver().stream_destroy(stream_); }
void DeviceStream::wait() const { check(driver().stream_wait(stream_), "waiting for the device"); }
void DeviceStream::copy_in(DeviceAddress to, const void* from, size_t bytes) const {
  check(driver().copy_in_async(to, from, bytes, stream_), "copying to the device");
}
void DeviceStream::copy_out(void* to, DeviceAddress from, size_t bytes) const {
  check(driver().copy_out_async(to, from, bytes, stream_), "copying from the device");
}
void DeviceStream::copy(DeviceAddress to, DeviceAddress from, size_t bytes) const {
  check(driver().copy_device_async(to, from, bytes, stream_), "copying on the device");
}

DeviceEvent::DeviceEvent() { check(driver().event_create(&event_, 0), "making an event"); }
DeviceEvent::~DeviceEvent() { driver().event_destroy(event_); }
void DeviceEvent::record(const DeviceStream& stream) const {
  check(driver().event_record(event_, stream.get()), "recording an event");
}
void DeviceEvent::wait() const { check(driver().event_wait(event_), "waiting for the device"); }
double DeviceEvent::seconds_since(const DeviceEvent& earlier) const {
  float ms = 0;
  check(driver().event_elapsed(&ms, earlier.event_, event_), "timing");
  return static_cast<double>(ms) * 1e-3;
}

KernelModule::KernelModule(const void* image) {
  check(driver().module_load(&module_, image), "loading a kernel file");
}
KernelModule::~KernelModule() { driver().module_unload(module_); }

Handle KernelModule::function(const char* name, int shared_bytes) const {
  Handle found = nullptr;
  check(driver().module_function(&found, module_, name), name);
  if (shared_bytes > 0)
    check(driver().function_set(found, kFunctionMaxDynamicShared, shared_bytes), name);
  return found;
}
bool KernelModule::has(const char* name) const {
  Handle found = nullptr;
  int result = driver().module_function(&found, module_, name);
  if (result != kNotFound) check(result, name);
  return result == 0;
}
void KernelModule::write_global(const char* name, const void* from, size_t bytes) const {
  DeviceAddress to = 0;
  size_t size = 0;
  check(driver().module_global(&to, &size, module_, name), name);
  TK_CHECK(bytes <= size, "{} has {} bytes, not {}", name, size, bytes);
  check(driver().copy_in(to, from, bytes), name);
}

}  // namespace tokamak::cuda
