// The persistent decode kernel against the double-precision reference, and its time per step.
#include <cmath>

#include "bench_util.h"
#include "decode_bench.h"
#include "reference.h"

namespace tokamak::cuda {
namespace {

struct Case {
  const char* name;
  TestShape model;
  int cached, steps;
  int producers = 2;
};

DecoderShape shape_of(int layers, int hidden, int heads, int kv_heads, int head_dim, int mlp,
                      int vocab) {
  DecoderShape s;
  s.layers = layers;
  s.hidden = hidden;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.mlp = mlp;
  s.vocab = vocab;
  return s;
}

DecoderShape llama_8b(int layers) { return shape_of(layers, 4096, 32, 8, 128, 14336, 128256); }
DecoderShape qwen3_1_7b(int layers) {
  DecoderShape s = shape_of(layers, 2048, 16, 8, 128, 6144, 151936);
  s.eps = 1e-6f;
  return s;
}

std::vector<Case> small_cases() {
  std::vector<Case> cases;
  cases.push_back({"llama, GQA 4", {shape_of(3, 512, 8, 2, 128, 1536, 4000)}, 37, 24});
  cases.push_back(
      {"qwen3, q/k norm, GQA 2", {shape_of(3, 1024, 16, 8, 128, 3072, 5000), true}, 0, 20});
  cases.push_back(
      {"qwen2, bias, MHA", {shape_of(2, 256, 2, 2, 128, 640, 1000), false, true}, 130, 9});
  Case odd{"head 64, interleaved, GQA 7, pages of 8",
           {shape_of(2, 896, 14, 2, 64, 2432, 3001), false, true, 2048},
           1500,
           9};
  odd.model.shape.rope_interleaved = true;
  odd.model.shape.page_size = 8;
  cases.push_back(odd);
  Case longer{"GQA 8, 9000 cached",
              {shape_of(2, 1024, 8, 1, 128, 1024, 2000), false, false, 9100},
              9000,
              4};
  longer.model.shape.page_size = 64;
  cases.push_back(longer);
  for (int producers : {1, 4}) {
    Case fewer = cases[0];
    fewer.name = producers == 1 ? "one producer" : "four producers";
    fewer.producers = producers;
    fewer.cached = 333;
    cases.push_back(fewer);
  }
  return cases;
}

// Greedy and sampled steps; logits of every step against both references.
void check_case(const Case& c, DecodeContext& context) {
  TestModel model(c.model, context.filler);
  DecodeVariant variant = DecodeVariant::of(c.model.shape);
  variant.producers = c.producers;
  DecodeStream decode(context.device, context.kernels.data(), c.model.shape, model.weights(),
                      variant);
  Reference exact(model, c.cached, false), rounded(model, c.cached, true);
  decode.set_state(1, c.cached);
  double worst_exact = 0, worst_rounded = 0;
  int token = 1, wrong_tokens = 0;
  for (int i = 0; i < c.steps; ++i) {
    DecodeSampling sampling;
    sampling.temperature = i % 3 == 2 ? 0.8f : 0;
    sampling.seed = 1234567890123ull + static_cast<uint64_t>(i);
    sampling.choice = i % 2;
    decode.launch(context.stream.get(), model.page_table(), sampling);
    DecodeState state = decode.finish(context.stream.get());
    std::vector<float> logits = decode.logits();
    worst_exact = std::max(worst_exact, nmse(logits, exact.step(token)));
    worst_rounded = std::max(worst_rounded, nmse(logits, rounded.step(token)));
    if (std::isnan(nmse(logits, {logits.begin(), logits.end()}))) worst_exact = INFINITY;
    SampleSpec spec;
    spec.temperature = sampling.temperature;
    spec.seed = sampling.seed;
    if (host_choice(logits, spec, c.cached + i + 1, sampling.choice) != state.chosen)
      ++wrong_tokens;
    token = state.chosen;
    if (state.position != c.cached + i + 1) ++wrong_tokens;
  }
  context.report.expect(
      worst_exact < 2e-4 && worst_rounded < 1e-4,
      fmt::format("{}: worst NMSE of {} steps {:.1e} (exact), {:.1e} (rounded alike)", c.name,
                  c.steps, worst_exact, worst_rounded));
  context.report.expect(wrong_tokens == 0, fmt::format("{}: tokens of the host sampler, {} differ",
                                                       c.name, wrong_tokens));
}

// The same steps twice, launched without waiting in between: every bit of the last logits agrees.
void check_repeats(DecodeContext& context) {
  TestShape shape{llama_8b(2)};
  TestModel model(shape, context.filler);
  for (int producers : {1, 2, 4}) {
    DecodeVariant variant = DecodeVariant::of(shape.shape);
    variant.producers = producers;
    DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(),
                        variant);
    std::vector<float> first;
    int same = 0;
    for (int round = 0; round < 3; ++round) {
      decode.set_state(1, 512);
      for (int i = 0; i < 400; ++i)
        decode.launch(context.stream.get(), model.page_table(), {0.8f, 99, 0});
      decode.finish(context.stream.get());
      if (round == 0) first = decode.logits();
      same += decode.logits() == first;
    }
    context.report.expect(
        same == 3,
        fmt::format("400 steps in a row, {} producers: {} of 3 rounds are equal to the bit",
                    producers, same));
  }
}

void check_deadline(DecodeContext& context) {
  TestShape shape{shape_of(3, 512, 8, 2, 128, 1536, 4000)};
  TestModel model(shape, context.filler);
  DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(),
                      DecodeVariant::of(shape.shape));
  decode.set_timeout_ms(20);
  auto run = [&] {
    decode.set_state(1, 100);
    decode.launch(context.stream.get(), model.page_table(), {});
    return decode.finish(context.stream.get()).chosen;
  };
  int before = run();
  for (int stuck : {1, 2, 9, decode.instructions() - 1}) {
    std::string message = "no error";
    decode.corrupt_tag(stuck);
    try {
      run();
    } catch (const Error& e) {
      message = e.what();
    }
    context.report.expect(message.find("waited 20 ms") != std::string::npos,
                          fmt::format("a stuck step ends: {}", message));
    decode.corrupt_tag(-1);
    context.report.expect(run() == before, "the next step is right again");
  }
}

