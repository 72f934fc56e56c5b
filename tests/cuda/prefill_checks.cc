// Attention of many rows on Hopper against double precision, and its speed.
#include <bit>
#include <cmath>

#include "backend/cuda/prefill_launch.h"
#include "decode_bench.h"

namespace tokamak::cuda {
namespace {

constexpr RandomSpec kQueries{0, 4, 21}, kKeys{0, 2, 22}, kValues{0, 2, 23};

double random_bf16(const RandomSpec& spec, int64_t i) {
  return static_cast<double>(from_bf16(to_bf16(random_value(spec, static_cast<uint64_t>(i)))));
}

struct PrefillShape {
  int heads = 0, kv_heads = 0, d = 0, block_size = 16;
};
struct PrefillRows {
  int rows = 0, length = 0;  // the last rows of a sequence of this length
};

// Random queries and caches in bf16; blocks in a scattered order. What is after the last key of a
// sequence is NaN.
struct PrefillBatch {
  PrefillShape shape;
  std::vector<PrefillRows> sequences;
  std::vector<int32_t> table, q_start{0}, kv_len;
  int stride = 1, blocks = 0;
  Buffer queries, keys, values, output, table_at, q_start_at, kv_len_at;

  PrefillBatch(const PrefillShape& s, std::vector<PrefillRows> list, const Filler& filler)
      : shape(s), sequences(std::move(list)) {
    for (const PrefillRows& r : sequences) {
      stride = std::max(stride, (r.length + s.block_size - 1) / s.block_size);
      q_start.push_back(q_start.back() + r.rows);
      kv_len.push_back(r.length);
    }
    blocks = static_cast<int>(sequences.size()) * stride;
    for (int i = 0; i < blocks; ++i) table.push_back(i);
    for (int64_t i = blocks - 1; i > 0; --i)
      std::swap(table[static_cast<size_t>(i)], table[static_cast<size_t>(i * 7919 % (i + 1))]);
    const auto d = static_cast<size_t>(s.d);
    const size_t cached = static_cast<size_t>(blocks * s.block_size * s.kv_heads) * d;
    const size_t rows = static_cast<size_t>(q_start.back() * s.heads) * d;
    queries = Buffer(rows * 2);
    output = Buffer(rows * 2);
    keys = Buffer(cached * 2);
    values = Buffer(cached * 2);
    filler.bf16(queries.address(), rows, kQueries);
    filler.bf16(keys.address(), cached, kKeys);
    filler.bf16(values.address(), cached, kValues);
    spoil_tails();
    clear_output();
    for (auto [to, from] : {std::pair{&table_at, &table}, std::pair{&q_start_at, &q_start},
                            std::pair{&kv_len_at, &kv_len}}) {
      *to = Buffer(from->size() * 4);
      to->write(from->data(), from->size() * 4);
    }
  }
  void clear_output() {
    const std::vector<uint16_t> nan(output.bytes() / 2, 0x7fc0);
    output.write(nan.data(), output.bytes());
  }
  void spoil_tails() {
    const std::vector<uint16_t> nan(static_cast<size_t>(shape.d), 0x7fc0);
    for (size_t b = 0; b < sequences.size(); ++b)
      for (int p = sequences[b].length; p < stride * shape.block_size; ++p)
        for (int h = 0; h < shape.kv_heads; ++h) {
          const auto at = static_cast<size_t>(row(static_cast<int>(b), p, h)) * nan.size() * 2;
          keys.write(nan.data(), nan.size() * 2, at);
          values.write(nan.data(), nan.size() * 2, at);
        }
  }
  int64_t row(int sequence, int position, int kv_head) const {
    int64_t block = table[static_cast<size_t>(sequence * stride + position / shape.block_size)];
    return (block * shape.kv_heads + kv_head) * shape.block_size + position % shape.block_size;
  }
  AttendArgs args() const {
    AttendArgs a{};
    a.q = queries.as<void>();
    a.y = output.as<void>();
    a.tq = a.ty = DType::kBF16;
    a.view = {table_at.as<int32_t>(), stride, shape.block_size};
    a.q_start = q_start_at.as<int32_t>();
    a.kv_len = kv_len_at.as<int32_t>();
    a.rows = q_start.back();
    a.sequences = static_cast<int32_t>(sequences.size());
    a.heads = shape.heads;
    a.d = a.dv = shape.d;
    a.keys = 1;
    a.scale = 1.0f / std::sqrt(static_cast<float>(shape.d));
    PlaneArgs plane{};
    plane.block_bytes = int64_t{shape.kv_heads} * shape.block_size * shape.d * 2;
    plane.heads = shape.kv_heads;
    plane.width = shape.d;
    plane.element = 2;
    plane.type = DType::kBF16;
    a.key[0] = a.value = plane;
    a.key[0].base = keys.as<uint8_t>();
    a.value.base = values.as<uint8_t>();
    return a;
  }
};

class PrefillKernel {
 public:
  PrefillKernel(const PrefillContext& c, int d)
      : blocks_(c.device.multiprocessors()),
        shared_(prefill_shared_bytes(d)),
        module_(c.kernels.data()),
        function_(module_.function(fmt::format("prefill_attention_{}_bf16", d).c_str(), shared_)) {}
  void run(Handle stream, const AttendArgs& a, int kv_blocks) const {
    if (!takes_prefill(a)) fail(ErrorCode::kUnsupported, "no kernel for this shape");
    PrefillLaunch launch = prefill_launch(a, kv_blocks);
    void* arguments[] = {&launch};
    check(driver().launch(function_, static_cast<unsigned>(blocks_), 1, 1, kPrefillThreads, 1, 1,
                          static_cast<unsigned>(shared_), stream, arguments, nullptr),
          "launching attention");
  }

