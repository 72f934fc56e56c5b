#pragma once
// The inner kernels of one instruction-set level as function pointers. Each level is compiled from
// its own source with its own flags; nothing but this plain table leaves such a source, so that no
// inline function compiled for a newer CPU can be linked into code that runs everywhere.
//
// One rule makes results independent of batch size, threads and level: every output element has one
// float accumulator that takes its terms in the order of k by fused multiply-add, and vector lanes
// are output rows. A panel is kPanel output rows interleaved so that a vector register holds
// several rows at the same k.
#include <cstdint>

namespace tokamak::cpu {

constexpr int kPanel = 16;                // output rows per panel
constexpr int kQuantBlock = 32;           // values per scale of an activation
constexpr int64_t kActivationBlock = 40;  // bytes of one q8a block
constexpr int64_t kWideBlock = 896;       // most bytes of a widened block of a panel
constexpr int kMaxWidePanels = 4;
constexpr int kTile = 4;  // activation rows that a wide kernel takes at once

// Weight formats with integer dot products, packed in panels (pack.h has the byte layouts).
enum class QFormat : uint8_t {
  kQ4_0,
  kQ4_1,
  kQ8_0,
  kQ4_K,
  kQ6_K,
  kQ5_0,
  kQ5_1,
  kQ5_K,
  kInt4G32,  // groups with zero points (tensor/group_formats.h)
  kInt4G64,
  kInt4G128,
  kInt8G128,
  kIQ4_NL,
  kMXFP4,
  kIQ4_XS,
  kQ3_K,
  kQ2_K,
  kTQ2_0,
  kCount
};
constexpr int kQFormats = static_cast<int>(QFormat::kCount);

// kI8: whole numbers of the KV cache; their scales are applied outside the kernels.
enum class FType : uint8_t { kF32, kF16, kBF16, kI8, kCount };
constexpr int kFTypes = static_cast<int>(FType::kCount);

enum class Unary : uint8_t {
  kNeg,
  kAbs,
  kExp,
  kSqrt,
  kRsqrt,
  kSquare,
  kTanh,
  kSigmoid,
  kRelu,
  kSilu,
  kGeluTanh,
  kGeluErf,
  kScale,
  kSoftcap,
  kCount
};
enum class Binary : uint8_t { kAdd, kSub, kMul, kDiv, kMax, kMin, kCount };
enum class Reduce : uint8_t { kSum, kSumSquares, kMax, kMin, kCount };

// How a level wants its panels packed.
struct PackStyle {
  int group;     // consecutive k of one row that lie together (4 or 8)
  int vector;    // bytes of a vector register; high bits of 5- and 6-bit values are split by it
  uint8_t xor8;  // applied to the bytes of q8_0 (0x80: unsigned with offset 128)
  uint8_t xor4;  // applied to each nibble of q4_0 (8: two's complement nibbles)
  bool pairs;    // activation tiles: rows interleaved in pairs, 8 values at a time (matrix
                 // instructions)
  bool row_nibbles = false;  // a byte of 4-bit formats holds two rows (pack.h)
};

// One block of 32 values of kTile activation rows (or of one row), as the q kernels read it. `isum`
// holds the integer sums of the two halves of 16.
struct alignas(16) XBlock4 {
  float scale[4], sum[4];
  int32_t isum[2][4];
  int8_t q[128];
};
// The same of four tiles side by side, for levels whose x_tiles is 4: 16 rows as a matrix unit
// loads them.
struct alignas(16) XBlock16 {
  float scale[16], sum[16];
  int32_t isum[2][16];
  int8_t q[512];
};
static_assert(sizeof(XBlock16) == 4 * sizeof(XBlock4));
struct alignas(16) XBlock1 {
  float scale, sum;
  int32_t isum[2];
  int8_t q[32];
};

inline constexpr int kMostFewRows = 8;      // of KernelTable::few_rows
inline constexpr int kSpread = 2 * kPanel;  // of KernelTable::rounded

inline constexpr int kTileStep = 32;                         // values of k in a tile
inline constexpr int64_t kTileRows = 16;                     // of activations
inline constexpr int64_t kTileNumbers = kTileStep * kPanel;  // of weights

// Sums of panels over `steps` steps: sums[panel][row][kPanel] +=, or = where they are new.
struct TileProduct {
  const uint16_t* weights;  // [step][term][kTileNumbers] of each panel
  int64_t panels, panel_numbers;
  int terms;
  const uint16_t* x;  // [step][kTileRows][kTileStep]
  int64_t x_tile;     // numbers from kTileRows rows to the next
  int64_t rows, steps;
  float* sums;
  int64_t panel_sums;  // floats from panel to panel
  bool is_new;
  // Where the results go that are complete, out[row * out_row + panel * kPanel]; nullptr: to sums.
  float* out = nullptr;
  int64_t out_row = 0;
};

// Numbers of 16 bits in blocks of kPairBlock values of k with an f32 scale (tensor/block_formats.h,
// BlockInt16), two values of k side by side. A block of a panel: kPanel scales, then
// [k / 2][kPanel][2].
inline constexpr int kPairBlock = 128;
inline constexpr int64_t kPairPanelBlock = kPanel * 4 + kPairBlock * kPanel * 2;
struct alignas(16) XPairs4 {
  float scale[kTile];
  int16_t q[kPairBlock / 2][kTile][2];
};
// Activation rows times panels, over `blocks` blocks of k: out[row * stride + column]. The product
// is added to what `out` holds; where `is_new` is set, `out` holds nothing yet and starts from the
// bias.
struct PairProduct {
  const uint8_t* panels;       // the first block of each
  int64_t panel_bytes, count;  // from panel to panel; how many
  const XPairs4* x;            // the first block of each tile of kTile rows
  int64_t x_tile;              // blocks from tile to tile
  int64_t rows, blocks;
  float* out;
  int64_t stride;
  int64_t columns;    // at most count * kPanel: the last panel may be cut
  const float* bias;  // of the first column; may be nullptr
  bool is_new;
};

struct KernelTable {
  const char* name;
  PackStyle style;

