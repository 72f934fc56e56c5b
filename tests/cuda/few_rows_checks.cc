// Products of few rows against double precision, and their speed.
#include <cmath>
#include <functional>

#include "backend/cuda/few_rows_launch.h"
#include "backend/cuda/ops/args.h"
#include "decode_bench.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

constexpr RandomSpec kWeights{0, 0.25f, 21}, kInputs{0, 2, 22};

double random_bf16(const RandomSpec& spec, int64_t i) {
  return static_cast<double>(from_bf16(to_bf16(random_value(spec, static_cast<uint64_t>(i)))));
}

class FewRowsRunner {
 public:
  explicit FewRowsRunner(FewRowsContext& c)
      : blocks_(c.device.multiprocessors()), module_(c.kernels.data()), memory_(kFewRowsMemory) {
    check(driver().stream_wait(nullptr), "clearing memory");
  }
  FewRowsSums launch(const Stream& stream, const FewRowsProduct& p, int in_flight, bool split) {
    split = split && few_rows_splits(p, blocks_);
    FewRowsLaunch l = few_rows_launch(p, memory_.address(), blocks_, split, in_flight);
    LaunchAttribute overlap;
    LaunchConfig config{{static_cast<unsigned>(l.blocks), 1, 1},
                        {static_cast<unsigned>(l.threads), 1, 1},
                        static_cast<unsigned>(l.shared_bytes),
                        stream.get(),
                        &overlap,
                        1};
    void* arguments[] = {&l.args};
    check(driver().launch_ex(&config, module_.function(l.kernel.c_str(), l.shared_bytes), arguments,
                             nullptr),
          "launching a product");
    return l.args.sums;
  }
  // The result in f32.
  std::vector<float> result(const FewRowsProduct& p, const Buffer& y,
                            const FewRowsSums& sums) const {
    const auto count = static_cast<size_t>(p.rows * p.n);
    std::vector<float> out(count);
    if (sums.planes) {
      std::vector<uint16_t> planes(static_cast<size_t>(sums.plane * sums.shares.most_shares()));
      memory_.read(planes.data(), planes.size() * 2, kFewRowsParts);
      for (size_t i = 0; i < count; ++i) {
        const auto row = static_cast<int64_t>(i) / p.n;
        const auto column = static_cast<int>(static_cast<int64_t>(i) % p.n);
        const int64_t at = row * sums.pitch() + few_rows_place(column);
        for (int s = 0; s < sums.shares.of_column(column); ++s)
          out[i] += from_bf16(planes[static_cast<size_t>(s * sums.plane + at)]);
      }
    } else if (p.f32) {
      y.read(out.data(), count * sizeof(float));
    } else {
      std::vector<uint16_t> narrow(count);
      y.read(narrow.data(), count * 2);
      for (size_t i = 0; i < count; ++i) out[i] = from_bf16(narrow[i]);
    }
    return out;
  }

 private:
  int blocks_;
  KernelModule module_;
  Buffer memory_;
};

struct Matrices {
  FewRowsProduct p;
  Buffer x, w, y;
  std::vector<uint8_t> bytes;  // of w, where it is not bf16
  struct Options {
    bool gated = false, f32 = false;
    DType type = DType::kBF16;
    bool timing = false;  // blocks are random bits
  };
  Matrices(const Filler& filler, int64_t rows, int64_t n, int64_t k, const Options& o) {
    const int64_t w_rows = o.gated ? 2 * n : n;
    x = Buffer(static_cast<size_t>(rows * k * 2));
    w = Buffer(static_cast<size_t>(w_rows) * dtype_bytes(o.type, k));
    y = Buffer(static_cast<size_t>(rows * n * (o.f32 ? 4 : 2)));
    filler.bf16(x.address(), x.bytes() / 2, kInputs);
    if (o.type == DType::kBF16 || o.timing)
      filler.bf16(w.address(), w.bytes() / 2, kWeights);
    else
      encode(o.type, w_rows, k);
    check(driver().stream_wait(nullptr), "filling matrices");
    p = {x.address(), w.address(), y.address(), rows, n, k, o.gated, o.f32, o.type};
  }
  double weight_bytes() const { return static_cast<double>(w.bytes()); }
  // A row of the matrix as the products read it: rounded to bf16.
  std::vector<double> row(int64_t r) const {
    std::vector<double> out(static_cast<size_t>(p.k));
    std::vector<float> decoded(out.size());
    if (p.type != DType::kBF16)
      decode_row(p.type, bytes.data() + static_cast<size_t>(r) * dtype_bytes(p.type, p.k),
                 decoded.data(), p.k);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = p.type == DType::kBF16 ? random_bf16(kWeights, r * p.k + static_cast<int64_t>(i))
                                      : static_cast<double>(from_bf16(to_bf16(decoded[i])));
    return out;
  }

