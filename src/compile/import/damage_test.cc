// Corrupt and hostile model files: every mutation either loads or throws Error, and no parse
// allocates much more than the file's size. The global operator new below counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "compile/import/gguf_config.h"
#include "compile/import/hf_config.h"
#include "compile/import/import_test_util.h"
#include "compile/import/safetensors_file.h"

namespace {
thread_local size_t g_allocated = 0;
}

void* operator new(size_t size) {
  g_allocated += size;
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace tokamak {
namespace {

// A few small edits: truncate, flip, overwrite with an extreme integer, copy a piece elsewhere,
// insert.
std::string mutate(std::string bytes, Rng& rng, size_t interesting) {
  const uint64_t nasty[] = {0,          1,          0x7f,           0xff,
                            0xffff,     0x7fffffff, 0xffffffff,     1ull << 32,
                            1ull << 62, 1ull << 63, UINT64_MAX - 7, UINT64_MAX};
  int edits = 1 + static_cast<int>(rng.below(4));
  for (int e = 0; e < edits && !bytes.empty(); ++e) {
    // Most edits are in the header, where they matter.
    size_t range = rng.below(8) == 0 ? bytes.size() : std::min(bytes.size(), interesting);
    size_t at = rng.below(range);
    switch (rng.below(6)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.below(8)));
        break;
      case 2: {
        uint64_t value = nasty[rng.below(std::size(nasty))];
        size_t width = size_t{1} << rng.below(4);
        for (size_t i = 0; i < width && at + i < bytes.size(); ++i)
          bytes[at + i] = static_cast<char>(value >> 8 * i);
        break;
      }
      case 3: {
        size_t from = rng.below(bytes.size()),
               n = std::min<size_t>(rng.below(64), bytes.size() - std::max(at, from));
        std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(from), n,
                    bytes.begin() + static_cast<ptrdiff_t>(at));
        break;
      }
      case 4:
        bytes.insert(at, std::string(1 + rng.below(16), static_cast<char>(rng.next_u32())));
        break;
      default:
        bytes[at] = static_cast<char>(rng.next_u32());
        break;
    }
  }
  return bytes;
}

struct Outcome {
  int loaded = 0, refused = 0;
};

// `load` parses and uses the bytes; anything it throws other than Error fails the test.
template <class Load>
Outcome run_mutations(const std::string& good, size_t interesting, int rounds, uint64_t seed,
                      Load load) {
  Outcome outcome;
  Rng rng(seed);
  for (int round = 0; round < rounds; ++round) {
    std::string bad = mutate(good, rng, interesting);
    size_t limit = 64 * bad.size() + (1 << 16);
    g_allocated = 0;
    try {
      load(bad);
      ++outcome.loaded;
    } catch (const Error& e) {
      ++outcome.refused;
      if (e.code() == ErrorCode::kInternal) ADD_FAILURE() << "round " << round << ": " << e.what();
    }
    if (g_allocated > limit) {
      ADD_FAILURE() << "round " << round << ": " << g_allocated << " bytes allocated for a file of "
                    << bad.size();
      break;
    }
  }
  return outcome;
}

// Reads the first and the last byte of every tensor that a configuration uses, to detect a view
// outside its file.
unsigned touch(const WeightSource& file, const ModelConfig& config) {
  unsigned sum = 0;
  for (const auto& [name, weight] : config.weights)
    for (const std::string& source : weight.recipe.sources) {
      const TensorView* view = file.find(source);
      if (view && !view->bytes.empty())
        sum += std::to_integer<unsigned>(view->bytes.front()) +
               std::to_integer<unsigned>(view->bytes.back());
    }
  return sum;
}

volatile unsigned g_sink;