 private:
  int blocks_, shared_;
  KernelModule module_;
  Handle function_;
};

std::vector<uint16_t> results(const PrefillContext& c, const PrefillBatch& t) {
  c.stream.wait();
  std::vector<uint16_t> out(static_cast<size_t>(t.q_start.back() * t.shape.heads * t.shape.d));
  t.output.read(out.data(), out.size() * 2);
  return out;
}

// ||out - expected||^2 and ||expected||^2 of one row and head.
void compare_row(const PrefillBatch& t, int b, int i, int h, const std::vector<uint16_t>& out,
                 double& difference, double& power) {
  const int d = t.shape.d, kv_head = h / (t.shape.heads / t.shape.kv_heads);
  const PrefillRows& s = t.sequences[static_cast<size_t>(b)];
  const int seen = s.length - s.rows + i + 1;
  const int64_t at = (int64_t{t.q_start[static_cast<size_t>(b)] + i} * t.shape.heads + h) * d;
  std::vector<double> weight(static_cast<size_t>(seen)), expected(static_cast<size_t>(d));
  double peak = -INFINITY, mass = 0;
  for (int p = 0; p < seen; ++p) {
    double score = 0;
    for (int k = 0; k < d; ++k)
      score += random_bf16(kQueries, at + k) * random_bf16(kKeys, t.row(b, p, kv_head) * d + k);
    weight[static_cast<size_t>(p)] = score / std::sqrt(static_cast<double>(d));
    peak = std::max(peak, weight[static_cast<size_t>(p)]);
  }
  for (double& w : weight) mass += w = std::exp(w - peak);
  for (int p = 0; p < seen; ++p)
    for (int k = 0; k < d; ++k)
      expected[static_cast<size_t>(k)] += weight[static_cast<size_t>(p)] / mass *
                                          random_bf16(kValues, t.row(b, p, kv_head) * d + k);
  for (int k = 0; k < d; ++k) {
    const double e = static_cast<double>(from_bf16(out[static_cast<size_t>(at + k)])) -
                     expected[static_cast<size_t>(k)];
    difference += e * e;
    power += expected[static_cast<size_t>(k)] * expected[static_cast<size_t>(k)];
  }
}

void check_rows(PrefillContext& c, const char* name, const PrefillShape& shape,
                const std::vector<PrefillRows>& sequences) {
  PrefillBatch t(shape, sequences, c.filler);
  PrefillKernel kernel(c, shape.d);
  kernel.run(c.stream.get(), t.args(), t.blocks);
  const std::vector<uint16_t> out = results(c, t);
  double worst = 0;
  for (size_t b = 0; b < sequences.size(); ++b) {
    double difference = 0, power = 0;
    for (int i = 0; i < sequences[b].rows; i += i % 64 == 62 ? 1 : 7)
      for (int h = 0; h < shape.heads; ++h)
        compare_row(t, static_cast<int>(b), i, h, out, difference, power);
    const double error = difference / power;
    worst = error <= worst ? worst : error;  // keeps a NaN
  }
  c.report.expect(worst < 1e-5, fmt::format("{}: worst NMSE of a sequence {:.1e}", name, worst));
  t.clear_output();
  kernel.run(c.stream.get(), t.args(), t.blocks);
  c.report.expect(results(c, t) == out, fmt::format("{}: the same bits again", name));
}

// A prompt in pieces has the bits of the whole.
void check_pieces(PrefillContext& c, const PrefillShape& shape, const std::vector<int>& pieces) {
  int length = 0;
  for (int n : pieces) length += n;
  PrefillBatch t(shape, {{length, length}}, c.filler);
  PrefillKernel kernel(c, shape.d);
  kernel.run(c.stream.get(), t.args(), t.blocks);
  const std::vector<uint16_t> whole = results(c, t);
  t.clear_output();
  int from = 0;
  for (int n : pieces) {
    const int32_t ends[] = {0, n}, keys[] = {from + n};
    t.q_start_at.write(ends, sizeof ends);
    t.kv_len_at.write(keys, sizeof keys);
    AttendArgs a = t.args();
    const size_t at = static_cast<size_t>(from * shape.heads * shape.d) * 2;
    a.q = t.queries.as<void>(at);
    a.y = t.output.as<void>(at);
    a.rows = n;
    kernel.run(c.stream.get(), a, t.blocks);
    c.stream.wait();
    from += n;
  }
  c.report.expect(
      results(c, t) == whole,
      fmt::format("heads of {}: a prompt in pieces has the bits of the whole", shape.d));
}

}  // namespace

void check_prefill(PrefillContext& c) {
  check_rows(c, "one tile", {4, 4, 128}, {{128, 128}});
  check_rows(c, "GQA 4, odd length", {8, 2, 128}, {{333, 333}});
  check_rows(c, "GQA 8, after a prefix", {8, 1, 128}, {{200, 1111}});
  check_rows(c, "six sequences", {8, 2, 128},
             {{1, 5}, {130, 130}, {77, 900}, {2, 300}, {513, 640}, {64, 64}});
  std::vector<PrefillRows> many;
  for (int i = 0; i < 40; ++i) many.push_back({3 + i, 50 + 7 * i});
  check_rows(c, "40 sequences", {4, 2, 128}, many);
  check_rows(c, "blocks of 8", {4, 2, 128, 8}, {{300, 700}});
  check_rows(c, "blocks of 128", {4, 2, 128, 128}, {{300, 700}});
  check_rows(c, "heads of 64", {4, 2, 64}, {{300, 700}, {65, 65}});
  check_pieces(c, {8, 2, 128}, {200, 77, 1, 300, 129});
  check_pieces(c, {8, 2, 64}, {64, 64, 200, 5});
}

void time_prefill(PrefillContext& c) {
  constexpr double kPeak = 989e12;  // flop/s of an H200 in bf16
  const PrefillShape shape{32, 8, 128};
  for (PrefillRows r : {PrefillRows{512, 512},
                        {1024, 1024},
                        {4096, 4096},
                        {16384, 16384},
                        {2048, 8192},
                        {128, 4096}}) {
    PrefillBatch t(shape, {r}, c.filler);
    PrefillKernel kernel(c, shape.d);
    const double ms = c.stream.time(20, [&] { kernel.run(c.stream.get(), t.args(), t.blocks); });
    const double seen = static_cast<double>(r.rows) * (r.length - (r.rows - 1) / 2.0);
    const double rate = 4 * seen * shape.heads * shape.d / (ms * 1e-3);
    fmt::print(
        "{:5} rows of {:5}, 32/8 heads of 128: {:8.1f} us {:6.0f} TFLOP/s, {:.1f} % of 989\n",
        r.rows, r.length, ms * 1e3, rate * 1e-12, rate / kPeak * 100);
  }
}

}  // namespace tokamak::cuda
