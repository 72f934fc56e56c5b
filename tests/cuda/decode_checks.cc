// The persistent decode kernel against the double-precision reference, and its time per step.
#include <cmath>

#include "bench_util.h"
#include "decode_bench.h"
#include "reference.h"

namespace tokamak::cuda {
namespace {

struct Case {
  std::string name;
  TestShape model;
  int cached, steps;
  std::vector<int> batches;  // of the steps in turn; empty: one sequence
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

constexpr DecodeWeight kTypes[] = {DecodeWeight::kBf16, DecodeWeight::kFp8, DecodeWeight::kQ8,
                                   DecodeWeight::kQ4};
constexpr const char* kTypeNames[] = {"bf16", "fp8", "q8_0", "q4_0"};

std::vector<Case> small_cases() {
  std::vector<Case> cases;
  cases.push_back({"llama, GQA 4", {shape_of(3, 512, 8, 2, 128, 1536, 4000)}, 37, 24, {}});
  cases.push_back(
      {"qwen3, q/k norm, GQA 2", {shape_of(3, 1024, 16, 8, 128, 3072, 5000), true}, 0, 20, {}});
  cases.push_back(
      {"qwen2, bias, MHA", {shape_of(2, 256, 2, 2, 128, 640, 1000), false, true}, 130, 9, {}});
  Case odd{"head 64, interleaved, GQA 7, pages of 8",
           {shape_of(2, 896, 14, 2, 64, 2432, 3001), false, true, 2048},
           1500,
           9,
           {}};
  odd.model.shape.rope_interleaved = true;
  odd.model.shape.page_size = 8;
  cases.push_back(odd);
  Case longer{"GQA 8, 9000 cached",
              {shape_of(2, 1024, 8, 1, 128, 1024, 2000), false, false, 9100},
              9000,
              4,
              {}};
  longer.model.shape.page_size = 64;
  cases.push_back(longer);
  for (size_t i = 0; i < 4; ++i) {
    Case c{kTypeNames[i], {shape_of(2, 512, 8, 2, 128, 1536, 4000)}, 333, 6, {}};
    c.model.type = c.model.head_type = kTypes[i];
    if (i > 0) cases.push_back(c);
    c.name += ", 8 sequences";
    c.model.batch = 8;
    c.batches = {8};
    cases.push_back(c);
    // More than two parts of the width, gates in tiles of 16, another type of head.
    c.name = std::string(kTypeNames[i]) + ", wide, 2 to 5 sequences";
    c.model.shape = shape_of(2, 1024, 16, 8, 128, 14336, 3000);
    c.model.qk_norm = true;
    c.model.head_type = kTypes[(i + 1) % 4];
    c.batches = {3, 2, 5, 1, 4};
    cases.push_back(c);
  }
  Case heads{"head 64, interleaved, 6 sequences", odd.model, 1500, 5, {6}};
  heads.model.batch = 8;
  cases.push_back(heads);
  Case eight{"GQA 8, 7 sequences", longer.model, 700, 4, {7}};
  eight.model.max_positions = 1024;
  eight.model.batch = 8;
  cases.push_back(eight);
  return cases;
}

// One sequence on the device and in both references.
struct Track {
  Track(const TestModel& model, const HostWeights& host, int sequence, int cached)
      : exact(model, host, sequence, cached, false),
        rounded(model, host, sequence, cached, true),
        position(cached) {}
  Reference exact, rounded;
  int token = 1, position;
};

struct Worst {
  double exact = 0, rounded = 0;
  int wrong_tokens = 0;
};

DecodeSampling sampling_of(int step, int sequence) {
  DecodeSampling sampling;
  sampling.temperature = (step + sequence) % 3 == 2 ? 0.8f : 0;
  sampling.seed = 1234567890123ull + static_cast<uint64_t>(step * 10 + sequence);
  sampling.choice = step % 2;
  return sampling;
}

// Launches a step of the first sequences and compares logits and tokens.
void check_step(DecodeContext& context, const TestModel& model, DecodeStream& decode,
                std::vector<Track>& tracks, int step, int batch, Worst& worst) {
  std::vector<DecodeSampling> sampling;
  for (int b = 0; b < batch; ++b) sampling.push_back(sampling_of(step, b));
  decode.launch(context.stream.get(), model.page_table(), model.config().pages(), sampling);
  std::vector<DecodeState> states = decode.finish(context.stream.get());
  for (int b = 0; b < batch; ++b) {
    Track& track = tracks[static_cast<size_t>(b)];
    const DecodeState& state = states[static_cast<size_t>(b)];
    std::vector<float> logits = decode.logits(b);
    worst.exact = std::max(worst.exact, nmse(logits, track.exact.step(track.token)));
    worst.rounded = std::max(worst.rounded, nmse(logits, track.rounded.step(track.token)));
    if (std::isnan(nmse(logits, {logits.begin(), logits.end()}))) worst.exact = INFINITY;
    const DecodeSampling& s = sampling[static_cast<size_t>(b)];
    SampleSpec spec;
    spec.temperature = s.temperature;
    spec.seed = s.seed;
    if (host_choice(logits, spec, ++track.position, s.choice) != state.chosen) ++worst.wrong_tokens;
    if (state.position != track.position) ++worst.wrong_tokens;
    track.token = state.chosen;
  }
}

// Greedy and sampled steps; logits of every step against both references.
void check_case(const Case& c, DecodeContext& context) {
  TestModel model(c.model, context.filler);
  HostWeights host(model);
  DecodeStream decode(context.device, context.kernels.data(), c.model.shape, model.weights(),
                      c.model.batch);
  decode.set_timeout_ms(20000);  // checking tools make the kernel slow
  std::vector<Track> tracks;
  for (int b = 0; b < c.model.batch; ++b) {
    const int cached = b == 1 ? 0 : c.cached - b * c.cached / 9;  // lengths of their own
    tracks.emplace_back(model, host, b, cached);
    decode.set_state(b, 1, cached);
  }
  Worst worst;
  for (int i = 0; i < c.steps; ++i) {
    int batch = c.batches.empty() ? 1 : c.batches[static_cast<size_t>(i) % c.batches.size()];
    check_step(context, model, decode, tracks, i, batch, worst);
  }
  context.report.expect(
      worst.exact < 2e-4 && worst.rounded < 1e-4,
      fmt::format("{}: worst NMSE of {} steps {:.1e} (exact), {:.1e} (rounded alike)", c.name,
                  c.steps, worst.exact, worst.rounded));
  context.report.expect(
      worst.wrong_tokens == 0,
      fmt::format("{}: tokens of the host sampler, {} differ", c.name, worst.wrong_tokens));
}

// The same steps three times, launched without waiting in between: every bit of the last logits
// agrees, and a sequence has the same logits in any batch of the same kernel.
void check_repeats(DecodeContext& context, const char* name, const TestShape& shape) {
  TestModel model(shape, context.filler);
  DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(),
                      shape.batch);
  for (int batch : {1, 2, 8}) {
    std::vector<DecodeSampling> sampling(static_cast<size_t>(batch), {99, 0.8f, 0});
    std::vector<float> first;
    int same = 0;
    for (int round = 0; round < 3; ++round) {
      for (int b = 0; b < batch; ++b) decode.set_state(b, 1, 512);
      for (int i = 0; i < 400; ++i)
        decode.launch(context.stream.get(), model.page_table(), model.config().pages(), sampling);
      decode.finish(context.stream.get());
      if (round == 0) first = decode.logits(0);
      same += decode.logits(0) == first;
    }
    context.report.expect(
        same == 3, fmt::format("{}: 400 steps of {} in a row: {} of 3 rounds are equal to the bit",
                               name, batch, same));
  }
}

void check_deadline(DecodeContext& context) {
  TestShape shape{shape_of(3, 512, 8, 2, 128, 1536, 4000)};
  TestModel model(shape, context.filler);
  DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(), 1);
  decode.set_timeout_ms(20);
  const DecodeSampling greedy;
  auto run = [&] {
    decode.set_state(0, 1, 100);
    decode.launch(context.stream.get(), model.page_table(), model.config().pages(), {&greedy, 1});
    return decode.finish(context.stream.get())[0].chosen;
  };
  int before = run();
  for (int stuck : {0, 1, 2, 9, decode.instructions() - 2}) {
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

void print_profile(DecodeStream& decode, const Stream& stream, const TestModel& model,
                   std::span<const DecodeSampling> sampling) {
  size_t count = static_cast<size_t>(decode.blocks() * decode.instructions() * kProfileFields);
  Buffer ticks(count * 8);
  std::vector<unsigned long long> t(count);
  for (size_t b = 0; b < sampling.size(); ++b) decode.set_state(static_cast<int>(b), 1, 512);
  decode.launch(stream.get(), model.page_table(), model.config().pages(), sampling,
                ticks.address());
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
        if (kind != 2 && f[1] == 0) continue;  // a block without rows
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

// Milliseconds of a step of `batch` sequences.
double time_step(DecodeContext& context, const TestModel& model, DecodeStream& decode, int batch,
                 int cached, float temperature) {
  std::vector<DecodeSampling> sampling(static_cast<size_t>(batch), {7, temperature, 0});
  for (int b = 0; b < batch; ++b) decode.set_state(b, 1, cached);
  double ms = context.stream.time(20, [&] {
    decode.launch(context.stream.get(), model.page_table(), model.config().pages(), sampling);
  });
  decode.finish(context.stream.get());
  return ms;
}

void time_model(const std::string& name, const TestShape& shape, DecodeContext& context) {
  TestModel model(shape, context.filler);
  DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(),
                      shape.batch);
  const int cached = 512;
  auto report = [&](int batch, float temperature, const std::string& what) {
    double ms = time_step(context, model, decode, batch, cached, temperature);
    context.report.timing(fmt::format("{} B={} ctx {}{}", name, batch, cached, what), ms,
                          model.weight_bytes() + batch * model.cache_bytes(cached));
  };
  for (int batch = 1; batch <= shape.batch; ++batch) {
    report(batch, 0, "");
    if (batch != 1 && batch != shape.batch) continue;
    report(batch, 0.8f, ", temperature 0.8");
    std::vector<DecodeSampling> sampling(static_cast<size_t>(batch));
    print_profile(decode, context.stream, model, sampling);
  }
  for (int quarters : {4, 5, 6, 8}) {
    decode.set_in_flight(quarters);
    report(1, 0, fmt::format(", {} in flight", quarters));
  }
}

TestShape timing_shape(const DecoderShape& shape, DecodeWeight type, int batch) {
  TestShape t{shape};
  t.qk_norm = shape.hidden == 2048;
  t.batch = batch;
  t.type = t.head_type = type;
  t.timing = true;
  return t;
}

}  // namespace

void check_decode(DecodeContext& context) {
  for (const Case& c : small_cases()) check_case(c, context);
  check_deadline(context);
}
void check_decode_large(DecodeContext& context) {
  TestShape llama{llama_8b(2)};
  check_case({"8B widths, 2 layers", llama, 512, 3, {}}, context);
  llama.batch = 8;
  check_repeats(context, "8B widths", llama);
  llama.type = DecodeWeight::kQ4;
  llama.shape.vocab = 8000;
  check_case({"8B widths, q4_0, 8 sequences", llama, 512, 2, {8}}, context);
  TestShape qwen{qwen3_1_7b(2), true};
  qwen.batch = 8;
  check_case({"1.7B widths, 2 layers, 8 and 1 sequences", qwen, 512, 4, {8, 1}}, context);
}
void check_decode_tiny(DecodeContext& context) {
  for (size_t i = 0; i < 4; ++i) {
    Case c{kTypeNames[i], {shape_of(1, 512, 8, 2, 128, 512, 1000), true, true, 128}, 70, 2, {8, 1}};
    c.model.batch = 8;
    c.model.type = c.model.head_type = kTypes[i];
    check_case(c, context);
  }
}
void time_decode(DecodeContext& context) {
  for (size_t i = 0; i < 4; ++i)
    for (auto [name, shape] : {std::pair{"8B", llama_8b(32)}, {"1.7B", qwen3_1_7b(28)}})
      time_model(fmt::format("{} {}", name, kTypeNames[i]), timing_shape(shape, kTypes[i], 8),
                 context);
}

}  // namespace tokamak::cuda
