#pragma once
// The weights of a loaded model in the layouts the kernels read.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/memory.h"
#include "backend/cpu/pack.h"
#include "base/thread_pool.h"
#include "plan/plan.h"
#include "plan/weight_source.h"

namespace tokamak::cpu {

// The layouts of matrices, as plans name them (pack.h): panels of a quantised format, panels of
// f32, f16 or bf16, panels of pairs of int16, rows in the type of the file. Everything that is not
// a matrix is row-major.
inline constexpr const char* kQuantPanels = "qpanel16";
inline constexpr const char* kFloatPanels = "fpanel16";
inline constexpr const char* kPairPanels = "pairs16";
inline constexpr const char* kFileRows = "file_rows";

// Whole numbers, which no matrix has.
inline bool is_integer(DType dtype) { return !dtype_info(dtype).is_float && !is_block_type(dtype); }

// Which of them the kernels for matrices of this type read.
inline const char* matrix_layout(DType dtype) {
  if (dtype == DType::kInt16G128) return kPairPanels;
  return qformat_of(dtype) ? kQuantPanels : ftype_of(dtype) ? kFloatPanels : kFileRows;
}

// A matrix [n, k] in panels, a stack of such matrices, or the values row-major.
struct Weight {
  std::string name;
  std::string layout;  // of the plan
  enum class Matrix : uint8_t { kNone, kQPanel, kFPanel, kPairPanel, kRows };
  Matrix matrix = Matrix::kNone;
  DType dtype = DType::kF32;
  QFormat qformat = QFormat::kQ4_0;
  FType ftype = FType::kF32;
  bool finite_f16 = false;  // float panels of f16 without infinities and NaN
  int64_t n = 0, k = 0;
  int64_t groups = 1;               // matrices [n, k] in a stack
  int64_t panel_bytes = 0;          // kRows: bytes of 16 rows as in the file
  const uint8_t* panels = nullptr;  // kRows: row-major rows
  void* plain = nullptr;            // row-major f32, or i32 for integer types
  Buffer matrix_memory, plain_memory;
  uint64_t mapped_bytes = 0;  // read where a bundle's file has them
  std::vector<bool> filled;   // slots of adapters: which matrices of the stack are not zero

  const uint8_t* panel(int64_t p) const { return panels + p * panel_bytes; }
  Weight group(int64_t g) const;  // one matrix of a stack; refers to the memory of the whole
  // f32 values of row n; bit-equal to decoding the file's row.
  void decode_row(const KernelTable& kernels, int64_t row, float* out) const;
  // f32 panel [count][16] of k0 <= k < k0 + count (multiples of the format's block), rows beyond n
  // zero. Not of kQPanel.
  void decode_panel(const KernelTable& kernels, int64_t panel, int64_t k0, int64_t count,
                    float* out) const;
};

// The byte layout of packed weights under a style; bundles carry it. parse_packing: nullopt for a
// layout that this program does not have.
std::string packing_name(const PackStyle& style);
std::optional<PackStyle> parse_packing(std::string_view name);

// One weight in the layout of its entry. Packed ahead of time in this style, it is read in place;
// in another style, it is packed again; otherwise its recipe runs.
Weight load_cpu_weight(const WeightEntry& entry, const WeightSource& source,
                       const KernelTable& kernels, ThreadPool& pool);
// Replaces a matrix of a stack in f32 panels, padded with zeros; nullptr: all zeros. Throws
// Error(kInvalidArgument) for one that does not fit.
void set_slot(Weight& weight, int64_t slot, const TensorView* tensor);
// What a bundle has to hold so that nothing is left to do when it is loaded.
PackedWeight packed_view(const WeightEntry& entry, const Weight& weight);

// Runs the recipes and packs, with all threads, one weight after the other: besides the result only
// the current weight is held, and its pages of the file are returned to the system.
std::vector<Weight> load_weights(const PlanSet& plans, const WeightSource& source,
                                 const KernelTable& kernels, ThreadPool& pool,
                                 const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace tokamak::cpu
