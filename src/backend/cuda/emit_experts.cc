// Launches of ops with a stack of matrices: mixture of experts, and a matrix per head. Numbers of
// rows are upper bounds; the device knows how many there are.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "base/error.h"
#include "ops/route.h"

namespace tokamak::cuda {
namespace {

constexpr const char* kExpertsImage = "op_experts";
constexpr int64_t kFewRows = 8, kFewColumns = 16;  // of a block with few rows, tensor cores
constexpr int64_t kLookedThrough = 2048;  // entries that a block of op_moe_combine looks through

struct RowTile {
  const char* suffix;
  int64_t rows, columns;
};
// Few rows per group: a tile reads each weight once. The tiles do not change the results.
RowTile grouped_tile(int64_t rows, int64_t groups) {
  if (rows <= 8) return {"1", 1, 2};
  if (rows <= 4 * groups) return {"4", 4, 4};
  return {"8", 8, 4};
}

// Tiles that the rows of all groups have at most, however they are divided.
int64_t most_tiles(int64_t rows, int64_t groups, int64_t size) {
  return (rows + std::min(rows, groups) * (size - 1)) / size;
}

bool takes_tensor_cores(const LinearArgs& p) {
  return p.tw == DType::kBF16 && p.tx == DType::kBF16 && p.vectors && p.k % kMmaChunk == 0;
}

// Inputs 0 and 1 are rows and matrices.
LinearArgs stack_args(const CallSite& site) {
  constexpr int64_t kVector = 8;
  const Tensor &x = site.in[0], &w = site.in[1], &y = site.out[0];
  LinearArgs p{};
  p.x = x.as();
  p.w = w.as<uint8_t>();
  p.y = y.as();
  p.rows = x.dims[0];
  p.n = w.dims[1];
  p.k = w.dims[2];
  p.tx = x.dtype;
  p.tw = w.dtype;
  p.ty = y.dtype;
  p.x_row_bytes = static_cast<int64_t>(dtype_bytes(x.dtype, p.k));
  p.w_row_bytes = static_cast<int64_t>(dtype_bytes(w.dtype, p.k));
  p.vectors = p.k % kVector == 0 && x.address % 16 == 0 && w.address % 16 == 0;
  return p;
}

std::string weight_name(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kMXFP4:
      return std::string(dtype_name(type));
    default:
      return "blocks";
  }
}

}  // namespace

void emit_route(const CallSite& site, LaunchList& list) {
  const Tensor& logits = site.in[0];
  const RouteRule rule = route_rule(site.call.attrs);
  RouteArgs args{};
  args.logits = logits.as();
  if (site.has(1)) {
    args.bias = site.in[1].as();
    args.tb = site.in[1].dtype;
  }
  args.weights = site.out[0].as();
  args.chosen = site.out[1].as<int32_t>();
  args.rows = logits.dims[0];
  args.experts = static_cast<int32_t>(logits.dims[1]);
  args.used = static_cast<int32_t>(rule.used);
  args.groups = static_cast<int32_t>(rule.groups);
  args.used_groups = static_cast<int32_t>(rule.used_groups);
  args.scale = rule.scale;
  args.tx = logits.dtype;
  args.tw = site.out[0].dtype;
  args.sigmoid = rule.sigmoid;
  args.normalize = rule.normalize;
  const int shared =
      kTileWarps * (2 * args.experts + args.groups) * static_cast<int>(sizeof(double));
  list.add(kExpertsImage, "op_moe_route", {(args.rows + kTileWarps - 1) / kTileWarps}, kTileThreads,
           args, shared);
}

void emit_dispatch(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[0], &experts = site.in[1], &y = site.out[0];
  SortArgs sort{experts.as<int32_t>(), site.out[1].as<int32_t>(), site.out[2].as<int32_t>(),
                static_cast<int32_t>(experts.elements()),
                static_cast<int32_t>(site.out[1].elements() - 1)};
  list.add(kExpertsImage, "op_moe_sort", {sort.count}, kElementThreads, sort);
  DispatchArgs args{};
  args.x = x.as();
  args.y = y.as();
  args.source = sort.source;
  args.d = x.dims[1];
  args.element = static_cast<int64_t>(dtype_bytes(x.dtype, 1));
  args.used = static_cast<int32_t>(experts.dims[1]);
  args.tx = x.dtype;
  args.ty = y.dtype;
  args.vectors = x.dtype == y.dtype && args.d * args.element % 16 == 0 && x.address % 16 == 0 &&
                 y.address % 16 == 0;
  list.add(kExpertsImage, "op_moe_rows", {sort.entries}, kElementThreads, args);
}

