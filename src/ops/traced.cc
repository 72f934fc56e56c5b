#include "ops/traced.h"

#include "base/error.h"

namespace tokamak {

thread_local Trace* Trace::active_ = nullptr;

Trace::Trace() {
  TK_CHECK(!active_, "two traces on one thread");
  active_ = this;
}
Trace::~Trace() { active_ = nullptr; }

size_t Trace::watch(const void* begin, int64_t elements) {
  auto at = reinterpret_cast<uintptr_t>(begin);
  auto n = static_cast<size_t>(elements);
  ranges_.push_back({at, at + n * 4, {std::vector<bool>(n), std::vector<bool>(n)}});
  return ranges_.size() - 1;
}

int64_t Trace::read(size_t range, int64_t block) const { return count(range, false, block); }
int64_t Trace::written(size_t range, int64_t block) const { return count(range, true, block); }

int64_t Trace::count(size_t range, bool write, int64_t block) const {
  const std::vector<bool>& touched = ranges_.at(range).touched[write];
  int64_t n = 0, last = -1;
  for (size_t i = 0; i < touched.size(); ++i) {
    if (!touched[i]) continue;
    auto b = static_cast<int64_t>(i) / block;
    n += b != last;
    last = b;
  }
  return n;
}

}  // namespace tokamak
