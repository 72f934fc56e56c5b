// The pass choose-storage: which values it changes, for whom, and that the whole function then
// rounds exactly where a hand-written computation does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "compile/pass.h"
#include "compile/planner/kernels.h"
#include "compile/planner/planner.h"
#include "graph/evaluate.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

constexpr const char* kLayer = R"(module layer format 1
symbol T in 1..8
weight table : f32[v=16, d=8] from table
weight norm : f32[d=8] from norm
weight up : f32[n=12, d=8] from up
weight down : f32[d=8, n=12] from down
constant freq : f32[n=4] = [1, 0.5, 0.25, 0.125]
func step {
  %0 = input ids : i32[t=T]
  %1 = input pos : i32[t=T]
  %2 = embed(%0, @table)
  %3 = rms_norm(%2, @norm) {eps=1e-05}
  %4 = linear(%3, @up)
  %5 = silu(%4)
  %6 = linear(%5, @down)
  %7 = add(%2, %6)
  %8 = linear(%7, @table)
  %14 = softcap(%8) {cap=30.0}
  %9 = cast(%1) {dtype="f32"}
  %10 = reshape(%9) {dims=["T", 1], axes=["t", "n"]}
  %11 = mul(%10, $freq)
  %12 = cos(%11)
  %13 = reduce_mean(%7) {axis=1, keep=1}
  return logits = %14
  return angles = %12
  return mean = %13
}
)";

// A backend with a wish, and kernels that can store some ops narrow.
class Wishful final : public Backend {
 public:
  Wishful(StorageWish wish, std::string pattern) : wish_(wish) {
    KernelDesc narrow, f32;
    narrow.name = "w.narrow";
    narrow.pattern = std::move(pattern);
    narrow.out_types = {DType::kF32, DType::kF16, DType::kBF16};
    f32.name = "w.f32";
    f32.pattern = "*";
    kernels_ = {narrow, f32};
  }
  std::string_view name() const override { return "wishful"; }
  std::string isa() const override { return "none"; }
  std::span<const KernelDesc> kernels() const override { return kernels_; }
  StorageWish storage() const override { return wish_; }
  std::unique_ptr<Executable> load(const PlanSet&, const WeightSource&,
                                   const LoadOptions&) override {
    fail(ErrorCode::kUnsupported, "it runs nothing");
  }

 private:
  StorageWish wish_;
  std::vector<KernelDesc> kernels_;
};

// "embed=bf16 linear=f16 ...": the ops with a type of their own, in order.
std::string chosen(const Backend& backend, const std::string& storage,
                   std::map<std::string, size_t>* refused = nullptr) {
  Module module = parse_module(kLayer);
  CompileOptions options;
  options.passes = {"choose-storage", "dead-code"};
  options.storage = storage;
  Function& fn = *module.functions[0];
  auto timings = run_passes(module, fn, {backend, options});
  if (refused) *refused = timings[0].refused;
  std::string out;
  for (const Node& node : fn.nodes())
    if (node.attrs.has(kStorageAttr))
      out += fmt::format("{}={} ", node.op->name, dtype_name(node.outputs[0].tensor.dtype));
  return out;
}

TEST(Storage, RolesOfValues) {
  auto ref = make_backend("ref");
  EXPECT_EQ(chosen(*ref, ""), "");
  EXPECT_EQ(chosen(*ref, "f32"), "");
  // Logits, values computed from positions and row statistics stay f32.
  EXPECT_EQ(chosen(*ref, "bf16"),
            "embed=bf16 rms_norm=bf16 linear=bf16 silu=bf16 linear=bf16 add=bf16 ");
  EXPECT_EQ(chosen(*ref, "f16,residual=f32"), "rms_norm=f16 linear=f16 silu=f16 linear=f16 ");
  EXPECT_EQ(chosen(*ref, "f32,logits=f16"), "linear=f16 softcap=f16 ");
  EXPECT_EQ(
      chosen(*ref, "f16,residual=bf16,logits=f16"),
      "embed=bf16 rms_norm=f16 linear=f16 silu=f16 linear=f16 add=bf16 linear=f16 softcap=f16 ");
}

TEST(Storage, TextIsChecked) {
  for (const char* text : {"f64", "q8_0", "bf16,f16", "bf16,kv=f16", "bf16,residual=", "i32"})
    EXPECT_THROW(storage_from_text(text), Error) << text;
}

TEST(Storage, TheBackendAsks) {
  StorageWish wish{DType::kBF16, DType::kF32, DType::kF32};
  EXPECT_EQ(chosen(Wishful(wish, "*"), ""), "rms_norm=bf16 linear=bf16 silu=bf16 linear=bf16 ");
  EXPECT_EQ(chosen(Wishful(wish, "*"), "f32"), "");  // the user decides
  // Ops without a kernel that stores narrow stay f32 and are counted; an explicit request fails.
  std::map<std::string, size_t> refused;
  Wishful some(wish, "linear(*, *)");
  EXPECT_EQ(chosen(some, "", &refused), "linear=bf16 linear=bf16 ");
  EXPECT_EQ(refused["no kernel stores silu as bf16"], 1u);
  try {
    chosen(*make_backend("cpu"), "bf16");
    FAIL() << "cpu has no kernels for it";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(
        e.what(),
        "--storage bf16: backend cpu has no kernel that stores embed as bf16; use --storage "
        "f32 or another backend");
  }
}

