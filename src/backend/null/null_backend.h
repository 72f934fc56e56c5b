#pragma once
#include <memory>

#include "backend/backend.h"

namespace tokamak {

std::unique_ptr<Backend> make_null_backend(const BackendOptions& options);

}  // namespace tokamak
