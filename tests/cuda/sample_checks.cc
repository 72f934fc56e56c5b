// Sampling on the device against the host sampler, and its time.
#include <cmath>

#include "backend/cuda/sample.h"
#include "base/rng.h"
#include "decode_bench.h"

namespace tokamak::cuda {
namespace {

SampleRowParams params_of(const SampleSpec& s, int32_t position, int32_t choice) {
  SampleRowParams p{};
  p.seed = s.seed;
  p.temperature = s.temperature;
  p.top_p = s.top_p;
  p.log_min_p = s.min_p > 0 ? std::log(std::min(s.min_p, 1.0f)) : -INFINITY;
  p.top_k = s.top_k;
  p.choice = choice;
  p.position = position;
  return p;
}

class DeviceSampler {
 public:
  DeviceSampler(const std::vector<char>& kernels, int rows, int vocab)
      : module_(kernels.data()),
        function_(module_.function("sample_rows")),
        vocab_(vocab),
        logits_(static_cast<size_t>(rows) * static_cast<size_t>(vocab) * 4),
        params_(static_cast<size_t>(rows) * sizeof(SampleRowParams)),
        tokens_(static_cast<size_t>(rows) * 4),
        token_address_(sizeof(DeviceAddress)) {
    const DeviceAddress address = tokens_.address();
    token_address_.write(&address, sizeof address);
  }
  void load(const std::vector<float>& logits, const std::vector<SampleRowParams>& params) {
    logits_.write(logits.data(), logits.size() * 4);
    params_.write(params.data(), params.size() * sizeof(SampleRowParams));
  }
  void launch(const Stream& stream, int rows) {
    SampleLaunch l{};
    l.logits = logits_.as<float>();
    l.rows = params_.as<SampleRowParams>();
    l.host_tokens = token_address_.as<int32_t*>();
    l.vocab = vocab_;
    void* arguments[] = {&l};
    check(driver().launch(function_, static_cast<unsigned>(rows), 1, 1, kSampleThreads, 1, 1, 0,
                          stream.get(), arguments, nullptr),
          "launching the sampler");
  }
  std::vector<int32_t> tokens(int rows) {
    std::vector<int32_t> t(static_cast<size_t>(rows));
    tokens_.read(t.data(), t.size() * 4);
    return t;
  }

