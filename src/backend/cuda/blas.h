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
  static constexpr size_t kWorkspaceBytes = size_t{128} << 20;
  static std::unique_ptr<Blas> load();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  struct Plan;  // how products of one shape are computed

  static bool takes(const BlasProduct& p);
  // Measures the library's proposals for products of few rows with a matrix, up to p.rows of them,
  // so that steps need not; x and y are made here. For use at load: it takes some 40 ms.
  void measure(BlasProduct p, const DeviceStream& stream);
  // How a product is computed: as was measured for the next larger number of rows, else by the
  // library's first proposal. Null: it has none for this shape.
  std::shared_ptr<const Plan> prepare(const BlasProduct& p);
  // Works while a graph is captured, too.
  void run(const Plan& plan, const BlasProduct& p, Handle stream) const;
  uint64_t bytes() const { return workspace_.bytes(); }

 private:
  struct Calls;
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType>;
  using Matrix = std::tuple<int64_t, int64_t, DType, DType>;
  struct Algorithm {
    uint64_t words[8];
  };
  explicit Blas(std::unique_ptr<Calls> calls);
  static Key key(const BlasProduct& p) { return {p.rows, p.n, p.k, p.type, p.out}; }
  static Matrix matrix(const BlasProduct& p) { return {p.n, p.k, p.type, p.out}; }
  int multiply(const Plan& plan, const void* algorithm, const BlasProduct& p, Handle stream) const;
  std::vector<Algorithm> proposals(const Plan& plan, int most) const;
  bool works(const Plan& plan, const Algorithm& algorithm) const;
  double seconds_of(const Plan& plan, const Algorithm& algorithm, const BlasProduct& p,
                    const DeviceStream& stream) const;

  std::unique_ptr<Calls> calls_;
  Handle handle_ = nullptr;
  Buffer workspace_;
  std::map<Key, std::shared_ptr<const Plan>> plans_;
  std::map<Matrix, std::map<int64_t, Algorithm>> measured_;  // by the most rows
};

}  // namespace tokamak::cuda
