#pragma once
// What a launch of the persistent decode kernel computes, on the host: each instruction of the
// program for all sequences at once. It shows that the program, its addresses and the packed
// weights are right; how blocks work together only a GPU can show.
#include <string_view>

#include "backend/cuda/decode_program.h"

namespace tokamak::cuda {

bool is_decode_kernel(std::string_view name);
// Throws Error(kInternal) where an instruction reads a value that no earlier one has written.
void run_decode_program(const DecodeLaunch& launch, const DecodeInstruction* program);

}  // namespace tokamak::cuda
