#pragma once
// Parameters of the op kernels: what the host fills in and the device reads. Pointers are addresses
// on the device.
#include <cstdint>

#include "backend/cuda/few_rows.h"
#include "tensor/dtype.h"

namespace tokamak::cuda {

constexpr int kMaxAxes = 6;    // of strided ops, after joining axes
constexpr int kMaxPlanes = 8;  // of a state
constexpr int kMaxKeys = 4;    // planes that make up a key
constexpr int kSegment = 128;  // keys: attention is computed in segments that are merged in order
constexpr int kElementThreads = 256;
constexpr int kRowThreads = 512;  // of kernels with a block per row
constexpr int kTileWarps = 4;     // of linear, append and attend
constexpr int kTileThreads = 32 * kTileWarps;

enum class Unary : int32_t {
  kNeg,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kSquare,
  kSin,
  kCos,
  kTanh,
  kErf,
  kSigmoid,
  kRelu,
  kSilu,
  kGeluTanh,
  kGeluErf,
  kScale,
  kSoftcap,
};
enum class Binary : int32_t { kAdd, kSub, kMul, kDiv, kMaximum, kMinimum };

struct UnaryArgs {
  const void* x;
  void* y;
  int64_t n;
  Unary op;
  float number;  // of scale and softcap
  DType in, out;
};

// Iterates over `dims`; strides are in elements, 0 where an operand is broadcast.
struct BinaryArgs {
  const void *a, *b;
  void* y;
  int64_t n;
  Binary op;
  int32_t rank;
  DType ta, tb, out;
  int64_t dims[kMaxAxes], sa[kMaxAxes], sb[kMaxAxes];
};
struct CopyArgs {  // same type: bits are copied; otherwise a cast
  const void* x;
  void* y;
  int64_t n;
  int32_t rank;
  DType in, out;
  int64_t dims[kMaxAxes], sx[kMaxAxes], sy[kMaxAxes];
};
struct GatherArgs {
  const void* x;  // [outer, extent, inner]; block types: outer is 1
  const int32_t* index;
  void* y;
  int64_t outer, extent, inner, count, row_bytes;
  DType in, out;
};
struct IotaArgs {
  int32_t* y;
  int64_t n;
};

struct NormArgs {
  const void *x, *w, *bias;  // bias: may be null
  void* y;
  int64_t n;
  float eps;
  DType tx, tw, tb, ty;
};
struct RopeArgs {
  const void* x;
  const int32_t* pos;
  const void* frequencies;
  void* y;
  int64_t rows, heads, d, half;
  double scale;
  DType tx, tf, ty;
};
struct QuantizeArgs {
  const void* x;
  uint8_t* y;
  int64_t blocks;
  DType tx;
};

struct LinearArgs {
  const void* x;     // [rows, k]
  const uint8_t* w;  // [n, k]
  const void* bias;  // may be null
  void* y;           // [rows, n]
  int64_t rows, n, k;
  int64_t x_row_bytes, w_row_bytes;
  DType tx, tw, tb, ty;
  bool vectors;  // rows are aligned to eight values
};

constexpr int kMmaChunk = 32;  // values of k that a warp multiplies at a time
constexpr int kMmaParts = 8;   // parts of k, summed apart and added in order
constexpr int kMmaThreads = 32 * kMmaParts;
constexpr int kMmaTileN = 64, kMmaTileM = 128;  // of a block, many rows
struct MmaArgs {
  const void* x;      // few rows: [rows, k] of type tx; else bf16 [pieces, rows, k]
  const uint16_t* w;  // bf16 [n, k]
  const void* bias;   // may be null
  void* y;            // [rows, n]
  int64_t rows, n, k;
  DType tx, tb, ty;
};
struct SplitArgs {
  const void* x;
  uint16_t* y;  // bf16 [3, n]
  int64_t n;
  DType tx;
};

// Mixture of experts.
constexpr int kMaxUsedExperts = 64;  // of a token
struct RouteArgs {
  const void* logits;  // [rows, experts]
  const void* bias;    // [experts], may be null
  void* weights;       // [rows, used]
  int32_t* chosen;     // [rows, used]
  int64_t rows;
  int32_t experts, used, groups, used_groups;
  double scale;
  DType tx, tb, tw;
  bool sigmoid, normalize;
};
struct SortArgs {
  const int32_t* experts;  // [entries]; negative: the entry has none
  int32_t* offsets;        // [count + 1]
  int32_t* source;         // [entries]
  int32_t entries, count;
};
struct DispatchArgs {
  const void* x;  // [.., d]
  void* y;        // [entries, d]
  const int32_t* source;
  int64_t d, element;  // element: bytes, where both have the same type
  int32_t used;
  DType tx, ty;
  bool vectors;  // rows of 16 bytes each, of the same type
};
struct GroupedArgs {
  LinearArgs product;      // all rows; w [groups, n, k], bias [groups, n]
  const int32_t* offsets;  // [groups + 1]: the first row of each group
  int32_t groups;
};
struct HeadsArgs {
  LinearArgs product;  // x [rows, heads, x_head], w [heads, n, k], y [rows, heads, y_head]
  int64_t heads, x_head, y_head;
};
struct CombineArgs {
  const void* x;  // [entries, d]
  const int32_t *source, *offsets;
  const void* weights;  // [rows, used]
  void* y;              // [rows, d]
  int32_t* places;      // [entries]: where each entry's row is; may be null
  int64_t d;
  int32_t entries, used, groups;
  DType tx, tw, ty;
};

// Rows of q8_0 or q4_0 from one matrix after the other, or from two in turn.
constexpr int kPackSources = 3;
struct PackArgs {
  const uint8_t* source[kPackSources];
  int64_t rows[kPackSources];
  int64_t row_bytes[kPackSources];
  int64_t width, parts, tiles;  // tiles of 16 rows, the last filled with zeros
  uint8_t* to;
  float* scales;             // op_pack_fp8: one per row
  DType type[kPackSources];  // of op_pack_segments they may differ
  bool alternate;
  bool eight;  // op_pack_segments: kK8, else kK4
};

// Rows of weights or of quantised values as bf16. `width` and addresses are multiples of 8 values.
struct ExpandArgs {
  const uint8_t* x;
  uint16_t* y;
  int64_t width, row_bytes;
  DType type;
};

// A plane of a state: [block][head][offset][width], then for i8 the block's scales
// [head][offset].
struct PlaneArgs {
  uint8_t* base;
  int64_t block_bytes, scale_at;  // scale_at: of a block
  int32_t heads, width, element;  // element: bytes
  DType type;
};
struct ViewArgs {
  const int32_t* table;
  int32_t stride, block_size;
};
struct AppendArgs {
  const int32_t *seq, *slot;
  ViewArgs view;
  int32_t rows, planes, heads;  // heads: of all planes together
  PlaneArgs plane[kMaxPlanes];
  const void* x[kMaxPlanes];
  DType tx[kMaxPlanes];
};
constexpr int kFlashRows = 128, kFlashKeys = 64, kFlashWarpRows = 32;  // of op_flash
constexpr int kFlashThreads = kFlashRows / kFlashWarpRows * 32;
struct AttendArgs {
  const void* q;  // [rows, heads, d]
  void* y;        // [rows, heads, dv]
  DType tq, ty;
  ViewArgs view;
  const int32_t *pos, *seq, *slot, *q_start, *kv_len, *mask;  // mask: may be null
  int32_t mask_width, rows, sequences, heads, d, dv, keys, window;
  int32_t segments;  // of split calls: what `partial` has room for
  float scale, cap;
  PlaneArgs key[kMaxKeys], value;
  float* partial;              // [rows, heads, segments, dv + 2]: peak, mass, sums
  const void *sinks, *slopes;  // [heads], may be null
  DType ts, tl;
  int32_t first_row;  // of the step's rows: q, y and partial begin with it
  int32_t part_keys;  // op_flash and op_latent, split calls: keys of a part; 0: not split
};
constexpr int kLatentHeads = 16, kLatentKeys = 32, kLatentThreads = 128;  // of a block of op_latent
constexpr int kLatentC = 512, kLatentE = 64;                              // widths of its planes
// States per sequence: a block of the cache holds that of one sequence.
struct SequencesArgs {
  ViewArgs view;
  PlaneArgs plane;
  const int32_t *q_start, *kv_len;
  int32_t sequences, rows;
};
constexpr int kConvRows = 16;  // of a thread; not fewer than taps that reach back
struct ConvArgs {
  SequencesArgs sequences;
  const void *x, *w, *bias;  // [rows, channels], [channels, taps]; bias: may be null
  void* y;
  int64_t channels;
  int32_t taps;
  DType tx, tw, tb, ty;
};
constexpr int kScanInputs = 5, kScanParts = 8;  // parts: of 32 values of a state's row
struct ScanArgs {
  SequencesArgs sequences;
  const void* in[kScanInputs];
  void* y;  // [rows, heads, width]
  int32_t heads, width, groups, n;
  int32_t decays;  // of a head (ssm_scan): 1, or n
  DType type[kScanInputs], ty;
};
// ssm_scan and gated_delta of many rows (op_scan.cu): rows of a chunk, values of a head's width
// that a block computes, and the widest row of a state.
constexpr int kChunkRows = 64, kChunkWidth = 64, kChunkState = 128, kChunkThreads = 256;
constexpr int kChunkStateStride = kChunkState + 8, kChunkRowStride = kChunkRows + 8;
constexpr int kChunkVectorBytes = 2 * kChunkRows * kChunkStateStride * 2;  // keys and queries
constexpr int kChunkStateBytes = 2 * kChunkWidth * kChunkStateStride * 2;
constexpr int kChunkPlaneBytes = kChunkRows * kChunkRowStride * 2;
constexpr int kChunkSolveBytes = 2 * kChunkRows * (kChunkRows + 1) * 4;
constexpr int kChunkNumberBytes = 2 * kChunkRows * 4;
constexpr int chunk_shared_bytes(bool delta) {
  return kChunkVectorBytes + kChunkStateBytes + 6 * kChunkPlaneBytes + kChunkNumberBytes +
         (delta ? kChunkSolveBytes : 0);
}
constexpr int kLoraColumns = 1024;  // of a block
struct LoraArgs {
  const void *x, *a, *b;  // [rows, k], [slots, rank, k], [slots, n, rank]
  const int32_t* adapter;
  void* y;  // [rows, n]
  int64_t k, n;
  int32_t slots, rank;
  DType tx, ta, tb, ty;
};
// Between the products of a decoder layer (layer_launches.h). Values are bf16 where nothing else is
// said.
constexpr int kLayerThreads = 256;
constexpr const char* add_norm_kernel(int64_t n) {
  return n <= 2048 ? "op_add_norm_2048" : n <= 4096 ? "op_add_norm_4096" : "op_add_norm_8192";
}
constexpr int add_norm_threads(int64_t n) { return n <= 4096 ? 512 : 1024; }
struct AddNormArgs {
  float* residual;        // [.., n]
  const uint16_t* delta;  // [.., n], or null
  FewRowsSums sums;       // in its place
  const void* w;          // [n]
  uint16_t* y;            // [rows, n]
  const int32_t* rows;    // which rows; null: all, and their sums are stored
  int64_t n;
  float eps;
  DType tw;
};
struct GateArgs {
  const uint16_t* x;  // [rows, 2, n]
  uint16_t* y;        // [rows, n]
  int64_t rows, n;
};
struct RotateArgs {
  const uint16_t* x;  // [rows, heads + 2 * kv_heads, d]
  FewRowsSums sums;   // in its place
  uint16_t* q;        // [rows, heads, d]
  const int32_t *seq, *slot;
  const float* turns;                   // [rows, d / 2, 2]: op_rope_turns
  const void *query_gains, *key_gains;  // [d], or null
  // [heads, d], [kv_heads, d], or null; added to x, or to the sums before they are rounded.
  const void *query_bias, *key_bias, *value_bias;
  ViewArgs view;
  PlaneArgs key, value;
  int32_t heads, kv_heads, d;
  float eps;
  DType tg, tb;  // of the gains, of the biases
};
struct TurnArgs {
  const int32_t* pos;
  const float* frequencies;  // [half]
  float* turns;              // [rows, half, 2]: cosine, sine
  int64_t rows, half;
  float scale;
};

struct MoveArgs {  // one token's KV, all planes of a group
  const PlaneArgs* planes;
  int32_t block_size, from, to;
};

}  // namespace tokamak::cuda