  // Tiles in a block of activations: 1 (XBlock4), or 4 (XBlock16, passed as XBlock4*).
  int x_tiles;
  // Limits of the rows that stay in a core's cache while panels are read.
  int64_t chunk_bytes;
  int chunk_tiles;

  // out[row][kPanel] = panel . x over `blocks` blocks of 32. qdot4: for the first `rows` rows, at
  // most few_rows; with x_tiles 1 each further tile follows `blocks` blocks after the one before.
  // What it writes for other rows of a tile has no meaning.
  int few_rows;
  void (*qdot1[kQFormats])(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out);
  void (*qdot4[kQFormats])(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows,
                           float* out);
  // qdot1 of two panels that are far apart: out[2][kPanel]. Some CPUs read two long streams of
  // memory faster than one. nullptr: the level has none.
  void (*qdot1x2[kQFormats])(const uint8_t* panel, const uint8_t* other, const XBlock1* x,
                             int64_t blocks, float* out);
  // qdot4 of two panels that are far apart: out[2][kMostFewRows][kPanel]; nullptr: the level has
  // none.
  void (*qdot4x2[kQFormats])(const uint8_t* panel, const uint8_t* other, const XBlock4* x,
                             int64_t blocks, int rows, float* out);
  // For many rows: qwiden brings `blocks` blocks of a panel (whole super-blocks) to int8 and f32 in
  // a form of the level's own, at most kWideBlock bytes each. qwide multiplies `panels` of these,
  // blocks * kWideBlock bytes apart, with `rows` rows in blocks of x_tiles tiles that are `stride`
  // blocks apart:
  // sums[panel][row][kPanel] +=, so that k can come in parts. wide_panels: how many it is given at
  // once, at most kMaxWidePanels; wide_blocks: how many blocks of each; wide_group: panels that are
  // multiplied with these blocks of all rows before the next ones, so that only a part of the rows
  // has to stay in the cache (1: it holds all of them); wide_rows: from how many rows on it beats
  // qdot4. nullptr: the level has none, and qdot4 does the same.
  int wide_panels, wide_blocks, wide_group, wide_rows[kQFormats];
  void (*qwiden[kQFormats])(const uint8_t* panel, int64_t blocks, uint8_t* wide);
  void (*qwide[kQFormats])(const uint8_t* wide, int64_t panels, const XBlock4* x, int64_t stride,
                           int64_t rows, int64_t blocks, float* sums);
  // Rearranges n <= kTile rows of q8a blocks (40 bytes each); the scales of absent rows become
  // zero. tile < x_tiles: the place in the blocks.
  void (*pack_x1)(const void* x, int64_t blocks, XBlock1* out);
  void (*pack_x4)(const void* const* rows, int n, int64_t blocks, int tile, XBlock4* out);
  void (*quantize_row)(const float* x, int64_t n, void* blocks);

