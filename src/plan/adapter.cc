#include "plan/adapter.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>

namespace tokamak {
namespace {

// lora.NAME.a [r, k] and lora.NAME.b [n, r] of one part.
struct Pair {
  std::vector<float> a, b;
  int64_t rank, columns, rows;
};

std::vector<float> floats(const TensorView& view) {
  std::vector<float> out(view.bytes.size() / sizeof(float));
  std::memcpy(out.data(), view.bytes.data(), view.bytes.size());
  return out;
}

void add_sum(WeightTable& table, const std::string& name, const std::vector<Pair>& pairs) {
  const int64_t columns = pairs[0].columns, rows = pairs[0].rows;
  int64_t rank = 0, at = 0;
  std::vector<float> a;  // the parts' rows below each other
  for (const Pair& pair : pairs) {
    a.insert(a.end(), pair.a.begin(), pair.a.end());
    rank += pair.rank;
  }
  std::vector<float> b(static_cast<size_t>(rows * rank));  // and their columns side by side
  for (const Pair& pair : pairs) {
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(pair.b.begin() + row * pair.rank, pair.rank, b.begin() + row * rank + at);
    at += pair.rank;
  }
  table.add_f32(name + ".a", {rank, columns}, a);
  table.add_f32(name + ".b", {rows, rank}, b);
}

}  // namespace

uint64_t next_adapter_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

WeightTable sum_of_parts(const Adapter& adapter) {
  std::map<std::string, std::vector<Pair>> matrices;
  for (const auto& [part, scale] : adapter.parts) {
    for (const std::string& name : part->tensors.names()) {
      if (!name.ends_with(".a")) continue;
      std::string matrix = name.substr(0, name.size() - 2);
      const TensorView &a = *part->tensors.find(name), &b = *part->tensors.find(matrix + ".b");
      Pair pair{floats(a), floats(b), a.dims[0], a.dims[1], b.dims[0]};
      for (float& x : pair.b) x *= scale;
      matrices[matrix].push_back(std::move(pair));
    }
  }
  WeightTable table;
  for (const auto& [name, pairs] : matrices) add_sum(table, name, pairs);
  return table;
}

}  // namespace tokamak
