#pragma once
// Inside the region kernels: the ops of a region on one row (or a part of one), with the very
// kernels that run them alone, so that fusing changes no bit.
#include "backend/cpu/exec.h"
#include "plan/region.h"

namespace tokamak::cpu {

// One op on n values that lie one behind the other.
struct RowStep {
  enum class Kind : uint8_t { kUnary, kBinary, kRmsNorm, kLayerNorm, kSoftmax, kQuantize };
  Kind kind = Kind::kUnary;
  UnaryKernel unary;
  void (*binary)(const float* a, const float* b, float* out, int64_t n) = nullptr;
  void (*binary_scalar)(const float* a, float b, float* out, int64_t n) = nullptr;
  float eps = 0;
  bool row_local() const { return kind == Kind::kUnary || kind == Kind::kBinary; }

  // b, c: further operands or nullptr; `scalar`: b is one number.
  void run(const KernelTable& k, const float* a, const float* b, bool scalar, const float* c,
           void* out, int64_t n) const;
};
// Throws Error(kUnsupported) naming the op.
RowStep make_row_step(const KernelTable& kernels, const RegionStep& step, std::string_view label);

// The kernels; each takes the regions of its kind and throws Error(kUnsupported) for what it cannot
// do.
std::unique_ptr<Op> make_rows_region(const OpSite& site, const RegionProgram& program);
std::unique_ptr<Op> make_linears_region(const OpSite& site, const RegionProgram& program);
std::unique_ptr<Op> make_rope_region(const OpSite& site, const RegionProgram& program);

}  // namespace tokamak::cpu
