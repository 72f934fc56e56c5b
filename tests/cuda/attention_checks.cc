// Batched decode attention against double precision, and its speed.
#include <cmath>

#include "backend/cuda/paged_attention.h"
#include "decode_bench.h"

namespace tokamak::cuda {
namespace {

constexpr RandomSpec kQueries{0, 4, 11}, kKeys{0, 2, 12}, kValues{0, 2, 13};

double random_bf16(const RandomSpec& spec, int64_t i) {
  return static_cast<double>(from_bf16(to_bf16(random_value(spec, static_cast<uint64_t>(i)))));
}

// A batch with random queries and caches; pages in a scattered order.
struct TestBatch {
  AttentionShape shape;
  std::vector<int32_t> lengths, pages;
  int stride = 1;
  Buffer queries, keys, values, page_table, length_table, output;

  TestBatch(const AttentionShape& s, std::vector<int32_t> l, const Filler& filler)
      : shape(s), lengths(std::move(l)) {
    for (int n : lengths) stride = std::max(stride, (n + s.page_size - 1) / s.page_size);
    auto total = static_cast<int64_t>(lengths.size()) * stride;
    for (int64_t i = 0; i < total; ++i) pages.push_back(static_cast<int32_t>(i));
    for (int64_t i = total - 1; i > 0; --i)
      std::swap(pages[static_cast<size_t>(i)], pages[static_cast<size_t>(i * 7919 % (i + 1))]);
    auto rows = static_cast<size_t>(total * s.page_size * s.kv_heads);
    auto d = static_cast<size_t>(s.head_dim);
    size_t heads = lengths.size() * static_cast<size_t>(s.heads) * d;
    queries = Buffer(heads * 2);
    output = Buffer(heads * 2);
    keys = Buffer(rows * d * 2);
    values = Buffer(rows * d * 2);
    filler.bf16(queries.address(), heads, kQueries);
    filler.bf16(output.address(), heads, {1000, 1, 5});
    filler.bf16(keys.address(), rows * d, kKeys);
    filler.bf16(values.address(), rows * d, kValues);
    page_table = Buffer(pages.size() * 4);
    page_table.write(pages.data(), pages.size() * 4);
    length_table = Buffer(lengths.size() * 4);
    length_table.write(lengths.data(), lengths.size() * 4);
  }
  PagedAttention::Batch batch() const {
    return {queries.address(),
            keys.address(),
            values.address(),
            page_table.address(),
            length_table.address(),
            output.address(),
            static_cast<int>(lengths.size()),
            stride,
            static_cast<int64_t>(pages.size())};
  }
  int64_t row(int sequence, int position, int kv_head) const {
    int64_t page = pages[static_cast<size_t>(sequence * stride + position / shape.page_size)];
    return (page * shape.kv_heads + kv_head) * shape.page_size + position % shape.page_size;
  }
  double bytes() const {
    double total = 0;
    for (int n : lengths) total += n;
    return total * shape.kv_heads * shape.head_dim * 4;
  }
};

// ||out - expected||^2 and ||expected||^2 of one head.
void compare_head(const TestBatch& t, int b, int h, const std::vector<uint16_t>& out,
                  double& difference, double& power) {
  int d = t.shape.head_dim, kv_head = h / (t.shape.heads / t.shape.kv_heads);
  int64_t at = (static_cast<int64_t>(b) * t.shape.heads + h) * d;
  int length = t.lengths[static_cast<size_t>(b)];
  std::vector<double> weight(static_cast<size_t>(length)), expected(static_cast<size_t>(d));
  double peak = -INFINITY, mass = 0;
  for (int p = 0; p < length; ++p) {
    double score = 0;
    for (int i = 0; i < d; ++i)
      score += random_bf16(kQueries, at + i) * random_bf16(kKeys, t.row(b, p, kv_head) * d + i);
    weight[static_cast<size_t>(p)] = score / std::sqrt(static_cast<double>(d));
    peak = std::max(peak, weight[static_cast<size_t>(p)]);
  }
  for (double& w : weight) mass += w = std::exp(w - peak);
  for (int p = 0; p < length; ++p)
    for (int i = 0; i < d; ++i)
      expected[static_cast<size_t>(i)] += weight[static_cast<size_t>(p)] / mass *
                                          random_bf16(kValues, t.row(b, p, kv_head) * d + i);
  for (int i = 0; i < d; ++i) {
    double e = static_cast<double>(from_bf16(out[static_cast<size_t>(at + i)])) -
               expected[static_cast<size_t>(i)];
    difference += e * e;
    power += expected[static_cast<size_t>(i)] * expected[static_cast<size_t>(i)];
  }
}

void check_batch(AttentionContext& c, const char* name, const AttentionShape& shape,
                 const std::vector<int32_t>& lengths) {
  TestBatch t(shape, lengths, c.filler);
  PagedAttention attention(c.device, c.kernels.data(), shape, static_cast<int>(lengths.size()));
  std::vector<uint16_t> out(lengths.size() * static_cast<size_t>(shape.heads * shape.head_dim));
  std::vector<uint16_t> again(out.size());
  attention.launch(c.stream.get(), t.batch());
  c.stream.wait();
  t.output.read(out.data(), out.size() * 2);
  for (int i = 0; i < 5; ++i) attention.launch(c.stream.get(), t.batch());
  c.stream.wait();
  t.output.read(again.data(), again.size() * 2);
  double worst = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    double difference = 0, power = 0;
    for (int h = 0; h < shape.heads; ++h)
      compare_head(t, static_cast<int>(b), h, out, difference, power);
    double error = lengths[b] == 0 ? difference : difference / power;
    worst = error <= worst ? worst : error;  // keeps a NaN
  }
  const bool same = again == out;
  c.report.expect(worst < 1e-5 && same,
                  fmt::format("{}: worst NMSE of a sequence {:.1e}{}", name, worst,
                              same ? "" : ", other bits in another run"));
}

}  // namespace

