#include "backend/cuda/cuda_backend.h"

#include <mutex>

#include "backend/common/weights.h"
#include "backend/cuda/executable.h"
#include "backend/cuda/launches.h"
#include "backend/cuda/memory_needs.h"
#include "base/error.h"

namespace tokamak {
namespace {

// What kernels can count on. Without a GPU, plans are made for the one that the cost functions
// describe. "fp8" stands for the user's leave to read bf16 weights as FP8 (BackendOptions::fp8).
std::string device_isa() {
  try {
    const auto devices = cuda::list_devices();
    if (!devices.empty() && devices[0].capability != cuda::kHopper) return "sm_80";
  } catch (const Error&) {
  }
  return "sm_80+sm_90a";
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(bool fp8) : launches_(cuda::listed_launches()), fp8_(fp8) {
    for (const cuda::CudaKernel& k : cuda::cuda_kernels()) kernels_.push_back(k.desc);
  }
  std::string_view name() const override { return "cuda"; }
  std::string isa() const override {
    std::call_once(asked_, [this] { isa_ = device_isa() + (fp8_ ? "+fp8" : ""); });
    return isa_;
  }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  std::span<const LaunchDesc> launches() const override { return launches_; }
  // 16-bit products run on tensor cores at full speed; sums and logits stay f32.
  StorageWish storage() const override { return {.activations = DType::kBF16}; }
  int64_t pads_decode_above() const override { return cuda::kMaxBatch; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    return std::make_unique<cuda::CudaExecutable>(plans, weights, options);
  }
  uint64_t kv_bytes_within(const PlanSet& plans, double share) override {
    return cuda::kv_bytes_within(cuda::Device(0), plans, share);
  }
  void pack_weights(const PlanSet& plans, const WeightSource& weights,
                    const PackSink& sink) override {
    pack_rows(plans, weights, sink);
  }

 private:
  std::vector<KernelDesc> kernels_;
  std::vector<LaunchDesc> launches_;
  const bool fp8_;
  mutable std::once_flag asked_;
  mutable std::string isa_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  return std::make_unique<CudaBackend>(options.fp8);
}

}  // namespace tokamak
