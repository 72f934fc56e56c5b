#pragma once
// A set of byte strings with values, walked byte by byte (double array: one probe per byte).
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tokamak {

class ByteTrie {
 public:
  // If keys are equal, the last one wins. Empty keys are ignored.
  void build(std::vector<std::pair<std::string_view, int32_t>> keys);
  bool empty() const { return size_ == 0; }
  bool starts_with(unsigned char byte) const { return !empty() && step(0, byte) >= 0; }

  // The root is 0; -1: no key continues this way.
  int32_t step(int32_t node, unsigned char byte) const {
    const size_t child = static_cast<size_t>(nodes_[node].base) + byte;
    return child < nodes_.size() && nodes_[child].check == node ? static_cast<int32_t>(child) : -1;
  }
  int32_t value(int32_t node) const { return nodes_[node].value; }  // -1: no key ends here

 private:
  struct Node {
    int32_t base = 0, check = -1, value = -1;
  };
  struct Keys;
  size_t find_base(const std::vector<unsigned char>& bytes);
  std::vector<Node> nodes_;
  size_t size_ = 0, first_free_ = 1;
};

}  // namespace tokamak
