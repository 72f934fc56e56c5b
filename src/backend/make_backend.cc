#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
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

}  // namespace tokamak
