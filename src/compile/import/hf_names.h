#pragma once
// Tables of tensor names in Hugging Face folders.
#include <span>
#include <string_view>

#include "compile/import/hf_weights.h"

namespace tokamak {

struct HfName {
  std::string_view stem, hf;
};

// The names of a family that differ from Llama's.
struct OwnNames {
  std::string_view architecture;
  std::span<const HfName> names;
};

std::span<const OwnNames> mixed_names();  // families with experts or recurrent layers
std::span<const HfName> mamba2_names();
std::span<const HfName> mamba_part_names();  // Mamba-2 as one part of a layer

}  // namespace tokamak
