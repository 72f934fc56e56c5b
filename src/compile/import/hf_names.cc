// Names of tensors in Hugging Face folders.
#include <span>
#include <string_view>

#include "compile/import/hf_names.h"

namespace tokamak {
namespace {

constexpr HfName kLlama[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
};
constexpr HfName kPostNorms[] = {
    // with norms after the blocks, the name of the one before the MLP changes
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};
constexpr HfName kFused[] = {
    {"attn_q", "self_attn.qkv_proj"},
    {"attn_k", "self_attn.qkv_proj"},
    {"attn_v", "self_attn.qkv_proj"},
};
constexpr HfName kFusedMlp[] = {
    {"ffn_gate", "mlp.gate_up_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
};
// {} stands for the number of the expert.
constexpr HfName kExperts[] = {
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
};
constexpr HfName kGpt2Names[] = {
    {"attn_norm", "ln_1"},     {"attn_q", "attn.c_attn"},      {"attn_k", "attn.c_attn"},
    {"attn_v", "attn.c_attn"}, {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.c_fc"},    {"ffn_down", "mlp.c_proj"},     {"token_embd", "wte"},
    {"position_embd", "wpe"},  {"output_norm", "ln_f"},
};
constexpr HfName kOptNames[] = {
    {"attn_norm", "self_attn_layer_norm"},
    {"attn_output", "self_attn.out_proj"},
    {"ffn_norm", "final_layer_norm"},
    {"ffn_up", "fc1"},
    {"ffn_down", "fc2"},
    {"position_embd", "embed_positions"},
    {"output_norm", "final_layer_norm"},
};
constexpr HfName kPhi2Names[] = {
    {"attn_output", "self_attn.dense"},
    {"ffn_up", "mlp.fc1"},
    {"ffn_down", "mlp.fc2"},
    {"output_norm", "final_layernorm"},
};
constexpr HfName kStarCoder2Names[] = {{"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"}};
constexpr HfName kGlm4Names[] = {
    {"ffn_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_self_attn_layernorm"},
    {"post_ffw_norm", "post_mlp_layernorm"},
};
constexpr HfName kInternLm2Names[] = {
    {"attn_norm", "attention_norm"}, {"attn_q", "attention.wqkv"},
    {"attn_k", "attention.wqkv"},    {"attn_v", "attention.wqkv"},
    {"attn_output", "attention.wo"}, {"ffn_norm", "ffn_norm"},
    {"ffn_gate", "feed_forward.w1"}, {"ffn_up", "feed_forward.w3"},
    {"ffn_down", "feed_forward.w2"}, {"token_embd", "tok_embeddings"},
};
constexpr HfName kExaoneNames[] = {
    {"attn_norm", "ln_1"},
    {"attn_q", "attn.attention.q_proj"},
    {"attn_k", "attn.attention.k_proj"},
    {"attn_v", "attn.attention.v_proj"},
    {"attn_output", "attn.attention.out_proj"},
    {"ffn_norm", "ln_2"},
    {"ffn_gate", "mlp.c_fc_0"},
    {"ffn_up", "mlp.c_fc_1"},
    {"ffn_down", "mlp.c_proj"},
    {"token_embd", "wte"},
    {"output_norm", "ln_f"},
};

constexpr HfName kGptNeoXNames[] = {
    {"attn_q", "attention.query_key_value"},
    {"attn_k", "attention.query_key_value"},
    {"attn_v", "attention.query_key_value"},
    {"attn_output", "attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
    {"token_embd", "embed_in"},
    {"output_norm", "final_layer_norm"},
};

constexpr HfName kGemma3nNames[] = {
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"altup_correct_coef", "altup.correction_coefs"},
    {"altup_correct_scale", "altup.correct_output_scale"},
    {"altup_predict_coef", "altup.prediction_coefs"},
    {"altup_router", "altup.modality_router"},
    {"altup_router_norm", "altup.router_norm"},
    {"laurel_l", "laurel.linear_left"},
    {"laurel_r", "laurel.linear_right"},
    {"laurel_post_norm", "laurel.post_laurel_norm"},
    {"per_layer_token_embd", "embed_tokens_per_layer"},
    {"per_layer_model_proj", "per_layer_model_projection"},
    {"per_layer_proj_norm", "per_layer_projection_norm"},
};

constexpr HfName kGemma4Names[] = {
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"per_layer_token_embd", "embed_tokens_per_layer"},
    {"per_layer_model_proj", "per_layer_model_projection"},
    {"per_layer_proj_norm", "per_layer_projection_norm"},
    {"layer_output_scale", "layer_scalar"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"ffn_gate_inp", "router.proj"},
    {"ffn_gate_exps", "experts.gate_up_proj"},
    {"ffn_up_exps", "experts.gate_up_proj"},
    {"ffn_down_exps", "experts.down_proj"},
};

constexpr HfName kStableLmNames[] = {{"attn_q_norm", "self_attn.q_layernorm.norms.{}"},
                                     {"attn_k_norm", "self_attn.k_layernorm.norms.{}"}};
constexpr HfName kApertusNames[] = {{"attn_norm", "attention_layernorm"},
                                    {"ffn_norm", "feedforward_layernorm"}};
constexpr HfName kHunyuanNames[] = {
    {"attn_q_norm", "self_attn.query_layernorm"},
    {"attn_k_norm", "self_attn.key_layernorm"},
    {"ffn_gate_inp", "mlp.gate.wg"},
    {"ffn_gate_shexp", "mlp.shared_mlp.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_mlp.up_proj"},
    {"ffn_down_shexp", "mlp.shared_mlp.down_proj"},
};
constexpr HfName kFalconNames[] = {
    {"attn_q", "self_attention.query_key_value"},
    {"attn_k", "self_attention.query_key_value"},
    {"attn_v", "self_attention.query_key_value"},
    {"attn_output", "self_attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
    {"token_embd", "word_embeddings"},
    {"token_embd_norm", "word_embeddings_layernorm"},  // BLOOM
    {"output_norm", "ln_f"},
};
constexpr HfName kGptJNames[] = {
    {"attn_norm", "ln_1"},
    {"attn_q", "attn.q_proj"},
    {"attn_k", "attn.k_proj"},
    {"attn_v", "attn.v_proj"},
    {"attn_output", "attn.out_proj"},
    {"ffn_up", "mlp.fc_in"},
    {"ffn_down", "mlp.fc_out"},
    {"token_embd", "wte"},
    {"output_norm", "ln_f"},
};
constexpr HfName kCodeGenNames[] = {
    {"attn_norm", "ln_1"},
    {"attn_q", "attn.qkv_proj"},
    {"attn_k", "attn.qkv_proj"},
    {"attn_v", "attn.qkv_proj"},
    {"attn_output", "attn.out_proj"},
    {"ffn_up", "mlp.fc_in"},
    {"ffn_down", "mlp.fc_out"},
    {"token_embd", "wte"},
    {"output_norm", "ln_f"},
};
constexpr HfName kMptNames[] = {
    {"attn_norm", "norm_1"},   {"attn_q", "attn.Wqkv"},          {"attn_k", "attn.Wqkv"},
    {"attn_v", "attn.Wqkv"},   {"attn_output", "attn.out_proj"}, {"ffn_norm", "norm_2"},
    {"ffn_up", "ffn.up_proj"}, {"ffn_down", "ffn.down_proj"},    {"token_embd", "wte"},
    {"output_norm", "norm_f"},
};
constexpr HfName kBaichuanNames[] = {
    {"attn_q", "self_attn.W_pack"}, {"attn_k", "self_attn.W_pack"}, {"attn_v", "self_attn.W_pack"}};
constexpr HfName kBitNetNames[] = {{"attn_sub_norm", "self_attn.attn_sub_norm"},
                                   {"ffn_sub_norm", "mlp.ffn_sub_norm"}};
constexpr HfName kJaisNames[] = {
    {"attn_norm", "ln_1"},     {"attn_q", "attn.c_attn"},      {"attn_k", "attn.c_attn"},
    {"attn_v", "attn.c_attn"}, {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
    {"ffn_gate", "mlp.c_fc2"}, {"ffn_up", "mlp.c_fc"},         {"ffn_down", "mlp.c_proj"},
    {"token_embd", "wte"},     {"output_norm", "ln_f"},
};
constexpr HfName kNanoChatNames[] = {{"ffn_up", "mlp.fc1"}, {"ffn_down", "mlp.fc2"}};
constexpr HfName kGptNeoNames[] = {
    {"attn_norm", "ln_1"},
    {"attn_q", "attn.attention.q_proj"},
    {"attn_k", "attn.attention.k_proj"},
    {"attn_v", "attn.attention.v_proj"},
    {"attn_output", "attn.attention.out_proj"},
    {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.c_fc"},
    {"ffn_down", "mlp.c_proj"},
    {"token_embd", "wte"},
    {"position_embd", "wpe"},
    {"output_norm", "ln_f"},
};
constexpr HfName kHyperClovaNames[] = {
    {"ffn_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_norm1"},
    {"post_ffw_norm", "post_norm2"},
};
constexpr HfName kQwenNames[] = {
    {"attn_norm", "ln_1"},     {"attn_q", "attn.c_attn"},      {"attn_k", "attn.c_attn"},
    {"attn_v", "attn.c_attn"}, {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
    {"ffn_up", "mlp.w1"},      {"ffn_gate", "mlp.w2"},         {"ffn_down", "mlp.c_proj"},
    {"token_embd", "wte"},     {"output_norm", "ln_f"},
};
constexpr HfName kChatGlmNames[] = {
    {"attn_q", "self_attention.query_key_value"},
    {"attn_k", "self_attention.query_key_value"},
    {"attn_v", "self_attention.query_key_value"},
    {"attn_output", "self_attention.dense"},
    {"ffn_gate", "mlp.dense_h_to_4h"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"},
    {"output_norm", "final_layernorm"},
};

constexpr OwnNames kOwnNames[] = {
    {"gpt2", kGpt2Names},           {"opt", kOptNames},
    {"phi2", kPhi2Names},           {"starcoder2", kStarCoder2Names},
    {"glm4", kGlm4Names},           {"internlm2", kInternLm2Names},
    {"exaone", kExaoneNames},       {"gemma3n", kGemma3nNames},
    {"gemma4", kGemma4Names},       {"gptneox", kGptNeoXNames},
    {"apertus", kApertusNames},     {"hunyuan-dense", kHunyuanNames},
    {"hunyuan-moe", kHunyuanNames}, {"falcon", kFalconNames},
    {"gptj", kGptJNames},           {"codegen", kCodeGenNames},
    {"bloom", kFalconNames},        {"mpt", kMptNames},
    {"nanochat", kNanoChatNames},   {"baichuan", kBaichuanNames},
    {"jais", kJaisNames},           {"bitnet", kBitNetNames},
    {"starcoder", kGpt2Names},      {"qwen", kQwenNames},
    {"chatglm", kChatGlmNames},     {"stablelm", kStableLmNames},
    {"gptneo", kGptNeoNames},       {"hyperclovax", kHyperClovaNames},
};

std::string_view lookup(std::span<const HfName> table, std::string_view stem) {
  for (const HfName& r : table)
    if (r.stem == stem) return r.hf;
  return "";
}

}  // namespace

std::string_view hf_stem(const Family& family, std::string_view stem) {
  std::string_view name;
  for (std::span<const OwnNames> table : {std::span<const OwnNames>(kOwnNames), mixed_names()})
    for (const OwnNames& own : table)
      if (own.architecture == family.architecture) name = lookup(own.names, stem);
  if (name.empty() && family.architecture.starts_with("nemotron_h"))
    name = lookup(mamba2_names(), stem);
  if (name.empty() && family.hybrid) name = lookup(mamba_part_names(), stem);
  if (name.empty() && family.post_norms) name = lookup(kPostNorms, stem);
  if (name.empty() && family.fused_qkv) name = lookup(kFused, stem);
  if (name.empty() && family.fused_mlp) name = lookup(kFusedMlp, stem);
  if (name.empty() && family.experts) name = lookup(kExperts, stem);
  return name.empty() ? lookup(kLlama, stem) : name;
}

}  // namespace tokamak
