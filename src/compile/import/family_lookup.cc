// Finds the rows of family_table.cc, and says what other architectures would need.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "compile/import/families.h"

namespace tokamak {
namespace {

struct Missing {
  std::string_view names;  // GGUF architectures and model_type values, separated by spaces
  std::string_view needs;
};
constexpr Missing kMissing[] = {
    {"rwkv rwkv6 rwkv7 rwkv6qwen2 arwkv7 recurrent_gemma xlstm",
     "recurrent layers of another kind than Mamba's"},
    {"zamba zamba2 plamo2 plamo3", "blocks that layers share, or other recurrent layers"},
    {"bamba", "names of its recurrent layers"},
    {"kimi_linear kimi-linear bailing_hybrid minimax olmo_hybrid",
     "linear attention of another kind"},
    {"arctic grok grok-1", "a table of tensor names for its experts"},
    {"deepseek_v32 glm_moe_dsa deepseek_v4 minimax_m3_vl_text", "sparse attention with an index"},
    {"refact gpt_refact", "a table of tensor names (its positions, ALiBi, are supported)"},
    {"persimmon", "norms of q and k with biases"},
    {"mistral4 longcat_flash", "latent attention of another kind"},
    {"bitnet-b1.58", "the tensor type i2_s; the folder with safetensors is supported"},
    {"t5 mt5 bart whisper t5encoder", "an encoder with cross-attention"},
    {"llava idefics3 mllama pixtral", "an image encoder"},
};

bool lists(std::string_view names, std::string_view name) {
  return !name.empty() && name.find(' ') == std::string_view::npos &&
         fmt::format(" {} ", names).find(fmt::format(" {} ", name)) != std::string::npos;
}

// Names are compared without case and signs: "Qwen3-MoE" is qwen3_moe.
std::string plain(std::string_view name) {
  std::string out;
  for (char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// How many characters must be changed, added or removed.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = row[0];  // of the row above, one column to the left
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      size_t changed = before + (a[i] == b[j] ? 0 : 1);
      before = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

void add_words(std::string_view words, std::vector<std::string>& out) {
  for (size_t at = 0; at < words.size();) {
    size_t end = std::min(words.find(' ', at), words.size());
    if (end > at) out.emplace_back(words.substr(at, end - at));
    at = end + 1;
  }
}

}  // namespace

std::string similar_names(std::string_view name) {
  constexpr size_t kLongest = 64, kMost = 4;
  std::vector<std::string> known;
  for (const Family& f : all_families()) {
    add_words(f.hf_names, known);
    known.emplace_back(f.architecture);
  }
  std::string wanted = plain(name.substr(0, kLongest));
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& other : known) {
    std::string text = plain(other);
    size_t shared = static_cast<size_t>(
        std::mismatch(wanted.begin(), wanted.end(), text.begin(), text.end()).first -
        wanted.begin());
    size_t distance = edits(wanted, text), shorter = std::min(wanted.size(), text.size());
    if (distance <= shorter / 3 || (shared >= 3 && 2 * shared > shorter))
      near.emplace_back(distance, other);
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  if (near.size() > kMost) near.resize(kMost);
  std::string out;
  for (size_t i = 0; i < near.size(); ++i)
    out += (i == 0 ? "" : i + 1 < near.size() ? ", " : " or ") + near[i].second;
  return out.empty() ? "" : fmt::format(" (did you mean {}?)", out);
}

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

std::vector<double> alibi_slopes(int64_t heads, double max_bias) {
  auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    double step = h < power ? static_cast<double>(h + 1) : static_cast<double>(h - power) + 0.5;
    slopes.push_back(std::exp2(-max_bias * step / static_cast<double>(power)));
  }
  return slopes;
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
  config.learned_positions = !family.rotary && !family.recurrent && !family.alibi;
  config.qk_norm = family.qk_norm;
  config.wide_qk_norm = family.wide_qk_norm;
  config.late_qk_norm = family.late_qk_norm;
  config.unit_norms = family.unit_norms;
  config.embedding_norm = family.embedding_norm;
  config.alone = family.alone;
  config.parallel = family.parallel;
  config.two_norms = family.two_norms;
  config.pre_norms = family.pre_norms;
  config.post_norms = family.post_norms;
  if (family.architecture == "gpt-oss") {
    config.attention_sinks = config.experts.bias = true;
    config.experts.clamp = 7.0;
  }
  if (family.architecture == "bitnet") config.sub_norms = config.round_inputs = true;
  if (family.architecture == "afmoe") config.attention_gate = true;
  if (family.architecture == "llama4") config.chunked = config.experts.scale_inputs = true;
  bool scaled = family.gemma || family.architecture == "gemma3n" || family.architecture == "gemma4";
  if (scaled) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
}

}  // namespace tokamak
