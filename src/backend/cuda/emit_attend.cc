// Launches of append and attend.
#include <algorithm>

#include "backend/cuda/decode_program.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/paged_attention.h"
#include "backend/cuda/prefill_launch.h"
#include "base/error.h"
#include "ops/attend.h"

namespace tokamak::cuda {
namespace {

enum AttendInput : size_t { kQuery, kState, kView, kPos, kSeq, kSlot, kQStart, kKvLen, kMask };

// Rows times heads from which on the GPU is busy without splitting sequences.
constexpr int64_t kEnoughWarps = 132 * 16;
constexpr size_t kMostScratch = size_t{256} << 20;
constexpr int kMostMultiprocessors = 160;  // that scratch is planned for
constexpr int64_t kMostWidth = 16 * 32;    // of a value: what the lanes of a warp hold

int64_t warp_blocks(int64_t warps) { return (warps + kTileWarps - 1) / kTileWarps; }

size_t partial_bytes(int64_t rows, int64_t heads, int64_t segments, int64_t dv) {
  return static_cast<size_t>(rows * heads * segments * (dv + 2)) * sizeof(float);
}

size_t decode_partial_bytes(int64_t rows, int64_t heads, int64_t kv_heads, int64_t d,
                            int multiprocessors) {
  auto partials = attention_partials(static_cast<int>(rows), static_cast<int>(kv_heads),
                                     kAttentionResident * multiprocessors);
  return static_cast<size_t>(partials * (heads / kv_heads) *
                             attention_partial_row(static_cast<int>(d))) *
         sizeof(float);
}

// The rows and sequences of a step; `rest`: operands after the mask.
AttendArgs step_args(const CallSite& site, size_t rest) {
  AttendArgs args{};
  args.view = site.step.views.at(site.in[kView].index);
  args.pos = site.in[kPos].as<int32_t>();
  args.seq = site.in[kSeq].as<int32_t>();
  args.slot = site.in[kSlot].as<int32_t>();
  args.q_start = site.in[kQStart].as<int32_t>();
  args.kv_len = site.in[kKvLen].as<int32_t>();
  if (site.has(kMask + rest) && !site.step.plain_mask) {
    args.mask = site.in[kMask].as<int32_t>();
    args.mask_width = static_cast<int32_t>(site.in[kMask].dims[1]);
  }
  args.sequences = static_cast<int32_t>(site.in[kKvLen].elements());
  args.scale = static_cast<float>(site.call.attrs.at("scale").as_double());
  return args;
}

AttendArgs attend_args(const CallSite& site) {
  const Tensor &q = site.in[kQuery], &y = site.out[0];
  const KvPool::State& state = site.kv.state(site.in[kState].index);
  const Value& attrs = site.call.attrs;
  const bool sinks = attrs.get_int("sinks", 0) != 0, slopes = attrs.get_int("slopes", 0) != 0;
  const size_t rest = (sinks ? 1 : 0) + (slopes ? 1 : 0);
  AttendArgs args = step_args(site, rest);
  args.q = q.as();
  args.y = y.as();
  args.tq = q.dtype;
  args.ty = y.dtype;
  if (sinks) {
    const Tensor& t = site.in[site.in.size() - rest];
    args.sinks = t.as();
    args.ts = t.dtype;
  }
  if (slopes) {
    args.slopes = site.in.back().as();
    args.tl = site.in.back().dtype;
  }
  args.rows = static_cast<int32_t>(q.dims[0]);
  args.heads = static_cast<int32_t>(q.dims[1]);
  args.d = static_cast<int32_t>(q.dims[2]);
  args.dv = static_cast<int32_t>(y.dims[2]);
  args.window = static_cast<int32_t>(attrs.get_int("window", 0));
  args.cap = static_cast<float>(attrs.get_double("softcap", 0));
  for (const std::string& name : attend_key_planes(attrs)) {
    if (args.keys == kMaxKeys)
      fail(ErrorCode::kUnsupported, "{}: a key of more than {} planes", site.call.label, kMaxKeys);
    args.key[args.keys++] = state.plane(name);
  }
  args.value = state.plane(attend_value_plane(attrs));
  if (args.dv > kMostWidth)
    fail(ErrorCode::kUnsupported, "{}: values {} wide; the cuda backend takes {}", site.call.label,
         args.dv, kMostWidth);
  return args;
}

// op_flash: many rows, values of 16 bits, tiles of keys that begin with a block.
bool takes_flash(const AttendArgs& a, const CallSite& site) {
  auto narrow = [](DType type) { return type == DType::kF16 || type == DType::kBF16; };
  const PlaneArgs& key = a.key[0];
  return (site.step.causal || a.mask) && a.rows > a.sequences && a.keys == 1 && a.window == 0 &&
         a.cap == 0 && !a.sinks && !a.slopes && narrow(a.tq) && narrow(key.type) &&
         key.type == a.value.type && (a.d == 64 || a.d == 128) && a.dv == a.d && key.width == a.d &&
         a.value.width == a.d && key.heads == a.value.heads &&
         kFlashKeys % a.view.block_size == 0 && a.view.block_size > 1;
}
// decode_attention.cu: one row of each sequence.
bool takes_decode(const AttendArgs& a, const CallSite& site) {
  auto narrow = [](DType type) { return type == DType::kF16 || type == DType::kBF16; };
  const PlaneArgs& key = a.key[0];
  return site.libraries.hopper_blocks > 0 && site.step.causal && a.rows == a.sequences &&
         a.rows <= kAttentionMaxBatch && int64_t{a.rows} * key.heads <= kCounters && a.keys == 1 &&
         !a.mask && a.window == 0 && a.cap == 0 && !a.sinks && !a.slopes && a.tq == DType::kBF16 &&
         a.ty == DType::kBF16 && narrow(key.type) && key.type == a.value.type &&
         (a.d == 64 || a.d == 128) && a.dv == a.d && key.width == a.d && a.value.width == a.d &&
         key.heads == a.value.heads && a.heads / key.heads <= kMaxGroup &&
         a.view.block_size % kAttentionPositions == 0 &&
         key.block_bytes == int64_t{key.heads} * a.view.block_size * a.d * 2 &&
         decode_partial_bytes(a.rows, a.heads, key.heads, a.d, site.libraries.hopper_blocks) <=
             site.scratch.bytes;
}
AttentionTable table_of(const Libraries& libraries, const int32_t* lengths, int64_t batch,
                        int64_t kv_heads) {
  return attention_table(libraries.table, lengths, static_cast<int>(batch),
                         static_cast<int>(kv_heads), kAttentionResident * libraries.hopper_blocks);
}
void emit_decode(const AttendArgs& a, const CallSite& site, LaunchList& list) {
  emit_attention_table(list, site.libraries, a.kv_len, a.rows, a.value.heads);
  AttentionLaunch l{};
  set_table(l, table_of(site.libraries, a.kv_len, a.rows, a.value.heads));
  l.queries = a.q;
  l.pages = a.view.table;
  l.partials = reinterpret_cast<float*>(site.scratch.address);
  l.done = reinterpret_cast<uint32_t*>(site.libraries.counters);
  l.output = a.y;
  l.heads = a.heads;
  l.page_size = a.view.block_size;
  l.page_stride = a.view.stride;
  l.in_flight = AttentionShape{}.in_flight;
  l.scale = a.scale;
  l.cache_f16 = a.value.type == DType::kF16;
  set_planes(l, a.key[0].base, a.value.base,
             site.kv.blocks(site.kv.state(site.in[kState].index).group), a.d);
  const std::string kernel = fmt::format("decode_attention_{}", a.d);
  if (list.overlaps_table())
    list.add("decode_attention", kernel, {l.blocks}, kAttentionThreads, l,
             attention_shared_bytes(a.d));
  else
    list.add_overlapped("decode_attention", kernel, {l.blocks}, kAttentionThreads, l,
                        attention_shared_bytes(a.d));
}

// prefill_attention.cu: what op_flash takes, on Hopper. Blocks take tiles of rows as they come.
void emit_prefill(const AttendArgs& a, const CallSite& site, LaunchList& list) {
  const int64_t kv_blocks = site.kv.blocks(site.kv.state(site.in[kState].index).group);
  const int64_t tiles = int64_t{a.rows / kPrefillRows + a.sequences} * a.heads;  // at most
  const char* type = a.value.type == DType::kF16 ? "f16" : "bf16";
  list.add_overlapped("prefill_attention", fmt::format("prefill_attention_{}_{}", a.d, type),
                      {std::min<int64_t>(site.libraries.hopper_blocks, tiles)}, kPrefillThreads,
                      prefill_launch(a, kv_blocks), prefill_shared_bytes(a.d));
}

const char* value_parts(const AttendArgs& a) {
  return a.dv <= 64 ? "2" : a.dv <= 128 ? "4" : a.dv <= 256 ? "8" : "16";
}
int attend_shared_bytes(const AttendArgs& a) { return kTileWarps * (32 + 16 + (a.d + 1) / 2) * 8; }
// op_attend: a warp per row and head, for all keys.
void add_attend(const AttendArgs& a, LaunchList& list) {
  list.add("op_attend", fmt::format("op_attend_{}", value_parts(a)), {warp_blocks(a.heads), a.rows},
           kTileThreads, a, attend_shared_bytes(a));
}

// Divides the keys among more blocks where there are too few for the GPU; add_join() then has to
// follow. The number of parts.
int64_t split_keys(AttendArgs& a, const CallSite& site, int64_t blocks, LaunchList& list) {
  constexpr int64_t kEnoughBlocks = 2 * 132;
  list.depend_on_segments();
  int64_t parts = 1;
  while (parts < site.step.segments && blocks * parts < kEnoughBlocks &&
         partial_bytes(a.rows, a.heads, 2 * parts, a.dv) <= site.scratch.bytes)
    parts *= 2;
  if (parts == 1) return 1;
  a.part_keys = static_cast<int32_t>(site.step.segments / parts * kSegment);
  a.segments = static_cast<int32_t>(parts);
  a.partial = reinterpret_cast<float*>(site.scratch.address);
  return parts;
}
void add_join(const AttendArgs& a, LaunchList& list) {
  list.add("op_attend", fmt::format("op_attend_join_{}", value_parts(a)),
           {warp_blocks(a.heads), a.rows}, kTileThreads, a);
}

void emit_flash(AttendArgs args, const CallSite& site, LaunchList& list) {
  constexpr int kBuffers = 2;
  const char* type = args.value.type == DType::kF16 ? "f16" : "bf16";
  const char* masked = args.mask ? "masked_" : "";
  const int64_t tiles = args.rows / kFlashRows + args.sequences;  // at most
  // Without a mask a row has the same bits in every step: its keys are not divided.
  const int64_t parts = args.mask ? split_keys(args, site, tiles * args.heads, list) : 1;
  list.add_overlapped("op_flash", fmt::format("op_flash_{}{}_{}", masked, args.d, type),
                      {tiles, args.heads, parts}, kFlashThreads, args,
                      (kFlashRows + kBuffers * 2 * kFlashKeys) * args.d * 2);
  if (parts > 1) add_join(args, list);
}

// op_latent: a compressed cache whose keys all heads share.
bool takes_latent(const AttendArgs& a) {
  auto narrow = [](DType type) { return type == DType::kF16 || type == DType::kBF16; };
  const PlaneArgs &c = a.key[0], &rotated = a.key[1];
  return a.keys == 2 && a.window == 0 && a.cap == 0 && !a.sinks && !a.slopes && narrow(a.tq) &&
         narrow(c.type) && rotated.type == c.type && c.heads == 1 && rotated.heads == 1 &&
         c.width == kLatentC && rotated.width == kLatentE && a.value.base == c.base;
}
void emit_latent_heads(AttendArgs a, const CallSite& site, LaunchList& list) {
  const int64_t groups = (a.heads + kLatentHeads - 1) / kLatentHeads;
  const int64_t parts = split_keys(a, site, a.rows * groups, list);
  const int shared =
      (kLatentHeads + 2 * kLatentKeys) * (kLatentC + kLatentE) * 2 + kLatentHeads * kLatentKeys * 4;
  list.add("op_latent", a.value.type == DType::kF16 ? "op_latent_f16" : "op_latent_bf16",
           {groups, a.rows, parts}, kLatentThreads, a, shared);
  if (parts > 1) add_join(a, list);
}

}  // namespace

void emit_append(const CallSite& site, LaunchList& list) {
  constexpr size_t kFirstPlane = 4;
  const KvPool::State& state = site.kv.state(site.in[0].index);
  AppendArgs args{};
  args.view = site.step.views.at(site.in[1].index);
  args.seq = site.in[2].as<int32_t>();
  args.slot = site.in[3].as<int32_t>();
  args.rows = static_cast<int32_t>(site.in[2].elements());
  args.planes = static_cast<int32_t>(state.planes.size());
  for (size_t p = 0; p < state.planes.size(); ++p) {
    args.plane[p] = state.planes[p];
    args.x[p] = site.in.at(kFirstPlane + p).as();
    args.tx[p] = site.in[kFirstPlane + p].dtype;
    args.heads += state.planes[p].heads;
  }
  list.add("op_attend", "op_append", {warp_blocks(args.heads), args.rows}, kTileThreads, args);
}

void emit_attend(const CallSite& site, LaunchList& list) {
  AttendArgs args = attend_args(site);
  if (site.libraries.hopper_blocks > 0 && site.step.causal && args.rows > args.sequences &&
      takes_prefill(args))
    return emit_prefill(args, site, list);
  if (takes_flash(args, site)) return emit_flash(args, site, list);
  if (takes_decode(args, site)) return emit_decode(args, site, list);
  if (takes_latent(args)) return emit_latent_heads(args, site, list);
  int64_t rows = args.rows, heads = args.heads, segments = site.step.segments;
  list.depend_on_segments();
  Grid grid{warp_blocks(heads), rows};
  bool split = segments > 1 && rows * heads < kEnoughWarps &&
               partial_bytes(rows, heads, segments, args.dv) <= site.scratch.bytes;
  if (!split) return add_attend(args, list);
  const char* parts = value_parts(args);
  args.segments = static_cast<int32_t>(segments);
  args.partial = reinterpret_cast<float*>(site.scratch.address);
  list.add("op_attend", fmt::format("op_attend_split_{}", parts), {grid.x, grid.y, segments},
           kTileThreads, args, attend_shared_bytes(args));
  list.add("op_attend", fmt::format("op_attend_join_{}", parts), grid, kTileThreads, args);
}

namespace {

// Queries and results of a row of attend_latent between its launches, f32.
struct LatentScratch {
  int64_t heads, c, e;
  int64_t row_bytes() const { return heads * (2 * c + e) * 4; }
  int64_t rows_at_once(int64_t rows) const {
    constexpr int64_t kMost = int64_t{64} << 20;
    return std::min(rows, std::max<int64_t>(1, kMost / row_bytes()));
  }
};

size_t latent_bytes(const PlanSet& plans, const KernelCall& call) {
  const std::vector<SymExpr>& matrices = call.in[call.in.size() - 2].dims;  // [h, c, n]
  const auto h = matrices[0].constant(), c = matrices[1].constant(), n = matrices[2].constant(),
             d = call.in[kQuery].dims[2].constant();
  if (!h || !c || !n || !d) return 0;
  const LatentScratch scratch{*h, *c, *d - *n};
  const int64_t rows = scratch.rows_at_once(call.in[kQuery].dims[0].upper(plans.symbols));
  return static_cast<size_t>(rows * scratch.row_bytes());
}

}  // namespace

// Keys and values are not computed: the matrices of keys are applied to the queries, those of
// values to the results, some rows at a time.
void emit_latent(const CallSite& site, LaunchList& list) {
  const Tensor &q = site.in[kQuery], &y = site.out[0], &up_key = site.in[site.in.size() - 2],
               &up_value = site.in.back();
  const KvPool::State& state = site.kv.state(site.in[kState].index);
  AttendArgs args = step_args(site, 2);
  args.value = state.plane("c");
  args.key[0] = args.value;
  args.key[1] = state.plane("kr");
  args.keys = 2;
  const int64_t n = up_key.dims[2], e = args.key[1].width, all = q.dims[0];
  const LatentScratch scratch{q.dims[1], up_key.dims[1], e};
  if (scratch.c > kMostWidth)
    fail(ErrorCode::kUnsupported, "{}: values {} wide; the cuda backend takes {}", site.call.label,
         scratch.c, kMostWidth);
  const int64_t most = scratch.rows_at_once(all), wide = scratch.c + e;
  TK_CHECK(static_cast<size_t>(most * scratch.row_bytes()) <= site.scratch.bytes,
           "{}: no room for {} rows", site.call.label, most);
  args.heads = static_cast<int32_t>(scratch.heads);
  args.d = static_cast<int32_t>(wide);
  args.dv = static_cast<int32_t>(scratch.c);
  args.tq = args.ty = DType::kF32;
  const Tensor queries{DType::kF32, {}, site.scratch.address, 0};
  const Tensor sums{
      DType::kF32, {}, queries.address + static_cast<size_t>(most * scratch.heads * wide) * 4, 0};
  args.q = queries.as();
  args.y = sums.as();
  for (int64_t first = 0; first < all; first += most) {
    const int64_t rows = std::min(most, all - first);
    Tensor x = q, to = y;
    x.address += dtype_bytes(q.dtype, first * scratch.heads * q.dims[2]);
    to.address += dtype_bytes(y.dtype, first * scratch.heads * y.dims[2]);
    emit_head_products({x, up_key, queries, rows, q.dims[2], wide}, list);
    CopyArgs rotated{};
    rotated.x = x.as<uint8_t>() + dtype_bytes(q.dtype, n);
    rotated.y = queries.as<float>() + scratch.c;
    rotated.n = rows * scratch.heads * e;
    rotated.rank = 2;
    rotated.in = q.dtype;
    rotated.out = DType::kF32;
    rotated.dims[0] = rows * scratch.heads;
    rotated.dims[1] = e;
    rotated.sx[0] = q.dims[2];
    rotated.sy[0] = wide;
    rotated.sx[1] = rotated.sy[1] = 1;
    add_strided_copy(list, rotated);
    args.rows = static_cast<int32_t>(rows);
    args.first_row = static_cast<int32_t>(first);
    add_attend(args, list);
    emit_head_products({sums, up_value, to, rows, scratch.c, y.dims[2]}, list);
  }
}

size_t kept_bytes(int multiprocessors) {
  return kCounters * sizeof(uint32_t) + attention_table_bytes(kAttentionResident * multiprocessors);
}

void emit_attention_table(LaunchList& list, const Libraries& libraries, const int32_t* lengths,
                          int64_t batch, int64_t kv_heads) {
  if (list.needs_table({lengths, batch, kv_heads}))
    list.add("decode_attention", "decode_attention_table", {1}, kAttentionTableThreads,
             table_of(libraries, lengths, batch, kv_heads));
}

size_t scratch_bytes(const PlanSet& plans) {
  constexpr int64_t kUsualContext = 8192;  // of plans that do not say
  size_t most = 0, split = 0;
  int64_t context = plans.context > 0 ? plans.context : kUsualContext;
  for (const Plan& plan : plans.plans)
    for (const KernelCall& call : plan.calls) {
      if (call.op == "linear") split = std::max(split, linear_bytes(plans, call));
      if (call.op == "moe_combine")
        split = std::max(split, combine_bytes(call.in[0].dims[0].upper(plans.symbols)));
      if (call.op == "attend_latent") split = std::max(split, latent_bytes(plans, call));
      if (call.op != "attend") continue;
      auto heads = call.in[kQuery].dims[1].constant(), dv = call.out[0].dims[2].constant();
      if (!heads || !dv) continue;
      int64_t segments = (context + kSegment - 1) / kSegment;
      int64_t rows = std::max<int64_t>(1, kEnoughWarps / std::max<int64_t>(1, *heads));
      if (segments > 1) most = std::max(most, partial_bytes(rows, *heads, segments * 2, *dv));
      const StateEntry& state = plans.states.at(call.in[kState].index);
      if (state.planes[0].dims.size() < 2 || state.planes[0].dims[0] == 0) continue;
      int64_t batch =
          std::min<int64_t>(kAttentionMaxBatch, call.in[kQuery].dims[0].upper(plans.symbols));
      split = std::max(split, decode_partial_bytes(batch, *heads, state.planes[0].dims[0], *dv,
                                                   kMostMultiprocessors));
    }
  return std::max(split, std::min(most, kMostScratch));
}

}  // namespace tokamak::cuda
