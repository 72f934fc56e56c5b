// Where parts of fused tensors are: steps from a tensor of the file to a weight.
#include <cmath>

#include "compile/import/families.h"

namespace tokamak {

RecipeStep slice_rows(int64_t begin, int64_t end) {
  return {.kind = RecipeStep::Kind::kSliceRows, .a = begin, .b = end, .dims = {}};
}
RecipeStep permute_rows(int64_t heads, int64_t rotated) {
  return {.kind = RecipeStep::Kind::kPermuteRows, .a = heads, .b = rotated, .dims = {}};
}
RecipeStep reshape(std::vector<int64_t> dims) {
  return {.kind = RecipeStep::Kind::kReshape, .dims = std::move(dims)};
}
RecipeStep transpose() { return {.kind = RecipeStep::Kind::kTranspose, .dims = {}}; }
RecipeStep add_scalar(double value) {
  return {.kind = RecipeStep::Kind::kAddScalar, .value = value, .dims = {}};
}

void add_head_norm_steps(const Family& family, const ModelConfig& c, const WeightSlot& slot,
                         std::vector<RecipeStep>& steps) {
  steps.push_back(reshape(slot.dims));
  if (family.interleaved || family.gguf_interleaved)
    steps.push_back(
        permute_rows(slot.dims[0] / c.head_dim, c.rope.dims == c.head_dim ? 0 : c.rope.dims));
}

void scale_latent(ModelConfig& c) {
  const RopeConfig& r = c.rope;
  if (r.scaling != RopeConfig::Scaling::kYarn || r.mscale_all_dim <= 0 || r.factor <= 1) return;
  double m = 0.1 * r.mscale_all_dim * std::log(r.factor) + 1;
  c.attention_scale = m * m / std::sqrt(static_cast<double>(c.head_dim));
}

RecipeStep slice_rows_of_each(int64_t begin, int64_t end, int64_t period) {
  RecipeStep step = slice_rows(begin, end);
  step.dims = {period};
  return step;
}

LatentPart latent_part(const ModelConfig& c, std::string_view stem) {
  const LatentConfig& m = c.latent;
  if (m.rank == 0) return {};
  constexpr auto every = slice_rows_of_each;
  int64_t head = m.nope + m.rope, pair = m.nope + m.value;
  std::string_view query = m.q_rank > 0 ? "attn_q_b" : "attn_q";
  if (stem == "attn_q_nope") return {query, {every(0, m.nope, head)}};
  auto rotated = [&](RecipeStep slice, int64_t heads) -> std::vector<RecipeStep> {
    if (!m.interleaved) return {std::move(slice)};
    return {std::move(slice), permute_rows(heads)};
  };
  if (stem == "attn_q_pe") return {query, rotated(every(m.nope, head, head), c.heads)};
  if (stem == "attn_kv_c") return {"attn_kv_a_mqa", {slice_rows(0, m.rank)}};
  if (stem == "attn_k_pe")
    return {"attn_kv_a_mqa", rotated(slice_rows(m.rank, m.rank + m.rope), 1)};
  if (stem == "attn_k_b")  // [head][nope][rank]: the key matrix is applied to queries, transposed
    return {"attn_kv_b", {every(0, m.nope, pair), reshape({c.heads, m.nope, m.rank}), transpose()}};
  if (stem == "attn_v_b")
    return {"attn_kv_b", {every(m.nope, pair, pair), reshape({c.heads, m.value, m.rank})}};
  return {};
}

namespace {

// Each key head has its query, its key, and the values and gates of its value heads.
std::vector<RecipeStep> delta_steps(const RecurrentConfig& r, std::string_view stem) {
  int64_t n = r.state, share = r.heads / r.groups, values = share * r.head_dim;
  int64_t period = 2 * n + 2 * values;
  if (stem == "ssm_q") return {slice_rows_of_each(0, n, period)};
  if (stem == "ssm_k") return {slice_rows_of_each(n, 2 * n, period)};
  if (stem == "ssm_v") return {slice_rows_of_each(2 * n, 2 * n + values, period)};
  if (stem == "ssm_gate") return {slice_rows_of_each(2 * n + values, period, period)};
  if (stem == "ssm_rate") return {slice_rows_of_each(0, share, 2 * share)};
  if (stem == "ssm_step") return {slice_rows_of_each(share, 2 * share, 2 * share)};
  return {};
}

}  // namespace

RecurrentPart recurrent_part(const ModelConfig& c, const WeightSlot& slot) {
  const RecurrentConfig& r = c.recurrent;
  if (auto steps = delta_steps(r, slot.stem); r.delta && !steps.empty()) return {"", steps};
  int64_t gate = r.inner(), mixed = gate + r.channels();
  auto in_layer = [&](std::string_view name) { return fmt::format("blk.{}.{}", slot.layer, name); };
  if (r.short_conv && slot.stem.starts_with("ssm_")) {
    const int64_t h = c.hidden, part = slot.stem == "ssm_b" ? 0 : slot.stem == "ssm_c" ? 1 : 2;
    if (slot.stem == "ssm_out") return {in_layer("shortconv.out_proj.weight"), {}};
    if (slot.stem == "ssm_conv1d")
      return {in_layer("shortconv.conv.weight"),
              {reshape(slot.dims),
               {.kind = RecipeStep::Kind::kCast, .dtype = DType::kF32, .dims = {}}}};
    return {in_layer("shortconv.in_proj.weight"), {slice_rows(part * h, (part + 1) * h)}};
  }
  if (!slot.stem.starts_with("ssm_")) return {};
  if (r.step_rank > 0) {
    RecipeStep wide{.kind = RecipeStep::Kind::kCast, .dtype = DType::kF32, .dims = {}};
    if (slot.stem == "ssm_in") return {in_layer("ssm_in.weight"), {slice_rows(0, gate)}};
    if (slot.stem == "ssm_gate") return {in_layer("ssm_in.weight"), {slice_rows(gate, 2 * gate)}};
    if (slot.stem == "ssm_a") return {in_layer("ssm_a"), {std::move(wide)}};
    if (slot.stem == "ssm_d") return {in_layer("ssm_d"), {reshape(slot.dims)}};
    if (slot.stem == "ssm_conv1d" && slot.dims.size() == 2)
      return {slot.name(), {reshape(slot.dims), std::move(wide)}};
    return {slot.name(), {}};
  }
  if (slot.stem == "ssm_gate") return {in_layer("ssm_in.weight"), {slice_rows(0, gate)}};
  if (slot.stem == "ssm_xbc") return {in_layer("ssm_in.weight"), {slice_rows(gate, mixed)}};
  if (slot.stem == "ssm_step")
    return {in_layer("ssm_in.weight"), {slice_rows(mixed, mixed + r.heads)}};
  if (slot.stem == "ssm_a" || slot.stem == "ssm_d")
    return {in_layer(slot.stem), {reshape(slot.dims)}};
  if (slot.stem == "ssm_norm") return {slot.name(), {reshape(slot.dims)}};
  if (slot.stem == "ssm_conv1d" && slot.dims.size() == 2)
    return {
        slot.name(),
        {reshape(slot.dims), {.kind = RecipeStep::Kind::kCast, .dtype = DType::kF32, .dims = {}}}};
  return {slot.name(), {}};
}

RecurrentPart gguf_delta_part(const ModelConfig& c, const WeightSlot& slot, bool joined) {
  const RecurrentConfig& r = c.recurrent;
  int64_t keys = r.groups * r.state, head = c.head_dim;
  auto in_layer = [&](std::string_view name) { return fmt::format("blk.{}.{}", slot.layer, name); };
  const bool apart = c.architecture.starts_with("qwen35");
  if (apart && slot.stem == "ssm_rate") return {in_layer("ssm_beta.weight"), {}};
  if (apart && slot.stem == "ssm_step") return {in_layer("ssm_alpha.weight"), {}};
  if (slot.stem == "ssm_rate" || slot.stem == "ssm_step")
    return {in_layer("ssm_ba.weight"), delta_steps(r, slot.stem)};
  if (auto steps = delta_steps(r, slot.stem); joined && !steps.empty())
    return {in_layer("ssm_in.weight"), std::move(steps)};
  if (slot.stem == "ssm_q") return {in_layer("attn_qkv.weight"), {slice_rows(0, keys)}};
  if (slot.stem == "ssm_k") return {in_layer("attn_qkv.weight"), {slice_rows(keys, 2 * keys)}};
  if (slot.stem == "ssm_v")
    return {in_layer("attn_qkv.weight"), {slice_rows(2 * keys, 2 * keys + r.inner())}};
  if (slot.stem == "ssm_gate") return {in_layer("attn_gate.weight"), {}};
  if (slot.stem == "attn_q")  // each head has its query and its gate
    return {in_layer("attn_q.weight"), {slice_rows_of_each(0, head, 2 * head)}};
  if (slot.stem == "attn_gate")
    return {in_layer("attn_q.weight"), {slice_rows_of_each(head, 2 * head, 2 * head)}};
  if (slot.stem == "ffn_norm") return {in_layer("post_attention_norm.weight"), {}};
  return slot.stem.starts_with("ssm_") ? recurrent_part(c, slot) : RecurrentPart{};
}

AltUpPart altup_part(std::string_view stem) {
  for (const auto& [start, back] :
       {std::pair<std::string_view, bool>("altup_proj_", false), {"altup_unembd_proj_", true}})
    if (stem.starts_with(start)) return {std::stoll(std::string(stem.substr(start.size()))), back};
  return {};
}

WeightPlace gguf_altup_place(const ModelConfig& c, AltUpPart part) {
  return {part.back ? "altup_unembd_proj.weight" : "altup_proj.weight",
          {reshape({(c.altup.copies - 1) * c.hidden, c.hidden}),
           slice_rows(part.index * c.hidden, (part.index + 1) * c.hidden)}};
}

FusedRows fused_rows(const ModelConfig& c, std::string_view stem) {
  int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, total = q + 2 * kv;
  if (stem == "attn_q") return {0, q, total};
  if (stem == "attn_k") return {q, q + kv, total};
  if (stem == "attn_v") return {q + kv, total, total};
  if (stem == "ffn_gate") return {0, c.ffn, 2 * c.ffn};
  TK_CHECK(stem == "ffn_up");
  return {c.ffn, 2 * c.ffn, 2 * c.ffn};
}

}  // namespace tokamak
