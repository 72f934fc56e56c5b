// Latent attention (DeepSeek-V2): a token's keys and values are matrices times one vector c, and
// all heads share one rotated key part; the cache holds c and the rotated part only. The compiler
// moves the matrices to the queries and to the result (the pass absorb-latent).
#include "compile/models/builder.h"

namespace tokamak {
namespace {

constexpr double kEpsilon = 1e-6F;  // of the latent vectors' norms, whatever that of the others is

}  // namespace

Ref latent_attention(ModelBuilder& b, Ref x, int64_t layer) {
  const ModelConfig& config = b.config;
  const LatentConfig& m = config.latent;
  std::string blk = fmt::format("blk.{}.", layer);
  Ref from = x;
  if (m.q_rank > 0) from = b.norm(b.linear(x, blk + "attn_q_a"), blk + "attn_q_a_norm", kEpsilon);
  Ref q = b.heads(b.linear(from, blk + "attn_q_nope"), config.heads, m.nope);
  Ref q_pe = b.heads(b.linear(from, blk + "attn_q_pe"), config.heads, m.rope);
  Ref c = b.norm(b.linear(x, blk + "attn_kv_c"), blk + "attn_kv_a_norm", kEpsilon);
  Ref k_pe = b.rope(b.heads(b.linear(x, blk + "attn_k_pe"), 1, m.rope), layer);
  q = b.op("concat", {q, b.rope(q_pe, layer)}, Value::Object{{"axis", 2}});
  Ref mixed = b.append_and_attend_latent(layer, q, c, b.merge_heads(k_pe));
  return b.linear(b.merge_heads(mixed), blk + "attn_output");
}

}  // namespace tokamak
