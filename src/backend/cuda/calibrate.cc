#include "backend/cuda/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backend/cuda/cost.h"
#include "backend/cuda/kernels.h"

namespace tokamak::cuda {
namespace {

constexpr double kSiluOps = 14;                 // of an element in the cost model's unit
constexpr size_t kFewBytes = size_t{64} << 20;  // room for a product

class Meter {
 public:
  explicit Meter(double seconds) : device_(0), kernels_(device_), budget_(seconds / 7) {}

  Machine run(const std::string& name) {
    Machine m;
    m.name = fmt::format("{}{}", kGpuMachine, name.empty() ? device_.name() : name);
    m.cores = device_.multiprocessors();
    // Far more than the cache, but not most of a small GPU's memory.
    const size_t cache = std::max(device_.cache_bytes(), size_t{1} << 20);
    const size_t many = std::min(8 * cache, device_.free_memory() / 4);
    buffer_ = Buffer(2 * std::max(many, kFewBytes));
    check(driver().stream_wait(nullptr), "clearing memory");
    m.levels = {{"L2", static_cast<double>(cache), copy_speed(cache / 8)},
                {"memory", 0, copy_speed(many)}};
    m.vector_ops = silu_speed(cache / 8);
    m.f32_flops = product_speed(DType::kF32, DType::kF32);
    m.i8_ops = product_speed(DType::kQ8_0, DType::kQ8A);
    m.call_seconds = m.launch_seconds = launch_seconds();
    m.barrier_seconds = m.call_seconds;  // a launch is what all multiprocessors meet at
    return m;
  }

 private:
  // The time of one run: the shortest of as many as the budget holds.
  double shortest(const LaunchList& list, int repeat = 1) {
    const StepGraph graph(list, stream_);
    double best = std::numeric_limits<double>::infinity(), spent = 0;
    do {
      begin_.record(stream_);
      for (int i = 0; i < repeat; ++i) graph.run(stream_);
      end_.record(stream_);
      end_.wait();
      const double t = std::max(end_.seconds_since(begin_), 1e-9);
      best = std::min(best, t / repeat);
      spent += t;
    } while (spent < budget_);
    return best;
  }
  // Bytes read and written per second by copies of this size.
  double copy_speed(size_t bytes) {
    bytes = bytes / 256 * 256;
    LaunchList list(kernels_);
    const DeviceAddress from = buffer_.address(), to = from + bytes;
    list.add_library_call([=](Handle stream) {
      check(driver().copy_device_async(to, from, bytes, stream), "copying on the device");
    });
    return 2.0 * static_cast<double>(bytes) / shortest(list);
  }
  double silu_speed(size_t bytes) {
    UnaryArgs args{};
    args.x = buffer_.as<void>();
    args.y = buffer_.as<void>(bytes / 256 * 256);
    args.n = static_cast<int64_t>(bytes / 256 * 256 / sizeof(float));
    args.op = Unary::kSilu;
    args.in = args.out = DType::kF32;
    LaunchList list(kernels_);
    list.add("op_element", "op_unary", {(args.n + kElementThreads - 1) / kElementThreads},
             kElementThreads, args);
    return kSiluOps * static_cast<double>(args.n) / shortest(list);
  }
  // Operations of a product of many rows; what the bytes are does not change its time.
  double product_speed(DType weights, DType values) {
    constexpr int64_t kRows = 512, kSize = 2048;
    const KvPool none({}, {});
    const StepView view;
    KernelCall call;
    call.op = "linear";
    CallSite site{call, {}, {}, none, view, {}};
    site.in = {{values, {kRows, kSize}, buffer_.address(), 0},
               {weights, {kSize, kSize}, buffer_.address() + kFewBytes / 8, 0}};
    site.out = {{DType::kF32, {kRows, kSize}, buffer_.address() + kFewBytes / 2, 0}};
    LaunchList list(kernels_);
    emit_linear(site, list);
    return 2.0 * kRows * kSize * kSize / shortest(list);
  }
  double launch_seconds() {
    constexpr int kLaunches = 100;
    LaunchList list(kernels_);
    const IotaArgs args{buffer_.as<int32_t>(), 32};
    for (int i = 0; i < kLaunches; ++i)
      list.add("op_element", "op_iota", {1}, kElementThreads, args);
    return shortest(list) / kLaunches;
  }

  Device device_;
  DeviceStream stream_;
  KernelLibrary kernels_;
  Buffer buffer_;
  DeviceEvent begin_, end_;
  double budget_;
};

}  // namespace

Machine measure_gpu(double seconds, const std::string& name) { return Meter(seconds).run(name); }

}  // namespace tokamak::cuda