 private:
  void encode(DType type, int64_t rows, int64_t k) {
    const size_t row_bytes = dtype_bytes(type, k);
    bytes.resize(static_cast<size_t>(rows) * row_bytes);
    on_all_cores(static_cast<int>(rows), [&](int r) {
      std::vector<float> values(static_cast<size_t>(k));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = random_value(kWeights, static_cast<uint64_t>(r * k) + i);
      encode_row(type, values.data(), bytes.data() + static_cast<size_t>(r) * row_bytes, k);
    });
    w.write(bytes.data(), bytes.size());
  }
};

double dot(const FewRowsProduct& p, int64_t m, const std::vector<double>& row) {
  double sum = 0;
  for (int64_t i = 0; i < p.k; ++i)
    sum += random_bf16(kInputs, m * p.k + i) * row[static_cast<size_t>(i)];
  return sum;
}

void check_product(FewRowsContext& c, FewRowsRunner& runner, const Matrices& t, int in_flight,
                   bool split) {
  const FewRowsProduct& p = t.p;
  const FewRowsSums sums = runner.launch(c.stream, p, in_flight, split);
  c.stream.wait();
  const std::vector<float> got = runner.result(p, t.y, sums);
  double difference = 0, power = 0;
  for (int64_t j = 0; j < p.n; j += 1 + p.n / 48 / 2 * 2) {  // odd and even
    const std::vector<double> w = t.row(j), up = p.gated ? t.row(p.n + j) : w;
    for (int64_t m = 0; m < p.rows; m += 1 + p.rows / 16) {
      double expected = dot(p, m, w);
      if (p.gated) expected = expected / (1 + std::exp(-expected)) * dot(p, m, up);
      const double error = static_cast<double>(got[static_cast<size_t>(m * p.n + j)]) - expected;
      difference += error * error;
      power += expected * expected;
    }
  }
  for (int i = 0; i < 5; ++i) runner.launch(c.stream, p, in_flight, split);
  c.stream.wait();
  const bool same = runner.result(p, t.y, sums) == got;
  // bf16: sums of blocks and the result are rounded; what gates and what is gated as well.
  const double most = p.f32 ? 1e-9 : p.gated ? 4e-5 : 2e-5;
  c.report.expect(difference / power < most && same,
                  fmt::format("{} x {} x {} {}{}{}{}, {} in flight: NMSE {:.1e}{}", p.rows, p.n,
                              p.k, dtype_name(p.type), p.gated ? ", gated" : "",
                              p.f32 ? ", f32" : "", sums.planes ? ", split" : "", in_flight,
                              difference / power, same ? "" : ", other bits in another run"));
}

// Milliseconds of what `launch` launches, in one graph.
double time_graph(const Stream& stream, const std::function<void()>& launch) {
  Handle graph = nullptr, exec = nullptr;
  check(driver().capture_begin(stream.get(), 1), "capturing");
  launch();
  check(driver().capture_end(stream.get(), &graph), "capturing");
  check(driver().graph_instantiate(&exec, graph, 0), "making a graph");
  const double ms = stream.time(12, [&] { driver().graph_launch(exec, stream.get()); });
  driver().graph_exec_destroy(exec);
  driver().graph_destroy(graph);
  return ms;
}

