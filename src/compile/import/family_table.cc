// One row per architecture.
#include <cmath>

#include "compile/import/families.h"

namespace tokamak {
namespace {

const Family kFamilies[] = {
    {.architecture = "llama",
     .hf_names = "llama",
     .models = "Llama 2 and 3, SmolLM2, Falcon 3, Yi, TinyLlama",
     .gguf_interleaved = true},
    {.architecture = "mistral",
     .hf_names = "mistral ministral ministral3",
     .models = "Mistral 7B, Nemo and Small, Ministral, Ministral 3",
     .gguf_interleaved = true},
    {.architecture = "qwen2", .hf_names = "qwen2", .models = "Qwen2, Qwen2.5"},
    {.architecture = "qwen2vl",
     .hf_names = "qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text",
     .models = "Qwen2-VL, Qwen2.5-VL (text)"},
    {.architecture = "qwen3", .hf_names = "qwen3", .models = "Qwen3", .qk_norm = true},
    {.architecture = "qwen3vl",
     .hf_names = "qwen3_vl_text",
     .models = "Qwen3-VL (text)",
     .qk_norm = true},
    {.architecture = "gemma",
     .hf_names = "gemma",
     .models = "Gemma",
     .activation = Activation::kGeluTanh,
     .gemma = true,
     .tied = true},
    {.architecture = "gemma2",
     .hf_names = "gemma2",
     .models = "Gemma 2",
     .activation = Activation::kGeluTanh,
     .gemma = true,
     .post_norms = true,
     .tied = true},
    {.architecture = "gemma3",
     .hf_names = "gemma3 gemma3_text",
     .models = "Gemma 3 (text)",
     .activation = Activation::kGeluTanh,
     .qk_norm = true,
     .gemma = true,
     .post_norms = true,
     .tied = true},
    {.architecture = "gemma3n",
     .hf_names = "gemma3n gemma3n_text",
     .models = "Gemma 3n E2B and E4B (text)",
     .activation = Activation::kGeluTanh,
     .qk_norm = true,
     .post_norms = true,
     .tied = true},
    {.architecture = "phi3",
     .hf_names = "phi3",
     .models = "Phi-3, Phi-3.5, Phi-4",
     .fused_qkv = true,
     .fused_mlp = true,
     .rotary_share = 1},
    {.architecture = "phi2",
     .hf_names = "phi",
     .models = "Phi-1.5, Phi-2",
     .norm = NormKind::kLayer,
     .activation = Activation::kGeluTanh,
     .gated = false,
     .parallel = true,
     .rotary_share = 0.5},
    {.architecture = "gpt2",
     .hf_names = "gpt2",
     .models = "GPT-2",
     .norm = NormKind::kLayer,
     .activation = Activation::kGeluTanh,
     .gated = false,
     .rotary = false,
     .fused_qkv = true,
     .conv1d = true,
     .tied = true},
    {.architecture = "opt",
     .hf_names = "opt",
     .models = "OPT except 350M",
     .norm = NormKind::kLayer,
     .activation = Activation::kRelu,
     .gated = false,
     .rotary = false,
     .tied = true,
     .in_gguf = false},
    {.architecture = "starcoder2",
     .hf_names = "starcoder2",
     .models = "StarCoder2",
     .norm = NormKind::kLayer,
     .activation = Activation::kGeluTanh,
     .gated = false,
     .tied = true,
     .rotary_share = 1},
    {.architecture = "olmo2",
     .hf_names = "olmo2 olmo3",
     .models = "OLMo 2 and 3",
     .wide_qk_norm = true,
     .pre_norms = false,
     .post_norms = true},
    {.architecture = "exaone", .hf_names = "exaone", .models = "EXAONE 3 and 3.5"},
    {.architecture = "exaone4",
     .hf_names = "exaone4",
     .models = "EXAONE 4",
     .qk_norm = true,
     .pre_norms = false,
     .post_norms = true},
    {.architecture = "granite",
     .hf_names = "granite",
     .models = "Granite 3",
     .gguf_interleaved = true},
    {.architecture = "granitemoe",
     .hf_names = "granitemoe granitemoeshared",
     .models = "Granite 3 with experts",
     .gguf_interleaved = true,
     .experts = true,
     .normalize_experts = true,
     .stacked_experts = true},
    {.architecture = "smollm3",
     .hf_names = "smollm3",
     .models = "SmolLM3",
     .gguf_interleaved = true,
     .tied = true},
    {.architecture = "internlm2",
     .hf_names = "internlm2",
     .models = "InternLM 2 and 2.5",
     .gguf_interleaved = true,
     .fused_qkv = true},
    {.architecture = "command-r",
     .hf_names = "cohere",
     .models = "Command R, Aya 23",
     .norm = NormKind::kLayer,
     .norm_bias = false,
     .interleaved = true,
     .parallel = true,
     .tied = true},
    {.architecture = "cohere2",
     .hf_names = "cohere2",
     .models = "Command R7B, Command A",
     .norm = NormKind::kLayer,
     .norm_bias = false,
     .interleaved = true,
     .parallel = true,
     .tied = true},
    {.architecture = "glm4",
     .hf_names = "glm4",
     .models = "GLM-4 0414, GLM-Z1",
     .interleaved = true,
     .fused_mlp = true,
     .post_norms = true,
     .rotary_share = 0.5},
    {.architecture = "glm",
     .hf_names = "glm",
     .models = "GLM-4 9B, GLM-Edge",
     .interleaved = true,
     .fused_mlp = true,
     .in_gguf = false,
     .rotary_share = 0.5},
    {.architecture = "ernie4_5",
     .hf_names = "ernie4_5",
     .models = "ERNIE 4.5 0.3B",
     .interleaved = true,
     .tied = true},
    {.architecture = "seed_oss", .hf_names = "seed_oss", .models = "Seed-OSS 36B"},
    {.architecture = "stablelm",
     .hf_names = "stablelm",
     .models = "StableLM 3B, StableLM 2 1.6B",
     .norm = NormKind::kLayer,
     .rotary_share = 0.25},
    {.architecture = "gptneox",
     .hf_names = "gpt_neox",
     .models = "Pythia, GPT-NeoX, Dolly",
     .norm = NormKind::kLayer,
     .activation = Activation::kGeluErf,
     .gated = false,
     .fused_qkv = true,
     .parallel = true,
     .two_norms = true,
     .rotary_share = 0.25},
    {.architecture = "mixtral",
     .hf_names = "mixtral",
     .models = "Mixtral (a llama file with experts)",
     .gguf_interleaved = true,
     .experts = true,
     .normalize_experts = true},
    {.architecture = "qwen2moe",
     .hf_names = "qwen2_moe",
     .models = "Qwen1.5-MoE, Qwen2-MoE",
     .experts = true},
    {.architecture = "qwen3moe",
     .hf_names = "qwen3_moe",
     .models = "Qwen3 with experts",
     .qk_norm = true,
     .experts = true,
     .normalize_experts = true},
    {.architecture = "olmoe",
     .hf_names = "olmoe",
     .models = "OLMoE",
     .wide_qk_norm = true,
     .experts = true},
    {.architecture = "gpt-oss",
     .hf_names = "gpt_oss",
     .models = "gpt-oss 20B and 120B",
     .experts = true,
     .normalize_experts = true,
     .stacked_experts = true},
    {.architecture = "deepseek2",
     .hf_names = "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite",
     .models = "DeepSeek-V2, V2-Lite, V3, R1, Kimi K2, GLM-4.7-Flash",
     .experts = true},
    {.architecture = "glm4moe",
     .hf_names = "glm4_moe",
     .models = "GLM-4.5, GLM-4.6",
     .experts = true,
     .normalize_experts = true,
     .sigmoid_experts = true,
     .rotary_share = 0.5},
    {.architecture = "dots1",
     .hf_names = "dots1",
     .models = "dots.llm1",
     .qk_norm = true,
     .experts = true,
     .sigmoid_experts = true},
    {.architecture = "ernie4_5-moe",
     .hf_names = "ernie4_5_moe",
     .models = "ERNIE 4.5 21B and 300B",
     .interleaved = true,
     .tied = true,
     .experts = true,
     .normalize_experts = true},
    {.architecture = "minimax-m2",
     .hf_names = "minimax_m2",
     .models = "MiniMax-M2",
     .wide_qk_norm = true,
     .experts = true,
     .normalize_experts = true,
     .sigmoid_experts = true,
     .rotary_share = 1},
    {.architecture = "llama4",
     .hf_names = "llama4_text llama4",
     .models = "Llama 4 Scout and Maverick (text)",
     .interleaved = true,
     .experts = true,
     .sigmoid_experts = true,
     .stacked_experts = true},
    {.architecture = "mamba2",
     .hf_names = "mamba2",
     .models = "Mamba-2, Codestral Mamba",
     .rotary = false,
     .recurrent = true},
    {.architecture = "qwen3next",
     .hf_names = "qwen3_next",
     .models = "Qwen3-Next 80B-A3B",
     .qk_norm = true,
     .experts = true,
     .normalize_experts = true,
     .gated_delta = true,
     .centered_norms = true,
     .rotary_share = 0.25},
    {.architecture = "qwen35",
     .hf_names = "qwen3_5_text",
     .models = "Qwen3.5 (text)",
     .qk_norm = true,
     .in_gguf = false,
     .gated_delta = true,
     .centered_norms = true,
     .rotary_share = 0.25},
    {.architecture = "qwen35moe",
     .hf_names = "qwen3_5_moe_text",
     .models = "Qwen3.5 with experts (text)",
     .qk_norm = true,
     .in_gguf = false,
     .experts = true,
     .normalize_experts = true,
     .gated_delta = true,
     .centered_norms = true,
     .rotary_share = 0.25},
};

struct Missing {
  std::string_view names;  // GGUF architectures and model_type values, separated by spaces
  std::string_view needs;
};
constexpr Missing kMissing[] = {
    {"mamba rwkv rwkv6 rwkv7 falcon_mamba falcon-mamba",
     "recurrent layers of another kind than Mamba-2's"},
    {"jamba bamba zamba2 lfm2 granitemoehybrid granitehybrid nemotron_h "
     "falcon_h1 falcon-h1 kimi_linear",
     "recurrent layers with a state per sequence beside attention"},
    {"dbrx phimoe arctic grok grok-1", "a table of tensor names for its experts"},
    {"hunyuan_v1_dense hunyuan_v1_moe hunyuan-dense hunyuan-moe",
     "norms of q and k after the rotation"},
    {"deepseek_v32 glm_moe_dsa deepseek_v4 minimax_m3_vl_text", "sparse attention with an index"},
    {"qwen35 qwen35moe", "the order of heads in its GGUF files; its folders are supported"},
    {"olmo", "norms without weights"},
    {"nemotron arcee", "the activation relu2"},
    {"bloom mpt", "ALiBi positions"},
    {"apertus", "the activation xIELU"},
    {"gptj falcon persimmon", "a parallel block with its own norms"},
    {"t5 mt5 bart whisper t5encoder", "an encoder with cross-attention"},
    {"chatglm", "a table of tensor names for its fused matrices"},
    {"llava idefics3 mllama pixtral", "an image encoder"},
};

bool lists(std::string_view names, std::string_view name) {
  return !name.empty() && name.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", names).find(fmt::format(" {} ", name)) != std::string::npos;
}

}  // namespace

std::string missing_feature(std::string_view name) {
  for (const Missing& m : kMissing)
    if (lists(m.names, name)) return fmt::format(", which needs {}", m.needs);
  return "";
}

const Family* find_family(std::string_view architecture) {
  for (const Family& f : kFamilies)
    if (f.architecture == architecture) return &f;
  return nullptr;
}

const Family* find_family_hf(std::string_view model_type) {
  for (const Family& f : kFamilies)
    if (lists(f.hf_names, model_type)) return &f;
  return nullptr;
}

std::span<const Family> all_families() { return kFamilies; }

std::string supported_architectures() {
  std::string text;
  for (const Family& f : kFamilies)
    text += (text.empty() ? "" : ", ") + std::string(f.architecture);
  return text;
}

void apply_family(const Family& family, ModelConfig& config) {
  config.architecture = family.architecture;
  config.norm = family.norm;
  config.norm_bias = family.norm == NormKind::kLayer && family.norm_bias;
  config.activation = family.activation;
  config.gated_mlp = family.gated;
  config.learned_positions = !family.rotary && !family.recurrent;
  config.qk_norm = family.qk_norm;
  config.wide_qk_norm = family.wide_qk_norm;
  config.parallel = family.parallel;
  config.two_norms = family.two_norms;
  config.pre_norms = family.pre_norms;
  config.post_norms = family.post_norms;
  if (family.architecture == "gpt-oss") {
    config.attention_sinks = config.experts.bias = true;
    config.experts.clamp = 7.0;
  }
  if (family.architecture == "llama4") config.chunked = config.experts.scale_inputs = true;
  bool scaled = family.gemma || family.architecture == "gemma3n";
  if (scaled) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
}

}  // namespace tokamak
