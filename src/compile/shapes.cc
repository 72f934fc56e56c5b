// Which shapes get their own plans, and the layout of eager plans.
#include "compile/shapes.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "compile/planner/planner.h"

namespace tokamak {
namespace {

// Small steps get their own plans: their arena is small enough to stay in cache.
std::vector<int64_t> up_to(std::vector<int64_t> bounds, int64_t max) {
  std::erase_if(bounds, [&](int64_t b) { return b >= max; });
  bounds.push_back(max);
  return bounds;
}

// Beyond this many rows the kernels' tiles are full anyway: one plan pads to the next multiple
// instead of to the next power of two.
constexpr int64_t kRowsOfMultiples = 64;

std::vector<int64_t> bucket_sizes(const CompileOptions& o, int64_t max) {
  std::vector<int64_t> sizes = o.buckets;
  if (sizes.empty())
    for (int64_t size = 1; size < max && size <= kRowsOfMultiples; size = size == 1 ? 8 : size * 2)
      sizes.push_back(size);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::erase_if(sizes, [&](int64_t s) { return s < 1 || s > max; });
  if (o.buckets.empty()) sizes.push_back(max);
  return sizes;
}

}  // namespace

Shapes shapes_from_name(std::string_view name) {
  if (name == "auto") return Shapes::kAuto;
  if (name == "dynamic") return Shapes::kDynamic;
  if (name == "buckets") return Shapes::kBuckets;
  fail(ErrorCode::kInvalidArgument, "shapes \"{}\": use auto, dynamic or buckets", name);
}

std::vector<ShapeRange> shape_ranges(const CompileOptions& o, std::vector<int64_t> tiers,
                                     int64_t max) {
  std::vector<ShapeRange> out;
  if (o.shapes == Shapes::kAuto || o.eager) {
    for (int64_t bound : up_to(std::move(tiers), max)) out.push_back({1, bound, 0});
    return out;
  }
  if (o.shapes == Shapes::kBuckets && !o.tree_mask) {
    int64_t lo = 1;
    for (int64_t size : bucket_sizes(o, max)) {
      int64_t whole = size / kRowsOfMultiples * kRowsOfMultiples;
      if (o.buckets.empty() && whole >= lo + kRowsOfMultiples) {
        out.push_back({lo, whole, whole, kRowsOfMultiples});
        lo = whole + 1;
      }
      if (lo <= size) out.push_back({lo, size, size});
      lo = size + 1;
    }
  }
  out.push_back({1, max, 0});
  return out;
}

void spread_values(PlanSet& set, Plan& plan) {
  std::vector<SymbolDecl> bounds;
  for (const GuardRange& g : plan.guard) bounds.push_back({g.symbol, g.lo, g.hi, g.multiple});
  std::map<uint32_t, uint64_t> offsets;  // by value
  uint64_t end = 0;
  auto place = [&](CallArg& arg) {
    if (arg.kind != CallArg::Kind::kArena) return;
    auto [it, added] = offsets.try_emplace(arg.index, end);
    if (added) {
      TensorType type{arg.dtype, {}};
      for (const SymExpr& d : arg.dims) type.dims.push_back({"", d, false});
      auto bytes = static_cast<uint64_t>(type.bytes().upper(bounds));
      end += (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    }
    arg.offset = it->second;
  };
  for (KernelCall& call : plan.calls) {  // a value is written before it is read
    for (CallArg& arg : call.in) place(arg);
    for (CallArg& arg : call.out) place(arg);
  }
  for (PlanOutput& o : plan.outputs) place(o.arg);
  plan.arena_bytes = end;
  plan.arena_lower_bound = 0;
  plan.arena_method = "none: every value has its own memory";
  set.arena_bytes = std::max(set.arena_bytes, end);
}

}  // namespace tokamak