struct LayerSize {
  const char* name;
  int64_t hidden, qkv, heads, mlp;
};
constexpr LayerSize k8B{"8B", 4096, 6144, 4096, 14336}, k1_7B{"1.7B", 2048, 4096, 2048, 6144};

// The products of some layers in one graph, as a step has them.
void time_layers(FewRowsContext& c, FewRowsRunner& runner, const LayerSize& s, int64_t rows,
                 int in_flight, DType type = DType::kBF16) {
  const int layers = s.hidden > 2048 ? 6 : 16;
  const Matrices::Options plain{.type = type, .timing = true};
  Matrices::Options gated = plain;
  gated.gated = true;
  std::vector<Matrices> all;
  double bytes = 0;
  for (int l = 0; l < layers; ++l) {
    all.emplace_back(c.filler, rows, s.qkv, s.hidden, plain);
    all.emplace_back(c.filler, rows, s.hidden, s.heads, plain);
    all.emplace_back(c.filler, rows, s.mlp, s.hidden, gated);
    all.emplace_back(c.filler, rows, s.hidden, s.mlp, plain);
  }
  for (const Matrices& m : all) bytes += m.weight_bytes();
  const double ms = time_graph(c.stream, [&] {
    for (const Matrices& m : all) runner.launch(c.stream, m.p, in_flight, true);
  });
  c.report.timing(
      fmt::format("{} {} layers, {} rows, {} in flight", s.name, dtype_name(type), rows, in_flight),
      ms, bytes);
}

// residual += delta, y = norm(residual), with memory of its own.
struct AddNorm {
  int64_t rows, n;
  Buffer residual, delta, w, y;
  AddNorm(const Filler& filler, int64_t r, int64_t width) : rows(r), n(width) {
    const auto count = static_cast<size_t>(r * width);
    residual = Buffer(count * 4);
    delta = Buffer(count * 2);
    w = Buffer(static_cast<size_t>(width) * 2);
    y = Buffer(count * 2);
    filler.bf16(delta.address(), count, kInputs);
    filler.bf16(w.address(), static_cast<size_t>(width), kInputs);
    check(driver().stream_wait(nullptr), "filling values");
  }
  void launch(const Stream& stream, Handle function) const {
    AddNormArgs args{};
    args.residual = residual.as<float>();
    args.delta = delta.as<uint16_t>();
    args.w = w.as<void>();
    args.y = y.as<uint16_t>();
    args.n = n;
    args.eps = 1e-5f;
    args.tw = DType::kBF16;
    LaunchAttribute overlap;
    LaunchConfig config{{static_cast<unsigned>(rows), 1, 1},
                        {static_cast<unsigned>(add_norm_threads(n)), 1, 1},
                        0,
                        stream.get(),
                        &overlap,
                        1};
    void* arguments[] = {&args};
    check(driver().launch_ex(&config, function, arguments, nullptr), "launching a norm");
  }
};

}  // namespace

void check_few_rows(FewRowsContext& c, bool tiny) {
  FewRowsRunner runner(c);
  struct Size {
    int64_t rows, n, k;
    bool gated, f32;
  };
  for (const Size& s : {Size{16, 6144, 4096, false, false},
                        {1, 130, 64, false, false},
                        {5, 62, 200, false, true},
                        {16, 2048, 2048, true, false},
                        {13, 14336, 4096, true, false},
                        {16, 4096, 14336, false, false},
                        {32, 6144, 4096, false, false},
                        {27, 1000, 1032, true, false},
                        {64, 4096, 4096, false, false},
                        {64, 6144, 2048, true, false},
                        {33, 32002, 2048, false, true},
                        {64, 130, 64, false, false},
                        {41, 520, 1032, true, false},
                        {65, 130, 64, false, false},
                        {100, 520, 1032, true, false},
                        {128, 6144, 2048, true, false},
                        {128, 4096, 4096, false, false},
                        {99, 1030, 2048, false, true}}) {
    if (tiny && s.n * s.k > 1100000) continue;
    const Matrices t(c.filler, s.rows, s.n, s.k, {.gated = s.gated, .f32 = s.f32});
    check_product(c, runner, t, 2, false);
    if (!s.gated && !s.f32) check_product(c, runner, t, 3, true);
  }
  for (const FewRowsType& type : kFewRowsTypes)
    for (const Size& s : {Size{2, 130, 256, false, false},
                          {13, 520, 2048, true, false},
                          {16, 4096, 4096, false, false},
                          {32, 1000, 2048, false, true},
                          {30, 2048, 2048, true, false},
                          {64, 2048, 6144, false, false},
                          {5, 3584, 3584, false, false},
                          {47, 1032, 2048, true, false}}) {
      if (type.type == DType::kBF16 || (tiny && s.n * s.k > 1100000)) continue;
      const Matrices t(c.filler, s.rows, s.n, s.k,
                       {.gated = s.gated, .f32 = s.f32, .type = type.type});
      if (!few_rows_takes(t.p, c.device.multiprocessors())) continue;
      check_product(c, runner, t, 2, false);
      if (!s.gated && !s.f32) check_product(c, runner, t, 3, true);
    }
}

