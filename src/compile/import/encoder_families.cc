#include "compile/import/encoder_families.h"

#include <set>

#include "base/error.h"
#include "compile/import/encoder_config.h"

namespace tokamak {
namespace {

using Renamed = EncoderFamily::Renamed;

// Stems of a classifier are outside the prefix of the model, except where they begin with "+".
constexpr Renamed kBert[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"attn_q", "attention.self.query"},
    {"attn_k", "attention.self.key"},
    {"attn_v", "attention.self.value"},
    {"attn_output", "attention.output.dense"},
    {"attn_output_norm", "attention.output.LayerNorm"},
    {"ffn_up", "intermediate.dense"},
    {"ffn_down", "output.dense"},
    {"layer_output_norm", "output.LayerNorm"},
    {"cls", "+pooler.dense"},
    {"cls.output", "classifier"},
};
constexpr Renamed kRoberta[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"attn_q", "attention.self.query"},
    {"attn_k", "attention.self.key"},
    {"attn_v", "attention.self.value"},
    {"attn_output", "attention.output.dense"},
    {"attn_output_norm", "attention.output.LayerNorm"},
    {"ffn_up", "intermediate.dense"},
    {"ffn_down", "output.dense"},
    {"layer_output_norm", "output.LayerNorm"},
    {"cls", "classifier.dense"},
    {"cls.output", "classifier.out_proj"},
};
constexpr Renamed kDistilBert[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"attn_q", "attention.q_lin"},
    {"attn_k", "attention.k_lin"},
    {"attn_v", "attention.v_lin"},
    {"attn_output", "attention.out_lin"},
    {"attn_output_norm", "sa_layer_norm"},
    {"ffn_up", "ffn.lin1"},
    {"ffn_down", "ffn.lin2"},
    {"layer_output_norm", "output_layer_norm"},
    {"cls", "pre_classifier"},
    {"cls.output", "classifier"},
};
constexpr Renamed kNomic[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "emb_ln"},
    {"attn_q", "attn.Wqkv"},
    {"attn_k", "attn.Wqkv"},
    {"attn_v", "attn.Wqkv"},
    {"attn_output", "attn.out_proj"},
    {"attn_output_norm", "norm1"},
    {"ffn_up", "mlp.fc11"},
    {"ffn_gate", "mlp.fc12"},
    {"ffn_down", "mlp.fc2"},
    {"layer_output_norm", "norm2"},
    {"cls", "+pooler.dense"},
    {"cls.output", "classifier"},
};
constexpr Renamed kModern[] = {
    {"token_embd", "embeddings.tok_embeddings"},
    {"token_embd_norm", "embeddings.norm"},
    {"attn_norm", "attn_norm"},
    {"attn_q", "attn.Wqkv"},
    {"attn_k", "attn.Wqkv"},
    {"attn_v", "attn.Wqkv"},
    {"attn_output", "attn.Wo"},
    {"ffn_norm", "mlp_norm"},
    {"ffn_gate", "mlp.Wi"},
    {"ffn_up", "mlp.Wi"},
    {"ffn_down", "mlp.Wo"},
    {"output_norm", "final_norm"},
    {"cls", "head.dense"},
    {"cls_norm", "head.norm"},
    {"cls.output", "classifier"},
};

const EncoderFamily kEncoders[] = {
    {.architecture = "bert",
     .hf_names = "bert",
     .prefix = "bert.",
     .layers = "encoder.layer",
     .names = kBert,
     .in_gguf = true},
    {.architecture = "roberta",
     .hf_names = "roberta xlm-roberta camembert",
     .prefix = "roberta.",
     .layers = "encoder.layer",
     .names = kRoberta,
     .padded_positions = true},
    {.architecture = "distilbert",
     .hf_names = "distilbert",
     .prefix = "distilbert.",
     .layers = "transformer.layer",
     .names = kDistilBert,
     .head_activation = Activation::kRelu,
     .segments = false},
    {.architecture = "nomic-bert",
     .hf_names = "nomic_bert",
     .prefix = "bert.",
     .layers = "encoder.layers",
     .names = kNomic,
     .learned_positions = false,
     .biases = false,
     .gated = true,
     .fused = true,
     .in_gguf = true},
    {.architecture = "modern-bert",
     .hf_names = "modernbert",
     .prefix = "model.",
     .layers = "layers",
     .names = kModern,
     .head_activation = Activation::kGeluErf,
     .learned_positions = false,
     .segments = false,
     .biases = false,
     .gated = true,
     .norm_first = true,
     .fused = true},
};

bool is_qkv(std::string_view stem) {
  return stem == "attn_q" || stem == "attn_k" || stem == "attn_v";
}

}  // namespace

const EncoderFamily* find_encoder(std::string_view architecture) {
  for (const EncoderFamily& f : kEncoders)
    if (f.architecture == architecture) return &f;
  return nullptr;
}

const EncoderFamily* find_encoder_hf(std::string_view type) {
  if (type.empty() || type.find(' ') != std::string_view::npos) return nullptr;
  for (const EncoderFamily& f : kEncoders)
    if (fmt::format(" {} ", f.hf_names).find(fmt::format(" {} ", type)) != std::string::npos)
      return &f;
  return nullptr;
}

std::span<const EncoderFamily> all_encoders() { return kEncoders; }

EncoderNames::EncoderNames(const EncoderFamily& family, const WeightSource& weights,
                           std::string_view where)
    : family_(family), weights_(weights), where_(where), gguf_(false) {
  if (!has({-1, "token_embd", "weight", {}})) prefix_ = family.prefix;
}

