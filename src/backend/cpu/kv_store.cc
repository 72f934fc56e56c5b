#include "backend/cpu/kv_store.h"

#include <cstring>

#include "base/error.h"
#include "ops/attend.h"

namespace tokamak::cpu {
namespace {

enum Role : int { kUnused = 0, kKey = 1, kValue = 2 };

// What the attend calls read each plane as.
std::vector<std::vector<int>> plane_roles(const PlanSet& plans) {
  std::vector<std::vector<int>> roles;
  for (const StateEntry& s : plans.states) roles.emplace_back(s.planes.size(), kUnused);
  auto mark = [&](uint32_t state, const std::string& name, int role) {
    const StateEntry& s = plans.states[state];
    for (size_t p = 0; p < s.planes.size(); ++p)
      if (s.planes[p].name == name) {
        roles[state][p] |= role;
        return;
      }
    fail(ErrorCode::kCorrupt, "state {} has no plane {}", s.name, name);
  };
  for (const Plan& plan : plans.plans)
    for (const KernelCall& call : plan.calls) {
      if (call.op == "attend_latent") {  // plane c is key and value, as after absorption
        for (const char* name : {"c", "kr"}) mark(call.in[1].index, name, kKey);
        mark(call.in[1].index, "c", kValue);
      }
      if (call.op != "attend" && call.op != "attend_chunk") continue;
      for (const std::string& name : attend_key_planes(call.attrs))
        mark(call.in[1].index, name, kKey);
      mark(call.in[1].index, attend_value_plane(call.attrs), kValue);
    }
  return roles;
}

KvPlane make_plane(const StateEntry& state, const PlaneEntry& entry, int role, int64_t block_size,
                   int64_t blocks, uint64_t lead) {
  std::optional<FType> type = entry.dtype == DType::kI8 ? FType::kI8 : ftype_of(entry.dtype);
  if (!type)
    fail(ErrorCode::kUnsupported,
         "plane {} of {}: the cpu backend keeps keys and values as f32, f16, bf16 or i8, not {}",
         entry.name, state.name, dtype_name(entry.dtype));
  KvPlane p;
  p.name = entry.name;
  p.type = *type;
  p.key = (role & kKey) != 0;
  int64_t elements = 1;
  for (int64_t d : entry.dims) elements *= d;
  p.heads = entry.dims.size() < 2 ? 1 : entry.dims[0];
  p.width = p.heads == 0 ? 0 : elements / p.heads;
  p.padded = (p.width + kPanel - 1) / kPanel * kPanel;
  p.element = *type == FType::kF32 ? 4 : *type == FType::kI8 ? 1 : 2;
  p.panel_bytes = kPanel * (p.key ? p.width : p.padded) * p.element;
  if (*type == FType::kI8) {
    p.scale_at = p.panel_bytes;
    p.panel_bytes += kPanel * static_cast<int64_t>(sizeof(float));
  }
  p.head_bytes = block_size / kPanel * p.panel_bytes;
  p.block_bytes = p.heads * p.head_bytes;
  const auto bytes = static_cast<uint64_t>(p.block_bytes * blocks);
  p.memory = Buffer(bytes, bytes >= kHugePage ? lead : 0);
  return p;
}

// A block is the row of one sequence, as the op that advances it reads it.
KvPlane make_sequence_plane(const StateEntry& state, const PlaneEntry& entry, int64_t blocks) {
  if (entry.dtype != DType::kF32)
    fail(ErrorCode::kUnsupported, "plane {} of {}: a state per sequence is f32, not {}", entry.name,
         state.name, dtype_name(entry.dtype));
  KvPlane p;
  p.name = entry.name;
  p.width = p.padded = entry.bytes_per_token / 4;
  p.panel_bytes = p.head_bytes = p.block_bytes = entry.bytes_per_token;
  p.memory = Buffer(static_cast<uint64_t>(p.block_bytes * blocks));
  return p;
}

}  // namespace

KvStore::KvStore(const PlanSet& plans, const std::vector<int64_t>& blocks) {
  uint64_t lead = 0;  // a block is a part of every plane: see Buffer
  std::vector<std::vector<int>> roles = plane_roles(plans);
  for (size_t s = 0; s < plans.states.size(); ++s) {
    const StateEntry& entry = plans.states[s];
    const GroupEntry& group = plans.groups.at(entry.group);
    if (!entry.per_sequence && group.block_size % kPanel != 0)
      fail(ErrorCode::kUnsupported,
           "KV group {}: blocks of {} tokens; the cpu backend needs a multiple of {}", group.name,
           group.block_size, kPanel);
    KvState& state = states_.emplace_back();
    state.group = entry.group;
    state.block_size = group.block_size;
    state.per_sequence = entry.per_sequence;
    for (size_t p = 0; p < entry.planes.size(); ++p) {
      constexpr uint64_t kApart = kHugePage / 1000 * 618;  // the golden ratio: evenly spread
      lead = (lead + kApart) % kHugePage;
      state.planes.push_back(
          entry.per_sequence ? make_sequence_plane(entry, entry.planes[p], blocks.at(entry.group))
                             : make_plane(entry, entry.planes[p], roles[s][p], group.block_size,
                                          blocks.at(entry.group), lead));
    }
  }
}

void KvPlane::turn_panel(const KernelTable& kernels, const void* panel, float* wide,
                         float* out) const {
  const auto* from = static_cast<const float*>(panel);
  if (type != FType::kF32) {
    kernels.widen[static_cast<int>(type)](panel, wide, width * kPanel);
    from = wide;
  }
  for (int64_t x = 0; x < padded; ++x) {
    float* to = out + x / kPanel * kPanel * kPanel + x % kPanel;
    for (int64_t token = 0; token < kPanel; ++token)
      to[token * kPanel] = x < width ? from[x * kPanel + token] : 0.0f;
  }
}

const KvPlane& KvState::plane(std::string_view name) const {
  for (const KvPlane& p : planes)
    if (p.name == name) return p;
  fail(ErrorCode::kCorrupt, "a state has no plane {}", name);
}

void KvStore::copy_blocks(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& c : copies)
    for (const KvState& s : states_) {
      if (s.group != c.group || c.from == c.to) continue;
      for (const KvPlane& p : s.planes)
        std::memcpy(p.panel(c.to, 0, 0), p.panel(c.from, 0, 0), static_cast<size_t>(p.block_bytes));
    }
}

