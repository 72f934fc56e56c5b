#pragma once
// The CUDA driver, loaded at run time: a binary with this backend starts on machines without a GPU.
// The declarations here are the few of the driver's interface that the backend calls.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tokamak::cuda {

using DeviceAddress = unsigned long long;
using Handle = void*;  // context, module, function, stream, event

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
  int (*module_load)(Handle*, const void*);
  int (*module_unload)(Handle);
  int (*module_function)(Handle*, Handle, const char*);
  int (*module_global)(DeviceAddress*, size_t*, Handle, const char*);
  int (*function_set)(Handle, int, int);
  int (*function_get)(int*, int, Handle);
  int (*blocks_per_multiprocessor)(int*, Handle, int, size_t);
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                Handle, void**, void**);
  int (*launch_cooperative)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, Handle, void**);
  int (*stream_create)(Handle*, unsigned);
  int (*stream_destroy)(Handle);
  int (*stream_wait)(Handle);
  int (*event_create)(Handle*, unsigned);
  int (*event_destroy)(Handle);
  int (*event_record)(Handle, Handle);
  int (*event_wait)(Handle);
  int (*event_elapsed)(float*, Handle, Handle);
};

// Throws Error(kUnavailable) where there is no driver, no device, or a driver that is too old.
const DriverCalls& driver();
// Throws when a call of the driver failed. `what` says what was tried.
void check(int result, std::string_view what);

// One GPU and its primary context, current in the thread that made it.
class Device {
 public:
  explicit Device(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  std::string name() const;
  int multiprocessors() const;
  int shared_memory_limit() const;  // bytes of one block, after opting in
  int capability() const;           // 90 for 9.0

 private:
  int attribute(int which) const;
  int device_ = 0;
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

class Module {
 public:
  explicit Module(const void* cubin);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  // A kernel that may use `shared_bytes` of dynamic shared memory.
  Handle function(const char* name, int shared_bytes = 0) const;
  void write_global(const char* name, const void* from, size_t bytes) const;

 private:
  Handle module_ = nullptr;
};

}  // namespace tokamak::cuda
