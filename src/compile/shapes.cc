// Which shapes get their own plans, and the layout of eager plans.
#include "compile/shapes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "compile/planner/planner.h"

namespace tokamak {
namespace {

constexpr std::string_view kShapeNames[] = {"auto", "dynamic", "buckets", "fixed"};  // by Shapes

// Small steps get their own plans: their arena is small enough to stay in cache.
std::vector<int64_t> up_to(std::vector<int64_t> bounds, int64_t max) {
  std::erase_if(bounds, [&](int64_t b) { return b >= max; });
  bounds.push_back(max);
  return bounds;
}

// From this many rows on the kernels' tiles are full: one plan pads to the next multiple instead of
// to the next power of two.
constexpr int64_t kRowsOfMultiples = 64;

std::vector<int64_t> bucket_sizes(const CompileOptions& o, int64_t max) {
  std::vector<int64_t> sizes = o.buckets;
  int64_t last = o.shapes == Shapes::kFixed ? max : kRowsOfMultiples;
  if (sizes.empty())
    for (int64_t size = 1; size < max && size <= last; size = size == 1 ? 8 : size * 2)
      sizes.push_back(size);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::erase_if(sizes, [&](int64_t s) { return s < 1 || s > max; });
  if (o.buckets.empty()) sizes.push_back(max);
  return sizes;
}

// `range` as a guard of B, R or M that is padded with T.
GuardRange padded_with(const ShapeRange& t, const CompileOptions& o, std::string symbol, int64_t lo,
                       int64_t hi) {
  bool fixed = t.pad > 0 && o.shapes == Shapes::kFixed;
  return {std::move(symbol), lo, hi, 1, fixed ? hi : 0};
}

}  // namespace

std::string_view shapes_name(Shapes shapes) { return kShapeNames[static_cast<size_t>(shapes)]; }

Shapes shapes_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kShapeNames); ++i)
    if (name == kShapeNames[i]) return static_cast<Shapes>(i);
  fail(ErrorCode::kInvalidArgument, "shapes \"{}\" is unknown; use {}", name,
       fmt::join(kShapeNames, ", "));
}

std::vector<ShapeRange> shape_ranges(const CompileOptions& o, std::vector<int64_t> tiers,
                                     int64_t max) {
  std::vector<ShapeRange> out;
  if (o.shapes == Shapes::kAuto || o.eager) {
    for (int64_t bound : up_to(std::move(tiers), max)) out.push_back({1, bound, 0});
    return out;
  }
  bool fixed = o.shapes == Shapes::kFixed;
  if (fixed || (o.shapes == Shapes::kBuckets && !o.tree_mask)) {
    int64_t lo = 1;
    for (int64_t size : bucket_sizes(o, max)) {
      int64_t whole = size / kRowsOfMultiples * kRowsOfMultiples;
      if (!fixed && o.buckets.empty() && whole >= lo + kRowsOfMultiples) {
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

namespace {

// --activations mixed: the largest size of a plan with few rows.
std::vector<int64_t> with_few_rows(std::vector<int64_t> tiers, const CompileOptions& o,
                                   int64_t rows_per_sequence) {
  if (int64_t few = (o.bf16_rows - 1) / rows_per_sequence; few > 0) tiers.push_back(few);
  std::sort(tiers.begin(), tiers.end());
  tiers.erase(std::unique(tiers.begin(), tiers.end()), tiers.end());
  return tiers;
}

// Ranges of more sequences than `above`: padded to multiples of 8, beyond 64 of 16.
std::vector<ShapeRange> padded_decode_ranges(int64_t above, int64_t most) {
  std::vector<ShapeRange> out;
  int64_t lo = above + 1;
  for (auto [multiple, up_to] : {std::pair<int64_t, int64_t>{8, kRowsOfMultiples}, {16, most}}) {
    const int64_t hi = std::min(up_to, most) / multiple * multiple;
    if (hi < lo) continue;
    out.push_back({lo, hi, hi, multiple});
    lo = hi + 1;
  }
  return out;
}

}  // namespace

// Rows of padding are a sequence of their own.
Guards step_guards(const CompileOptions& o) {
  Guards out;
  for (const ShapeRange& t : shape_ranges(o, with_few_rows({64}, o, 1), o.max_tokens)) {
    int64_t sequences = std::min(t.hi, o.max_sequences) + (t.pad > 0 ? 1 : 0);
    out.push_back({{"T", t.lo, t.hi, t.multiple, t.pad},
                   padded_with(t, o, "B", 1, sequences),
                   padded_with(t, o, "R", 1, std::min(t.hi, o.max_logit_rows))});
    if (o.tree_mask) out.back().push_back(padded_with(t, o, "M", 1, t.hi));
  }
  return out;
}

Guards decode_guards(const CompileOptions& o) {
  Guards out;
  const int64_t most = std::min(o.max_sequences, o.max_logit_rows);
  constexpr int64_t kFew = 8;
  std::vector<ShapeRange> ranges = shape_ranges(o, with_few_rows({1, kFew}, o, 1), most);
  if (o.shapes == Shapes::kAuto && !o.eager && o.pads_decode_above > 0 && most > kFew) {
    const std::vector<ShapeRange> padded = padded_decode_ranges(o.pads_decode_above, most);
    const bool all = o.pads_decode_above <= kFew && !padded.empty() && padded.back().hi == most;
    ranges.insert(ranges.end() - 1, padded.begin(), padded.end());
    if (all) ranges.pop_back();  // the plan for any number
  }
  for (const ShapeRange& b : ranges) {
    out.push_back({{"B", b.lo, b.hi, b.multiple, b.pad}});
    if (o.tree_mask) out.back().push_back({"M", 1, 1, 1});
  }
  return out;
}

Guards exit_guards(CompileOptions o) {
  o.tree_mask = false;  // it does not read the mask
  return decode_guards(o);
}

Guards verify_guards(const CompileOptions& o, int drafts) {
  int64_t rows = drafts + 1;
  int64_t most = std::min(o.max_sequences, std::min(o.max_logit_rows, o.max_tokens) / rows);
  Guards out;
  std::vector<ShapeRange> ranges;
  for (int64_t bound : up_to(with_few_rows({}, o, rows), most)) ranges.push_back({1, bound, 0});
  if (o.shapes == Shapes::kFixed) ranges = shape_ranges(o, {}, most);
  for (const ShapeRange& b : ranges) {
    out.push_back({{"B", b.lo, b.hi, b.multiple, b.pad}});
    if (o.tree_mask) out.back().push_back({"M", rows, rows, 1});
  }
  return out;
}

std::vector<GuardRange> function_guard(const Function& function) {
  std::set<std::string> used;
  for (const Node& node : function.nodes())
    if (node.op->role == OpDef::Role::kInput && node.outputs[0].kind == Type::Kind::kTensor)
      for (const Dim& d : node.outputs[0].tensor.dims)
        for (const std::string& symbol : d.extent.symbols()) used.insert(symbol);
  std::vector<GuardRange> out;
  for (const SymbolDecl& s : function.module().symbols)
    if (used.contains(s.name)) out.push_back({s.name, s.lo, s.hi, s.multiple});
  return out;
}

namespace {

void spread_values(PlanSet& set, Plan& plan) {
  std::vector<SymbolDecl> bounds = symbol_bounds(set, plan);
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
  if (plan.function != kSampleFunction) set.arena_bytes = std::max(set.arena_bytes, end);
}

}  // namespace

void spread_values(PlanSet& set) {
  for (Plan& plan : set.plans) spread_values(set, plan);
}

}  // namespace tokamak