EncoderNames::EncoderNames(const EncoderFamily& family, const GgufFile& file)
    : family_(family), weights_(file), where_(file.name()), gguf_(true) {}

std::string EncoderNames::source(const WeightSlot& slot) const {
  bool layer = slot.layer >= 0;
  if (gguf_) {
    if (!is_fused(slot)) return slot.name();
    return WeightSlot{slot.layer, "attn_qkv", slot.suffix, {}}.name();
  }
  std::string_view name;
  for (const Renamed& r : family_.names)
    if (r.stem == slot.stem) name = r.hf;
  TK_CHECK(!name.empty(), "{} has no tensor name in {}", slot.stem, family_.architecture);
  if (layer)
    return fmt::format("{}{}.{}.{}.{}", prefix_, family_.layers, slot.layer, name, slot.suffix);
  bool outside = slot.stem.starts_with("cls") && !name.starts_with('+');
  if (name.starts_with('+')) name.remove_prefix(1);
  return fmt::format("{}{}.{}", outside ? "" : prefix_, name, slot.suffix);
}

bool EncoderNames::is_fused(const WeightSlot& slot) const {
  if (!family_.fused || slot.layer < 0) return false;
  return is_qkv(slot.stem) ||
         (!gguf_ && family_.norm_first && (slot.stem == "ffn_gate" || slot.stem == "ffn_up"));
}

int64_t EncoderNames::vocab() const {
  std::string name = source({-1, "token_embd", "weight", {}});
  const TensorView* table = weights_.find(name);
  if (!table || table->dims.size() != 2)
    fail(ErrorCode::kCorrupt, "{}: tensor {} is missing", where_, name);
  return table->dims[0];
}

int64_t EncoderNames::labels() const {
  const TensorView* out = weights_.find(source({-1, "cls.output", "weight", {}}));
  if (!out) return 0;
  return out->dims.size() == 2 && out->dims[0] < (1 << 16) ? out->dims[0] : 0;
}

std::vector<WeightSlot> EncoderNames::slots(const ModelConfig& c) const {
  std::vector<WeightSlot> out;
  int64_t layer = -1;
  auto add = [&](const char* stem, std::vector<int64_t> dims) {
    WeightSlot bias{layer, stem, "bias", {dims[0]}};
    out.push_back({layer, stem, "weight", std::move(dims)});
    if (family_.biases || has(bias)) out.push_back(std::move(bias));
  };
  out.push_back({-1, "token_embd", "weight", {c.vocab, c.hidden}});
  if (c.learned_positions) out.push_back({-1, "position_embd", "weight", {c.context, c.hidden}});
  if (c.token_types > 0) out.push_back({-1, "token_types", "weight", {c.token_types, c.hidden}});
  add("token_embd_norm", {c.hidden});
  int64_t width = c.heads * c.head_dim;
  for (layer = 0; layer < c.layers; ++layer) {
    if (c.norm_first && (layer > 0 || has({layer, "attn_norm", "weight", {}})))
      add("attn_norm", {c.hidden});
    for (const char* stem : {"attn_q", "attn_k", "attn_v"}) add(stem, {width, c.hidden});
    add("attn_output", {c.hidden, width});
    add(c.norm_first ? "ffn_norm" : "attn_output_norm", {c.hidden});
    if (c.gated_mlp) add("ffn_gate", {c.ffn, c.hidden});
    add("ffn_up", {c.ffn, c.hidden});
    add("ffn_down", {c.hidden, c.ffn});
    if (!c.norm_first) add("layer_output_norm", {c.hidden});
  }
  layer = -1;
  if (c.norm_first) add("output_norm", {c.hidden});
  if (!c.embedding.classifies()) return out;
  if (has({-1, "cls", "weight", {}}) || !gguf_) add("cls", {c.hidden, c.hidden});
  if (c.norm_first) add("cls_norm", {c.hidden});
  add("cls.output", {std::ssize(c.embedding.labels), c.hidden});
  return out;
}

void EncoderNames::map(ModelConfig& c) const {
  std::set<std::string> used;
  for (const WeightSlot& slot : slots(c)) {
    std::string name = source(slot);
    std::vector<RecipeStep> steps;
    if (is_fused(slot)) {
      FusedRows rows = fused_rows(c, slot.stem);
      const TensorView* whole = weights_.find(name);
      if (whole && !whole->dims.empty() && whole->dims[0] != rows.total)
        fail(ErrorCode::kCorrupt, "{}: tensor {} has {} rows, expected {}", where_, name,
             whole->dims[0], rows.total);
      steps.push_back(slice_rows(rows.begin, rows.end));
    }
    if (slot.stem == "position_embd")  // rows before the first position, and after the context
      if (const TensorView* table = weights_.find(name); table && !table->dims.empty())
        if (int64_t rows = table->dims[0]; rows > c.context)
          steps.push_back(slice_rows(family_.padded_positions && !gguf_ ? rows - c.context : 0,
                                     family_.padded_positions && !gguf_ ? rows : c.context));
    used.insert(name);
    add_weight(c, weights_, where_, slot, {name}, std::move(steps));
  }
  std::string layers = gguf_ ? "blk." : fmt::format("{}{}.", prefix_, family_.layers);
  for (const std::string& name : weights_.names())
    if (name.starts_with(layers) && !used.contains(name) && !name.ends_with(".inv_freq"))
      fail(ErrorCode::kUnsupported, "{}: tensor {} is not a known part of a {} model", where_, name,
           family_.architecture);
}

}  // namespace tokamak
