#pragma once
// Compiled kernels ("op_linear"), embedded in the program where it was built with TK_CUDA, else in
// the folder that the environment variable TOKAMAK_CUDA_KERNELS names, as NAME.fatbin.
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::cuda {

struct EmbeddedImage {
  std::string_view name;
  const unsigned char *begin, *end;
};
std::span<const EmbeddedImage> embedded_images();        // written by the build
void use_images(std::span<const EmbeddedImage> images);  // tests: instead of all others

// The bytes that the driver loads. Throws Error(kUnavailable) saying how to get them.
std::vector<std::byte> kernel_image(std::string_view name);

}  // namespace tokamak::cuda
