#include "engine/sample_params.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tokamak {
namespace {

constexpr SampleSetting kSampleSettings[] = {
    {"temperature", 0, 2, &SampleSpec::temperature},
    {"top_k", -1, INT32_MAX, nullptr, &SampleSpec::top_k},
    {"top_p", 0, 1, &SampleSpec::top_p},
    {"min_p", 0, 1, &SampleSpec::min_p},
    {"typical_p", 0, 1, &SampleSpec::typical_p},
    {"min_keep", 0, INT32_MAX, nullptr, &SampleSpec::min_keep},
    {"repetition_penalty", 0.01, 10, &SampleSpec::repetition_penalty},
    {"presence_penalty", -2, 2, &SampleSpec::presence_penalty},
    {"frequency_penalty", -2, 2, &SampleSpec::frequency_penalty},
    {"repeat_last_n", -1, INT32_MAX, nullptr, &SampleSpec::penalty_last_n},
    {"dry_multiplier", 0, 100, &SampleSpec::dry_multiplier},
    {"dry_base", 1, 100, &SampleSpec::dry_base},
    {"dry_allowed_length", 1, INT32_MAX, nullptr, &SampleSpec::dry_allowed_length},
    {"dry_penalty_last_n", -1, INT32_MAX, nullptr, &SampleSpec::dry_last_n},
    {"xtc_probability", 0, 1, &SampleSpec::xtc_probability},
    {"xtc_threshold", 0, 1, &SampleSpec::xtc_threshold},
    {"top_n_sigma", -1, 100, &SampleSpec::top_n_sigma},
    {"dynatemp_range", 0, 5, &SampleSpec::dynatemp_range},
    {"dynatemp_exponent", 0, 100, &SampleSpec::dynatemp_exponent},
    {"mirostat", 0, 2, nullptr, &SampleSpec::mirostat},
    {"mirostat_tau", 0, 100, &SampleSpec::mirostat_tau},
    {"mirostat_eta", 0, 10, &SampleSpec::mirostat_eta},
    {"min_tokens", 0, INT32_MAX, nullptr, &SampleSpec::min_tokens},
    {"guidance_scale", 0, 100, &SampleSpec::guidance_scale},
};

// 0 means greedy in a request; in a model's file it is taken for a mistake.
bool is_zero_mass(const SampleSetting& p, double value) {
  return value == 0 && (p.name == "top_p" || p.name == "typical_p");
}

// {name in the file, name in the table}
using DefaultNames = std::span<const std::pair<std::string_view, std::string_view>>;

std::optional<SampleSpec> read_defaults(const Value& file, DefaultNames names) {
  SampleSpec spec;
  bool any = false;
  for (const auto& [name, param] : names) {
    const SampleSetting& p = sample_param(param);
    const Value* value = file.find(name);
    if (value == nullptr || !(p.integer ? value->is_int() : value->is_number())) continue;
    double number = value->as_double();
    if (!(number >= p.low && number <= p.high) || is_zero_mass(p, number)) continue;
    set_sample_param(spec, param, number);
    any = true;
  }
  if (!any) return std::nullopt;
  normalize_sampling(spec);
  return spec;
}

}  // namespace

std::span<const SampleSetting> sample_params() { return kSampleSettings; }

const SampleSetting& sample_param(std::string_view name) {
  const auto* p = std::find_if(std::begin(kSampleSettings), std::end(kSampleSettings),
                               [&](const SampleSetting& x) { return x.name == name; });
  TK_CHECK(p != std::end(kSampleSettings), "sampling parameter {}", name);
  return *p;
}

void set_sample_param(SampleSpec& spec, std::string_view name, double value) {
  const SampleSetting& p = sample_param(name);
  if (!(value >= p.low && value <= p.high))
    fail(ErrorCode::kInvalidArgument, "{} is {}, but must be from {} to {}", name, value, p.low,
         p.high);
  if (p.integer)
    spec.*p.integer = static_cast<int32_t>(value);
  else
    spec.*p.number = static_cast<float>(value);
}

