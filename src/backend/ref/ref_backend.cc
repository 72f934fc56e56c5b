#include "backend/ref/ref_backend.h"

#include "backend/common/weights.h"
#include "backend/ref/ref_executable.h"

namespace tokamak {
namespace {

class RefBackend final : public Backend {
 public:
  std::string_view name() const override { return "ref"; }
  std::string isa() const override { return "scalar"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    return std::make_unique<RefExecutable>(plans, weights, options);
  }
  void pack_weights(const PlanSet& plans, const WeightSource& weights,
                    const PackSink& sink) override {
    pack_rows(plans, weights, sink);
  }

 private:
  std::vector<KernelDesc> kernels_ = {{.name = "ref.loop",
                                       .pattern = "loop",
                                       .weight_layout = "",
                                       .numeric_class = "",
                                       .out_types = {DType::kF32, DType::kF16, DType::kBF16},
                                       .on_request = true},
                                      {.name = "ref.op",
                                       .pattern = "*",
                                       .weight_layout = "",
                                       .numeric_class = "f32, sums in f64, rounded once",
                                       .out_types = {DType::kF32, DType::kF16, DType::kBF16}}};
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend(const BackendOptions&) {
  return std::make_unique<RefBackend>();
}

}  // namespace tokamak
