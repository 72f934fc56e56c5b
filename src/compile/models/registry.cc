// Which family builds which architecture. A new member of a known family is one line here and its
// config mapping in compile/import.
#include "base/error.h"
#include "compile/models/builder.h"

namespace tokamak {
namespace {

struct Entry {
  const char* architecture;
  Module (*build)(const ModelConfig&, const CompileOptions&);
};

constexpr Entry kModels[] = {
    {"llama", build_decoder},      {"mistral", build_decoder},    {"qwen2", build_decoder},
    {"qwen3", build_decoder},      {"gemma2", build_decoder},     {"gemma3", build_decoder},
    {"gemma", build_decoder},      {"phi3", build_decoder},       {"phi2", build_decoder},
    {"gpt2", build_gpt2},          {"opt", build_gpt2},           {"starcoder2", build_decoder},
    {"olmo2", build_decoder},      {"exaone4", build_decoder},    {"exaone", build_decoder},
    {"granite", build_decoder},    {"smollm3", build_decoder},    {"internlm2", build_decoder},
    {"command-r", build_decoder},  {"cohere2", build_decoder},    {"glm4", build_decoder},
    {"mixtral", build_decoder},    {"qwen2moe", build_decoder},   {"qwen3moe", build_decoder},
    {"olmoe", build_decoder},      {"glm4moe", build_decoder},    {"deepseek2", build_decoder},
    {"gpt-oss", build_decoder},    {"bert", build_encoder},       {"roberta", build_encoder},
    {"distilbert", build_encoder}, {"nomic-bert", build_encoder}, {"modern-bert", build_encoder},
    {"mamba2", build_mamba2},      {"qwen3next", build_decoder},  {"llama4", build_decoder},
    {"gemma3n", build_gemma3n},
};

}  // namespace

Module build_module(const ModelConfig& config, const CompileOptions& options) {
  std::string known;
  for (const Entry& entry : kModels) {
    if (config.architecture == entry.architecture) {
      Module module = entry.build(config, options);
      verify_module(module);
      return module;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.architecture);
  }
  fail(ErrorCode::kUnsupported, "architecture \"{}\" is not supported; supported: {}",
       config.architecture, known);
}

}  // namespace tokamak
