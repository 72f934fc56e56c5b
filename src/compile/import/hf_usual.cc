// Defaults for fields missing in config.json, as in transformers.
#include "base/error.h"
#include "compile/import/hf_fields.h"

namespace tokamak {
namespace {

constexpr Usual kUsual[] = {
    {"llama", 0, 0, 2048, 0},
    {"mistral", 8, 0, 131072, 4096},
    {"qwen2", 32, 0, 32768, 4096},
    {"qwen3", 32, 128, 32768, 4096},
    {"gemma", 16, 256, 8192, 0},
    {"gemma2", 4, 256, 8192, 4096},
    {"gemma3", 4, 256, 131072, 4096, 1e-6, 1000000},
    {"phi3", 0, 0, 4096, 0, 1e-5},
    {"phi2", 0, 0, 2048, 0, 1e-5},
    {"gpt2", 0, 0, 1024, 0, 1e-5},
    {"opt", 0, 0, 2048, 0, 1e-5},
    {"starcoder2", 2, 0, 4096, 0, 1e-5},
    {"olmo2", 0, 0, 2048, 4096, 1e-5},
    {"exaone", 0, 0, 2048, 0, 1e-5},
    {"exaone4", 32, 0, 2048, 4096, 1e-5},
    {"granite", 0, 0, 2048, 0},
    {"granitemoe", 0, 0, 2048, 0},
    {"smollm3", 4, 0, 32768, 0, 1e-6, 2000000},
    {"internlm2", 0, 0, 2048, 0},
    {"command-r", 0, 0, 8192, 0, 1e-5},
    {"cohere2", 0, 0, 8192, 4096, 1e-5},
    {"glm4", 2, 128, 131072, 0, 0.00000015625},
    {"mixtral", 8, 0, 131072, 0, 1e-5},
    {"qwen2moe", 16, 0, 32768, 4096},
    {"qwen3moe", 4, 0, 32768, 4096},
    {"olmoe", 0, 0, 4096, 0, 1e-5},
    {"glm4moe", 8, 0, 131072, 0, 1e-5},
    {"deepseek2", 0, 0, 4096, 0},
    {"gpt-oss", 8, 64, 131072, 128, 1e-5, 150000},
    {"mamba2", 0, 0, 0, 0, 1e-5},
    {"qwen3next", 2, 256, 32768, 0},
    {"llama4", 8, 128, 131072, 8192, 1e-5, 500000},
    {"gemma3n", 2, 256, 32768, 512, 1e-6, 1000000},
    {"gemma4", 4, 256, 131072, 512, 1e-6, 1000000},
    {"qwen2vl", 8, 0, 32768, 4096, 1e-5, 1000000},
    {"qwen3vl", 32, 128, 128000, 0, 1e-6, 500000},
    {"qwen3vlmoe", 16, 0, 128000, 0, 1e-6, 500000},
    {"qwen35", 4, 256, 32768, 0},
    {"qwen35moe", 2, 256, 32768, 0},
    {"glm", 2, 128, 131072, 0, 0.00000015625},
    {"ernie4_5", 2, 128, 131072, 0, 1e-5, 500000},
    {"ernie4_5-moe", 4, 0, 131072, 0, 1e-5, 500000},
    {"seed_oss", 8, 128, 524288, 0},
    {"stablelm", 32, 0, 4096, 0, 1e-5},
    {"gptneox", 0, 0, 2048, 0, 1e-5},
    {"dots1", 32, 0, 2048, 4096},
    {"minimax-m2", 8, 128, 196608, 0, 1e-6, 5000000},
    {"arcee", 0, 0, 4096, 0, 1e-5},
    {"nemotron", 0, 0, 4096, 0, 1e-5},
    {"apertus", 0, 0, 65536, 0, 1e-5, 12000000},
    {"hunyuan-dense", 0, 0, 2048, 0, 1e-5},
    {"hunyuan-moe", 0, 0, 2048, 0, 1e-5},
    {"olmo", 0, 0, 2048, 0, 1e-5},
    {"cwm", 8, 128, 131072, 8192, 1e-5, 1000000},
    {"helium", 20, 128, 4096, 0, 1e-8, 100000},
    {"jais2", 0, 0, 8192, 0, 1e-5, 500000},
    {"falcon", 0, 0, 2048, 0, 1e-5},
    {"gptj", 0, 0, 2048, 0, 1e-5},
    {"codegen", 0, 0, 2048, 0, 1e-5},
    {"bloom", 0, 0, 2048, 0, 1e-5},
    {"mpt", 0, 0, 2048, 0, 1e-5},
    {"nanochat", 0, 0, 2048, 0},
    {"starcoder", 0, 0, 1024, 0, 1e-5},
    {"minicpm", 0, 0, 2048, 0},
    {"qwen", 0, 0, 8192, 0},
    {"chatglm", 0, 0, 8192, 0, 1e-5},
    {"granitehybrid", 0, 0, 2048, 0},
    {"falcon-h1", 8, 0, 8192, 0, 1e-5},
    {"nemotron_h", 8, 128, 4096, 0, 1e-5},
    {"nemotron_h_moe", 8, 128, 4096, 0, 1e-5},
    {"lfm2", 8, 0, 128000, 0, 1e-5, 1000000},
    {"lfm2moe", 8, 0, 128000, 0, 1e-5, 1000000},
    {"mamba", 0, 0, 0, 0, 1e-5},
    {"jamba", 8, 0, 262144, 0},
    {"afmoe", 0, 128, 16384, 1024, 1e-5},
    {"exaone-moe", 32, 0, 2048, 4096, 1e-5},
    {"dbrx", 1, 0, 2048, 0, 1e-5},
    {"minicpm3", 0, 0, 32768, 0, 1e-5},
    {"phimoe", 8, 0, 131072, 0, 1e-5, 1000000},
    {"bailingmoe2", 0, 0, 16384, 0},
    {"flex_olmo", 0, 0, 4096, 0, 1e-6, 500000},
    {"gptneo", 0, 0, 2048, 256, 1e-5},
    {"hyperclovax", 0, 0, 2048, 0},
};

}  // namespace

const Usual& usual_of(const ModelConfig& config) {
  for (const Usual& u : kUsual)
    if (u.architecture == config.architecture) return u;
  TK_CHECK(false, "no defaults for {}", config.architecture);
  return kUsual[0];
}

}  // namespace tokamak