// A node with a storage type is never planned on a kernel that would store f32.
TEST(Storage, PlannerRefusesKernelsThatStoreF32) {
  Module module = parse_module(
      "module m format 1\nfunc f {\n%0 = input x : f32[d=8]\n%1 = neg(%0) {out=\"bf16\"}\n"
      "%2 = exp(%1)\nreturn y = %2\n}\n");
  const Function& fn = *module.functions[0];
  auto cpu = make_backend("cpu"), ref = make_backend("ref");
  EXPECT_TRUE(KernelSet(*cpu).of_node(fn, fn.node(1)).empty());
  EXPECT_FALSE(KernelSet(*ref).of_node(fn, fn.node(1)).empty());
  try {
    PlanSet set;
    std::vector<PlanRequest> requests(1);
    requests[0].function = &fn;
    Machine machine;
    plan_functions(set, requests, *cpu, machine);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("neg(f32) stored as bf16"), std::string::npos) << e.what();
  }
}

// The layer above by hand, in double, rounded where a value is stored.
class ByHand {
 public:
  ByHand(const EvalInputs<float>& in, DType activations, DType residual)
      : in_(in), activations_(activations), residual_(residual) {}

  std::vector<float> logits() const {
    const std::vector<int32_t>& ids = in_.tensors.at("ids").i;
    std::vector<float> out;
    for (int32_t id : ids) {
      std::vector<double> x(8);
      for (size_t i = 0; i < 8; ++i) x[i] = round(residual_, weight("table")[id * 8 + i]);
      double squares = 0;
      for (double v : x) squares += v * v;
      std::vector<double> n(8);
      for (size_t i = 0; i < 8; ++i)
        n[i] = round(activations_, x[i] / std::sqrt(squares / 8 + 1e-5) * weight("norm")[i]);
      std::vector<double> up = product(n, "up", 12);
      for (double& v : up) v = round(activations_, v);
      for (double& v : up) v = round(activations_, v / (1 + std::exp(-v)));
      std::vector<double> down = product(up, "down", 8);
      for (size_t i = 0; i < 8; ++i) x[i] = round(residual_, x[i] + round(activations_, down[i]));
      for (double v : product(x, "table", 16))
        out.push_back(static_cast<float>(30 * std::tanh(static_cast<float>(v) / 30.0)));
    }
    return out;
  }

 private:
  static double round(DType dtype, double v) {  // truncates and compares the rest with one half
    if (dtype == DType::kF32) return static_cast<float>(v);
    int digits = dtype == DType::kBF16 ? 8 : 11, exponent = 0;
    double scaled = std::ldexp(std::frexp(v, &exponent), digits), low = std::floor(scaled);
    double rest = scaled - low;
    bool up = rest > 0.5 || (rest == 0.5 && std::fmod(low, 2) != 0);
    return std::ldexp(low + up, exponent - digits);
  }
  const std::vector<float>& weight(const char* name) const { return in_.sources.at(name).f; }
  std::vector<double> product(const std::vector<double>& x, const char* name, size_t n) const {
    std::vector<double> y(n, 0);
    for (size_t j = 0; j < n; ++j)
      for (size_t i = 0; i < x.size(); ++i) y[j] += x[i] * weight(name)[j * x.size() + i];
    return y;
  }
  const EvalInputs<float>& in_;
  DType activations_, residual_;
};

TEST(Storage, AFunctionRoundsAsByHand) {
  auto ref = make_backend("ref");
  struct Case {
    const char* storage;
    DType activations, residual;
    double error;  // of the logits against those of f32
  };
  for (const Case& c :
       {Case{"bf16", DType::kBF16, DType::kBF16, 1e-4}, Case{"f16", DType::kF16, DType::kF16, 1e-6},
        Case{"bf16,residual=f32", DType::kBF16, DType::kF32, 1e-4},
        Case{"f32", DType::kF32, DType::kF32, 0}}) {
    SCOPED_TRACE(c.storage);
    Module plain = parse_module(kLayer), narrow = parse_module(kLayer);
    CompileOptions options;
    options.passes = {"choose-storage", "dead-code", "fuse"};
    options.storage = c.storage;
    run_passes(narrow, *narrow.functions[0], {*ref, options});
    double error = 0, power = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Rng rng(seed);
      EvalInputs<float> in = convert_inputs<float>(
          random_inputs(*plain.functions[0], {{"T", 5}}, rng, Values::kNormal));
      std::vector<float> want = ByHand(in, c.activations, c.residual).logits(),
                         got = evaluate<float>(*narrow.functions[0], in).tensors.at("logits").f,
                         wide = evaluate<float>(*plain.functions[0], in).tensors.at("logits").f;
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        // Sums in another order differ in their last bits; a missing or extra rounding in many
        // more.
        EXPECT_NEAR(got[i], want[i], 1e-6 * std::max(1.0f, std::fabs(want[i]))) << seed << " " << i;
        error += std::pow(got[i] - wide[i], 2);
        power += std::pow(wide[i], 2);
      }
    }
    EXPECT_LE(error / power, c.error);
    EXPECT_GE(error / power, c.error / 100);
  }
}

}  // namespace
}  // namespace tokamak
