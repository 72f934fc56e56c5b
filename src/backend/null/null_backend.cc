#include "backend/null/null_backend.h"

namespace tokamak {
namespace {

// Has a kernel for every op.
class NullBackend final : public Backend {
 public:
  explicit NullBackend(const NullOptions& options) : options_(options) {
    kernels_.push_back({"null.any", 1, "*", "", "null"});
  }
  std::string_view name() const override { return "null"; }
  std::string isa() const override { return "null"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  std::unique_ptr<Executable> load(const PlanSet& plans, const WeightSource&,
                                   const LoadOptions& load) override {
    auto executable = make_null_executable(plans, load, options_);
    if (load.progress) load.progress(0, 0);
    return executable;
  }

 private:
  NullOptions options_;
  std::vector<KernelDesc> kernels_;
};

}  // namespace

std::unique_ptr<Backend> make_null_backend(const NullOptions& options) {
  return std::make_unique<NullBackend>(options);
}

std::unique_ptr<Backend> make_null_backend(const BackendOptions& options) {
  NullOptions o;
  o.seed = options.null_seed;
  if (!options.machine_file.empty()) o.machine = load_machine_file(options.machine_file);
  return make_null_backend(o);
}

NullModel null_model(const PlanSet& plans, const NullOptions& options) {
  return NullModel(options.seed, options.vocab > 0 ? options.vocab : plans.vocab, options.shadow);
}

}  // namespace tokamak
