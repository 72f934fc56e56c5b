#include "backend/cuda/decode_stream.h"

#include <gtest/gtest.h>

#include <map>

#include "backend/cuda/decode_pack.h"
#include "backend/cuda/decode_plan.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr int kBlocks = 132;
constexpr int kSharedLimit = 232448;  // of an H200

DecoderShape llama_8b() {
  DecoderShape s;
  s.layers = 32;
  s.hidden = 4096;
  s.heads = 32;
  s.kv_heads = 8;
  s.head_dim = 128;
  s.mlp = 14336;
  s.vocab = 128256;
  return s;
}

DecoderWeights weights_of(const DecoderShape& s, DecodeWeight type) {
  DecoderWeights weights;
  LayerWeights layer{};
  layer.qkv.type = layer.out.type = layer.gate_up.type = layer.down.type = type;
  weights.layers.assign(static_cast<size_t>(s.layers), layer);
  weights.head.type = type;
  return weights;
}

// Every value that an instruction waits for was written before, with the tag it waits for, and no
// buffer gets the same tag twice in a step.
TEST(DecodeProgram, ReadersFindTheirTags) {
  DecoderShape s = llama_8b();
  DecodeWorkspace w(s, kMaxBatch, kBlocks);
  std::vector<DecodeInstruction> program =
      make_decode_program(s, weights_of(s, DecodeWeight::kQ4), w, 1 << 20);
  ASSERT_EQ(program.size(), 6u * 32 + 1);
  std::map<const uint16_t*, int> written;
  int partials = -1, products = 0;
  for (const DecodeInstruction& in : program) {
    if (in.op == DecodeOp::kCombine) {
      EXPECT_EQ(in.tag_in, partials);
    } else if (!(in.flags & kFromEmbedding)) {
      ASSERT_TRUE(written.count(in.input)) << "reads what no instruction wrote";
      EXPECT_EQ(written[in.input], in.tag_in);
    }
    if (in.op == DecodeOp::kAttend) {
      EXPECT_GT(in.tag_out, partials);
      partials = in.tag_out;
    } else if (!(in.flags & kToLogits)) {
      ASSERT_NE(in.output, nullptr);
      EXPECT_TRUE(!written.count(in.output) || written[in.output] < in.tag_out);
      written[in.output] = in.tag_out;
    }
    products += in.op == DecodeOp::kMatvec;
  }
  EXPECT_EQ(products, 4 * 32 + 1);
  EXPECT_TRUE(program.front().flags & kFromEmbedding);
  EXPECT_EQ(program[5].parts, 4);  // 14336 wide
  EXPECT_TRUE(program.back().flags & kToLogits);
}

TEST(DecodeProgram, BuffersDoNotOverlap) {
  DecoderShape s = llama_8b();
  for (size_t batch : {1, 8}) {
    DecodeWorkspace w(s, static_cast<int>(batch), kBlocks);
    std::map<size_t, size_t> parts = {
        {w.after_attention, 4096 * 2},   {w.after_mlp, 4096 * 2},  {w.qkv, 6144 * 2},
        {w.attention, 4096 * 2},         {w.activated, 14336 * 2}, {w.partials, 32 * 16 * 129 * 8},
        {w.candidates, kBlocks * 3 * 8}, {w.logits, 128256 * 4}};
    ASSERT_EQ(parts.size(), 8u);
    size_t end = 0;
    for (auto [start, bytes] : parts) {
      EXPECT_GE(start, end);
      EXPECT_EQ(start % 16, 0u);
      end = start + bytes * batch;
    }
    EXPECT_LE(end, w.bytes);
  }
}

TEST(DecodeProgram, SharedMemoryFits) {
  for (DecodeWeight type : {DecodeWeight::kBf16, DecodeWeight::kF16, DecodeWeight::kFp8,
                            DecodeWeight::kQ8, DecodeWeight::kQ4})
    for (int batch : {1, 2, 8}) {
      DecoderShape s = llama_8b();
      EXPECT_LE(DecodeVariant::of(s, batch, type).shared_bytes(s), kSharedLimit);
      s.heads = 64;  // eight query heads per key/value head: fewer slots
      s.mlp = 4096;
      EXPECT_LE(DecodeVariant::of(s, batch, type).shared_bytes(s), kSharedLimit);
    }
}

