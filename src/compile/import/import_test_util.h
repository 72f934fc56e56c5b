#pragma once
// Tiny models for the importers' tests, written into memory or a temporary folder.
#include <cstring>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "compile/import/gguf_writer.h"

namespace tokamak::test {

// A folder that is deleted when the test ends.
class TempFolder {
 public:
  TempFolder() {
    std::random_device device;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("tk_import_{:08x}{:08x}", device(), device());
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::vector<float> random_floats(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(n);
  for (float& v : out) v = static_cast<float>(0.1 * rng.normal());
  return out;
}

// A GGUF model of a given architecture with random f32 weights: sizes, the metadata common to all
// families, and tensors. Tests add or omit what they test.
struct TinyGguf {
  std::string arch = "llama";
  int64_t vocab = 24, hidden = 32, ffn = 48, layers = 2, heads = 4, kv_heads = 2, head_dim = 8,
          context = 64;
  bool tied = false, skip_metadata = false;
  std::string leave_out;  // a tensor name
  GgufWriter writer;

  void metadata() {
    writer.set_string("general.architecture", arch);
    writer.set_string("general.name", "tiny " + arch);
    auto u32 = [&](const char* key, int64_t v) {
      writer.set_u32(arch + "." + key, static_cast<uint32_t>(v));
    };
    u32("block_count", layers);
    u32("context_length", context);
    u32("embedding_length", hidden);
    u32("feed_forward_length", ffn);
    u32("attention.head_count", heads);
    u32("attention.head_count_kv", kv_heads);
    u32("attention.key_length", head_dim);
    u32("attention.value_length", head_dim);
    writer.set_f32(arch + (arch == "gpt2" ? ".attention.layer_norm_epsilon"
                                          : ".attention.layer_norm_rms_epsilon"),
                   1e-5f);
  }
  void tensor(const std::string& name, std::vector<int64_t> dims) {
    if (name == leave_out) return;
    size_t n = 1;
    for (int64_t d : dims) n *= static_cast<size_t>(d);
    writer.add_f32(name, std::move(dims), random_floats(n, std::hash<std::string>()(name)));
  }
  void tensors() {
    bool gpt2 = arch == "gpt2", gemma = arch == "gemma2" || arch == "gemma3",
         fused = gpt2 || arch == "phi3";
    int64_t q = heads * head_dim, kv = kv_heads * head_dim;
    tensor("token_embd.weight", {vocab, hidden});
    if (gpt2) tensor("position_embd.weight", {context, hidden});
    for (int64_t i = 0; i < layers; ++i) {
      std::string blk = fmt::format("blk.{}.", i);
      auto both = [&](const std::string& stem, std::vector<int64_t> dims, bool bias) {
        if (bias) tensor(blk + stem + ".bias", {dims[0]});
        tensor(blk + stem + ".weight", std::move(dims));
      };
      both("attn_norm", {hidden}, gpt2);
      if (fused) {
        both("attn_qkv", {q + 2 * kv, hidden}, gpt2);
      } else {
        both("attn_q", {q, hidden}, arch == "qwen2");
        both("attn_k", {kv, hidden}, arch == "qwen2");
        both("attn_v", {kv, hidden}, arch == "qwen2");
      }
      if (arch == "qwen3" || arch == "gemma3") {
        both("attn_q_norm", {head_dim}, false);
        both("attn_k_norm", {head_dim}, false);
      }
      both("attn_output", {hidden, q}, gpt2);
      both("ffn_norm", {hidden}, gpt2);
      if (!fused) both("ffn_gate", {ffn, hidden}, false);
      both("ffn_up", {arch == "phi3" ? 2 * ffn : ffn, hidden}, gpt2);
      both("ffn_down", {hidden, ffn}, gpt2);
      if (gemma) {
        both("post_attention_norm", {hidden}, false);
        both("post_ffw_norm", {hidden}, false);
      }
    }
    tensor("output_norm.weight", {hidden});
    if (gpt2) tensor("output_norm.bias", {hidden});
    if (!tied) tensor("output.weight", {vocab, hidden});
  }
  std::vector<std::byte> bytes() {
    if (!skip_metadata) metadata();
    tensors();
    return writer.to_bytes();
  }
};

// Builds a safetensors file from (name, dtype, shape, bytes), in order.
struct SafetensorsBuilder {
  std::string data;
  Value header = Value::object();

  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
           std::string_view bytes) {
    Value entry = Value::object();
    Value dims = Value::array(), offsets = Value::array();
    for (int64_t d : shape) dims.push(Value(d));
    offsets.push(Value(static_cast<int64_t>(data.size())));
    data += bytes;
    offsets.push(Value(static_cast<int64_t>(data.size())));
    entry.set("dtype", dtype);
    entry.set("shape", std::move(dims));
    entry.set("data_offsets", std::move(offsets));
    header.set(name, std::move(entry));
  }
  void add_f32(const std::string& name, std::vector<int64_t> shape) {
    size_t n = 1;
    for (int64_t d : shape) n *= static_cast<size_t>(d);
    std::vector<float> values = random_floats(n, std::hash<std::string>()(name));
    add(name, "F32", std::move(shape), {reinterpret_cast<const char*>(values.data()), n * 4});
  }
  static std::string with_header(std::string text, std::string_view data) {
    while (text.size() % 8 != 0) text += ' ';
    uint64_t size = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &size, 8);
    return out + text + std::string(data);
  }
  std::string file() const { return with_header(dump_json(header), data); }
};

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The message of the Error that `body` throws, prefixed with its code; "" if it does not throw.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& e) {
    return fmt::format("{}: {}", error_code_name(e.code()), e.what());
  }
  return "";
}

}  // namespace tokamak::test