TEST(Damage, Gguf) {
  for (const char* arch : {"llama", "gemma3", "phi3", "gpt2"}) {
    test::TinyGguf tiny;
    tiny.arch = arch;
    tiny.layers = 1;
    if (tiny.arch == "gpt2") tiny.kv_heads = 4;
    std::vector<std::string> tokens(24, "token");
    tiny.writer.set_strings("tokenizer.ggml.tokens", tokens);
    tiny.writer.set_floats("tokenizer.ggml.scores", std::vector<float>(24));
    std::vector<std::byte> bytes = tiny.bytes();
    std::string good(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    Outcome outcome = run_mutations(good, 2000, 3000, 11, [](const std::string& bad) {
      auto file = GgufFile::parse(test::as_bytes(bad), "bad.gguf");
      for (std::string_view token : file->strings("tokenizer.ggml.tokens"))
        g_sink = static_cast<unsigned>(token.size());
      file->floats("tokenizer.ggml.scores");
      file->metadata();
      g_sink = touch(*file, config_from_gguf(*file));
    });
    EXPECT_GT(outcome.loaded, 100) << arch;
    EXPECT_GT(outcome.refused, 1000) << arch;
  }
}

TEST(Damage, Safetensors) {
  test::SafetensorsBuilder builder;
  builder.header.set("__metadata__", Value::Object{{"format", "pt"}});
  for (int i = 0; i < 6; ++i) builder.add_f32(fmt::format("model.layers.{}.w", i), {3, i + 1});
  std::string good = builder.file();
  Outcome outcome = run_mutations(good, 600, 6000, 12, [](const std::string& bad) {
    auto file = SafetensorsFile::parse(test::as_bytes(bad), "bad.safetensors");
    for (const std::string& name : file->names())
      if (const TensorView* view = file->find(name); view && !view->bytes.empty())
        g_sink = std::to_integer<unsigned>(view->bytes.back());
  });
  EXPECT_GT(outcome.loaded, 50);
  EXPECT_GT(outcome.refused, 3000);
}

// Truncate at every byte, which includes the end of each section.
TEST(Damage, EveryPrefixIsRefused) {
  test::TinyGguf tiny;
  tiny.layers = 1;
  std::vector<std::byte> gguf = tiny.bytes();
  test::SafetensorsBuilder builder;
  for (int i = 1; i < 4; ++i) builder.add_f32(fmt::format("tensor {}", i), {2, i});
  std::string safetensors = builder.file();
  // In the data every 97th byte is enough; the last bytes may be padding.
  for (size_t n = 0; n + 32 < gguf.size(); n += n < 2500 ? 1 : 97)
    EXPECT_THROW(GgufFile::parse(std::span(gguf).first(n), "cut.gguf"), Error) << n;
  for (size_t n = 0; n < safetensors.size(); ++n)
    EXPECT_THROW(SafetensorsFile::parse(test::as_bytes(safetensors).first(n), "cut"), Error) << n;
}

TEST(Damage, ConfigJson) {
  WeightTable table;
  auto add = [&](const char* name, std::vector<int64_t> dims) {
    size_t n = 1;
    for (int64_t d : dims) n *= static_cast<size_t>(d);
    table.add_f32(name, std::move(dims), std::vector<float>(n));
  };
  add("model.embed_tokens.weight", {8, 16});
  add("model.norm.weight", {16});
  add("model.layers.0.input_layernorm.weight", {16});
  add("model.layers.0.self_attn.q_proj.weight", {16, 16});
  add("model.layers.0.self_attn.k_proj.weight", {8, 16});
  add("model.layers.0.self_attn.v_proj.weight", {8, 16});
  add("model.layers.0.self_attn.o_proj.weight", {16, 16});
  add("model.layers.0.post_attention_layernorm.weight", {16});
  add("model.layers.0.mlp.gate_proj.weight", {24, 16});
  add("model.layers.0.mlp.up_proj.weight", {24, 16});
  add("model.layers.0.mlp.down_proj.weight", {16, 24});
  std::string good = R"({"model_type":"llama","vocab_size":8,"hidden_size":16,"num_hidden_layers":1,
    "num_attention_heads":2,"num_key_value_heads":1,"intermediate_size":24,"max_position_embeddings":64,
    "tie_word_embeddings":true,"sliding_window":8,"rms_norm_eps":1e-5,"hidden_act":"silu","rope_theta":10000.0,
    "layer_types":["full_attention"],"rope_scaling":{"rope_type":"yarn","factor":4.0,"beta_fast":32}})";
  ModelConfig whole = config_from_hf(parse_json(good), table);
  EXPECT_EQ(whole.rope.scaling, RopeConfig::Scaling::kYarn);
  Outcome outcome = run_mutations(good, good.size(), 6000, 13, [&](const std::string& bad) {
    g_sink = touch(table, config_from_hf(parse_json(bad), table));
  });
  EXPECT_GT(outcome.loaded, 50);
  EXPECT_GT(outcome.refused, 3000);
}

}  // namespace
}  // namespace tokamak
