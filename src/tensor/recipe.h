#pragma once
// How a weight is computed from the tensors of a model file: data, executed by the backend at load.
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace tokamak {

struct RecipeStep {
  enum class Kind {
    kSliceRows,     // rows [a, b) of the current tensor, or of every dims[0] rows
    kPermuteRows,   // a = heads: the first b rows of each head (0: all) go from interleaved rotary
                    // pairs (GGUF Llama) to split halves
    kTranspose,     // [r, c] -> [c, r], each matrix of a stack; plain types only (GPT-2 Conv1D)
    kAddScalar,     // x + value in f32 (Gemma's 1 + w in safetensors)
    kScale,         // x * value in f32
    kCast,          // to dtype; from block types only to f32 (never an implicit requantisation)
    kReshape,       // dims replaced, same element order
    kConcatRows,    // concatenates all sources; required as the first step if there are several
    kScaleColumns,  // column c * (tensor[c] + value) in f32: the weight of a norm whose result only
                    // such matrices read
    kJoinMxfp4,     // u8 [..., k / 32, 16], values 2j and 2j + 1 in byte j, and exponents u8 [...,
                    // k / 32] of `tensor` -> mxfp4 [..., k]; [..., 32] and f8e4m3 -> nvfp4
    kJoinGroups,    // the first step: the tensors of quantised matrices (tensor/group_join.h) -> a
                    // group type [matrices * rows, columns]; a = packing, b = flags, dims = {rows,
                    // columns, rows and columns of a scale}
    kSortGroups,    // i32 [columns], the group of each -> the columns sorted by group, for matrices
                    // whose groups are not of neighbours (GPTQ with desc_act); a = groups
    kUnitRows,      // each row divided by its length, at least 1e-12, in f32 (Baichuan 2's head)
    kTernary,  // -s, 0 or s in f32, s being the mean magnitude: BitNet's weights before packing
  };
  static constexpr Kind kLastKind = Kind::kTernary;
  Kind kind;
  int64_t a = 0, b = 0;
  double value = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;
  std::string tensor = {};  // of the model file: of kScaleColumns and kJoinMxfp4
  bool operator==(const RecipeStep&) const = default;
};

struct Recipe {
  std::vector<std::string> sources;  // tensor names in the model file
  std::vector<RecipeStep> steps;     // applied in order; empty = the tensor as it is
  bool operator==(const Recipe&) const = default;
};

const char* recipe_step_name(RecipeStep::Kind kind);
std::string recipe_to_text(const Recipe& recipe);  // "blk.0.attn_q.weight | permute_rows(9)"

}  // namespace tokamak
