#pragma once
// A float32 that records reads and writes of its memory. Running the meaning of an op over it
// counts the bytes that the op has to move. For `tokamak explain` and its tests; slow.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "ops/op.h"

namespace tokamak {

// Memory of one tensor that can be traced. Initially zero; it uses no physical memory until it is
// written.
template <class T>
class TracedMemory {
 public:
  explicit TracedMemory(int64_t n)
      : data_(static_cast<T*>(std::calloc(static_cast<size_t>(n > 0 ? n : 1), sizeof(T)))), n_(n) {
    if (!data_) throw std::bad_alloc();
  }
  T* data() const { return data_.get(); }
  int64_t size() const { return n_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t n_;
};

// Records accesses to some ranges of memory, element by element (4 bytes each). Active on the
// thread that created it until it is destroyed; one per thread at a time.
class Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Returns the number of the range.
  size_t watch(const void* begin, int64_t elements);
  // Distinct elements of a range that were accessed; with `block` > 1, the number of blocks of that
  // many elements with at least one access.
  int64_t read(size_t range, int64_t block = 1) const;
  int64_t written(size_t range, int64_t block = 1) const;

  static void note_read(const void* at) {
    if (active_) active_->note(at, false);
  }
  static void note_write(const void* at) {
    if (active_) active_->note(at, true);
  }

 private:
  struct Range {
    uintptr_t begin, end;
    std::vector<bool> touched[2];  // read, written
  };
  void note(const void* at, bool write) {
    auto address = reinterpret_cast<uintptr_t>(at);
    for (Range& r : ranges_)
      if (address - r.begin < r.end - r.begin) {
        r.touched[write][(address - r.begin) / 4] = true;
        return;
      }
  }
  int64_t count(size_t range, bool write, int64_t block) const;

  std::vector<Range> ranges_;
  static thread_local Trace* active_;
};

// Copying is a read and a write; arithmetic uses plain doubles.
class Traced {
 public:
  Traced() = default;
  Traced(double v) : value_(static_cast<float>(v)) {}  // NOLINT: numbers become elements
  Traced(const Traced& o) : value_(o.get()) {}
  Traced& operator=(const Traced& o) {
    value_ = o.get();
    Trace::note_write(this);
    return *this;
  }
  operator double() const { return get(); }  // NOLINT: and elements become numbers

 private:
  float get() const {
    Trace::note_read(this);
    return value_;
  }
  float value_;
};

class TracedIndex {
 public:
  TracedIndex() = default;
  TracedIndex(int32_t v) : value_(v) {}  // NOLINT
  TracedIndex(const TracedIndex& o) : value_(o.get()) {}
  TracedIndex& operator=(const TracedIndex& o) {
    value_ = o.get();
    Trace::note_write(this);
    return *this;
  }
  operator int32_t() const { return get(); }  // NOLINT

 private:
  int32_t get() const {
    Trace::note_read(this);
    return value_;
  }
  int32_t value_;
};
static_assert(sizeof(Traced) == 4 && sizeof(TracedIndex) == 4);

}  // namespace tokamak
