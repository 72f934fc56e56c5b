// GGUF bytes -> file, metadata, model configuration, and the first and last byte of every weight.
// Anything but Error is a finding.
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "compile/import/gguf_config.h"
#include "tests/fuzz/fuzzer.h"

using namespace tokamak;

TK_FUZZER(gguf) {
  [[maybe_unused]] static volatile unsigned sink;
  try {
    auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
    file->metadata();
    for (const GgufTensor& tensor : file->tensors())
      if (tensor.view && !tensor.view->bytes.empty())
        sink = std::to_integer<unsigned>(tensor.view->bytes.front()) +
               std::to_integer<unsigned>(tensor.view->bytes.back());
    for (std::string_view token : file->strings("tokenizer.ggml.tokens"))
      sink = static_cast<unsigned>(token.size());
    ModelConfig config = config_from_gguf(*file);
    for (const auto& [name, weight] : config.weights)
      fail_if(!file->find(weight.recipe.sources.at(0)));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;  // our bug, not an invalid file
  }
  return 0;
}
