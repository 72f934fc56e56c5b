// Families whose config.json nests its fields or lists layers in a form of its own: the same
// configuration with the names that the other families use.
#include <string>

#include "base/error.h"
#include "compile/import/hf_fields.h"

namespace tokamak {
namespace {

void copy_as(const Value& from, Value& out,
             std::initializer_list<std::pair<const char*, const char*>> names) {
  for (const auto& [old_name, name] : names)
    if (const Value* v = from.find(old_name)) out.set(name, *v);
}

Value dbrx(const Value& json, std::string_view where) {
  Value out = json;
  copy_as(json, out,
          {{"d_model", "hidden_size"},
           {"n_heads", "num_attention_heads"},
           {"n_layers", "num_hidden_layers"},
           {"max_seq_len", "max_position_embeddings"}});
  const Value *attention = json.find("attn_config"), *ffn = json.find("ffn_config");
  if (attention && attention->is_object())
    copy_as(*attention, out,
            {{"kv_n_heads", "num_key_value_heads"},
             {"clip_qkv", "clip_qkv"},
             {"rope_theta", "rope_theta"}});
  if (!ffn || !ffn->is_object()) return out;
  copy_as(*ffn, out,
          {{"ffn_hidden_size", "intermediate_size"},
           {"moe_num_experts", "num_experts"},
           {"moe_top_k", "num_experts_per_tok"}});
  if (const Value* act = ffn->find("ffn_act_fn"); act && act->is_object() && act->find("name"))
    out.set("hidden_act", act->at("name"));
  Fields f(*ffn, where);  // the norm that the weights of experts are divided by
  if (f.is_null("moe_normalize_expert_weights"))
    out.set("norm_topk_prob", false);
  else if (f.number({"moe_normalize_expert_weights"}, 1) != 1)
    f.wrong("moe_normalize_expert_weights", "1");
  return out;
}

// What its config.json could ask for, and transformers does not compute, is refused.
Value mpt(const Value& json, std::string_view where) {
  Value out = json;
  copy_as(json, out,
          {{"d_model", "hidden_size"},
           {"n_heads", "num_attention_heads"},
           {"n_layers", "num_hidden_layers"},
           {"max_seq_len", "max_position_embeddings"}});
  Fields f(json, where);
  int64_t ratio = f.integer({"expansion_ratio"}, 4);
  if (ratio < 1 || ratio > 64) f.wrong("expansion_ratio", "an integer from 1 to 64");
  out.set("intermediate_size", ratio * f.hidden_size({"d_model"}));
  if (f.find({"logit_scale"}))
    fail(ErrorCode::kUnsupported, "{}: MPT with logit_scale is not supported", where);
  const Value* attention = json.find("attn_config");
  if (!attention || !attention->is_object()) return out;
  copy_as(*attention, out,
          {{"clip_qkv", "clip_qkv"},
           {"softmax_scale", "attention_multiplier"},
           {"alibi_bias_max", "alibi_bias_max"}});
  Fields a(*attention, where);
  if (!a.boolean("alibi", true) || a.boolean("qk_ln", false) || a.boolean("prefix_lm", false) ||
      a.text({"attn_type"}, "multihead_attention") != "multihead_attention")
    fail(ErrorCode::kUnsupported,
         "{}: MPT without ALiBi, with norms of q and k, shared keys or a prefix is not supported",
         where);
  return out;
}

// Kinds of layers: a list, or a list of patterns and how often each is repeated.
Value gpt_neo(const Value& json, std::string_view where) {
  Value out = json;
  copy_as(json, out,
          {{"num_heads", "num_attention_heads"},
           {"num_layers", "num_hidden_layers"},
           {"window_size", "sliding_window"}});
  Fields f(json, where);
  if (!f.find({"intermediate_size"}))
    out.set("intermediate_size", 4 * f.hidden_size({"hidden_size"}));
  Value types = Value::array();
  auto add = [&](const Value& kind) {
    bool local = kind.is_string() && kind.as_string() == "local";
    if (!local && !(kind.is_string() && kind.as_string() == "global"))
      f.wrong("attention_layers", "a list of \"global\" and \"local\"");
    types.push(local ? "sliding_attention" : "full_attention");
  };
  const Value *layers = f.find({"attention_layers"}), *patterns = f.find({"attention_types"});
  if (layers && layers->is_array()) {
    for (const Value& kind : layers->as_array()) add(kind);
  } else if (patterns && patterns->is_array()) {
    constexpr size_t kMostLayers = 10000;
    for (const Value& entry : patterns->as_array()) {
      bool pair = entry.is_array() && entry.size() == 2 && entry.as_array()[0].is_array() &&
                  entry.as_array()[0].size() > 0 && entry.as_array()[1].is_int();
      if (!pair) f.wrong("attention_types", "a list of patterns and counts");
      for (int64_t i = 0; i < entry.as_array()[1].as_int(); ++i)
        for (const Value& kind : entry.as_array()[0].as_array()) {
          if (types.size() >= kMostLayers)
            f.wrong("attention_types", fmt::format("a list of at most {} layers", kMostLayers));
          add(kind);
        }
    }
  } else {
    fail(ErrorCode::kCorrupt, "{}: config.json has no attention_types", where);
  }
  out.set("layer_types", std::move(types));
  return out;
}

}  // namespace

Value with_usual_names(const Value& json, std::string_view where) {
  const Value* type = json.is_object() ? json.find("model_type") : nullptr;
  if (!type || !type->is_string()) return json;
  if (type->as_string() == "dbrx") return dbrx(json, where);
  if (type->as_string() == "gpt_neo") return gpt_neo(json, where);
  if (type->as_string() == "mpt") return mpt(json, where);
  // Files of Ling 2.0 may have the name of its predecessor; their class tells.
  const Value* classes = json.find("architectures");
  if (type->as_string() == "bailing_moe" && classes && classes->is_array() && classes->size() > 0 &&
      classes->as_array()[0].is_string() &&
      classes->as_array()[0].as_string().starts_with("BailingMoeV2")) {
    Value out = json;
    out.set("model_type", "bailing_moe_v2");
    return out;
  }
  return json;
}

}  // namespace tokamak
