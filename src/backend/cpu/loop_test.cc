// Loop IR on every level of this machine, against the kernels and against the meaning: what
// compile/lower's tests do not reach (conversions, scatter, kept loads) and what has to run on
// other architectures too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/exec.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/schedule.h"
#include "base/error.h"
#include "base/rng.h"
#include "loop/evaluate.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

struct LoopValue {
  DType dtype = DType::kF32;
  std::vector<float> f;
  std::vector<int32_t> i;
  std::vector<std::byte> encoded;  // f16, bf16, q8a

  Tensor tensor(int64_t n) {
    Tensor t;
    t.dtype = dtype;
    t.rank = 1;
    t.dims[0] = n;
    t.data = dtype == DType::kF32   ? static_cast<void*>(f.data())
             : dtype == DType::kI32 ? static_cast<void*>(i.data())
                                    : static_cast<void*>(encoded.data());
    return t;
  }
};

// The region that is one program.
Region region_of(const loop::Program& program) {
  Region region;
  RegionPiece piece;
  piece.program = std::make_shared<loop::Program>(program);
  for (const TensorType& t : program.in) {
    piece.in.push_back(region.inputs++);
    region.values.push_back(Type::of(t));
  }
  for (const TensorType& t : program.out) {
    piece.out.push_back(static_cast<uint32_t>(region.values.size()));
    region.values.push_back(Type::of(t));
  }
  region.results = piece.out;
  region.pieces = {piece};
  return region;
}

class LoopCase {
 public:
  LoopCase(std::string text, std::map<std::string, int64_t, std::less<>> symbols, uint64_t seed)
      : text_(std::move(text)), program_(loop::parse_program(text_)), symbols_(std::move(symbols)) {
    Rng rng(seed);
    for (const TensorType& t : program_.in) in_.push_back(make(t, &rng));
    for (const TensorType& t : program_.out) out_.push_back(make(t, nullptr));
  }
  std::vector<LoopValue>& in() { return in_; }

  std::vector<LoopValue> meaning() {
    std::vector<LoopValue> out = out_;
    std::vector<TensorRef<float>> from, to;
    auto ref = [&](LoopValue& v, const std::vector<int64_t>& dims) {
      return TensorRef<float>{dims, v.i.empty() ? v.f.data() : nullptr,
                              v.i.empty() ? nullptr : v.i.data()};
    };
    std::vector<std::vector<int64_t>> dims;
    for (auto* list : {&in_, &out})
      for (LoopValue& v : *list)
        dims.push_back({static_cast<int64_t>(std::max(v.f.size(), v.i.size()))});
    for (size_t k = 0; k < in_.size(); ++k) from.push_back(ref(in_[k], dims[k]));
    for (size_t k = 0; k < out.size(); ++k) to.push_back(ref(out[k], dims[in_.size() + k]));
    loop::evaluate_program<float>(program_, symbols_, from, to);
    return out;
  }

  std::vector<LoopValue> run(const KernelTable& table, int threads) {
    std::vector<LoopValue> values = out_;
    std::vector<Tensor> in, out;
    auto elements = [&](const TensorType& t) { return t.elements().eval(symbols_); };
    for (size_t k = 0; k < in_.size(); ++k) in.push_back(in_[k].tensor(elements(program_.in[k])));
    for (size_t k = 0; k < values.size(); ++k)
      out.push_back(values[k].tensor(elements(program_.out[k])));
    std::vector<SymbolDecl> decls;
    std::vector<int64_t> numbers;
    for (const auto& [name, value] : symbols_) {
      decls.push_back({name, 1, value, 1});
      numbers.push_back(value);
    }
    ThreadPool pool(threads);
    KvStore kv;
    Region region = region_of(program_);
    auto op =
        make_op(planned_kernel({"cpu.loop", 1, ""}),
                {nullptr, "region", Value(), in, out, table, kv, threads, "test", decls, &region});
    StepContext context{table, kv, threads};
    std::vector<uint8_t> scratch(static_cast<size_t>((op->scratch_bytes() + 64) * threads), 0xee);
    context.symbols = numbers;
    context.scratch = scratch.data();
    context.scratch_bytes = op->scratch_bytes() + 64;
    op->bind(in.data(), out.data(), context);
    run_call(*op, in.data(), out.data(), context, pool);
    for (LoopValue& v : values)
      if (!v.encoded.empty() && v.dtype != DType::kQ8A)
        decode_row(v.dtype, v.encoded.data(), v.f.data(), static_cast<int64_t>(v.f.size()));
    return values;
  }

