#pragma once
// Matrix products by cuBLASLt, loaded at run time where it is installed. The declarations are the
// few of its interface that the backend calls.
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/cuda/driver.h"
#include "tensor/dtype.h"

namespace tokamak::cuda {

// y[rows, n] = x[rows, k] * w[n, k]^T, row-major; x and w of one 16-bit type, sums in f32.
struct BlasProduct {
  DeviceAddress x = 0, w = 0, y = 0;
  int64_t rows = 0, n = 0, k = 0;
  DType type = DType::kBF16;  // of x and w
  DType out = DType::kBF16;   // of y: the same or f32
};

// Owned by an executable, used by its thread. Null where the library is absent:
// libcublasLt.so.13 or .12, or what TOKAMAK_CUBLASLT names ("0": none).
class Blas {
 public:
  static std::unique_ptr<Blas> load();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  struct Plan;  // how products of one shape are computed

  static bool takes(const BlasProduct& p);
  // Chooses an algorithm at the first product of a shape: of few rows the fastest of the library's
  // guesses, measured on `stream`; of many rows its first guess. Null: it has none for this shape.
  std::shared_ptr<const Plan> prepare(const BlasProduct& p, const DeviceStream& stream);
  // Works while a graph is captured, too.
  void run(const Plan& plan, const BlasProduct& p, Handle stream) const;
  uint64_t bytes() const { return workspace_.bytes(); }

 private:
  struct Calls;
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType>;
  explicit Blas(std::unique_ptr<Calls> calls);
  static Key key(const BlasProduct& p) { return {p.rows, p.n, p.k, p.type, p.out}; }
  int multiply(const Plan& plan, const void* algorithm, const BlasProduct& p, Handle stream) const;
  void measure(Plan& plan, const BlasProduct& p, const DeviceStream& stream);

  std::unique_ptr<Calls> calls_;
  Handle handle_ = nullptr;
  Buffer workspace_;
  std::map<Key, std::shared_ptr<const Plan>> plans_;
};

}  // namespace tokamak::cuda