 private:
  KernelModule module_;
  Handle function_;
  int vocab_;
  Buffer logits_, params_, tokens_, token_address_;
};

std::vector<SampleSpec> all_specs() {
  std::vector<SampleSpec> specs;
  auto add = [&](float temperature, int top_k, float top_p, float min_p) {
    SampleSpec s;
    s.temperature = temperature;
    s.top_k = top_k;
    s.top_p = top_p;
    s.min_p = min_p;
    s.seed = 77 + specs.size() * 1000003;
    specs.push_back(s);
  };
  add(0, 0, 1, 0);
  add(1, 1, 1, 0);
  for (float t : {0.3f, 1.0f, 2.0f}) {
    add(t, 0, 1, 0);
    add(t, 50, 1, 0);
    add(t, 0, 0.9f, 0);
    add(t, 0, 0.3f, 0);
    add(t, 0, 1, 0.05f);
    add(t, 0, 0.8f, 0.01f);
    add(t, 40, 0.95f, 0.02f);
    add(t, 700, 0.5f, 0);
    add(t, 3, 0.0f, 0);
    add(t, 0, 0.0f, 0);
  }
  return specs;
}

// Rows of different shapes: normal, with many ties, all equal, nearly certain.
std::vector<float> make_logits(int kind, int vocab, Rng& rng) {
  std::vector<float> x(static_cast<size_t>(vocab));
  for (float& v : x) {
    double n = rng.normal();
    v = kind == 0   ? static_cast<float>(3 * n)
        : kind == 1 ? static_cast<float>(std::round(n * 2))
        : kind == 2 ? 0.5f
                    : static_cast<float>(n);
  }
  if (kind == 3) x[static_cast<size_t>(rng.below(static_cast<uint64_t>(vocab)))] = 30;
  return x;
}

}  // namespace

void check_sample(SampleContext& c) {
  Rng rng(5);
  int compared = 0, different = 0, on_host = 0;
  for (int vocab : {1000, 32001, 151936}) {
    std::vector<SampleSpec> specs = all_specs();
    auto rows = static_cast<int>(specs.size());
    DeviceSampler device(c.kernels, rows, vocab);
    for (int kind = 0; kind < 4; ++kind) {
      std::vector<float> all;
      std::vector<SampleRowParams> params;
      for (int r = 0; r < rows; ++r) {
        std::vector<float> x = make_logits(kind, vocab, rng);
        all.insert(all.end(), x.begin(), x.end());
        params.push_back(params_of(specs[static_cast<size_t>(r)], 10 + r, r % 3));
      }
      device.load(all, params);
      device.launch(c.stream, rows);
      c.stream.wait();
      std::vector<int32_t> got = device.tokens(rows);
      for (int r = 0; r < rows; ++r) {
        auto begin = all.begin() + static_cast<int64_t>(r) * vocab;
        int32_t expected =
            host_choice({begin, begin + vocab}, specs[static_cast<size_t>(r)], 10 + r, r % 3);
        int32_t token = got[static_cast<size_t>(r)];
        ++compared;
        if (token == kSampleOnHost && kind != 0 && specs[static_cast<size_t>(r)].top_k > 1) {
          ++on_host;
        } else if (token != expected) {
          ++different;
          fmt::print("vocab {} kind {} row {}: {} instead of {}\n", vocab, kind, r, token,
                     expected);
        }
      }
    }
  }
  c.report.expect(different == 0,
                  fmt::format("sampling: {} of {} tokens differ from the host's, {} "
                              "left to the host",
                              different, compared, on_host));
  DeviceSampler device(c.kernels, 1, 1000);
  std::vector<float> broken(1000, 1.0f);
  broken[777] = NAN;
  device.load(broken, {params_of({}, 0, 0)});
  device.launch(c.stream, 1);
  c.stream.wait();
  c.report.expect(device.tokens(1)[0] == kSampleFailed, "sampling: a logit that is not finite");
}

void time_sample(SampleContext& c) {
  Rng rng(6);
  const int vocab = 128256, most = 64;
  std::vector<float> all;
  for (int r = 0; r < most; ++r) {
    std::vector<float> x = make_logits(0, vocab, rng);
    all.insert(all.end(), x.begin(), x.end());
  }
  DeviceSampler device(c.kernels, most, vocab);
  struct Named {
    const char* name;
    float temperature;
    int top_k;
    float top_p, min_p;
  };
  for (const Named& n : {Named{"greedy", 0, 0, 1, 0},
                         {"T=0.8", 0.8f, 0, 1, 0},
                         {"top-k 50", 0.8f, 50, 1, 0},
                         {"top-p 0.9", 0.8f, 0, 0.9f, 0},
                         {"top-k 50, top-p 0.9", 0.8f, 50, 0.9f, 0},
                         {"min-p 0.05", 0.8f, 0, 1, 0.05f}})
    for (int rows : {1, most}) {
      std::vector<SampleRowParams> params;
      for (int r = 0; r < rows; ++r) {
        SampleSpec s;
        s.temperature = n.temperature;
        s.top_k = n.top_k;
        s.top_p = n.top_p;
        s.min_p = n.min_p;
        s.seed = static_cast<uint64_t>(r);
        params.push_back(params_of(s, r, 0));
      }
      device.load({all.begin(), all.begin() + static_cast<int64_t>(rows) * vocab}, params);
      double ms = c.stream.time(10, [&] { device.launch(c.stream, rows); });
      c.report.timing(fmt::format("sample {}, {} rows of {}", n.name, rows, vocab), ms,
                      4.0 * rows * vocab);
    }
}

}  // namespace tokamak::cuda
