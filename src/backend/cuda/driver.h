#pragma once
// The CUDA driver, loaded at run time: a binary with this backend starts on machines without a GPU.
// The declarations here are the few of the driver's interface that the backend calls.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::cuda {

using DeviceAddress = unsigned long long;
using Handle = void*;  // context, module, function, stream, event

// CUlaunchAttribute and CUlaunchConfig: a launch that may start before those before it are done.
struct LaunchAttribute {
  static constexpr int kProgrammaticSerialization = 6;
  int id = kProgrammaticSerialization;
  int padding = 0;
  union {
    int allowed = 1;
    char bytes[64];
  };
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Handle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct DriverCalls {
  int (*init)(unsigned);
  int (*driver_version)(int*);
  int (*error_string)(int, const char**);
  int (*device_count)(int*);
  int (*device_get)(int*, int);
  int (*device_name)(char*, int, int);
  int (*device_attribute)(int*, int, int);
  int (*context_retain)(Handle*, int);
  int (*context_release)(int);
  int (*context_set)(Handle);
  int (*memory_info)(size_t*, size_t*);
  int (*allocate)(DeviceAddress*, size_t);
  int (*release)(DeviceAddress);
  int (*copy_in)(DeviceAddress, const void*, size_t);
  int (*copy_out)(void*, DeviceAddress, size_t);
  int (*set_words)(DeviceAddress, unsigned, size_t);
  int (*copy_in_async)(DeviceAddress, const void*, size_t, Handle);
  int (*copy_out_async)(void*, DeviceAddress, size_t, Handle);
  int (*copy_device_async)(DeviceAddress, DeviceAddress, size_t, Handle);
  int (*host_allocate)(void**, size_t);  // pinned
  int (*host_release)(void*);
  int (*device_memory)(size_t*, int);
  int (*module_load)(Handle*, const void*);
  int (*module_unload)(Handle);
  int (*module_function)(Handle*, Handle, const char*);
  int (*module_global)(DeviceAddress*, size_t*, Handle, const char*);
  int (*function_set)(Handle, int, int);
  int (*function_get)(int*, int, Handle);
  int (*blocks_per_multiprocessor)(int*, Handle, int, size_t);
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                Handle, void**, void**);
  int (*launch_ex)(const LaunchConfig*, Handle, void**, void**);
  int (*launch_cooperative)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, Handle, void**);
  int (*tensor_map)(void*, int, unsigned, void*, const uint64_t*, const uint64_t*, const unsigned*,
                    const unsigned*, int, int, int, int);
  int (*stream_create)(Handle*, unsigned);
  int (*stream_destroy)(Handle);
  int (*stream_wait)(Handle);
  int (*event_create)(Handle*, unsigned);
  int (*event_destroy)(Handle);
  int (*event_record)(Handle, Handle);
  int (*event_wait)(Handle);
  int (*event_elapsed)(float*, Handle, Handle);
  int (*capture_begin)(Handle, int);
  int (*capture_end)(Handle, Handle*);
  int (*graph_instantiate)(Handle*, Handle, unsigned long long);
  int (*graph_launch)(Handle, Handle);
  int (*graph_destroy)(Handle);
  int (*graph_exec_destroy)(Handle);
};

// Throws Error(kUnavailable) where there is no driver, no device, or a driver that is too old.
const DriverCalls& driver();
// Tests: replaces the driver of this machine, which then is not loaded; nullptr: back to it.
void use_driver(const DriverCalls* calls);
// Throws when a call of the driver failed. `what` says what was tried.
void check(int result, std::string_view what);
// After some errors (a kernel that crashed) the driver refuses every further call of this process:
// only a new process can use the GPU again. The action runs once, in the thread whose call failed,
// before check() throws; it must not throw.
void when_device_lost(std::function<void()> action);

// A GPU as `tokamak inspect --devices` lists it.
struct DeviceInfo {
  std::string name;
  int capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  size_t memory = 0;  // bytes
};
std::vector<DeviceInfo> list_devices();  // throws as driver() does
std::string driver_text();               // "CUDA driver 13.0"

// The compute capability whose own instructions some kernels use (sm_90a): no other GPU runs them.
constexpr int kHopper = 90;

// One GPU and its primary context, current in the thread that made it.
class Device {
 public:
  explicit Device(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  void use() const;  // makes the context current in the calling thread
  std::string name() const;
  size_t free_memory() const;
  size_t total_memory() const;
  size_t cache_bytes() const;  // of the cache that all multiprocessors share
  int multiprocessors() const;
  int shared_memory_limit() const;  // bytes of one block, after opting in
  int capability() const;           // 90 for 9.0

 private:
  int attribute(int which) const;
  int device_ = 0;
  Handle context_ = nullptr;
};

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);  // zeroed; throws kResourceExhausted with the numbers
  ~Buffer();
  Buffer(Buffer&& o) noexcept : address_(o.address_), bytes_(o.bytes_) { o.address_ = 0; }
  Buffer& operator=(Buffer&& o) noexcept;
  DeviceAddress address() const { return address_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as(size_t byte_offset = 0) const {
    return reinterpret_cast<T*>(address_ + byte_offset);
  }
  void write(const void* from, size_t bytes, size_t at = 0);
  void read(void* to, size_t bytes, size_t at = 0) const;
  void zero();

 private:
  DeviceAddress address_ = 0;
  size_t bytes_ = 0;
};

// Pinned memory of the host, which copies run from and to while the host goes on.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& o) noexcept : data_(o.data_), bytes_(o.bytes_) { o.data_ = nullptr; }
  PinnedBuffer& operator=(PinnedBuffer&& o) noexcept;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Does not wait for the default stream, nor does that for it.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  Handle get() const { return stream_; }
  void wait() const;
  void copy_in(DeviceAddress to, const void* from, size_t bytes) const;
  void copy_out(void* to, DeviceAddress from, size_t bytes) const;
  void copy(DeviceAddress to, DeviceAddress from, size_t bytes) const;

 private:
  Handle stream_ = nullptr;
};

class DeviceEvent {
 public:
  DeviceEvent();
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  void record(const DeviceStream& stream) const;
  void wait() const;
  double seconds_since(const DeviceEvent& earlier) const;  // both have passed

 private:
  Handle event_ = nullptr;
};

class KernelModule {
 public:
  explicit KernelModule(const void* image);  // a cubin, a fat binary or PTX
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;
  // A kernel that may use `shared_bytes` of dynamic shared memory.
  Handle function(const char* name, int shared_bytes = 0) const;
  bool has(const char* name) const;
  void write_global(const char* name, const void* from, size_t bytes) const;

 private:
  Handle module_ = nullptr;
};

}  // namespace tokamak::cuda
