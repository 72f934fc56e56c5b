// Finds the rows of family_table.cc, and says what other architectures would need.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>

#include "compile/import/families.h"

namespace tokamak {
namespace {

struct Missing {
  std::string_view names;  // GGUF architectures and model_type values, separated by spaces
  std::string_view needs;
};
constexpr Missing kMissing[] = {
    {"mamba rwkv rwkv6 rwkv7 falcon_mamba falcon-mamba",
     "recurrent layers of another kind than Mamba-2's"},
    {"jamba zamba zamba2 plamo2 plamo3", "the recurrent layers of Mamba-1, or shared blocks"},
    {"bamba", "names of its recurrent layers"},
    {"kimi_linear kimi-linear bailing_hybrid minimax olmo_hybrid",
     "linear attention of another kind"},
    {"dbrx phimoe arctic grok grok-1", "a table of tensor names for its experts"},
    {"deepseek_v32 glm_moe_dsa deepseek_v4 minimax_m3_vl_text", "sparse attention with an index"},
    {"bloom mpt", "ALiBi positions"},
    {"persimmon", "norms of q and k with biases"},
    {"minicpm3 youtu mistral4", "latent attention without experts"},
    {"bitnet", "norms inside attention and MLP, and activations in int8"},
    {"t5 mt5 bart whisper t5encoder", "an encoder with cross-attention"},
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
  for (const Family& f : all_families())
    if (f.architecture == architecture) return &f;
  return nullptr;
}

const Family* find_family_hf(std::string_view model_type) {
  for (const Family& f : all_families())
    if (lists(f.hf_names, model_type)) return &f;
  return nullptr;
}

std::string supported_architectures() {
  std::string text;
  for (const Family& f : all_families())
    text += (text.empty() ? "" : ", ") + std::string(f.architecture);
  return text;
}

XieluConfig xielu_of(double alpha_p, double alpha_n, double beta) {
  auto softplus = [](double x) { return x > 30 ? x : std::log1p(std::exp(x)); };
  return {softplus(alpha_p), beta + softplus(alpha_n), beta};
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
  config.late_qk_norm = family.late_qk_norm;
  config.unit_norms = family.unit_norms;
  config.alone = family.alone;
  config.parallel = family.parallel;
  config.two_norms = family.two_norms;
  config.pre_norms = family.pre_norms;
  config.post_norms = family.post_norms;
  if (family.architecture == "gpt-oss") {
    config.attention_sinks = config.experts.bias = true;
    config.experts.clamp = 7.0;
  }
  if (family.architecture == "llama4") config.chunked = config.experts.scale_inputs = true;
  bool scaled = family.gemma || family.architecture == "gemma3n" || family.architecture == "gemma4";
  if (scaled) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
}

}  // namespace tokamak
