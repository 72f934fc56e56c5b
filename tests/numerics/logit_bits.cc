// Prints a hash of all logit bits of model files (prefill in chunks, mixed steps, decode alone and
// batched), a hash of all KV bits and a greedy answer, for each backend, activation type and KV
// type. Two builds compute the same if they print the same.
#include <fmt/format.h>
#include <filesystem>
#include "base/error.h"
#include "base/hash.h"
#include "tests/numerics/model_runner.h"
using namespace tokamak;
// A hash of the KV blocks of three sequences, or "-" where ModelRunner cannot read them (older
// commits).
template <class Runner>
std::string kv_hash(Runner& runner) {
  if constexpr (requires { runner.kv(0); }) {
    Hash128 hash;
    for (int s : {0, 1, 2}) {
      std::vector<std::byte> bytes = runner.kv(s);
      hash.add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
    return hash.hex();
  } else {
    return "-";
  }
}
// One line; `tokens` is the length of the first sequence.
std::string line(const std::string& path, const RunnerOptions& o, int tokens) {
  ModelRunner r(path, o);
  Hash128 h;
  auto add = [&](const std::vector<std::vector<float>>& rows) {
    for (auto& row : rows)
      h.add(std::string_view(reinterpret_cast<const char*>(row.data()), row.size() * 4));
  };
  int64_t vocab = r.plans().vocab;
  std::vector<int32_t> a, b;
  for (int t = 0; t < tokens; ++t) a.push_back(static_cast<int32_t>((t * 7919 + 13) % vocab));
  for (int t = 0; t < 9; ++t) b.push_back(static_cast<int32_t>((t * 104729 + 5) % vocab));
  add(r.all_logits(0, a, 33));
  add(r.step({{1, b}, {0, {a[3]}}}));
  for (int t = 0; t < 3; ++t) add(r.decode({{0, {a[t]}}, {1, {b[t]}}}));
  add(r.decode({{1, {b[4]}}}));
  std::string text;
  for (int32_t id : r.greedy(2, b, 12)) text += fmt::format("{} ", id);
  return fmt::format("logits {} kv {} | {}", h.hex(), kv_hash(r), text);
}
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    for (const char* backend : {"cpu", "ref"})
      for (const char* act : {"auto", "f32"})
        for (DType kv : {DType::kF32, DType::kF16, DType::kI8}) {
          std::string path = argv[i];
          bool large =
              std::filesystem::is_regular_file(path) && std::filesystem::file_size(path) > 20e6;
          if (large && (std::string(backend) == "ref" || kv == DType::kF32)) continue;
          RunnerOptions o;
          o.backend = backend;
          o.activations = act;
          o.kv_dtype = kv;
          const std::string name = std::filesystem::path(path).filename().string();
          for (int tokens : {70, 56})  // tiny models with learned positions have 64
            try {
              std::string text = line(path, o, tokens);
              fmt::print("{} {} {} {} {} tokens {}\n", name, backend, act, dtype_name(kv), tokens,
                         text);
              break;
            } catch (const Error& e) {
              if (tokens == 56)
                fmt::print("{} {} {} {}: {}\n", path, backend, act, dtype_name(kv), e.what());
            }
        }
}
