#include "backend/cuda/cuda_backend.h"

#include "backend/common/weights.h"
#include "backend/cuda/executable.h"
#include "backend/cuda/memory_needs.h"

namespace tokamak {
namespace {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(bool fp8) : fp8_(fp8) {
    for (const cuda::CudaKernel& k : cuda::cuda_kernels()) kernels_.push_back(k.desc);
  }
  std::string_view name() const override { return "cuda"; }
  std::string isa() const override { return "sm_80"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  // 16-bit products run on tensor cores at full speed; sums and logits stay f32.
  StorageWish storage() const override { return {.activations = DType::kBF16}; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    return std::make_unique<cuda::CudaExecutable>(plans, weights, options, fp8_);
  }
  uint64_t kv_bytes_within(const PlanSet& plans, double share) override {
    return cuda::kv_bytes_within(cuda::Device(0), plans, share, fp8_);
  }
  void pack_weights(const PlanSet& plans, const WeightSource& weights,
                    const PackSink& sink) override {
    pack_rows(plans, weights, sink);
  }

 private:
  std::vector<KernelDesc> kernels_;
  bool fp8_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  return std::make_unique<CudaBackend>(options.fp8);
}

}  // namespace tokamak
