#pragma once
// The tensors of quantised linear layers in checkpoints of other programs, brought into a group
// type (tensor/group_formats.h) without changing a value.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor/recipe.h"

namespace tokamak {

// How the codes of a matrix [rows n, columns k] lie; the value of RecipeStep::a of kJoinGroups.
enum class GroupPacking : int64_t {
  kGptq,   // codes i32 [k * bits / 32, n] and zeros i32 [k / g, n * bits / 32], both a stream of
           // bits along the packed axis; scales [k / g, n]
  kAwq,    // codes i32 [k, n / 8] and zeros i32 [k / g, n / 8], nibbles in the order 0 2 4 6 1 3 5
           // 7; scales [k / g, n]
  kRows,   // compressed-tensors: codes i32 [n, k * bits / 32], scales [n, k / g], zeros i32
           // [n * bits / 32, k / g]
  kPlain,  // codes i8 or f8e4m3 [n, k]; scales and zeros (i8) one per dims[2] rows and dims[3]
           // columns; scales are multiplied by RecipeStep::value if it is not 0
  kNf4,    // bitsandbytes: codes u8, two in a byte, high nibble first, scales one per dims[3] codes
  kTernary,  // BitNet: u8 [n / 4, k], row r in bits 2 (r / (n / 4)) of row r % (n / 4), the codes
             // 0, 1, 2 for -1, 0, 1; one scale, by which the codes are divided if RecipeStep::value
             // is not 0
};
constexpr int64_t kGroupPackings = 6;

// Flags of RecipeStep::b: what a matrix has besides codes and scales, in this order of sources.
constexpr int64_t kGroupZeros = 1;   // zero points
constexpr int64_t kGroupOrder = 2;   // i32 [k]: the group of each column
constexpr int64_t kGroupNested = 4;  // kNf4: scales are u8, indices into f32 [256] (the second
                                     // source of these), times f32 (the first), one per dims[4];
                                     // plus RecipeStep::value
constexpr int64_t kGroupZerosLess1 = 8;  // no tensor: zeros are stored minus one (GPTQ v1)

int64_t group_parts(const RecipeStep& step);  // sources of one matrix

// A tensor of the model file.
struct GroupPart {
  std::string name;
  DType dtype;
  std::span<const int64_t> dims;
  std::span<const std::byte> bytes;
};

// Throws Error(kCorrupt), beginning with `where`, unless the parts of one matrix fit the step.
void check_group_parts(const std::string& where, const RecipeStep& step,
                       std::span<const GroupPart> parts);

// One matrix as rows of step.dtype; the parts were checked.
std::vector<std::byte> join_groups(const std::string& where, const RecipeStep& step,
                                   std::span<const GroupPart> parts);

// The columns in the order of their groups, neighbours of the file staying in order.
// Error(kCorrupt) unless `groups` groups of the same size result.
std::vector<int32_t> sorted_columns(const std::string& where, const GroupPart& order,
                                    int64_t groups);

}  // namespace tokamak
