#pragma once
#include <memory>

#include "backend/backend.h"

namespace tokamak {

// Needs no GPU until a model is loaded: plans for it can be made and explained anywhere.
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);

}  // namespace tokamak