  // acc[c][kPanel] += sum over k of panel[k][kPanel] * x[k][c], from and to memory, so that k can
  // come in parts.
  void (*fdot1[kFTypes])(const void* panel, const float* x, int64_t k, float* acc);
  void (*fdot4[kFTypes])(const void* panel, const float* x, int64_t k, float* acc);
  // fdot4 of two panels: twice the independent sums. nullptr: the level has too few registers.
  void (*fdot4x2[kFTypes])(const void* panel, const void* other, const float* x, int64_t k,
                           float* acc, float* other_acc);
  // fdot4 for any number of rows: sums[row][kPanel] += . Rows are in tiles [k][kTile] that are
  // `stride` floats apart.
  void (*fdot_rows[kFTypes])(const void* panel, const float* x, int64_t stride, int64_t rows,
                             int64_t k, float* sums);
  // The same for `count` panels of f32 that are `panel_stride` floats apart:
  // sums[panel][row][kPanel]. float_panels of them are multiplied at once.
  int64_t float_panels;
  void (*fdot_panels)(const float* panels, int64_t panel_stride, int64_t count, const float* x,
                      int64_t stride, int64_t rows, int64_t k, float* sums);
  // The same for panels of any type that are `panel_stride` bytes apart and come from memory.
  void (*fdot_far[kFTypes])(const void* panels, int64_t panel_stride, int64_t count, const float* x,
                            int64_t stride, int64_t rows, int64_t k, float* sums);
  // kTile rows that are `stride` floats apart become a tile [k][kTile].
  void (*pack_x4_floats)(const float* x, int64_t stride, int64_t k, float* to);
  // Four neighbouring panels (stride in bytes) for one row: enough independent sums to hide the
  // latency.
  void (*fdot1x4[kFTypes])(const void* panel, int64_t stride, const float* x, int64_t k,
                           float* acc);
  // The same sums for f16 without infinities and NaN, faster than converting; false when a number
  // in x is too large for it: acc is as it was. nullptr: the level has none.
  bool (*hdot1x4)(const void* panel, int64_t stride, const float* x, int64_t k, float* acc);
  // Panels of bf16 by matrix instructions that multiply bf16 numbers. bf16_split makes two of each
  // activation, its rounded value and what rounding left, [k / 4][2][4] with zeros after the end;
  // their products are summed apart and added at the end. Two panels that are far apart with one
  // row: bf16_dot1x2, out[2][kPanel]. Many rows: bf16_spread brings a part of a panel to the order
  // that bf16_rows reads, bf16_rows adds its products to sums[row][2 * kPanel], bf16_join ends
  // them. nullptr: the level has none.
  void (*bf16_split)(const float* x, int64_t k, uint16_t* out);
  void (*bf16_dot1x2)(const void* panel, const void* other, const uint16_t* x, int64_t k,
                      float* out);
  void (*bf16_spread)(const void* panel, int64_t k, uint16_t* out);
  void (*bf16_rows)(const uint16_t* spread, const uint16_t* x, int64_t stride, int64_t rows,
                    int64_t k, float* sums);
  void (*bf16_join)(const float* sums, int64_t rows, float* out);
  // A matrix unit that multiplies tiles of bf16 numbers, for activations that are bf16. A step is
  // kTileStep values of k. spread brings the first k values of a panel to one tile for each step,
  // [k / 2][kPanel][2]; zeros follow the last one. Numbers are rounded to bf16, the nearest, ties
  // away from zero; an f16 number is the sum of two, and a step has two tiles. multiply:
  // TileProduct. nullptr: the level has none.
  struct TileUnit {
    void (*spread[kQFormats])(const uint8_t* panel, int64_t k, uint16_t* tiles);
    void (*spread_float[kFTypes])(const uint8_t* panel, int64_t k, uint16_t* tiles);
    void (*multiply)(const TileProduct& product);
    // One row, widened and padded with zeros to whole steps, with two panels: out[2][kPanel].
    void (*row[kQFormats])(const uint8_t* panel, const uint8_t* other, const float* x, int64_t k,
                           float* out);
    void (*row_float[kFTypes])(const uint8_t* panel, const uint8_t* other, const float* x,
                               int64_t k, float* out);
    int64_t rows;  // from this many on faster than int8 activations with quantised formats
  } tile_unit;
  // Products of 16-bit integers, for activations that are f32: pack rounds n <= kTile rows that are
  // `stride` floats apart. Sums of a block are exact, those of blocks are added in f32 in the order
  // of k. nullptr: the level has none.
  struct PairUnit {
    void (*pack)(const float* x, int64_t stride, int64_t n, int64_t k, XPairs4* out);
    void (*multiply)(const PairProduct& product);
  } pairs;
  // Matrix instructions on activations that are bf16 numbers, for panels of f16 and bf16. One row,
  // padded with zeros to a multiple of bf16_group, with two panels that are far apart: row,
  // out[2][kPanel]. Up to kMostFewRows packed rows with a part of a panel that begins at `at`: few,
  // sums[row][kPanel] +=; may be nullptr. Many rows: bf16_pack brings a tile of n <= kTile rows to
  // the level's order, kTile numbers for each k up to a multiple of bf16_group. spread does so with
  // a part of a panel, at most kSpread numbers for each; tiles adds the products of that part,
  // which begins at `at`, to sums of 2 * kPanel floats for every two rows, from tiles that are
  // `stride` numbers apart; bf16_part takes the sums apart: out[row][kPanel]. nullptr: the level
  // has none.
  struct RoundedProduct {
    void (*row)(const void* panel, const void* other, const uint16_t* x, int64_t k, float* out);
    void (*few)(const void* panel, const uint16_t* x, int64_t stride, int64_t at, int64_t rows,
                int64_t k, float* sums);
    void (*spread)(const void* panel, int64_t k, uint16_t* out);
    void (*tiles)(const uint16_t* spread, const uint16_t* x, int64_t stride, int64_t at,
                  int64_t rows, int64_t k, float* sums);
  } rounded[kFTypes];
  int bf16_group;
  void (*bf16_pack)(const uint16_t* x, int64_t n, int64_t k, uint16_t* out);
  void (*bf16_part)(const float* sums, int64_t rows, float* out);
  void (*widen[kFTypes])(const void* in, float* out, int64_t n);  // to f32
  void (*narrow[kFTypes])(const float* in, void* out,
                          int64_t n);  // from f32, nearest even; not for i8

