#include "backend/cuda/images.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace tokamak::cuda {
namespace {

std::span<const EmbeddedImage> replaced_images;

}  // namespace

void use_images(std::span<const EmbeddedImage> images) { replaced_images = images; }

std::vector<std::byte> kernel_image(std::string_view name) {
  constexpr size_t kLargest = size_t{256} << 20;
  const char* folder = std::getenv("TOKAMAK_CUDA_KERNELS");
  if (folder && replaced_images.empty()) {
    std::filesystem::path path = std::filesystem::path(folder) / (std::string(name) + ".fatbin");
    std::string text = read_text_file(path, kLargest);
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return {bytes, bytes + text.size()};
  }
  for (const EmbeddedImage& image : replaced_images.empty() ? embedded_images() : replaced_images)
    if (image.name == name)
      return {reinterpret_cast<const std::byte*>(image.begin),
              reinterpret_cast<const std::byte*>(image.end)};
  fail(ErrorCode::kUnavailable,
       "this program has no CUDA kernel {}: build it with -DTK_CUDA=ON (which needs nvcc), or set "
       "TOKAMAK_CUDA_KERNELS to a folder with the files that tools/build_kernels.sh writes",
       name);
}

}  // namespace tokamak::cuda
