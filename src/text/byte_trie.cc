#include "text/byte_trie.h"

#include <algorithm>
#include <deque>

namespace tokamak {

size_t ByteTrie::find_base(const std::vector<unsigned char>& bytes) {
  while (first_free_ < nodes_.size() && nodes_[first_free_].check >= 0) ++first_free_;
  size_t tries = 0;
  for (size_t slot = std::max<size_t>(first_free_, bytes[0] + size_t{1});; ++slot) {
    // Skip dense regions: a few empty slots cost less than searching them repeatedly.
    if (++tries == 64) first_free_ = slot;
    const size_t base = slot - bytes[0];
    bool fits = true;
    for (unsigned char b : bytes)
      if (base + b < nodes_.size() && nodes_[base + b].check >= 0) {
        fits = false;
        break;
      }
    if (fits) return base;
  }
}

void ByteTrie::build(std::vector<std::pair<std::string_view, int32_t>> keys) {
  std::erase_if(keys, [](const auto& k) { return k.first.empty(); });
  std::stable_sort(keys.begin(), keys.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  size_ = keys.size();
  nodes_.assign(1, Node{0, 0, -1});
  first_free_ = 1;
  struct Range {
    int32_t node;
    size_t begin, end, depth;
  };
  std::deque<Range> todo;
  if (!keys.empty()) todo.push_back({0, 0, keys.size(), 0});
  std::vector<unsigned char> bytes;
  std::vector<Range> children;
  while (!todo.empty()) {
    Range r = todo.front();
    todo.pop_front();
    while (r.begin < r.end && keys[r.begin].first.size() == r.depth)
      nodes_[r.node].value = keys[r.begin++].second;
    if (r.begin == r.end) continue;
    bytes.clear();
    children.clear();
    for (size_t i = r.begin; i < r.end;) {
      const auto b = static_cast<unsigned char>(keys[i].first[r.depth]);
      size_t j = i;
      while (j < r.end && static_cast<unsigned char>(keys[j].first[r.depth]) == b) ++j;
      bytes.push_back(b);
      children.push_back({0, i, j, r.depth + 1});
      i = j;
    }
    const size_t base = find_base(bytes);
    if (nodes_.size() < base + 256) nodes_.resize(std::max(base + 256, nodes_.size() * 3 / 2));
    nodes_[r.node].base = static_cast<int32_t>(base);
    for (size_t i = 0; i < bytes.size(); ++i) {
      children[i].node = static_cast<int32_t>(base + bytes[i]);
      nodes_[base + bytes[i]].check = r.node;
      todo.push_back(children[i]);
    }
  }
}

}  // namespace tokamak
