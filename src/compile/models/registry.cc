// Which builder makes the graph of an architecture: that of decoders unless listed here.
#include <string>

#include "base/error.h"
#include "compile/import/families.h"
#include "compile/models/builder.h"

namespace tokamak {
namespace {

struct Entry {
  std::string_view architecture;
  Module (*build)(const ModelConfig&, const CompileOptions&);
};

constexpr Entry kOthers[] = {
    {"starcoder", build_gpt2},     {"gpt2", build_gpt2},           {"opt", build_gpt2},
    {"gptneo", build_gpt2},        {"gemma4", build_gemma4},       {"gemma3n", build_gemma3n},
    {"bert", build_encoder},       {"roberta", build_encoder},     {"distilbert", build_encoder},
    {"nomic-bert", build_encoder}, {"modern-bert", build_encoder},
};

auto builder_of(std::string_view architecture) {
  for (const Entry& entry : kOthers)
    if (architecture == entry.architecture) return entry.build;
  if (!find_family(architecture))
    fail(ErrorCode::kUnsupported, "architecture \"{}\" is not supported; supported: {}",
         architecture, supported_architectures());
  return build_decoder;
}

}  // namespace

Module build_module(const ModelConfig& config, const CompileOptions& options) {
  Module module = builder_of(config.architecture)(config, options);
  verify_module(module);
  return module;
}

}  // namespace tokamak
