#include "backend/cuda/kv_pool.h"

#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr int64_t kPlaneAlignment = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

PlaneArgs make_plane(const StateEntry& state, const PlaneEntry& entry, int64_t block_size) {
  PlaneArgs p{};
  switch (entry.dtype) {
    case DType::kF32:
      p.element = 4;
      break;
    case DType::kF16:
    case DType::kBF16:
      p.element = 2;
      break;
    case DType::kI8:
      p.element = 1;
      break;
    default:
      fail(ErrorCode::kUnsupported,
           "plane {} of {}: the cuda backend keeps keys and values as f32, f16, bf16 or i8, not {}",
           entry.name, state.name, dtype_name(entry.dtype));
  }
  int64_t elements = 1;
  for (int64_t d : entry.dims) elements *= d;
  int64_t heads = entry.dims.size() < 2 ? 1 : entry.dims[0];
  p.type = entry.dtype;
  p.heads = static_cast<int32_t>(heads);
  p.width = static_cast<int32_t>(heads == 0 ? 0 : elements / heads);
  int64_t data = block_size * elements * p.element, scales = 0;
  if (entry.dtype == DType::kI8) {
    p.scale_at = (data + 15) / 16 * 16;
    scales = p.scale_at - data + block_size * heads * 4;
  }
  p.block_bytes = (data + scales + 15) / 16 * 16;
  return p;
}

}  // namespace

const PlaneArgs& KvPool::State::plane(std::string_view name) const {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return planes[i];
  fail(ErrorCode::kCorrupt, "a state has no plane {}", name);
}

KvPool::KvPool(const PlanSet& plans, const std::vector<int64_t>& blocks) {
  for (const GroupEntry& g : plans.groups)
    groups_.push_back({static_cast<int>(g.block_rows()), blocks.at(groups_.size()), {}, 0});
  int64_t total = 0;
  std::vector<std::vector<int64_t>> offsets;
  for (const StateEntry& entry : plans.states) {
    if (entry.planes.size() > kMaxPlanes)
      fail(ErrorCode::kUnsupported, "state {} has {} planes; the cuda backend takes {}", entry.name,
           entry.planes.size(), kMaxPlanes);
    State& state = states_.emplace_back();
    state.group = entry.group;
    offsets.emplace_back();
    for (const PlaneEntry& plane : entry.planes) {
      state.names.push_back(plane.name);
      state.planes.push_back(make_plane(entry, plane, plans.groups.at(entry.group).block_rows()));
      offsets.back().push_back(total);
      total += aligned(state.planes.back().block_bytes * blocks.at(entry.group));
    }
  }
  memory_ = Buffer(static_cast<size_t>(total));
  std::vector<PlaneArgs> all;
  for (size_t s = 0; s < states_.size(); ++s)
    for (size_t p = 0; p < states_[s].planes.size(); ++p) {
      PlaneArgs& plane = states_[s].planes[p];
      plane.base = memory_.as<uint8_t>(static_cast<size_t>(offsets[s][p]));
      groups_[states_[s].group].planes.push_back(plane);
    }
  for (Group& g : groups_) {
    g.planes_at = all.size() * sizeof(PlaneArgs);
    all.insert(all.end(), g.planes.begin(), g.planes.end());
  }
  planes_ = Buffer(all.size() * sizeof(PlaneArgs));
  if (!all.empty()) planes_.write(all.data(), all.size() * sizeof(PlaneArgs));
}

uint64_t KvPool::block_bytes(uint32_t group) const {
  TK_CHECK(group < groups_.size(), "group {} of {}", group, groups_.size());
  uint64_t total = 0;
  for (const PlaneArgs& p : groups_[group].planes) total += static_cast<uint64_t>(p.block_bytes);
  return total;
}

namespace {

DeviceAddress block_address(const PlaneArgs& p, int32_t block) {
  return reinterpret_cast<DeviceAddress>(p.base + block * p.block_bytes);
}

}  // namespace

void KvPool::copy_blocks(const std::vector<BlockCopy>& copies, const DeviceStream& stream) const {
  for (const BlockCopy& c : copies) {
    if (c.from == c.to) continue;
    for (const PlaneArgs& p : groups_[c.group].planes)
      stream.copy(block_address(p, c.to), block_address(p, c.from),
                  static_cast<size_t>(p.block_bytes));
  }
}

void KvPool::move_slots(const std::vector<SlotMove>& moves, const KernelLibrary& kernels,
                        const DeviceStream& stream) const {
  if (moves.empty()) return;
  LaunchList list(kernels);
  for (const SlotMove& m : moves) {
    const Group& g = groups_[m.group];
    if (m.from == m.to) continue;
    MoveArgs args{planes_.as<PlaneArgs>(g.planes_at), g.block_size, m.from, m.to};
    list.add("op_attend", "op_move_slot", {static_cast<int64_t>(g.planes.size())}, kTileThreads,
             args);
  }
  list.run(stream);
}

void KvPool::read_blocks(uint32_t group, std::span<const int32_t> blocks, std::byte* to,
                         const DeviceStream& stream) const {
  for (int32_t block : blocks)
    for (const PlaneArgs& p : groups_[group].planes) {
      stream.copy_out(to, block_address(p, block), static_cast<size_t>(p.block_bytes));
      to += p.block_bytes;
    }
}

void KvPool::write_blocks(uint32_t group, std::span<const int32_t> blocks, const std::byte* from,
                          const DeviceStream& stream) const {
  for (int32_t block : blocks)
    for (const PlaneArgs& p : groups_[group].planes) {
      stream.copy_in(block_address(p, block), from, static_cast<size_t>(p.block_bytes));
      from += p.block_bytes;
    }
}

}  // namespace tokamak::cuda
