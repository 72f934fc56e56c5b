#include "backend/cpu/audit.h"

#include <cstring>

#include "base/error.h"

namespace tokamak::cpu {
namespace {

constexpr int kPoison = 0xff;  // NaN as a float, -1 as an integer

}  // namespace

StageAudit::StageAudit(std::vector<std::span<uint8_t>> memory) : memory_(std::move(memory)) {
  for (auto* copies : {&before_, &poisoned_, &after_, &expected_, &owner_})
    for (std::span<uint8_t> m : memory_) copies->emplace_back(m.size());
}

void StageAudit::restore(const std::vector<std::vector<uint8_t>>& from) {
  for (size_t i = 0; i < memory_.size(); ++i)
    std::memcpy(memory_[i].data(), from[i].data(), from[i].size());
}

// Memory outside the regions (inputs of the step) is never written.
void StageAudit::add_bytes(uintptr_t begin, size_t size, bool write) {
  for (size_t i = 0; i < memory_.size(); ++i) {
    auto first = reinterpret_cast<uintptr_t>(memory_[i].data());
    if (begin < first || begin >= first + memory_[i].size()) continue;
    TK_CHECK(begin + size <= first + memory_[i].size(), "audit: an access leaves its memory");
    (write ? writes_ : reads_).push_back({i, begin - first, size});
    return;
  }
  TK_CHECK(!write, "audit: a write outside of all memory");
}

// Writing a cell: the values of one token and head in every plane. Reading one: the whole head, for
// it stands for what earlier steps wrote too.
void StageAudit::resolve_cells(const MemoryAccess& a, const StepContext& c) {
  const KvState& state = *a.state;
  const StepInputs& step = *c.step;
  auto offset =
      static_cast<int64_t>(a.base - reinterpret_cast<uintptr_t>(state.planes[0].memory.data()));
  int64_t heads = state.heads(), row = offset / heads, head = offset % heads;
  auto add = [&](const uint8_t* at, int64_t size) {
    add_bytes(reinterpret_cast<uintptr_t>(at), static_cast<size_t>(size), a.write);
  };
  for (const KvPlane& p : state.planes) {
    int64_t first = heads == 1 ? 0 : head, end = heads == 1 ? p.heads : head + a.width;
    for (int64_t h = first; h < end && !a.write; ++h)
      for (int64_t b = 0; b < static_cast<int64_t>(p.memory.bytes()) / p.block_bytes; ++b)
        add(p.panel(b, h, 0), p.head_bytes);
    auto rows = std::min<int64_t>(row + a.rows, static_cast<int64_t>(step.slot.size()));
    for (int64_t r = row; r < rows && a.write; ++r) {
      auto i = static_cast<size_t>(r);
      int64_t slot = step.slot[i], size = state.block_size, lane = slot % kPanel;
      if (slot < 0) continue;
      const StepInputs::Table& t = step.tables[state.group];
      int64_t block = t.blocks[static_cast<size_t>(step.seq[i] * t.stride + slot / size)];
      for (int64_t h = first; h < end; ++h) {
        uint8_t* panel = p.panel(block, h, slot % size / kPanel);
        int64_t piece = p.key ? 1 : kPanel;
        for (int64_t d = 0; d < p.width; d += piece)
          add(panel + (d * kPanel + lane * piece) * p.element,
              std::min(piece, p.width - d) * p.element);
        if (p.scale_at > 0) add(reinterpret_cast<uint8_t*>(p.scales(panel) + lane), 4);
      }
    }
  }
}

void StageAudit::resolve(const StepContext& c) {
  reads_.clear();
  writes_.clear();
  for (const MemoryAccess& a : list_.items()) {
    if (a.state) {
      resolve_cells(a, c);
      continue;
    }
    for (int64_t row = 0; row < a.rows; ++row)
      add_bytes(a.base + static_cast<uintptr_t>(row * a.stride), static_cast<size_t>(a.width),
                a.write);
  }
}

void StageAudit::check_outside(const std::vector<std::vector<uint8_t>>& before, const char* when,
                               std::string_view label, int thread) {
  for (size_t i = 0; i < memory_.size(); ++i)
    std::memcpy(expected_[i].data(), before[i].data(), before[i].size());
  for (const Bytes& w : writes_)
    std::memcpy(expected_[w.region].data() + w.begin, memory_[w.region].data() + w.begin, w.size);
  for (size_t i = 0; i < memory_.size(); ++i)
    TK_CHECK(std::memcmp(expected_[i].data(), memory_[i].data(), memory_[i].size()) == 0,
             "audit: thread {} of {} writes memory that it does not declare ({})", thread, label,
             when);
}

void StageAudit::part(const CpuOp& op, const Tensor* in, const Tensor* out, const StepContext& c,
                      std::string_view label) {
  list_.clear();
  op.touch(in, out, c, list_);
  resolve(c);
  restore(before_);
  op.run(in, out, c);
  check_outside(before_, "first run", label, c.thread);
  result_.clear();
  for (const Bytes& w : writes_) {
    const uint8_t* at = memory_[w.region].data() + w.begin;
    result_.insert(result_.end(), at, at + w.size);
  }
  for (std::vector<uint8_t>& p : poisoned_) std::memset(p.data(), kPoison, p.size());
  for (const Bytes& r : reads_)
    std::memcpy(poisoned_[r.region].data() + r.begin, before_[r.region].data() + r.begin, r.size);
  restore(poisoned_);
  op.run(in, out, c);
  check_outside(poisoned_, "poisoned run", label, c.thread);
  const uint8_t* first = result_.data();
  for (const Bytes& w : writes_)
    for (size_t i = w.begin; i < w.begin + w.size; ++i, ++first) {
      uint8_t again = memory_[w.region][i], was = before_[w.region][i];
      bool untouched = *first == was && again == poisoned_[w.region][i];
      TK_CHECK(again == *first || untouched,
               "audit: thread {} of {} reads memory that it does not declare", c.thread, label);
      if (*first == was) continue;
      uint8_t& owner = owner_[w.region][i];
      TK_CHECK(owner == 0 || owner == c.thread + 1, "audit: threads {} and {} of {} write one byte",
               owner - 1, c.thread, label);
      owner = static_cast<uint8_t>(c.thread + 1);
      after_[w.region][i] = *first;
    }
}

void StageAudit::run(const CpuOp& op, const Tensor* in, const Tensor* out,
                     const StepContext& context, std::string_view label) {
  for (size_t i = 0; i < memory_.size(); ++i) {
    std::memcpy(before_[i].data(), memory_[i].data(), memory_[i].size());
    std::memcpy(after_[i].data(), memory_[i].data(), memory_[i].size());
    std::memset(owner_[i].data(), 0, memory_[i].size());
  }
  StepContext c = context;
  for (c.thread = 0; c.thread < c.threads; ++c.thread) part(op, in, out, c, label);
  restore(after_);
}

}  // namespace tokamak::cpu