void emit_grouped(const CallSite& site, LaunchList& list) {
  GroupedArgs args{};
  LinearArgs& p = args.product = stack_args(site);
  args.offsets = site.in[2].as<int32_t>();
  args.groups = static_cast<int32_t>(site.in[1].dims[0]);
  if (site.has(3)) {
    p.bias = site.in[3].as();
    p.tb = site.in[3].dtype;
  }
  auto add = [&](const std::string& kernel, int64_t rows, int64_t columns, int threads) {
    list.add(kExpertsImage, kernel,
             {(p.n + columns - 1) / columns, most_tiles(p.rows, args.groups, rows)}, threads, args);
  };
  if (takes_tensor_cores(p)) {
    if (p.rows <= 16 * int64_t{args.groups})
      return add("op_grouped_mma_few", kFewRows, kFewColumns, kMmaThreads);
    return add("op_grouped_mma_many", kMmaTileM, kMmaTileN, kMmaThreads);
  }
  const RowTile tile = grouped_tile(p.rows, args.groups);
  const char* bytes = p.tx == DType::kQ8A ? "_bytes" : "";
  add(fmt::format("op_grouped_{}{}_{}", weight_name(p.tw), bytes, tile.suffix), tile.rows,
      tile.columns * kTileWarps, kTileThreads);
}

void emit_head_products(const HeadProducts& h, LaunchList& list) {
  constexpr int64_t kVector = 8;
  HeadsArgs args{};
  LinearArgs& p = args.product;
  args.heads = h.w.dims[0];
  args.x_head = h.x_head;
  args.y_head = h.y_head;
  p.x = h.x.as();
  p.w = h.w.as<uint8_t>();
  p.y = h.y.as();
  p.rows = h.rows;
  p.n = h.w.dims[1];
  p.k = h.w.dims[2];
  p.tx = h.x.dtype;
  p.tw = h.w.dtype;
  p.ty = h.y.dtype;
  p.x_row_bytes = static_cast<int64_t>(dtype_bytes(p.tx, args.heads * h.x_head));
  p.w_row_bytes = static_cast<int64_t>(dtype_bytes(p.tw, p.k));
  p.vectors = p.k % kVector == 0 && h.x_head % kVector == 0 && h.x.address % 16 == 0 &&
              h.w.address % 16 == 0;
  auto add = [&](const std::string& kernel, int64_t rows, int64_t columns, int threads) {
    list.add(kExpertsImage, kernel,
             {(p.n + columns - 1) / columns, (p.rows + rows - 1) / rows, args.heads}, threads,
             args);
  };
  if (takes_tensor_cores(p)) {
    if (p.rows <= kFewRows) return add("op_heads_mma_few", kFewRows, kFewColumns, kMmaThreads);
    return add("op_heads_mma_many", kMmaTileM, kMmaTileN, kMmaThreads);
  }
  const bool blocks = is_block_type(p.tw) && p.tw != DType::kMXFP4;
  const std::string weights = blocks ? "blocks" : weight_name(p.tw);
  if (p.rows == 1)
    add(fmt::format("op_heads_{}_1", weights), 1, 2 * kTileWarps, kTileThreads);
  else
    add(fmt::format("op_heads_{}_8", weights), 8, 4 * kTileWarps, kTileThreads);
}

void emit_heads(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[0], &y = site.out[0];
  emit_head_products({x, site.in[1], y, x.dims[0], x.dims[2], y.dims[2]}, list);
}

size_t combine_bytes(int64_t entries) {
  return entries <= kLookedThrough ? 0 : static_cast<size_t>(entries) * sizeof(int32_t);
}

void emit_combine(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[0], &offsets = site.in[2], &weights = site.in[3], &y = site.out[0];
  CombineArgs args{};
  args.x = x.as();
  args.source = site.in[1].as<int32_t>();
  args.offsets = offsets.as<int32_t>();
  args.weights = weights.as();
  args.y = y.as();
  args.d = x.dims[1];
  args.entries = static_cast<int32_t>(x.dims[0]);
  args.used = static_cast<int32_t>(weights.dims[1]);
  args.groups = static_cast<int32_t>(offsets.elements() - 1);
  args.tx = x.dtype;
  args.tw = weights.dtype;
  args.ty = y.dtype;
  if (args.used > kMaxUsedExperts)
    fail(ErrorCode::kUnsupported, "{}: {} experts per token; the cuda backend takes {}",
         site.call.label, args.used, kMaxUsedExperts);
  if (const size_t bytes = combine_bytes(args.entries); bytes > 0) {
    TK_CHECK(bytes <= site.scratch.bytes, "{}: no room for the places of {} rows", site.call.label,
             args.entries);
    args.places = reinterpret_cast<int32_t*>(site.scratch.address);
    list.add(kExpertsImage, "op_moe_places",
             {(args.entries + kElementThreads - 1) / kElementThreads}, kElementThreads, args);
  }
  list.add(kExpertsImage, "op_moe_combine", {y.dims[0]}, kElementThreads, args);
}

}  // namespace tokamak::cuda