  void (*unary[static_cast<int>(Unary::kCount)])(const float* x, float* out, int64_t n, float p);
  void (*binary[static_cast<int>(Binary::kCount)])(const float* a, const float* b, float* out,
                                                   int64_t n);
  void (*binary_scalar[static_cast<int>(Binary::kCount)])(const float* a, float b, float* out,
                                                          int64_t n);
  // (x * s) * w
  void (*scale_mul)(const float* x, float s, const float* w, float* out, int64_t n);
  // A row in parts: lane j of 16 takes elements j, j + 16, ... (every part but the last is a
  // multiple of 16), join_lanes ends it by a fixed tree. The norms and softmax sum in the same way.
  void (*reduce[static_cast<int>(Reduce::kCount)])(const float* x, int64_t n, float* lanes);
  float (*join_lanes[static_cast<int>(Reduce::kCount)])(const float* lanes);
  void (*rms_norm)(const float* x, const float* w, float* out, int64_t n, float eps);
  void (*layer_norm)(const float* x, const float* w, const float* bias, float* out, int64_t n,
                     float eps);
  void (*softmax)(const float* x, float* out, int64_t n);
  // x[d], first 2 * half rotated by cos/sin[half], the rest copied.
  void (*rope)(const float* x, const float* cos, const float* sin, float* out, int64_t half,
               int64_t d);
  // One row of an online softmax over n scores: scores become weights, max and sum are updated, the
  // factor for what was accumulated before is returned.
  float (*softmax_tile)(float* scores, int64_t n, float* max, float* sum);
  // kTile columns of n scores, a multiple of kPanel, at scores[n / kPanel][stride][kPanel]: the
  // weights become a tile to[n][kTile], their sums are not divided by.
  void (*softmax_x4)(const float* scores, int64_t stride, int64_t n, float* to, float* sums);
  // softmax_tile of such columns: their weights become a tile, the factors go to factors[kTile].
  void (*softmax_tile_x4)(const float* scores, int64_t stride, int64_t n, float* to, float* max,
                          float* sum, float* factors);
  // One row of an online softmax over scores in powers of two, of which the first `count` are
  // visible: scores[panel][stride]. The weights are rounded to bf16 before they are summed; those
  // of two neighbouring panels lie side by side, to[step][32] that are `apart` numbers apart; zeros
  // follow. Returns the factor for what was accumulated before. nullptr: the level has none.
  float (*weigh_bf16)(const float* scores, int64_t stride, int64_t count, int64_t steps,
                      uint16_t* to, int64_t apart, float* max, float* sum);
};

const KernelTable* scalar_table();
// Compiled in on their architecture only, and to be called only where the level runs (isa.h).
const KernelTable* neon_table();
const KernelTable* i8mm_table();
const KernelTable* bf16_table();
const KernelTable* avx2_table();
const KernelTable* avxvnni_table();
const KernelTable* avx512_table();
KernelTable::PairUnit avx512_pairs();  // a part of it
const KernelTable* amx_table();

}  // namespace tokamak::cpu
