#pragma once
// Arguments of calls, and what threads touch of them.
#include <cstdint>
#include <vector>

#include "backend/cpu/kv_store.h"
#include "backend/cpu/weight_store.h"
#include "tensor/dtype.h"

namespace tokamak::cpu {

constexpr int kMaxRank = 6;

// An argument of a call in the current step. Which of data, weight and index matters depends on the
// argument's kind.
struct Tensor {
  void* data = nullptr;            // arena, input, or the row-major values of a weight
  const Weight* weight = nullptr;  // set for weights
  uint32_t index = 0;              // state or group
  DType dtype = DType::kF32;
  bool given = false;  // an input of the step: never written
  int rank = 0;
  int64_t dims[kMaxRank] = {};

  float* f32() const { return static_cast<float*>(data); }
  int32_t* i32() const { return static_cast<int32_t*>(data); }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  int64_t last() const { return rank == 0 ? 1 : dims[rank - 1]; }
  int64_t rows() const { return last() == 0 ? 0 : elements() / last(); }
};

// `rows` pieces of `width` bytes that lie `stride` apart.
struct MemoryAccess {
  uintptr_t base = 0;
  int64_t stride = 0, width = 0, rows = 1;
  bool write = false;
  // More than the thread touches: which elements these are depends on the step's data. Threads of
  // one stage may all list the same bytes as coarse; the elements are not the same.
  bool coarse = false;
  const KvState* state = nullptr;  // base is a cell of the state, not an address
};

// What one thread touches in one stage of a call. Owned by the caller; filled by CpuOp::touch.
//
// Keys and values: the block tables change with every step, schedules do not. A cell stands for one
// of the step's rows and one head, in all planes; what earlier steps have written is never written
// again, so reading a head means reading its cells.
class AccessList {
 public:
  void clear() { items_.clear(); }
  const std::vector<MemoryAccess>& items() const { return items_; }
  void reserve(size_t n) { items_.reserve(n); }

  // A whole tensor.
  void read(const Tensor& t) { bytes(t, 0, tensor_bytes(t), false); }
  void write(const Tensor& t) { bytes(t, 0, tensor_bytes(t), true); }
  // Rows of a tensor, of `row_bytes` each.
  void read_rows(const Tensor& t, int64_t row_bytes, int64_t begin, int64_t end) {
    bytes(t, begin * row_bytes, (end - begin) * row_bytes, false);
  }
  void write_rows(const Tensor& t, int64_t row_bytes, int64_t begin, int64_t end) {
    bytes(t, begin * row_bytes, (end - begin) * row_bytes, true);
  }
  // Bytes [from, from + width) of every row [row, row_end).
  void columns(const Tensor& t, int64_t row_bytes, int64_t row, int64_t row_end, int64_t from,
               int64_t width, bool write) {
    if (shared(t))
      add({address(t.data) + static_cast<uintptr_t>(row * row_bytes + from), row_bytes, width,
           row_end - row, write});
  }
  void memory(const void* at, int64_t size, bool write, bool coarse = false) {
    add({address(at), size, size, 1, write, coarse});
  }
  void cells(const KvState& state, int64_t row, int64_t row_end, int64_t head, int64_t head_end,
             bool write) {
    int64_t heads = state.heads();
    add({address(state.planes[0].memory.data()) + static_cast<uintptr_t>(row * heads + head), heads,
         head_end - head, row_end - row, write, false, &state});
  }
  void add(const MemoryAccess& a) {
    if (a.width > 0 && a.rows > 0) items_.push_back(a);
  }

 private:
  // Weights and the step's inputs are only ever read.
  static bool shared(const Tensor& t) { return !t.weight && !t.given && t.data; }
  static uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }
  static int64_t tensor_bytes(const Tensor& t) {
    return static_cast<int64_t>(dtype_bytes(t.dtype, t.elements()));
  }
  void bytes(const Tensor& t, int64_t from, int64_t size, bool write) {
    if (shared(t)) add({address(t.data) + static_cast<uintptr_t>(from), size, size, 1, write});
  }

  std::vector<MemoryAccess> items_;
};

}  // namespace tokamak::cpu
