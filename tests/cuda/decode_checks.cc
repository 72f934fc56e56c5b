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
                                   DecodeWeight::kQ4, DecodeWeight::kF16};
constexpr const char* kTypeNames[] = {"bf16", "fp8", "q8_0", "q4_0", "f16"};
// Only of one sequence.
constexpr std::pair<DecodeWeight, const char*> kSingleTypes[] = {
    {DecodeWeight::kBf16, "bf16"}, {DecodeWeight::kFp8, "fp8"}, {DecodeWeight::kQ8, "q8_0"},
    {DecodeWeight::kQ4, "q4_0"},   {DecodeWeight::kF16, "f16"}, {DecodeWeight::kK4, "q4_k, q6_k"}};

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
  for (size_t i = 0; i < std::size(kTypes); ++i) {
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
    c.model.head_type = kTypes[(i + 1) % std::size(kTypes)];
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
void check_repeats(DecodeContext& context, const std::string& name, const TestShape& shape,
                   const std::vector<int>& batches) {
  TestModel model(shape, context.filler);
  DecodeStream decode(context.device, context.kernels.data(), shape.shape, model.weights(),
                      shape.batch);
  for (int batch : batches) {
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

// Mean and most over blocks and layers, and the mean over layers of the least over blocks.
struct Spread {
  double sum = 0, most = 0, least_sum = 0, least = INFINITY;
  int count = 0, layers = 0;
  void add(double ticks) {
    sum += ticks;
    most = std::max(most, ticks);
    least = std::min(least, ticks);
    ++count;
  }
  void end_layer() {
    least_sum += std::isinf(least) ? 0 : least;
    least = INFINITY;
    ++layers;
  }
  double mean() const { return count ? sum / count / 1e3 : 0; }
};

using Ticks = std::vector<unsigned long long>;
constexpr int kKinds = 7;  // of instructions: six of a layer and the head

class Profile {
 public:
  Profile(DecodeStream& decode, const Stream& stream, const TestModel& model,
          std::span<const DecodeSampling> sampling)
      : blocks_(decode.blocks()), instructions_(decode.instructions()) {
    ticks_.resize(static_cast<size_t>(blocks_ * instructions_ * kProfileFields));
    Buffer ticks(ticks_.size() * 8);
    for (size_t b = 0; b < sampling.size(); ++b) decode.set_state(static_cast<int>(b), 1, 512);
    decode.launch(stream.get(), model.page_table(), model.config().pages(), sampling,
                  ticks.address());
    decode.finish(stream.get());
    ticks.read(ticks_.data(), ticks_.size() * 8);
  }
  void print() const {
    const char* names[kKinds] = {"qkv", "attend", "combine", "out", "gate_up", "down", "head"};
    fmt::print(
        "profile, thousands of cycles per instruction: mean over blocks and layers (most); input "
        "also [mean of the least]\n");
    for (int kind = 0; kind < kKinds; ++kind) print_kind(kind, names[kind]);
    fmt::print("  waits for input of a layer by block:");
    for (int b = 0; b < blocks_; ++b)
      fmt::print("{}{:5.1f}", b % 22 ? " " : "\n   ", input_waits(b));
    fmt::print("\n");
  }

 private:
  const unsigned long long* entry(int block, int instruction) const {
    return &ticks_[static_cast<size_t>((block * instructions_ + instruction) * kProfileFields)];
  }
  static double between(const unsigned long long* f, ProfileField from, ProfileField to) {
    return f[to] > f[from] ? static_cast<double>(f[to] - f[from]) : 0;
  }
  void print_kind(int kind, const char* name) const {
    Spread input, work, end, all, waits[4];
    for (int i = 0; i < instructions_; ++i) {
      if ((i == instructions_ - 1 ? 6 : i % 6) != kind) continue;
      for (int b = 0; b < blocks_; ++b) {
        const auto* f = entry(b, i);
        if (kind != 2 && f[kHasInput] == 0) continue;  // a block without rows
        all.add(between(f, kBegin, kDone));
        if (kind != 2) {
          input.add(between(f, kBegin, kHasInput));
          work.add(between(f, kHasInput, kHasSums));
          end.add(between(f, kHasSums, kDone));
        }
        for (int w = 0; w < 4; ++w) waits[w].add(static_cast<double>(f[kWaitWeights + w]));
      }
      input.end_layer();
    }
    fmt::print(
        "  {:<8} input {:6.2f} ({:6.2f}) [{:6.2f}]  work {:7.2f} ({:7.2f})  end {:5.2f} ({:5.2f}) "
        " all {:7.2f} | waits: weights {:6.2f} consumers {:6.2f}; producer: room {:6.2f} copies "
        "{:6.2f}\n",
        name, input.mean(), input.most / 1e3, input.least_sum / std::max(1, input.layers) / 1e3,
        work.mean(), work.most / 1e3, end.mean(), end.most / 1e3, all.mean(), waits[0].mean(),
        waits[1].mean(), waits[2].mean(), waits[3].mean());
  }
  double input_waits(int block) const {
    double sum = 0;
    for (int i = 0; i < instructions_ - 1; ++i)
      if (const auto* f = entry(block, i); f[kHasInput]) sum += between(f, kBegin, kHasInput);
    return sum / (instructions_ / 6) / 1e3;
  }
  int blocks_, instructions_;
  Ticks ticks_;
};

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
    Profile(decode, context.stream, model, sampling).print();
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
  check_repeats(context, "8B widths", llama, {1, 2, 8});
  llama.type = DecodeWeight::kQ4;
  llama.shape.vocab = 8000;
  check_case({"8B widths, q4_0, 8 sequences", llama, 512, 2, {8}}, context);
  TestShape qwen{qwen3_1_7b(2), true};
  qwen.batch = 8;
  check_case({"1.7B widths, 2 layers, 8 and 1 sequences", qwen, 512, 4, {8, 1}}, context);
}
// One sequence alone: every type at the widths of both models, with small vocabularies.
void check_decode_one(DecodeContext& context) {
  for (const auto& [type, type_name] : kSingleTypes)
    for (TestShape t : {TestShape{llama_8b(2)}, TestShape{qwen3_1_7b(2), true}}) {
      t.type = type;
      t.head_type = t.shape.hidden == 2048      ? DecodeWeight::kBf16
                    : type == DecodeWeight::kK4 ? DecodeWeight::kK8
                                                : type;
      t.shape.vocab = 5000;
      const std::string name = fmt::format("{}, width {}", type_name, t.shape.hidden);
      check_case({name, t, 512, 3, {}}, context);
      check_repeats(context, name, t, {1});
    }
  check_deadline(context);
}
void check_decode_tiny(DecodeContext& context) {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    Case c{kTypeNames[i], {shape_of(1, 512, 8, 2, 128, 512, 1000), true, true, 128}, 70, 2, {8, 1}};
    c.model.batch = 8;
    c.model.type = c.model.head_type = kTypes[i];
    check_case(c, context);
  }
  Case k{"q4_k, q6_k", {shape_of(1, 512, 8, 2, 128, 512, 1000), true, true, 128}, 70, 2, {}};
  k.model.type = DecodeWeight::kK4;
  k.model.head_type = DecodeWeight::kK8;
  check_case(k, context);
}
void time_decode_one(DecodeContext& context) {
  for (auto [name, shape] : {std::pair{"8B", llama_8b(32)}, {"1.7B", qwen3_1_7b(28)}})
    for (const auto& [type, type_name] : kSingleTypes) {
      TestShape t = timing_shape(shape, type, 1);
      if (type == DecodeWeight::kK4) t.head_type = DecodeWeight::kK8;
      time_model(fmt::format("{} {}", name, type_name), t, context);
    }
  TestShape mixed = timing_shape(llama_8b(32), DecodeWeight::kFp8, 1);
  mixed.head_type = DecodeWeight::kBf16;
  time_model("8B fp8, head bf16", mixed, context);
}
void time_decode(DecodeContext& context) {
  for (size_t i = 0; i < std::size(kTypes); ++i)
    for (auto [name, shape] : {std::pair{"8B", llama_8b(32)}, {"1.7B", qwen3_1_7b(28)}})
      time_model(fmt::format("{} {}", name, kTypeNames[i]), timing_shape(shape, kTypes[i], 8),
                 context);
}

}  // namespace tokamak::cuda
