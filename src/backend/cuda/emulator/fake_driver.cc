#include "backend/cuda/emulator/fake_driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "backend/cuda/driver.h"
#include "backend/cuda/emulator/decode_host.h"
#include "backend/cuda/emulator/simt_host.h"
#include "backend/cuda/images.h"
#include "base/clock.h"

namespace tokamak::cuda {
namespace {

struct RecordedLaunch {
  const simt::HostKernel* kernel;
  Dim3 grid;
  unsigned threads;
  size_t shared_bytes;
  std::vector<std::byte> args;
};
using Recording = std::vector<RecordedLaunch>;

// A module with the program of the persistent decode kernel, which decode_host.cc interprets.
struct FakeModule {
  DecodeInstruction program[kMaxInstructions] = {};
};

struct Memory {
  std::map<DeviceAddress, size_t> device;
  std::map<void*, size_t> pinned;
  Recording* capture = nullptr;
};
Memory& memory() {
  static Memory m;
  return m;
}

// Counts a call; not 0: it fails.
int answer() {
  FakeDriver& f = fake_driver();
  int64_t n = f.calls++;
  if (f.fail_at < 0) return 0;
  return n == f.fail_at || (f.lost && n > f.fail_at) ? f.failure : 0;
}

Handle handle(int64_t n) { return reinterpret_cast<Handle>(static_cast<uintptr_t>(n + 1)); }

int init(unsigned) { return fake_driver().init_fails ? 100 : 0; }
int driver_version(int* out) {
  *out = fake_driver().version;
  return 0;
}
int error_string(int code, const char** out) {
  *out = code == kFakeOutOfMemory ? "out of memory" : "made to fail";
  return 0;
}
int device_count(int* out) {
  *out = fake_driver().devices;
  return answer();
}
int device_get(int* out, int ordinal) {
  *out = ordinal;
  return answer();
}
int device_name(char* out, int bytes, int) {
  std::strncpy(out, "Fake GPU", static_cast<size_t>(bytes));
  return answer();
}
int device_attribute(int* out, int which, int) {
  const int capability = fake_driver().capability;
  *out = which == 16   ? 8
         : which == 75 ? capability / 10
         : which == 76 ? capability % 10
         : which == 97 ? 227 << 10
                       : 0;
  return answer();
}
int device_memory(size_t* out, int) {
  *out = fake_driver().memory;
  return answer();
}
int context_retain(Handle* out, int) {
  if (int r = answer()) return r;
  ++fake_driver().contexts;
  *out = handle(0);
  return 0;
}
int context_release(int) {
  --fake_driver().contexts;
  return 0;
}
int context_set(Handle) { return answer(); }
int memory_info(size_t* free, size_t* total) {
  *total = fake_driver().memory;
  *free = fake_driver().memory - fake_driver().in_use;
  return 0;
}

int allocate(DeviceAddress* out, size_t bytes) {
  FakeDriver& f = fake_driver();
  if (int r = answer()) return r;
  if (bytes > f.memory - f.in_use) return kFakeOutOfMemory;
  void* data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(data, 0xab, bytes);  // so that reads before the first write are noticed
  *out = reinterpret_cast<DeviceAddress>(data);
  memory().device[*out] = bytes;
  f.in_use += bytes;
  ++f.allocations;
  return 0;
}
int release(DeviceAddress address) {
  auto it = memory().device.find(address);
  if (it == memory().device.end()) return 1;
  fake_driver().in_use -= it->second;
  std::free(reinterpret_cast<void*>(address));
  memory().device.erase(it);
  return 0;
}
int host_allocate(void** out, size_t bytes) {
  if (int r = answer()) return r;
  *out = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  memory().pinned[*out] = bytes;
  fake_driver().pinned += bytes;
  ++fake_driver().allocations;
  return 0;
}
int host_release(void* data) {
  auto it = memory().pinned.find(data);
  if (it == memory().pinned.end()) return 1;
  fake_driver().pinned -= it->second;
  std::free(data);
  memory().pinned.erase(it);
  return 0;
}

// Copies must stay inside one allocation.
bool inside(DeviceAddress address, size_t bytes) {
  auto it = memory().device.upper_bound(address);
  if (it == memory().device.begin()) return false;
  --it;
  return address + bytes <= it->first + it->second;
}
int copy_in(DeviceAddress to, const void* from, size_t bytes) {
  if (int r = answer()) return r;
  if (!inside(to, bytes)) return 1;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int copy_out(void* to, DeviceAddress from, size_t bytes) {
  if (int r = answer()) return r;
  if (!inside(from, bytes)) return 1;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
int set_words(DeviceAddress to, unsigned value, size_t count) {
  if (int r = answer()) return r;
  if (!inside(to, count * 4)) return 1;
  for (size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(to)[i] = value;
  return 0;
}
int copy_in_async(DeviceAddress to, const void* from, size_t bytes, Handle) {
  return copy_in(to, from, bytes);
}
int copy_out_async(void* to, DeviceAddress from, size_t bytes, Handle) {
  return copy_out(to, from, bytes);
}
int copy_device_async(DeviceAddress to, DeviceAddress from, size_t bytes, Handle) {
  if (int r = answer()) return r;
  if (!inside(to, bytes) || !inside(from, bytes)) return 1;
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}

int module_load(Handle* out, const void*) {
  if (int r = answer()) return r;
  auto* module = new FakeModule;
  memory().device[reinterpret_cast<DeviceAddress>(module->program)] = sizeof module->program;
  *out = module;
  ++fake_driver().live_modules;
  return 0;
}
int module_unload(Handle module) {
  auto* m = static_cast<FakeModule*>(module);
  memory().device.erase(reinterpret_cast<DeviceAddress>(m->program));
  delete m;
  --fake_driver().live_modules;
  return 0;
}
int module_function(Handle* out, Handle module, const char* name) {
  if (int r = answer()) return r;
  if (is_decode_kernel(name)) {
    *out = module;  // for launch_cooperative
    return 0;
  }
  const simt::HostKernel* kernel = simt::find_kernel(name);
  *out = const_cast<simt::HostKernel*>(kernel);
  return kernel ? 0 : kFakeNotFound;
}
int module_global(DeviceAddress* out, size_t* bytes, Handle module, const char* name) {
  if (int r = answer()) return r;
  if (std::string_view(name) != "decode_program") return kFakeNotFound;
  auto* m = static_cast<FakeModule*>(module);
  *out = reinterpret_cast<DeviceAddress>(m->program);
  *bytes = sizeof m->program;
  return 0;
}
int function_set(Handle, int, int) { return answer(); }
int function_get(int* out, int, Handle) {
  *out = 0;
  return answer();
}
int blocks_per_multiprocessor(int* out, Handle, int, size_t) {
  *out = 1;
  return answer();
}

void run_now(const RecordedLaunch& l) {
  FakeDriver& f = fake_driver();
  f.launches.push_back({std::string(l.kernel->name), {l.grid.x, l.grid.y, l.grid.z}, l.threads});
  if (f.run_kernels) simt::run_grid(*l.kernel, l.args.data(), l.grid, l.threads, l.shared_bytes);
}
int launch(Handle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
           unsigned, unsigned shared_bytes, Handle, void** params, void**) {
  if (int r = answer()) return r;
  const auto* kernel = static_cast<const simt::HostKernel*>(function);
  const auto* bytes = static_cast<const std::byte*>(params[0]);
  RecordedLaunch l{kernel, {x, y, z}, threads, shared_bytes, {bytes, bytes + kernel->args_bytes}};
  if (memory().capture)
    memory().capture->push_back(std::move(l));
  else
    run_now(l);
  return 0;
}
int launch_ex(const LaunchConfig* c, Handle function, void** params, void** extra) {
  return launch(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2],
                c->shared_bytes, c->stream, params, extra);
}
int launch_cooperative(Handle module, unsigned x, unsigned y, unsigned z, unsigned threads,
                       unsigned, unsigned, unsigned, Handle, void** params) {
  if (int r = answer()) return r;
  FakeDriver& f = fake_driver();
  f.launches.push_back({"decode_stream", {x, y, z}, threads});
  if (f.run_kernels)
    run_decode_program(*static_cast<const DecodeLaunch*>(params[0]),
                       static_cast<const FakeModule*>(module)->program);
  return 0;
}

// What the driver was told, so that kernels of the emulator and tests can read it.
int tensor_map(void* out, int type, unsigned rank, void* address, const uint64_t* dims,
               const uint64_t* strides, const unsigned* box, const unsigned*, int, int swizzle, int,
               int) {
  if (int r = answer()) return r;
  FakeTensorMap map{address, {}, {}, {}, static_cast<int>(rank), type, swizzle};
  if (rank < 1 || rank > 4) return 1;
  std::copy_n(dims, rank, map.dims);
  std::copy_n(strides, rank - 1, map.strides);
  std::copy_n(box, rank, map.box);
  std::memcpy(out, &map, sizeof map);
  return 0;
}

int stream_create(Handle* out, unsigned) {
  if (int r = answer()) return r;
  *out = handle(fake_driver().live_streams++);
  return 0;
}
int stream_destroy(Handle) {
  --fake_driver().live_streams;
  return 0;
}
int stream_wait(Handle) { return answer(); }
int event_create(Handle* out, unsigned) {
  if (int r = answer()) return r;
  ++fake_driver().live_events;
  *out = new Nanos(0);
  return 0;
}
int event_destroy(Handle event) {
  --fake_driver().live_events;
  delete static_cast<Nanos*>(event);
  return 0;
}
int event_record(Handle event, Handle) {
  if (int r = answer()) return r;
  *static_cast<Nanos*>(event) = SteadyClock().now();
  return 0;
}
int event_wait(Handle) { return answer(); }
int event_elapsed(float* out, Handle from, Handle to) {
  *out = static_cast<float>(*static_cast<Nanos*>(to) - *static_cast<Nanos*>(from)) * 1e-6f;
  return answer();
}

int capture_begin(Handle, int) {
  if (int r = answer()) return r;
  if (memory().capture) return 1;
  memory().capture = new Recording;
  return 0;
}
int capture_end(Handle, Handle* out) {
  Recording* recorded = std::exchange(memory().capture, nullptr);
  if (int r = answer()) {
    delete recorded;
    *out = nullptr;
    return r;
  }
  *out = recorded;
  ++fake_driver().live_graphs;
  return 0;
}
int graph_instantiate(Handle* out, Handle graph, unsigned long long) {
  if (int r = answer()) return r;
  *out = new Recording(*static_cast<Recording*>(graph));
  return 0;
}
int graph_launch(Handle exec, Handle) {
  if (int r = answer()) return r;
  ++fake_driver().graph_launches;
  for (const RecordedLaunch& l : *static_cast<Recording*>(exec)) run_now(l);
  return 0;
}
int graph_destroy(Handle graph) {
  --fake_driver().live_graphs;
  delete static_cast<Recording*>(graph);
  return 0;
}
int graph_exec_destroy(Handle exec) {
  delete static_cast<Recording*>(exec);
  return 0;
}

constexpr DriverCalls kCalls = {
    .init = init,
    .driver_version = driver_version,
    .error_string = error_string,
    .device_count = device_count,
    .device_get = device_get,
    .device_name = device_name,
    .device_attribute = device_attribute,
    .context_retain = context_retain,
    .context_release = context_release,
    .context_set = context_set,
    .memory_info = memory_info,
    .allocate = allocate,
    .release = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .set_words = set_words,
    .copy_in_async = copy_in_async,
    .copy_out_async = copy_out_async,
    .copy_device_async = copy_device_async,
    .host_allocate = host_allocate,
    .host_release = host_release,
    .device_memory = device_memory,
    .module_load = module_load,
    .module_unload = module_unload,
    .module_function = module_function,
    .module_global = module_global,
    .function_set = function_set,
    .function_get = function_get,
    .blocks_per_multiprocessor = blocks_per_multiprocessor,
    .launch = launch,
    .launch_ex = launch_ex,
    .launch_cooperative = launch_cooperative,
    .tensor_map = tensor_map,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_elapsed = event_elapsed,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_instantiate = graph_instantiate,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .graph_exec_destroy = graph_exec_destroy,
};

}  // namespace

FakeDriver& fake_driver() {
  static FakeDriver state;
  return state;
}

void install_fake_driver() {
  FakeDriver& f = fake_driver();
  FakeDriver fresh;
  fresh.in_use = f.in_use;
  fresh.pinned = f.pinned;
  fresh.contexts = f.contexts;
  fresh.live_modules = f.live_modules;
  fresh.live_streams = f.live_streams;
  fresh.live_events = f.live_events;
  fresh.live_graphs = f.live_graphs;
  f = fresh;
  reinstall_fake_driver();
}

void reinstall_fake_driver() {
  simt::link_host_kernels();
  static const unsigned char kNothing[1] = {};
  static const EmbeddedImage kImages[] = {
      {"op_element", kNothing, kNothing + 1},    {"op_rows", kNothing, kNothing + 1},
      {"op_linear", kNothing, kNothing + 1},     {"op_linear_mma", kNothing, kNothing + 1},
      {"op_attend", kNothing, kNothing + 1},     {"op_flash", kNothing, kNothing + 1},
      {"op_layer", kNothing, kNothing + 1},      {"op_pack", kNothing, kNothing + 1},
      {"sample", kNothing, kNothing + 1},        {"decode_attention", kNothing, kNothing + 1},
      {"decode_stream", kNothing, kNothing + 1}, {"prefill_attention", kNothing, kNothing + 1},
      {"few_rows", kNothing, kNothing + 1},      {"op_experts", kNothing, kNothing + 1},
      {"op_recurrent", kNothing, kNothing + 1},  {"op_latent", kNothing, kNothing + 1},
      {"op_scan", kNothing, kNothing + 1}};
  setenv("TOKAMAK_CUBLASLT", "0", 1);  // the library would use the real driver
  use_images(kImages);
  use_driver(&kCalls);
}

}  // namespace tokamak::cuda