TEST(DecodeProgram, ShapesThatCannotRunAreRefused) {
  auto refused = [](int max_batch, auto change, DecodeWeight type = DecodeWeight::kBf16) {
    DecoderShape s = llama_8b();
    change(s);
    try {
      check_decode_model(s, weights_of(s, type), max_batch, kBlocks);
    } catch (const Error& e) {
      return e.code() == ErrorCode::kUnsupported;
    }
    return false;
  };
  auto as_is = [](DecoderShape&) {};
  auto odd_width = [](DecoderShape& s) { s.hidden = 896; };
  EXPECT_FALSE(refused(8, as_is));
  EXPECT_FALSE(refused(8, as_is, DecodeWeight::kQ4));
  EXPECT_FALSE(refused(1, odd_width));
  EXPECT_FALSE(refused(1, odd_width, DecodeWeight::kF16));
  EXPECT_TRUE(refused(1, odd_width, DecodeWeight::kFp8));  // no equal shares for the consumers
  EXPECT_TRUE(refused(9, as_is));
  EXPECT_TRUE(refused(1, [](DecoderShape& s) { s.layers = 124; }));
  EXPECT_TRUE(refused(1, [](DecoderShape& s) { s.heads = 36; }));    // no multiple of 8
  EXPECT_TRUE(refused(1, [](DecoderShape& s) { s.kv_heads = 2; }));  // 16 query heads each
  EXPECT_TRUE(refused(1, [](DecoderShape& s) { s.head_dim = 96; }));
  EXPECT_TRUE(refused(1, [](DecoderShape& s) { s.hidden = 32768; }));  // more than threads keep
  EXPECT_TRUE(refused(1, [](DecoderShape& s) { s.mlp = 14340; }));     // unequal parts
  EXPECT_TRUE(refused(1, [](DecoderShape& s) { s.page_size = 12; }));
  // Several sequences: sums of all rows of a block, or the input, have to fit.
  EXPECT_FALSE(refused(1, [](DecoderShape& s) { s.hidden = 8192; }));
  EXPECT_TRUE(refused(2, [](DecoderShape& s) { s.hidden = 8192; }));
}

// What lane `lane` reads of a segment, as the kernel does: element e of row r of the tile.
TEST(DecodePack, EveryElementIsWhereItsLaneReads) {
  const int rows = 35, width = 1024;  // the last tile is not full
  for (DecodeWeight type : {DecodeWeight::kFp8, DecodeWeight::kQ8, DecodeWeight::kQ4}) {
    const bool q8 = type == DecodeWeight::kQ8, q4 = type == DecodeWeight::kQ4;
    const size_t block = q8 ? 34 : q4 ? 18 : 32, row_bytes = width / 32 * block;
    std::vector<uint8_t> source(rows * row_bytes);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 37 + i / 251);
    std::vector<uint8_t> out(packed_bytes(type, rows, width));
    for (int tile = 0; tile < packed_tiles(rows); ++tile)
      pack_tiles(type, source.data(), rows, width, tile, tile + 1, out.data());
    const int parts = decode_parts(type, width), segments = width / parts / 256;
    const auto chunk_bytes = static_cast<size_t>(decode_chunk_bytes(type, width / parts));
    int wrong = 0;
    for (int row = 0; row < packed_tiles(rows) * 16; ++row)
      for (int k = 0; k < width; ++k) {
        const int chunk = (row / 16 * parts * 8) + k / (segments * 32), s = k / 32 % segments;
        const uint8_t* base = out.data() + static_cast<size_t>(chunk) * chunk_bytes;
        const int lane = row % 8 * 4 + k % 32 / 8, low = row % 16 / 8, e = k % 8;
        const uint8_t* from = source.data() + static_cast<size_t>(row) * row_bytes +
                              static_cast<size_t>(k / 32) * block;
        const int i = k % 32;
        int expected = 0, found = 0;
        if (q4) {
          const uint8_t byte = base[s / 2 * 512 + lane * 16 + s % 2 * 8 + low * 4 + e % 4];
          found = static_cast<int8_t>(e < 4 ? byte << 4 : byte & 0xf0) / 16;
          if (row < rows) expected = (i < 16 ? from[2 + i] & 15 : from[2 + i - 16] >> 4) - 8;
        } else {
          const int order[4] = {0, 2, 1, 3};
          found = base[s * 512 + lane * 16 + low * 8 + e / 4 * 4 + (q8 ? e % 4 : order[e % 4])];
          if (row < rows) expected = q8 ? from[2 + i] : from[i];
        }
        if (q8 || q4) {
          const int data = segments * (q4 ? 256 : 512);
          const uint8_t* scale = base + data + (s * 8 + row % 8) * 4 + low * 2;
          wrong += row < rows ? scale[0] != from[0] || scale[1] != from[1] : scale[0] | scale[1];
        }
        wrong += found != expected;
      }
    EXPECT_EQ(wrong, 0) << "type " << static_cast<int>(type);
  }
}

TEST(DecodePlan, Bf16WeightsAreReadAsFp8) {
  PlannedDecoder all, mixed;
  mixed.head_type = DecodeWeight::kQ8;
  read_as_fp8(all);
  read_as_fp8(mixed);
  EXPECT_EQ(all.type, DecodeWeight::kFp8);
  EXPECT_EQ(all.head_type, DecodeWeight::kFp8);
  EXPECT_EQ(mixed.type, DecodeWeight::kFp8);
  EXPECT_EQ(mixed.head_type, DecodeWeight::kQ8);
}

TEST(Driver, ErrorsAreErrors) {
  try {
    Device device(1000);
    FAIL() << "there is no such GPU";
  } catch (const Error& e) {  // no driver, no device, or no device of that number
    EXPECT_TRUE(e.code() == ErrorCode::kUnavailable || e.code() == ErrorCode::kNotFound);
  }
}

}  // namespace
}  // namespace tokamak::cuda
