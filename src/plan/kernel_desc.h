#pragma once
// What a backend can run, as data: it can be listed without the device.
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace tokamak {

struct KernelDesc {
  std::string name;  // "cpu.linear.q4_0"
  int abi = 1;
  // "op(in0, in1, ...)": each input "*" or dtypes joined by |; "*" alone takes every op. Missing
  // trailing inputs match absent optional ones, "..." at the end any number of any type. Example:
  // "linear(q8a, q4_0|q4_1, *)".
  std::string pattern;
  std::string weight_layout;  // packing asked of the weight operand ("" = row-major)
  std::string numeric_class;
  // Output 0 may lie on input 0, or on any input when all have its extents: each element is read
  // before it is written.
  bool in_place = false;
  // Stores its result in the type that the node asks for (attribute "out"); otherwise as f32 only.
  bool any_storage = false;
};

bool kernel_matches(const KernelDesc& desc, std::string_view op,
                    std::span<const DType> input_dtypes);

}  // namespace tokamak
