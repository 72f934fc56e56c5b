#pragma once
// The tensors of a model file as the loader sees them: names, types and bytes. Implemented by the
// importers (GGUF, safetensors), by bundles and by tests (WeightTable).
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace tokamak {

struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // outermost first; the last is contiguous
  std::span<const std::byte> bytes;
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
};

// A weight as a backend's kernels read it, made ahead of time. Which parts there are is up to the
// backend; empty = not there.
struct PackedWeight {
  std::span<const std::byte> matrix, plain;
  std::span<const std::byte> rows;  // row-major in the plan's element type, for every backend
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const TensorView* find(
      std::string_view name) const = 0;                // nullptr when absent; lives as long as this
  virtual std::vector<std::string> names() const = 0;  // in file order

  // Bundles: the packed form of a PlanSet's weight (nullptr: run its recipe), and what Backend
  // packing() said when it was made.
  virtual const PackedWeight* packed(std::string_view /*name*/, std::string_view /*layout*/) const {
    return nullptr;
  }
  virtual std::string_view packing() const { return {}; }
};

// Tensors held in memory: tests, probes and generated random models.
class WeightTable final : public WeightSource {
 public:
  void add(std::string name, DType dtype, std::vector<int64_t> dims, std::vector<std::byte> bytes);
  void add_f32(std::string name, std::vector<int64_t> dims, std::span<const float> values);
  const TensorView* find(std::string_view name) const override;
  std::vector<std::string> names() const override;

 private:
  struct Entry {
    TensorView view;
    std::vector<std::byte> bytes;
  };
  std::vector<std::string> order_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace tokamak
