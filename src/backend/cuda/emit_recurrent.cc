// Launches of ops with a state per sequence, and of low-rank products.
#include "backend/cuda/kernels.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr const char *kRecurrentImage = "op_recurrent", *kScanImage = "op_scan";
// Rows per sequence from which chunks of rows are faster than row after row.
constexpr int64_t kRowsForChunks = 16;
enum SequenceInput : size_t { kOwnState, kOwnView, kRowStart, kLength, kX };

SequencesArgs sequences_of(const CallSite& site, int64_t rows) {
  SequencesArgs s{};
  s.view = site.step.views.at(site.in[kOwnView].index);
  s.plane = site.kv.state(site.in[kOwnState].index).planes.at(0);
  s.q_start = site.in[kRowStart].as<int32_t>();
  s.kv_len = site.in[kLength].as<int32_t>();
  s.sequences = static_cast<int32_t>(site.in[kLength].elements());
  s.rows = static_cast<int32_t>(rows);
  return s;
}

// Values that are stored as bf16; with others rows have the same bits in every batch.
bool takes_chunks(const ScanArgs& a, DType first, DType second) {
  return a.decays == 1 && first == DType::kBF16 && second == DType::kBF16 && a.n % 8 == 0 &&
         a.n <= kChunkState && a.sequences.rows >= kRowsForChunks * a.sequences.sequences;
}

// kX onwards: five inputs. `matrix`: the one of shape [t, heads, width]; `vector` and `other`:
// those of [t, groups, n].
void emit_scan(const CallSite& site, LaunchList& list, size_t matrix, size_t vector, size_t other) {
  const Tensor &wide = site.in[kX + matrix], &narrow = site.in[kX + vector], &y = site.out[1];
  ScanArgs args{};
  args.sequences = sequences_of(site, y.dims[0]);
  for (size_t i = 0; i < kScanInputs; ++i) {
    args.in[i] = site.in[kX + i].as();
    args.type[i] = site.in[kX + i].dtype;
  }
  args.y = y.as();
  args.ty = y.dtype;
  args.heads = static_cast<int32_t>(wide.dims[1]);
  args.width = static_cast<int32_t>(wide.dims[2]);
  args.groups = static_cast<int32_t>(narrow.dims[1]);
  args.n = static_cast<int32_t>(narrow.dims[2]);
  const Tensor& a = site.in[kX + 2];
  args.decays = site.call.op == "ssm_scan" && a.elements() > args.heads ? args.n : 1;
  if (takes_chunks(args, narrow.dtype, site.in[kX + other].dtype)) {
    const int64_t slices = (args.width + kChunkWidth - 1) / kChunkWidth;
    list.add(kScanImage, "op_" + site.call.op + "_chunks",
             {args.heads * slices, args.sequences.sequences + 1}, kChunkThreads, args,
             chunk_shared_bytes(site.call.op == "gated_delta"));
    return;
  }
  if (args.n > 32 * kScanParts)
    fail(ErrorCode::kUnsupported, "{}: states {} wide; the cuda backend takes {}", site.call.label,
         args.n, 32 * kScanParts);
  const int64_t warps = int64_t{args.heads} * args.width;
  list.add(kRecurrentImage, "op_" + site.call.op,
           {(warps + kTileWarps - 1) / kTileWarps, args.sequences.sequences + 1}, kTileThreads,
           args);
}

}  // namespace

void emit_conv(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[kX], &w = site.in[kX + 1], &y = site.out[1];
  ConvArgs args{};
  args.sequences = sequences_of(site, x.dims[0]);
  args.x = x.as();
  args.tx = x.dtype;
  args.w = w.as();
  args.tw = w.dtype;
  if (site.has(kX + 2)) {
    args.bias = site.in[kX + 2].as();
    args.tb = site.in[kX + 2].dtype;
  }
  args.y = y.as();
  args.ty = y.dtype;
  args.channels = x.dims[1];
  args.taps = static_cast<int32_t>(w.dims[1]);
  if (args.taps > kConvRows)
    fail(ErrorCode::kUnsupported, "{}: {} taps; the cuda backend takes {}", site.call.label,
         args.taps, kConvRows);
  list.add(kRecurrentImage, "op_causal_conv",
           {(args.channels + kElementThreads - 1) / kElementThreads, args.sequences.sequences + 1,
            (x.dims[0] + kConvRows - 1) / kConvRows},
           kElementThreads, args);
}

void emit_ssm_scan(const CallSite& site, LaunchList& list) { emit_scan(site, list, 0, 3, 4); }
void emit_gated_delta(const CallSite& site, LaunchList& list) { emit_scan(site, list, 2, 1, 0); }

void emit_lora(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[0], &a = site.in[1], &b = site.in[2], &y = site.out[0];
  LoraArgs args{};
  args.x = x.as();
  args.tx = x.dtype;
  args.a = a.as();
  args.ta = a.dtype;
  args.b = b.as();
  args.tb = b.dtype;
  args.adapter = site.in[3].as<int32_t>();
  args.y = y.as();
  args.ty = y.dtype;
  args.k = x.dims[1];
  args.n = b.dims[1];
  args.slots = static_cast<int32_t>(a.dims[0]);
  args.rank = static_cast<int32_t>(a.dims[1]);
  list.add(kRecurrentImage, "op_lora", {(args.n + kLoraColumns - 1) / kLoraColumns, x.dims[0]},
           kElementThreads, args, args.rank * static_cast<int>(sizeof(double)));
}

}  // namespace tokamak::cuda