 private:
  LoopValue make(const TensorType& t, Rng* rng) const {
    LoopValue v;
    v.dtype = t.dtype;
    auto n = static_cast<size_t>(t.elements().eval(symbols_));
    if (t.dtype == DType::kI32) {
      v.i.resize(n, 5);
      if (rng)
        for (int32_t& x : v.i) x = static_cast<int32_t>(rng->below(7)) - 1;
      return v;
    }
    v.f.resize(n, 55.0f);
    if (rng)
      for (float& x : v.f) x = static_cast<float>(rng->normal());
    if (t.dtype == DType::kF32) return v;
    v.encoded.resize(dtype_bytes(t.dtype, static_cast<int64_t>(n)));
    if (t.dtype != DType::kQ8A) {
      encode_row(t.dtype, v.f.data(), v.encoded.data(), static_cast<int64_t>(n));
      decode_row(t.dtype, v.encoded.data(), v.f.data(), static_cast<int64_t>(n));
    }
    return v;
  }

  std::string text_;
  loop::Program program_;
  std::map<std::string, int64_t, std::less<>> symbols_;
  std::vector<LoopValue> in_, out_;
};

constexpr const char* kResidualNorm =
    "loop 1\nrows T\ncolumns {0}\nin0 : f32[T, {0}]\nin1 : f32[T, {0}]\nin2 : f32[{0}]\n"
    "out0 : f32[T, {0}]\nout1 : f32[T, {0}]\n"
    "%0 = load in0[c + {0}*r0] : f32 tile\n%1 = load in1[c + {0}*r0] : f32 tile\n"
    "%2 = add %0, %1 : f32 tile\n%3 = sum_squares %2 : wide row\n%4 = columns : wide row\n"
    "%5 = div %3, %4 : wide row\n%6 = const 1e-05 : wide row\n%7 = add %5, %6 : wide row\n"
    "%8 = rsqrt %7 : wide row\n%9 = mul %2, %8 : wide tile\n%10 = load in2[c] : f32 tile\n"
    "%11 = mul %9, %10 : f32 tile\nstore out0[c + {0}*r0] = %2\nstore out1[c + {0}*r0] = %11\n";

TEST(CpuLoop, ResidualNormIsTheTwoKernels) {
  for (int64_t columns : {1, 16, 19, 576, 1040, 8192, 8208})
    for (const KernelTable* table : available_tables()) {
      SCOPED_TRACE(fmt::format("{} of {} columns", table->name, columns));
      constexpr int64_t kRows = 5;
      LoopCase c(fmt::format(fmt::runtime(kResidualNorm), columns), {{"T", kRows}}, 1);
      std::vector<LoopValue> have = c.run(*table, 2);
      auto n = static_cast<size_t>(columns);
      std::vector<float> sum(n), norm(n);
      for (size_t r = 0; r < kRows; ++r) {
        table->binary[static_cast<int>(Binary::kAdd)](
            c.in()[0].f.data() + r * n, c.in()[1].f.data() + r * n, sum.data(), columns);
        table->rms_norm(sum.data(), c.in()[2].f.data(), norm.data(), columns, 1e-5f);
        EXPECT_EQ(std::memcmp(have[0].f.data() + r * n, sum.data(), n * 4), 0);
        EXPECT_EQ(std::memcmp(have[1].f.data() + r * n, norm.data(), n * 4), 0);
      }
    }
}

