#pragma once
// For tests of plans: the kernels of the cpu backend as a processor with AMX has them. It only
// plans.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "base/error.h"

namespace tokamak {

class TilesBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string isa() const override { return "x86_64+amx"; }
  std::span<const KernelDesc> kernels() const override { return cpu_->kernels(); }
  int64_t bf16_rows() const override { return 32; }
  std::unique_ptr<Executable> load(const PlanSet&, const WeightSource&,
                                   const LoadOptions&) override {
    fail(ErrorCode::kUnsupported, "it runs nothing");
  }

 private:
  std::unique_ptr<Backend> cpu_ = make_backend("cpu", {1, "", 0});
};

}  // namespace tokamak
