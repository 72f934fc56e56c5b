#include "backend/cuda/cuda_backend.h"

#include "backend/common/weights.h"
#include "backend/cuda/executable.h"

namespace tokamak {
namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend() {
    for (const cuda::CudaKernel& k : cuda::cuda_kernels()) kernels_.push_back(k.desc);
  }
  std::string_view name() const override { return "cuda"; }
  std::string isa() const override { return "sm_80"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  // 16-bit products run on tensor cores at full speed; sums and logits stay f32.
  StorageWish storage() const override { return {.activations = DType::kBF16}; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    return std::make_unique<cuda::CudaExecutable>(plans, weights, options);
  }
  void pack_weights(const PlanSet& plans, const WeightSource& weights,
                    const PackSink& sink) override {
    pack_rows(plans, weights, sink);
  }

 private:
  std::vector<KernelDesc> kernels_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions&) {
  return std::make_unique<CudaBackend>();
}

}  // namespace tokamak
