#include "backend/cuda/prefill_launch.h"

#include <bit>

#include "backend/cuda/cache_map.h"

namespace tokamak::cuda {
namespace {

constexpr int kLeastBlock = 8, kMostBlock = kPrefillKeys;  // keys

// A copy brings one block of one head.
TensorMap plane_map(const PlaneArgs& plane, int64_t kv_blocks, int block_size) {
  return cache_map(plane.base, kv_blocks * plane.heads * block_size, plane.width, block_size);
}

}  // namespace

bool takes_prefill(const AttendArgs& a) {
  auto narrow = [](DType type) { return type == DType::kF16 || type == DType::kBF16; };
  auto dense = [&](const PlaneArgs& p) {
    return narrow(p.type) && p.width == a.d &&
           p.block_bytes == int64_t{p.heads} * a.view.block_size * a.d * 2;
  };
  const PlaneArgs& key = a.key[0];
  const int block = a.view.block_size;
  return a.keys == 1 && !a.mask && a.window == 0 && a.cap == 0 && !a.sinks && !a.slopes &&
         narrow(a.tq) && (a.d == 64 || a.d == 128) && a.dv == a.d && dense(key) && dense(a.value) &&
         key.type == a.value.type && key.heads == a.value.heads && a.heads % key.heads == 0 &&
         block >= kLeastBlock && block <= kMostBlock &&
         std::has_single_bit(static_cast<unsigned>(block));
}

PrefillLaunch prefill_launch(const AttendArgs& a, int64_t kv_blocks) {
  PrefillLaunch l{};
  l.keys = plane_map(a.key[0], kv_blocks, a.view.block_size);
  l.values = plane_map(a.value, kv_blocks, a.view.block_size);
  l.q = a.q;
  l.y = a.y;
  l.table = a.view.table;
  l.q_start = a.q_start;
  l.kv_len = a.kv_len;
  l.stride = a.view.stride;
  l.sequences = a.sequences;
  l.heads = a.heads;
  l.kv_heads = a.value.heads;
  l.block_shift = std::countr_zero(static_cast<unsigned>(a.view.block_size));
  l.scale = a.scale;
  l.tq = a.tq;
  l.ty = a.ty;
  return l;
}

}  // namespace tokamak::cuda
