// Rotary embeddings in config.json.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "compile/import/families.h"
#include "compile/import/hf_fields.h"

namespace tokamak {
namespace {

// Gemma 4: the first frequencies of the whole head; the others are zero.
std::vector<double> proportional(const Fields& p, const Fields& top, int64_t dims) {
  double share = p.number({"partial_rotary_factor"}, 1);
  if (!(share > 0 && share <= 1) || p.number({"factor"}, 1) != 1)
    top.wrong("rope_parameters", "a share of a head between 0 and 1 without a factor");
  std::vector<double> divisors(static_cast<size_t>(dims / 2), 1e30);
  std::fill_n(divisors.begin(), static_cast<size_t>(share * static_cast<double>(dims) / 2), 1.0);
  return divisors;
}

void read_long_factors(const Fields& p, const Fields& top, RopeConfig& r) {
  r.short_factor = p.numbers("short_factor");
  r.long_factor = p.numbers("long_factor");
  if (p.find({"short_mscale", "long_mscale"})) {  // Phi-3.5-MoE: the factor of sin and cos
    r.attention_factor = p.number({"short_mscale"}, 0);
    if (p.number({"long_mscale"}, 0) != r.attention_factor || !(r.attention_factor > 0))
      top.wrong("rope_scaling", "an object with short_mscale equal to long_mscale");
  }
  if (r.short_factor.empty() || r.long_factor.empty())
    fail(ErrorCode::kCorrupt, "{}: longrope needs short_factor and long_factor", top.where());
}

// One rotary description: `p` holds the scaling (rope_scaling or rope_parameters), `top` the rest
// of config.json.
RopeConfig rope_from(const Fields& p, const Fields& top, double theta, int64_t dims,
                     int64_t context) {
  using Scaling = RopeConfig::Scaling;
  RopeConfig r;
  r.dims = dims;
  r.theta = p.number({"rope_theta"}, theta);
  std::string type = p.text({"rope_type", "type"}, "default");
  const std::string model = top.text({"model_type"}, "");
  if (model == "phi3" && type == "yarn") type = "longrope";  // the name in its first configurations
  const bool share = type == "proportional" && model.starts_with("gemma4");
  if (share) r.freq_divisors = proportional(p, top, dims);
  if (share || type == "default" || type == "mrope") return r;  // for text mrope is the default
  if (double alpha = p.number({"alpha"}, 0);
      type == "dynamic" && alpha > 0 && model.starts_with("hunyuan")) {
    auto n = static_cast<double>(dims);  // does not depend on the length
    r.theta *= std::pow(alpha, n / (n - 2));
    return r;
  }
  // A length next to the scaling overrides the one in it.
  r.original_context = top.integer({"original_max_position_embeddings"},
                                   p.integer({"original_max_position_embeddings"}, context));
  bool has_length = top.find({"original_max_position_embeddings"}) ||
                    p.find({"original_max_position_embeddings"});
  if (!p.find({"factor"}) && (type == "linear" || type == "dynamic" || type == "llama3" ||
                              (type == "yarn" && !has_length)))
    fail(ErrorCode::kCorrupt, "{}: rope_scaling in config.json has no factor, which {} needs",
         top.where(), type);
  r.factor = p.number({"factor"}, 1.0);
  r.attention_factor = p.number({"attention_factor"}, 0);
  if (type == "linear") {
    r.scaling = Scaling::kLinear;
  } else if (type == "dynamic") {
    r.scaling = Scaling::kDynamic;
    r.original_context = context;
  } else if (type == "llama3") {
    r.scaling = Scaling::kLlama3;
    r.low_freq_factor = p.number({"low_freq_factor"}, 1.0);
    r.high_freq_factor = p.number({"high_freq_factor"}, 4.0);
  } else if (type == "yarn") {
    r.scaling = Scaling::kYarn;
    if (double fast = p.number({"beta_fast"}, 0); fast != 0) r.beta_fast = fast;
    if (double slow = p.number({"beta_slow"}, 0); slow != 0) r.beta_slow = slow;
    r.mscale = p.number({"mscale"}, 0);
    r.mscale_all_dim = p.number({"mscale_all_dim"}, 0);
    r.yarn_truncate = p.boolean("truncate", true);
  } else if (type == "longrope" || type == "su") {
    r.scaling = Scaling::kLongRope;
    read_long_factors(p, top, r);
  } else {
    fail(ErrorCode::kUnsupported, "{}: rotary scaling {} is not supported", top.where(), type);
  }
  if (r.original_context <= 0) top.wrong("original_max_position_embeddings", "a positive number");
  bool derived = type == "yarn" || r.scaling == Scaling::kLongRope;
  if (derived && !p.find({"factor"}))
    r.factor = static_cast<double>(context) / static_cast<double>(r.original_context);
  return r;
}

// The share of a head's dimensions that are rotated.
double rotated_share(const Fields& f, const Fields& p, const ModelConfig& c) {
  double family_share = find_family(c.architecture)->rotary_share;
  bool solar = f.text({"model_type"}, "") == "solar_open";
  double usual = family_share > 0 && !solar ? family_share : 1.0;
  if (const char* key = "rotary_dim"; family_share > 0 && f.find({key}))
    usual = f.number({key}, 0) / static_cast<double>(c.head_dim);
  double share =
      p.number({"partial_rotary_factor"}, f.number({"partial_rotary_factor", "rotary_pct"}, usual));
  if (!(share > 0 && share <= 1)) f.wrong("partial_rotary_factor", "between 0 and 1");
  if (share != 1 && family_share == 0)
    fail(ErrorCode::kUnsupported, "{}: partial_rotary_factor {} in a {} model is not supported",
         f.where(), share, c.architecture);
  return share;
}

// How much of a head images rotate by time, height and width.
std::vector<int64_t> rope_sections(const Fields& p, int64_t dims) {
  std::vector<int64_t> sections;
  for (double n : p.numbers("mrope_section")) {
    if (!(n >= 0 && n <= static_cast<double>(dims / 2)) || n != std::floor(n) ||
        sections.size() == 4)
      p.wrong("mrope_section", "at most four integers up to half of the rotated values of a head");
    sections.push_back(static_cast<int64_t>(n));
  }
  return sections;
}

}  // namespace

void read_rope(const Fields& f, double usual_theta, ModelConfig& c) {
  bool olmo3 = f.text({"model_type"}, "") == "olmo3";
  if (f.text({"model_type"}, "") == "solar_open") usual_theta = 1000000;
  double theta = f.number({"rope_theta", "rotary_emb_base"}, olmo3 ? 500000 : usual_theta);
  if (c.architecture == "chatglm") theta *= f.number({"rope_ratio"}, 1);
  const Value* params = f.find({"rope_scaling", "rope_parameters"});
  // Transformers would assume the scaling of the published models.
  bool scaled = c.architecture == "gpt-oss" || c.architecture == "apertus" ||
                c.architecture == "cwm" || f.text({"model_type"}, "") == "ministral3";
  if (scaled && !params)
    fail(ErrorCode::kCorrupt, "{}: config.json has no rope_scaling, which a model of type {} needs",
         f.where(), f.text({"model_type"}, ""));
  const Value none = Value::object();
  if (params && !params->is_object()) f.wrong("rope_scaling", "an object");
  Fields p(params ? *params : none, f.where());
  if (double beta = p.number({"llama_4_scaling_beta"}, 0); beta != 0) {
    if (c.architecture != "mistral")
      fail(ErrorCode::kUnsupported,
           "{}: attention scaled by position (llama_4_scaling_beta) is supported in Ministral 3 "
           "only",
           f.where());
    c.temperature_scale = beta;
    c.temperature_length = p.required({"original_max_position_embeddings"});
    c.temperature_everywhere = true;
  }
  auto dims = static_cast<int64_t>(static_cast<double>(c.head_dim) * rotated_share(f, p, c));
  if (c.latent.rank > 0) dims = c.latent.rope;
  c.rope_sections = rope_sections(p, dims);
  const Value* full = p.find({"full_attention"});
  const Value usual_full =
      Value::Object{{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}};
  bool gemma4 = c.architecture == "gemma4";
  if (gemma4 && !params) full = &usual_full;
  if (gemma4 && !full) f.wrong("rope_parameters", "an object with full_attention");
  const Value* sliding = p.find({"sliding_attention"});
  if (const Value* flat = f.find({"rope_parameters"});
      flat == params && flat && flat->size() > 0 && !full && !sliding &&
      c.architecture.starts_with("gemma3"))  // transformers ignores it
    f.wrong("rope_parameters", "an object with full_attention and sliding_attention");
  if (full || sliding) {  // one description per kind of layer
    c.rope = rope_from(Fields(full ? *full : none, f.where()), f, theta,
                       gemma4 ? c.full_head_dim : dims, c.context);
    double local = olmo3 ? theta : 10000.0;
    c.rope_local =
        rope_from(Fields(sliding ? *sliding : none, f.where()), f, local, dims, c.context);
    if (c.rope_local == c.rope) c.rope_local = {};
    return;
  }
  c.rope = rope_from(p, f, theta, dims, c.context);
  if (olmo3 && c.rope.scaling != RopeConfig::Scaling::kNone) {  // layers with a window have none
    c.rope_local.dims = dims;
    c.rope_local.theta = c.rope.theta;
  }
  if (c.latent.rank > 0) scale_latent(c);
  if (c.architecture.starts_with("gemma3")) {
    c.rope_local.dims = dims;
    c.rope_local.theta = f.number({"rope_local_base_freq"}, 10000.0);
  }
}

}  // namespace tokamak
