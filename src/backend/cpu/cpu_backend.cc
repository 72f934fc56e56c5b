#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/executable.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "base/error.h"

namespace tokamak {
namespace {

using cpu::KernelTable;

std::vector<KernelDesc> kernel_descs() {
  std::vector<KernelDesc> out;
  for (const cpu::CpuKernel& k : cpu::cpu_kernels()) out.push_back(k.desc);
  return out;
}

// Shares its threads with the executables; one of them runs at a time.
class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options)
      : table_(*cpu::choose_table()),
        pool_(std::make_shared<ThreadPool>(options.threads)),
        kernels_(kernel_descs()) {}

  std::string_view name() const override { return "cpu"; }
  std::string isa() const override {
#if defined(__aarch64__)
    return std::string("aarch64+") + table_.name;
#elif defined(__x86_64__)
    return std::string("x86_64+") + table_.name;
#else
    return table_.name;
#endif
  }
  std::string measured_on() const override { return cpu::measured_on(pool_->size()); }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  int64_t bf16_rows() const override { return table_.tile_unit.rows; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource& weights,
                                   const LoadOptions& options) override {
    return std::make_unique<cpu::CpuExecutable>(plans, weights, options, table_, pool_);
  }
  std::string packing() const override { return cpu::packing_name(table_.style); }
  void pack_weights(const PlanSet& plans, const WeightSource& weights,
                    const PackSink& sink) override {
    for (const WeightEntry& entry : plans.weights) {
      if (!entry.constant.empty()) continue;
      cpu::Weight w = cpu::load_cpu_weight(entry, weights, table_, *pool_);
      sink(entry, cpu::packed_view(entry, w));
    }
  }

 private:
  const KernelTable& table_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<KernelDesc> kernels_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace tokamak