std::vector<SampleStage> sample_order(std::span<const std::string> names) {
  constexpr std::pair<std::string_view, SampleStage> kStages[] = {
      {"penalties", SampleStage::kPenalties},
      {"dry", SampleStage::kDry},
      {"temperature", SampleStage::kTemperature},
      {"top_k", SampleStage::kTopK},
      {"typ_p", SampleStage::kTypical},
      {"top_p", SampleStage::kTopP},
      {"min_p", SampleStage::kMinP},
      {"xtc", SampleStage::kXtc},
      {"top_n_sigma", SampleStage::kTopNSigma}};
  std::vector<SampleStage> order;
  for (const std::string& name : names) {
    const auto* stage = std::find_if(std::begin(kStages), std::end(kStages),
                                     [&](const auto& s) { return s.first == name; });
    if (stage == std::end(kStages))
      fail(ErrorCode::kInvalidArgument,
           "'{}' is not a sampling stage: use penalties, dry, temperature, top_k, typ_p, top_p, "
           "min_p, xtc or top_n_sigma",
           name.substr(0, 64));
    if (std::find(order.begin(), order.end(), stage->second) != order.end())
      fail(ErrorCode::kInvalidArgument, "the sampling stage {} is named twice", name);
    order.push_back(stage->second);
  }
  return order;
}

bool penalizes(const SampleSpec& s) {
  return s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
}

// Every second layer of the first or the second half, of the first or the last 20 in large models.
// Where the embeddings are the output matrix too, their own prediction is the input token: they are
// left out.
std::vector<int32_t> dola_half(int64_t layers, bool shares_embedding, bool high) {
  int64_t half = layers / 2, first = 0;
  if (shares_embedding && layers >= 2) first = layers == 2 ? 1 : 2;
  int64_t begin = first, end = layers <= 40 ? half : 20;
  if (high) begin = layers <= 40 ? half : layers - 20, end = layers;
  std::vector<int32_t> out;
  for (int64_t layer = begin; layer < end; layer += 2) out.push_back(static_cast<int32_t>(layer));
  if (!high && first == half) out = {static_cast<int32_t>(first)};
  return out;
}

void check_logit_bias(const SampleSpec& spec, int64_t vocab) {
  for (const auto& [id, bias] : spec.logit_bias) {
    if (id < 0 || id >= vocab)
      fail(ErrorCode::kInvalidArgument,
           "logit_bias: {} is not a token id; the vocabulary has ids from 0 to {}", id, vocab - 1);
    if (!(std::abs(bias) <= kMaxLogitBias))
      fail(ErrorCode::kInvalidArgument, "logit_bias of token {} is {}, but must be from {} to {}",
           id, bias, -kMaxLogitBias, kMaxLogitBias);
  }
}

void normalize_sampling(SampleSpec& spec) {
  spec.top_k = std::max(spec.top_k, 0);
  if (spec.top_p <= 0) {
    spec.temperature = 0;
    spec.top_p = 1;
  }
}

std::optional<SampleSpec> sampling_defaults(const Value& config) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"temperature", "temperature"},
      {"top_k", "top_k"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"typical_p", "typical_p"},
      {"repetition_penalty", "repetition_penalty"}};
  return read_defaults(config, kNames);
}

std::optional<SampleSpec> gguf_sampling_defaults(const Value& metadata) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"general.sampling.temp", "temperature"},
      {"general.sampling.top_k", "top_k"},
      {"general.sampling.top_p", "top_p"},
      {"general.sampling.min_p", "min_p"},
      {"general.sampling.xtc_probability", "xtc_probability"},
      {"general.sampling.xtc_threshold", "xtc_threshold"},
      {"general.sampling.penalty_repeat", "repetition_penalty"}};
  return read_defaults(metadata, kNames);
}

}  // namespace tokamak
