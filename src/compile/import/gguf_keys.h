#pragma once
// Reading the metadata of a GGUF file.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "compile/import/gguf_file.h"
#include "compile/import/model_config.h"

namespace tokamak {

// Metadata keys of one architecture: "llama.block_count".
class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}
  std::string full(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  // Some files write a list with one number per layer; all must be equal.
  int64_t integer(std::string_view key, int64_t fallback) const {
    if (file_.array_size(full(key)) == 0) return file_.get_int(full(key), fallback);
    std::vector<int64_t> list = file_.ints(full(key));
    if (std::any_of(list.begin(), list.end(), [&](int64_t v) { return v != list[0]; }))
      fail(ErrorCode::kUnsupported, "{}: {} differs from layer to layer", file_.name(), full(key));
    return list[0];
  }
  // The largest number of a list with one per layer.
  int64_t largest(std::string_view key) const {
    if (file_.array_size(full(key)) == 0) return required(key);
    std::vector<int64_t> list = file_.ints(full(key));
    return *std::max_element(list.begin(), list.end());
  }
  int64_t required(std::string_view key) const {
    if (!has(key)) fail(ErrorCode::kCorrupt, "{}: metadata {} is missing", file_.name(), full(key));
    return integer(key, 0);
  }
  bool boolean(std::string_view key, bool fallback) const {
    return file_.get_bool(full(key), fallback);
  }
  double number(std::string_view key, double fallback) const {
    return file_.get_double(full(key), fallback);
  }
  std::string text(std::string_view key, std::string_view fallback) const {
    return file_.get_string(full(key), fallback);
  }
  std::vector<int64_t> list(std::string_view key) const {
    return file_.array_size(full(key)) == 0 ? std::vector<int64_t>{} : file_.ints(full(key));
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

// EmbeddingGemma: an encoder with layers after its pooling.
void read_gguf_embedder(const GgufFile& file, const GgufKeys& keys, ModelConfig& config);

// What only Gemma has; `config` has its sizes, windows and rotary embeddings.
void read_gguf_gemma(const GgufFile& file, const GgufKeys& keys, ModelConfig& config);
// Numbers that differ between layers with and without a window.
void read_gguf_gemma4_sizes(const GgufFile& file, const GgufKeys& keys, ModelConfig& config);

}  // namespace tokamak