void time_few_rows(FewRowsContext& c) {
  FewRowsRunner runner(c);
  for (int64_t rows : {16, 32, 64, 128})
    for (int in_flight : {2, 3}) {
      time_layers(c, runner, k8B, rows, in_flight);
      time_layers(c, runner, k1_7B, rows, in_flight);
    }
  for (int64_t rows : {16, 64}) {  // long enough that its beginning and end do not count
    const Matrices head(c.filler, rows, 128256, 4096, {.f32 = true});
    const double ms = time_graph(c.stream, [&] { runner.launch(c.stream, head.p, 2, false); });
    c.report.timing(fmt::format("8B bf16 head, {} rows", rows), ms, head.weight_bytes());
  }
  for (DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K})
    for (int64_t rows : {16, 64})
      for (int in_flight : {2, 3, 4}) time_layers(c, runner, k8B, rows, in_flight, type);
}

// Small parts of a layer in one graph. Each launch has other data, so that the cache is of no use.
void time_fused(FewRowsContext& c, const std::vector<char>& layer_kernels) {
  constexpr int kProducts = 8, kNorms = 48;
  FewRowsRunner runner(c);
  KernelModule module(layer_kernels.data());
  const Handle norm = module.function(add_norm_kernel(4096)),
               wide_norm = module.function(add_norm_kernel(8192));
  std::vector<AddNorm> norms, wide;
  std::vector<Matrices> products, gated;
  for (int i = 0; i < kProducts; ++i) {
    norms.emplace_back(c.filler, 2, 4096);
    products.emplace_back(c.filler, 2, 6144, 4096, Matrices::Options{});
    products.back().p.x = norms.back().y.address();
    gated.emplace_back(c.filler, 8, 4096, 4096, Matrices::Options{.gated = true});
  }
  for (int i = 0; i < kNorms; ++i) wide.emplace_back(c.filler, 64, 8192);
  auto each = [&](const char* name, int count, double bytes, const std::function<void(size_t)>& f) {
    const double ms = time_graph(c.stream, [&] {
      for (int i = 0; i < count; ++i) f(static_cast<size_t>(i));
    });
    c.report.timing(fmt::format("{}, one of {}", name, count), ms / count, bytes);
  };
  each("RMSNorm + product, 2 x 4096, 4096 x 6144", kProducts, products[0].weight_bytes(),
       [&](size_t i) {
         norms[i].launch(c.stream, norm);
         runner.launch(c.stream, products[i].p, 2, false);
       });
  each("gated MLP, 8 rows, two 4096 x 4096", kProducts, gated[0].weight_bytes(),
       [&](size_t i) { runner.launch(c.stream, gated[i].p, 2, false); });
  each("residual + RMSNorm, 64 x 8192", kNorms, 64.0 * 8192 * (4 + 2 + 4 + 2),
       [&](size_t i) { wide[i].launch(c.stream, wide_norm); });
}

}  // namespace tokamak::cuda
