// For programs that are built without kernels (TK_CUDA=OFF).
#include "backend/cuda/images.h"

namespace tokamak::cuda {

std::span<const EmbeddedImage> embedded_images() { return {}; }

}  // namespace tokamak::cuda
