#pragma once
// The families of ops, one line per file; op_table.cc joins them.
#include <vector>

#include "ops/op.h"

namespace tokamak {

std::vector<OpDef> unary_ops();
std::vector<OpDef> binary_ops();
std::vector<OpDef> cast_ops();
std::vector<OpDef> matmul_ops();
std::vector<OpDef> reduce_ops();
std::vector<OpDef> layout_ops();
std::vector<OpDef> gather_ops();
std::vector<OpDef> top_k_ops();
std::vector<OpDef> linear_ops();
std::vector<OpDef> quantize_ops();
std::vector<OpDef> norm_ops();
std::vector<OpDef> activation_ops();
std::vector<OpDef> rope_ops();
std::vector<OpDef> training_ops();
std::vector<OpDef> sdpa_ops();
std::vector<OpDef> encoder_ops();
std::vector<OpDef> append_ops();
std::vector<OpDef> attend_ops();
std::vector<OpDef> recurrent_ops();
std::vector<OpDef> moe_ops();
std::vector<OpDef> route_ops();
std::vector<OpDef> sampling_ops();
std::vector<OpDef> structural_ops();

}  // namespace tokamak
