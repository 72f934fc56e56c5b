#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/driver.h"
#include "backend/null/null_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/error.h"

namespace tokamak {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  if (name == "cpu") return make_cpu_backend(options);
  if (name == "cuda") return make_cuda_backend(options);
  if (name == "ref") return make_ref_backend(options);
  if (name == "null") return make_null_backend(options);
  fail(ErrorCode::kInvalidArgument, "unknown backend \"{}\": use cpu, cuda, ref or null", name);
}

AutoBackend auto_backend(uint64_t model_bytes) {
  constexpr double kRoom = 1.2;  // for cache and values between ops
  try {
    cuda::Device device(0);
    size_t free = device.free_memory();
    bool fits = static_cast<double>(model_bytes) * kRoom <= static_cast<double>(free);
    return {fits ? "cuda" : "cpu",
            fmt::format("backend {}: {} has {} MB free, the model is {} MB", fits ? "cuda" : "cpu",
                        device.name(), free >> 20, model_bytes >> 20)};
  } catch (const Error& e) {
    return {"cpu", fmt::format("backend cpu: {}", e.what())};
  }
}

}  // namespace tokamak
