// Names of tensors in Hugging Face folders: families with experts or recurrent layers.
#include <span>

#include "compile/import/hf_names.h"

namespace tokamak {
namespace {

constexpr HfName kMixtralNames[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{}.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.{}.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.{}.w2"},
};

constexpr HfName kLatentNames[] = {
    {"attn_q", "self_attn.q_proj"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
};

constexpr HfName kQwen2MoeNames[] = {
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};

constexpr HfName kGptOssNames[] = {
    {"attn_sinks", "self_attn.sinks"},
    {"ffn_gate_inp", "mlp.router"},
    {"ffn_gate_exps", "mlp.experts.gate_up_proj"},
    {"ffn_up_exps", "mlp.experts.gate_up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
};

constexpr HfName kMamba2Names[] = {
    {"token_embd", "embeddings"},   {"attn_norm", "norm"},        {"output_norm", "norm_f"},
    {"ssm_gate", "mixer.in_proj"},  {"ssm_xbc", "mixer.in_proj"}, {"ssm_step", "mixer.in_proj"},
    {"ssm_conv1d", "mixer.conv1d"}, {"ssm_dt", "mixer.dt_bias"},  {"ssm_a", "mixer.A_log"},
    {"ssm_d", "mixer.D"},           {"ssm_norm", "mixer.norm"},   {"ssm_out", "mixer.out_proj"},
};

constexpr HfName kGraniteMoeNames[] = {
    {"ffn_gate_inp", "block_sparse_moe.router.layer"},
    {"ffn_gate_exps", "block_sparse_moe.input_linear"},
    {"ffn_up_exps", "block_sparse_moe.input_linear"},
    {"ffn_down_exps", "block_sparse_moe.output_linear"},
    {"ffn_gate_shexp", "shared_mlp.input_linear"},
    {"ffn_up_shexp", "shared_mlp.input_linear"},
    {"ffn_down_shexp", "shared_mlp.output_linear"},
};

constexpr HfName kErnieMoeNames[] = {{"exp_probs_b", "mlp.moe_statics.e_score_correction_bias"}};

constexpr HfName kMiniMaxNames[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{}.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.{}.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.{}.w2"},
    {"exp_probs_b", "block_sparse_moe.e_score_correction_bias"},
};

constexpr HfName kQwen35Names[] = {
    {"attn_gate", "self_attn.q_proj"},
    {"ssm_q", "linear_attn.in_proj_qkv"},
    {"ssm_k", "linear_attn.in_proj_qkv"},
    {"ssm_v", "linear_attn.in_proj_qkv"},
    {"ssm_gate", "linear_attn.in_proj_z"},
    {"ssm_rate", "linear_attn.in_proj_b"},
    {"ssm_step", "linear_attn.in_proj_a"},
    {"ssm_conv1d", "linear_attn.conv1d"},
    {"ssm_dt", "linear_attn.dt_bias"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};

constexpr HfName kQwen3VlMoeNames[] = {{"ffn_gate_exps", "mlp.experts.gate_up_proj"},
                                       {"ffn_up_exps", "mlp.experts.gate_up_proj"},
                                       {"ffn_down_exps", "mlp.experts.down_proj"}};

constexpr HfName kQwen3NextNames[] = {
    {"attn_gate", "self_attn.q_proj"},
    {"ssm_q", "linear_attn.in_proj_qkvz"},
    {"ssm_k", "linear_attn.in_proj_qkvz"},
    {"ssm_v", "linear_attn.in_proj_qkvz"},
    {"ssm_gate", "linear_attn.in_proj_qkvz"},
    {"ssm_rate", "linear_attn.in_proj_ba"},
    {"ssm_step", "linear_attn.in_proj_ba"},
    {"ssm_conv1d", "linear_attn.conv1d"},
    {"ssm_dt", "linear_attn.dt_bias"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_out", "linear_attn.out_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};

constexpr HfName kLlama4Names[] = {
    {"ffn_gate", "feed_forward.gate_proj"},
    {"ffn_up", "feed_forward.up_proj"},
    {"ffn_down", "feed_forward.down_proj"},
    {"ffn_gate_inp", "feed_forward.router"},
    {"ffn_gate_exps", "feed_forward.experts.gate_up_proj"},
    {"ffn_up_exps", "feed_forward.experts.gate_up_proj"},
    {"ffn_down_exps", "feed_forward.experts.down_proj"},
    {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
    {"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
    {"ffn_down_shexp", "feed_forward.shared_expert.down_proj"},
};

// Mamba-2 as one part of a layer.
constexpr HfName kMambaPart[] = {
    {"ssm_gate", "mamba.in_proj"},  {"ssm_xbc", "mamba.in_proj"}, {"ssm_step", "mamba.in_proj"},
    {"ssm_conv1d", "mamba.conv1d"}, {"ssm_dt", "mamba.dt_bias"},  {"ssm_a", "mamba.A_log"},
    {"ssm_d", "mamba.D"},           {"ssm_norm", "mamba.norm"},   {"ssm_out", "mamba.out_proj"},
};

constexpr HfName kGraniteHybridNames[] = {
    {"ffn_gate", "shared_mlp.input_linear"},
    {"ffn_up", "shared_mlp.input_linear"},
    {"ffn_down", "shared_mlp.output_linear"},
    {"ffn_gate_inp", "block_sparse_moe.router.layer"},
    {"ffn_gate_exps", "block_sparse_moe.input_linear"},
    {"ffn_up_exps", "block_sparse_moe.input_linear"},
    {"ffn_down_exps", "block_sparse_moe.output_linear"},
    {"ffn_gate_shexp", "shared_mlp.input_linear"},
    {"ffn_up_shexp", "shared_mlp.input_linear"},
    {"ffn_down_shexp", "shared_mlp.output_linear"},
};

constexpr HfName kFalconH1Names[] = {
    {"ffn_norm", "pre_ff_layernorm"},       {"output_norm", "final_layernorm"},
    {"ffn_gate", "feed_forward.gate_proj"}, {"ffn_up", "feed_forward.up_proj"},
    {"ffn_down", "feed_forward.down_proj"},
};

constexpr HfName kNemotronHNames[] = {
    {"token_embd", "embeddings"},
    {"attn_norm", "norm"},
    {"output_norm", "norm_f"},
    {"attn_q", "mixer.q_proj"},
    {"attn_k", "mixer.k_proj"},
    {"attn_v", "mixer.v_proj"},
    {"attn_output", "mixer.o_proj"},
    {"ffn_up", "mixer.up_proj"},
    {"ffn_down", "mixer.down_proj"},
    {"ffn_gate_inp", "mixer.gate"},
    {"ffn_up_exps", "mixer.experts.{}.up_proj"},
    {"ffn_down_exps", "mixer.experts.{}.down_proj"},
    {"exp_probs_b", "mixer.gate.e_score_correction_bias"},
    {"ffn_up_shexp", "mixer.shared_experts.up_proj"},
    {"ffn_down_shexp", "mixer.shared_experts.down_proj"},
};

constexpr HfName kLfm2Names[] = {
    {"attn_norm", "operator_norm"},
    {"ffn_norm", "ffn_norm"},
    {"output_norm", "embedding_norm"},
    {"attn_q_norm", "self_attn.q_layernorm"},
    {"attn_k_norm", "self_attn.k_layernorm"},
    {"attn_output", "self_attn.out_proj"},
    {"ffn_gate", "feed_forward.w1"},
    {"ffn_up", "feed_forward.w3"},
    {"ffn_down", "feed_forward.w2"},
    {"ffn_gate_inp", "feed_forward.gate"},
    {"ffn_gate_exps", "feed_forward.experts.{}.w1"},
    {"ffn_up_exps", "feed_forward.experts.{}.w3"},
    {"ffn_down_exps", "feed_forward.experts.{}.w2"},
    {"exp_probs_b", "feed_forward.expert_bias"},
    {"ssm_b", "conv.in_proj"},
    {"ssm_c", "conv.in_proj"},
    {"ssm_x", "conv.in_proj"},
    {"ssm_conv1d", "conv.conv"},
    {"ssm_out", "conv.out_proj"},
};

// Mamba alone; Jamba has it as one part of a layer.
constexpr HfName kMambaNames[] = {
    {"token_embd", "embeddings"},   {"attn_norm", "norm"},         {"output_norm", "norm_f"},
    {"ssm_in", "mixer.in_proj"},    {"ssm_gate", "mixer.in_proj"}, {"ssm_x", "mixer.x_proj"},
    {"ssm_conv1d", "mixer.conv1d"}, {"ssm_dt", "mixer.dt_proj"},   {"ssm_a", "mixer.A_log"},
    {"ssm_d", "mixer.D"},           {"ssm_out", "mixer.out_proj"},
};

constexpr HfName kJambaNames[] = {
    {"ffn_norm", "pre_ff_layernorm"},
    {"output_norm", "final_layernorm"},
    {"ssm_in", "mamba.in_proj"},
    {"ssm_gate", "mamba.in_proj"},
    {"ssm_conv1d", "mamba.conv1d"},
    {"ssm_x", "mamba.x_proj"},
    {"ssm_dt", "mamba.dt_proj"},
    {"ssm_dt_norm", "mamba.dt_layernorm"},
    {"ssm_b_norm", "mamba.b_layernorm"},
    {"ssm_c_norm", "mamba.c_layernorm"},
    {"ssm_a", "mamba.A_log"},
    {"ssm_d", "mamba.D"},
    {"ssm_out", "mamba.out_proj"},
    {"ffn_gate", "feed_forward.gate_proj"},
    {"ffn_up", "feed_forward.up_proj"},
    {"ffn_down", "feed_forward.down_proj"},
    {"ffn_gate_inp", "feed_forward.router"},
    {"ffn_gate_exps", "feed_forward.experts.{}.gate_proj"},
    {"ffn_up_exps", "feed_forward.experts.{}.up_proj"},
    {"ffn_down_exps", "feed_forward.experts.{}.down_proj"},
};

constexpr HfName kAfmoeNames[] = {
    {"attn_gate", "self_attn.gate_proj"},    {"ffn_norm", "pre_mlp_layernorm"},
    {"post_ffw_norm", "post_mlp_layernorm"}, {"ffn_gate_inp", "mlp.router.gate"},
    {"exp_probs_b", "mlp.expert_bias"},
};

constexpr HfName kDbrxNames[] = {
    {"attn_norm", "norm_attn_norm.norm_1"},
    {"attn_q", "norm_attn_norm.attn.Wqkv"},
    {"attn_k", "norm_attn_norm.attn.Wqkv"},
    {"attn_v", "norm_attn_norm.attn.Wqkv"},
    {"attn_output", "norm_attn_norm.attn.out_proj"},
    {"ffn_norm", "norm_attn_norm.norm_2"},
    {"ffn_gate_inp", "ffn.router.layer"},
    {"ffn_gate_exps", "ffn.experts.mlp.w1"},
    {"ffn_up_exps", "ffn.experts.mlp.v1"},
    {"ffn_down_exps", "ffn.experts.mlp.w2"},
    {"token_embd", "wte"},
    {"output_norm", "norm_f"},
};

constexpr HfName kBailingNames[] = {
    {"token_embd", "word_embeddings"},
    {"attn_q", "attention.query_key_value"},
    {"attn_k", "attention.query_key_value"},
    {"attn_v", "attention.query_key_value"},
    {"attn_q_norm", "attention.query_layernorm"},
    {"attn_k_norm", "attention.key_layernorm"},
    {"attn_output", "attention.dense"},
    {"exp_probs_b", "mlp.gate.expert_bias"},
};

constexpr OwnNames kMixedNames[] = {
    {"mamba", kMambaNames},
    {"jamba", kJambaNames},
    {"afmoe", kAfmoeNames},
    {"dbrx", kDbrxNames},
    {"bailingmoe2", kBailingNames},
    {"phimoe", kMixtralNames},
    {"minicpm3", kLatentNames},
    {"mixtral", kMixtralNames},
    {"qwen2moe", kQwen2MoeNames},
    {"deepseek2", kLatentNames},
    {"gpt-oss", kGptOssNames},
    {"mamba2", kMamba2Names},
    {"qwen3next", kQwen3NextNames},
    {"llama4", kLlama4Names},
    {"granitemoe", kGraniteMoeNames},
    {"ernie4_5-moe", kErnieMoeNames},
    {"minimax-m2", kMiniMaxNames},
    {"qwen3vlmoe", kQwen3VlMoeNames},
    {"qwen35", kQwen35Names},
    {"qwen35moe", kQwen35Names},
    {"granitehybrid", kGraniteHybridNames},
    {"falcon-h1", kFalconH1Names},
    {"nemotron_h", kNemotronHNames},
    {"nemotron_h_moe", kNemotronHNames},
    {"lfm2", kLfm2Names},
    {"lfm2moe", kLfm2Names},
};

}  // namespace

std::span<const OwnNames> mixed_names() { return kMixedNames; }
std::span<const HfName> mamba2_names() { return kMamba2Names; }
std::span<const HfName> mamba_part_names() { return kMambaPart; }

}  // namespace tokamak