void print_profile(DecodeStream& decode, const Stream& stream, const TestModel& model) {
  size_t count = static_cast<size_t>(decode.blocks() * decode.instructions() * kProfileFields);
  Buffer ticks(count * 8);
  std::vector<unsigned long long> t(count);
  decode.set_state(1, 512);
  decode.launch(stream.get(), model.page_table(), {}, ticks.address());
  decode.finish(stream.get());
  ticks.read(t.data(), count * 8);
  const char* names[] = {"qkv", "attend", "combine", "out", "gate_up", "down", "head"};
  fmt::print("profile, thousands of cycles per instruction, mean over blocks and layers (most):\n");
  for (int kind = 0; kind < 7; ++kind) {
    double sum[5] = {}, most[5] = {};
    int n = 0;
    for (int b = 0; b < decode.blocks(); ++b)
      for (int i = 0; i < decode.instructions(); ++i) {
        if ((i == decode.instructions() - 1 ? 6 : i % 6) != kind) continue;
        const auto* f = &t[static_cast<size_t>((b * decode.instructions() + i) * kProfileFields)];
        double part[5] = {0, 0, 0, static_cast<double>(f[3] - f[0]), static_cast<double>(f[4])};
        if (kind != 2) {
          part[0] = static_cast<double>(f[1] - f[0]);
          part[1] = static_cast<double>(f[2] - f[1]);
          part[2] = static_cast<double>(f[3] - f[2]);
        }
        for (int k = 0; k < 5; ++k) {
          sum[k] += part[k];
          most[k] = std::max(most[k], part[k]);
        }
        ++n;
      }
    fmt::print(
        "  {:<8} input {:7.2f} ({:7.2f})  work {:7.2f} ({:7.2f}), in the ring {:7.2f}  end {:6.2f}"
        " ({:6.2f})  all {:7.2f}\n",
        names[kind], sum[0] / n / 1e3, most[0] / 1e3, sum[1] / n / 1e3, most[1] / 1e3,
        sum[4] / n / 1e3, sum[2] / n / 1e3, most[2] / 1e3, sum[3] / n / 1e3);
  }
}

void time_model(const char* name, const TestShape& shape, DecodeContext& context) {
  TestModel model(shape, context.filler);
  const int cached = 512;
  double bytes = model.weight_bytes() + model.cache_bytes(cached);
  DecodeVariant v = DecodeVariant::of(shape.shape);
  for (auto [in_flight, producers] :
       {std::pair{8, 4}, {5, 4}, {8, 2}, {6, 2}, {8, 1}, {7, 1}, {6, 1}, {5, 1}}) {
    v.in_flight = in_flight;
    v.producers = producers;
    DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(), v);
    for (float temperature : {0.0f, 0.8f}) {
      decode.set_state(1, cached);
      double ms = context.stream.time(20, [&] {
        decode.launch(context.stream.get(), model.page_table(), {temperature, 7, 0});
      });
      decode.finish(context.stream.get());
      context.report.timing(fmt::format("{} B=1 ctx {} {}, {} in flight, T={}", name, cached,
                                        v.name().substr(14), in_flight, temperature),
                            ms, bytes);
    }
    decode.set_state(1, cached);
    double many = context.stream.time(3, [&] {
      for (int i = 0; i < 20; ++i)
        decode.launch(context.stream.get(), model.page_table(), {0.8f, 7, 0});
    });
    decode.finish(context.stream.get());
    context.report.timing(fmt::format("{} the same, 20 steps in a row, per step", name), many / 20,
                          bytes);
    print_profile(decode, context.stream, model);
  }
  v = DecodeVariant::of(shape.shape);
  DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(), v);
  for (int context_length : {0, 2048, 8192}) {
    if (context_length + 40 > shape.max_positions) continue;
    decode.set_state(1, context_length);
    double ms = context.stream.time(
        10, [&] { decode.launch(context.stream.get(), model.page_table(), {}); });
    decode.finish(context.stream.get());
    context.report.timing(fmt::format("{} B=1 ctx {}", name, context_length), ms,
                          model.weight_bytes() + model.cache_bytes(context_length));
  }
}

}  // namespace

void check_decode(DecodeContext& context) {
  for (const Case& c : small_cases()) check_case(c, context);
  check_deadline(context);
}
void check_decode_large(DecodeContext& context) {
  check_case({"8B widths, 2 layers", {llama_8b(2)}, 512, 3}, context);
  check_repeats(context);
  check_case({"1.7B widths, 2 layers", {qwen3_1_7b(2), true}, 512, 3}, context);
}
void time_decode(DecodeContext& context) {
  time_model("8B", {llama_8b(32), false, false, 8704}, context);
  time_model("1.7B", {qwen3_1_7b(28), true, false, 8704}, context);
}

}  // namespace tokamak::cuda