// Everything that is exact must have the bits of the meaning.
TEST(CpuLoop, IntegersConversionsAndRowsByIndex) {
  const char* text =
      "loop 1\nrows T, 2\ncolumns 37\nin0 : f16[6, 37]\nin1 : i32[T]\nin2 : f32[74*T]\n"
      "in3 : bf16[37, T]\nout0 : bf16[T, 2, 37]\nout1 : i32[T, 2, 37]\nout2 : f32[T, 2]\n"
      "out3 : f32[T, 2, 37]\nout4 : f32[37, 2, T]\n"
      "%0 = load in1[r0] : i32 row\n%1 = load in0[c + 37*g] by %0 below 6 : f32 tile\n"
      "%2 = load in2[2*c + 74*r0] : f32 tile\n%3 = add %1, %2 : f32 tile\n"
      "%4 = round_bf16 %3 : f32 tile\n%5 = to_i32 %3 : i32 tile\n%6 = index [c + r1] : i32 tile\n"
      "%7 = mul %5, %6 : i32 tile\n%8 = maximum %7, %0 : i32 tile\n%9 = max %2 : f32 row\n"
      "%10 = ge %2, %9 : i32 tile\n%11 = const 0.5 : f32 row\n%12 = select %10, %11, %1 : f32 "
      "tile\n"
      "%13 = load in3[T*c + r0] : f32 tile\n%14 = min %13 : f32 row\n%15 = sub %9, %14 : f32 row\n"
      "%16 = maximum %15, %11 : f32 row\n%17 = sub %13, %14 : f32 tile\n"
      "%18 = round_f16 %17 : f32 tile\n"
      "store out0[c + 74*r0 + 37*r1] = %4\nstore out1[c + 74*r0 + 37*r1] = %8\n"
      "store out2[2*r0 + r1] = %16\nstore out3[c + 74*r0 + 37*r1] = %12\n"
      "store out4[2*T*c + T*r1 + r0] = %18\n";
  for (int64_t rows : {1, 3, 8}) {
    LoopCase c(text, {{"T", rows}}, static_cast<uint64_t>(rows));
    std::vector<LoopValue> want = c.meaning();
    for (const KernelTable* table : available_tables()) {
      SCOPED_TRACE(fmt::format("{} of {} rows", table->name, rows));
      std::vector<LoopValue> have = c.run(*table, 2);
      for (size_t k = 0; k < want.size(); ++k) {
        EXPECT_EQ(have[k].i, want[k].i) << k;
        EXPECT_EQ(have[k].f, want[k].f) << k;
      }
    }
  }
}

TEST(CpuLoop, ScatterWritesRowsInOrder) {
  const char* text =
      "loop 1\nrows N\ncolumns 20\nin0 : f32[N, 20]\nin1 : i32[N]\nout0 : f32[6, 20]\n"
      "%0 = load in1[r0] : i32 row\n%1 = load in0[c + 20*r0] : f32 tile\n%2 = neg %1 : f32 tile\n"
      "store out0[c + 20*g] by %0 below 6 = %2\n";
  LoopCase c(text, {{"N", 40}}, 9);
  std::vector<LoopValue> want = c.meaning();
  for (const KernelTable* table : available_tables())
    EXPECT_EQ(c.run(*table, 3)[0].f, want[0].f) << table->name;
  c.in()[1].i[17] = 6;
  EXPECT_THROW(c.run(*scalar_table(), 3), Error);
}

TEST(CpuLoop, QuantizedOutputIsTheKernels) {
  const char* text =
      "loop 1\nrows T\ncolumns 1056\nin0 : f32[T, 1056]\nout0 : q8a[T, 1056]\n"
      "%0 = load in0[c + 1056*r0] : f32 tile\n%1 = silu %0 : f32 tile\n"
      "store out0[c + 1056*r0] = %1\n";
  for (const KernelTable* table : available_tables()) {
    LoopCase c(text, {{"T", 4}}, 2);
    std::vector<LoopValue> have = c.run(*table, 2);
    std::vector<float> y(4 * 1056);
    table->unary[static_cast<int>(Unary::kSilu)](c.in()[0].f.data(), y.data(), 4 * 1056, 0);
    std::vector<std::byte> want(have[0].encoded.size());
    table->quantize_row(y.data(), 4 * 1056, want.data());
    EXPECT_EQ(have[0].encoded, want) << table->name;
  }
}

TEST(CpuLoop, RefusesOtherArgumentsAtLoad) {
  Region region = region_of(loop::parse_program(fmt::format(fmt::runtime(kResidualNorm), 8))),
         empty;
  auto make = [&](const std::vector<Tensor>& from, const std::vector<Tensor>& to,
                  std::span<const SymbolDecl> decls, const Region* what) {
    KvStore kv;
    return make_op(planned_kernel({"cpu.loop", 1, ""}), {nullptr, "region", Value(), from, to,
                                                         *scalar_table(), kv, 1, "x", decls, what});
  };
  std::vector<float> memory(64);
  Tensor t;
  t.data = memory.data();
  t.rank = 1;
  t.dims[0] = 8;
  std::vector<Tensor> in(3, t), out(2, t), none;
  std::vector<SymbolDecl> symbols = {{"T", 1, 1, 1}};
  EXPECT_NE(make(in, out, symbols, &region), nullptr);
  EXPECT_THROW(make(none, out, symbols, &region), Error);
  EXPECT_THROW(make(in, out, {}, &region), Error);  // no T
  in[2].dims[0] = 9;
  EXPECT_THROW(make(in, out, symbols, &region), Error);
  EXPECT_THROW(make(in, out, symbols, &empty), Error);
  EXPECT_THROW(make(in, out, symbols, nullptr), Error);
}

}  // namespace
}  // namespace tokamak::cpu