void check_attention(AttentionContext& c) {
  check_batch(c, "GQA 4, ragged", {8, 2, 128}, {1, 0, 7, 8, 9, 100, 3000, 17, 0});
  check_batch(c, "MHA, one short sequence", {4, 4, 128}, {3});
  check_batch(c, "GQA 8, pages of 64", {8, 1, 128, 64}, {5000, 63, 64, 65});
  check_batch(c, "GQA 7, head 64", {14, 2, 64}, {333, 1200, 2});
  check_batch(c, "GQA 2, 40 sequences", {4, 2, 128, 32}, std::vector<int32_t>(40, 129));
  check_batch(c, "GQA 2, little in flight", {16, 8, 128, 16, 2}, {512, 511});
  check_batch(c, "GQA 4, one long sequence", {8, 2, 128}, {9001});
  check_batch(c, "GQA 4, 64 sequences", {8, 2, 128}, std::vector<int32_t>(64, 544));
  check_batch(c, "GQA 4, no positions", {8, 2, 128}, {0, 0, 0});
}

void time_attention(AttentionContext& c) {
  auto run = [&](const char* name, AttentionShape shape, const std::vector<int32_t>& lengths) {
    TestBatch t(shape, lengths, c.filler);
    for (int in_flight : {4, 6, 8}) {
      shape.in_flight = in_flight;
      PagedAttention attention(c.device, c.kernels.data(), shape, static_cast<int>(lengths.size()));
      double ms = c.stream.time(20, [&] { attention.launch(c.stream.get(), t.batch()); });
      c.report.timing(fmt::format("attention {}, {} in flight", name, in_flight), ms, t.bytes());
    }
  };
  run("32/8 x 128, 32 x 8192", {32, 8, 128}, std::vector<int32_t>(32, 8192));
  run("32/8 x 128, 64 x 1024", {32, 8, 128}, std::vector<int32_t>(64, 1024));
  run("32/8 x 128, 64 x 544", {32, 8, 128}, std::vector<int32_t>(64, 544));
  run("32/8 x 128, 16 x 544", {32, 8, 128}, std::vector<int32_t>(16, 544));
  run("16/8 x 128, 64 x 544", {16, 8, 128}, std::vector<int32_t>(64, 544));
  run("64/8 x 128, 32 x 8192", {64, 8, 128}, std::vector<int32_t>(32, 8192));
  std::vector<int32_t> ragged;
  for (int i = 0; i < 48; ++i) ragged.push_back(100 + i * i * 7);
  run("32/8 x 128, 48 ragged to 15.6k", {32, 8, 128}, ragged);
}

}  // namespace tokamak::cuda
