#include "plan/weight_source.h"

#include <cstring>

#include "base/error.h"

namespace tokamak {

void WeightTable::add(std::string name, DType dtype, std::vector<int64_t> dims,
                      std::vector<std::byte> bytes) {
  Entry entry{{dtype, std::move(dims), {}}, std::move(bytes)};
  TK_CHECK(entry.bytes.size() == dtype_bytes(dtype, entry.view.elements()), "weight {}", name);
  auto [it, fresh] = entries_.insert_or_assign(name, std::move(entry));
  it->second.view.bytes = it->second.bytes;
  if (fresh) order_.push_back(std::move(name));
}

void WeightTable::add_f32(std::string name, std::vector<int64_t> dims,
                          std::span<const float> values) {
  std::vector<std::byte> bytes(values.size_bytes());
  std::memcpy(bytes.data(), values.data(), bytes.size());
  add(std::move(name), DType::kF32, std::move(dims), std::move(bytes));
}

const TensorView* WeightTable::find(std::string_view name) const {
  auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second.view;
}

std::vector<std::string> WeightTable::names() const { return order_; }

}  // namespace tokamak
