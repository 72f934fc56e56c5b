#include "backend/cuda/decode_stream.h"

#include <gtest/gtest.h>

#include <map>

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

std::vector<DecodeInstruction> program_of(const DecoderShape& s, const DecodeWorkspace& w) {
  DecoderWeights weights{};
  weights.layers.resize(static_cast<size_t>(s.layers));
  return make_decode_program(s, weights, w, 1 << 20);
}

// Every value that an instruction waits for was written before, with the tag it waits for, and no
// buffer gets the same tag twice in a step.
TEST(DecodeProgram, ReadersFindTheirTags) {
  DecoderShape s = llama_8b();
  DecodeWorkspace w(s, kBlocks);
  std::vector<DecodeInstruction> program = program_of(s, w);
  ASSERT_EQ(program.size(), 6u * 32 + 1);
  std::map<const uint32_t*, int> written;
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
  EXPECT_TRUE(program.back().flags & kToLogits);
}

TEST(DecodeProgram, BuffersDoNotOverlap) {
  DecoderShape s = llama_8b();
  DecodeWorkspace w(s, kBlocks);
  std::map<size_t, size_t> parts = {
      {w.after_attention, 4096 * 4},   {w.after_mlp, 4096 * 4},  {w.qkv, 6144 * 4},
      {w.attention, 4096 * 4},         {w.activated, 14336 * 4}, {w.partials, 32 * 16 * 129 * 8},
      {w.candidates, kBlocks * 3 * 8}, {w.logits, 128256 * 4}};
  ASSERT_EQ(parts.size(), 8u);
  size_t end = 0;
  for (auto [start, bytes] : parts) {
    EXPECT_GE(start, end);
    EXPECT_EQ(start % 16, 0u);
    end = start + bytes;
  }
  EXPECT_LE(end, w.bytes);
}

TEST(DecodeProgram, SharedMemoryFits) {
  DecoderShape s = llama_8b();
  EXPECT_LE(DecodeVariant::of(s).shared_bytes(s), kSharedLimit);
  s.heads = 64;  // eight query heads per key/value head: one slot less
  s.mlp = 4096;
  EXPECT_EQ(DecodeVariant::of(s).slots, 5);
  EXPECT_LE(DecodeVariant::of(s).shared_bytes(s), kSharedLimit);
}

TEST(DecodeProgram, ShapesThatCannotRunAreRefused) {
  auto refused = [](auto change) {
    DecoderShape s = llama_8b();
    change(s);
    try {
      check_decode_shape(s, DecodeVariant::of(s), kBlocks);
    } catch (const Error& e) {
      return e.code() == ErrorCode::kUnsupported;
    }
    return false;
  };
  EXPECT_FALSE(refused([](DecoderShape&) {}));
  EXPECT_TRUE(refused([](DecoderShape& s) { s.layers = 134; }));
  EXPECT_TRUE(refused([](DecoderShape& s) { s.heads = 36; }));      // no multiple of 8
  EXPECT_TRUE(refused([](DecoderShape& s) { s.kv_heads = 2; }));    // 16 query heads each
  EXPECT_TRUE(refused([](DecoderShape& s) { s.hidden = 128; }));    // blocks without a row
  EXPECT_TRUE(refused([](DecoderShape& s) { s.hidden = 16384; }));  // more rows than a warp keeps
  EXPECT_TRUE(refused([](DecoderShape& s) { s.mlp = 14340; }));     // unequal chunks
  EXPECT_TRUE(refused([](DecoderShape& s) { s.page_size = 12; }));
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