namespace {

// Keys are transposed inside a panel: the 16 values of a row of a panel belong to 16 tokens.
void move_slot(const KvPlane& p, int64_t block_size, int32_t from, int32_t to) {
  auto element = static_cast<size_t>(p.element);
  for (int64_t head = 0; head < p.heads; ++head) {
    auto panel = [&](int32_t slot) {
      return p.panel(slot / block_size, head, slot % block_size / kPanel);
    };
    uint8_t *source = panel(from), *target = panel(to);
    int64_t i = from % kPanel, j = to % kPanel;  // tokens of the panels
    if (p.key) {
      for (int64_t x = 0; x < p.width; ++x)
        std::memcpy(target + (x * kPanel + j) * p.element, source + (x * kPanel + i) * p.element,
                    element);
    } else {
      for (int64_t x = 0; x < p.padded; x += kPanel)
        std::memmove(target + (x * kPanel + j * kPanel) * p.element,
                     source + (x * kPanel + i * kPanel) * p.element, kPanel * element);
    }
    if (p.scale_at > 0) p.scales(target)[j] = p.scales(source)[i];
  }
}

}  // namespace

void KvStore::move_slots(const std::vector<SlotMove>& moves) {
  for (const SlotMove& m : moves)
    for (const KvState& s : states_) {
      if (s.group != m.group || m.from == m.to || s.per_sequence) continue;
      for (const KvPlane& p : s.planes) move_slot(p, s.block_size, m.from, m.to);
    }
}

uint64_t KvStore::block_bytes(uint32_t group) const {
  uint64_t total = 0;
  for (const KvState& s : states_)
    for (const KvPlane& p : s.planes)
      if (s.group == group) total += static_cast<uint64_t>(p.block_bytes);
  return total;
}

void KvStore::read_blocks(uint32_t group, std::span<const int32_t> blocks, std::byte* to) const {
  for (int32_t block : blocks)
    for (const KvState& s : states_)
      for (const KvPlane& p : s.planes) {
        if (s.group != group) continue;
        std::memcpy(to, p.panel(block, 0, 0), static_cast<size_t>(p.block_bytes));
        to += p.block_bytes;
      }
}

void KvStore::write_blocks(uint32_t group, std::span<const int32_t> blocks, const std::byte* from) {
  for (int32_t block : blocks)
    for (const KvState& s : states_)
      for (const KvPlane& p : s.planes) {
        if (s.group != group) continue;
        std::memcpy(p.panel(block, 0, 0), from, static_cast<size_t>(p.block_bytes));
        from += p.block_bytes;
      }
}

uint64_t KvStore::bytes() const {
  uint64_t total = 0;
  for (const KvState& s : states_)
    for (const KvPlane& p : s.planes) total += p.memory.bytes();
  return total;
}

uint64_t KvStore::untouched() const {
  uint64_t total = 0;
  for (const KvState& s : states_)
    for (const KvPlane& p : s.planes) total += p.memory.untouched();
  return total;
}

}  // namespace tokamak::cpu
