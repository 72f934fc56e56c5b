#include "backend/null/shadow_cache.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace tokamak {

ShadowCache::ShadowCache(std::span<const GroupEntry> groups, std::span<const int64_t> blocks)
    : groups_(groups.begin(), groups.end()) {
  for (size_t g = 0; g < groups_.size(); ++g)
    cells_.emplace_back(static_cast<size_t>(blocks[g] * groups_[g].block_rows()));
}

void ShadowCache::copy(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& c : copies) {
    if (!on()) return;
    auto size = static_cast<size_t>(groups_[c.group].block_rows());
    auto* cells = cells_[c.group].data();
    std::copy_n(cells + static_cast<size_t>(c.from) * size, size,
                cells + static_cast<size_t>(c.to) * size);
  }
}

void ShadowCache::move(const std::vector<SlotMove>& moves) {
  for (const SlotMove& m : moves)
    if (on())
      cells_[m.group][static_cast<size_t>(m.to)] = cells_[m.group][static_cast<size_t>(m.from)];
}

ShadowCell& ShadowCache::cell(const StepInputs& step, size_t g, size_t b, int64_t slot) {
  int64_t size = groups_[g].block_size;
  const StepInputs::Table& table = step.tables[g];
  int32_t block =
      table.blocks[b * static_cast<size_t>(table.stride) + static_cast<size_t>(slot / size)];
  TK_CHECK(block >= 0, "step: sequence {} reads slot {} of group {}, which it dropped", b, slot, g);
  if (groups_[g].per_sequence()) return cells_[g][static_cast<size_t>(block)];
  return cells_[g][static_cast<size_t>(block * size + slot % size)];
}

void ShadowCache::check_context(const StepInputs& step, size_t b, const NullModel& model) {
  auto first = static_cast<size_t>(step.q_start[b]);
  int64_t end = step.slot[first];
  for (size_t g = 0; g < cells_.size(); ++g) {
    if (groups_[g].per_sequence() && end > 0) {  // a state is that of the last token
      const ShadowCell& c = cell(step, g, b, end - 1);
      TK_CHECK(c.chain != 0 && c.position == step.pos[first] - 1,
               "step: the state of sequence {} (group {}) is that after position {}, not {}", b, g,
               c.position, step.pos[first] - 1);
      TK_CHECK(c.chain == cell(step, 0, b, end - 1).chain,
               "step: groups 0 and {} of sequence {} differ", g, b);
      continue;
    }
    int64_t window = groups_[g].window;
    int64_t lo = window > 0 ? std::max<int64_t>(0, end - window + 1) : 0;
    uint64_t before = 0;
    for (int64_t s = lo; s < end; ++s) {
      const ShadowCell& c = cell(step, g, b, s);
      bool known = s > lo || s == 0;
      TK_CHECK(c.chain != 0 && c.position <= step.pos[first] - (end - s) &&
                   (!known || c.chain == model.extend(before, c.token, c.position)),
               "step: slot {} of sequence {} (group {}) holds token {} of position {}: not its own",
               s, b, g, c.token, c.position);
      before = c.chain;
    }
    TK_CHECK(lo >= end || before == cell(step, 0, b, end - 1).chain,
             "step: groups 0 and {} of sequence {} differ", g, b);
  }
}

uint64_t ShadowCache::block_bytes(uint32_t group) const {
  if (!on()) return 0;
  return static_cast<uint64_t>(groups_.at(group).block_rows()) * sizeof(ShadowCell);
}

void ShadowCache::read(uint32_t group, std::span<const int32_t> blocks,
                       std::span<std::byte> bytes) const {
  size_t n = block_bytes(group), size = on() ? n / sizeof(ShadowCell) : 0;
  for (size_t i = 0; i < blocks.size() && on(); ++i)
    std::memcpy(bytes.data() + i * n, cells_[group].data() + static_cast<size_t>(blocks[i]) * size,
                n);
}

void ShadowCache::write(uint32_t group, std::span<const int32_t> blocks,
                        std::span<const std::byte> bytes) {
  size_t n = block_bytes(group), size = on() ? n / sizeof(ShadowCell) : 0;
  for (size_t i = 0; i < blocks.size() && on(); ++i)
    std::memcpy(static_cast<void*>(cells_[group].data() + static_cast<size_t>(blocks[i]) * size),
                bytes.data() + i * n, n);
}

uint64_t ShadowCache::bytes() const {
  uint64_t total = 0;
  for (const auto& group : cells_) total += group.size() * sizeof(ShadowCell);
  return total;
}

}  // namespace tokamak
