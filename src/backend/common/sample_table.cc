#include "backend/common/sample_table.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "backend/common/mirostat.h"
#include "base/error.h"

namespace tokamak {
namespace {

// stages_row in ops/sampling_rows.cc knows stages by their numbers.
static_assert(static_cast<int>(SampleStage::kPenalties) == 0 &&
              static_cast<int>(SampleStage::kTopNSigma) == kSampleStages - 1);

constexpr float kBanned = -std::numeric_limits<float>::infinity();

void set_params(const SampleSpec& s, float* p) {
  p[kParamTemperature] = s.temperature;
  p[kParamTopK] = static_cast<float>(s.top_k);
  p[kParamTopP] = s.top_p;
  p[kParamMinP] = s.min_p;
  p[kParamTypicalP] = s.typical_p;
  p[kParamXtcProbability] = s.xtc_probability;
  p[kParamXtcThreshold] = s.xtc_threshold;
  p[kParamRepetition] = s.repetition_penalty;
  p[kParamPresence] = s.presence_penalty;
  p[kParamFrequency] = s.frequency_penalty;
  p[kParamDryMultiplier] = s.dry_multiplier;
  p[kParamDryBase] = s.dry_base;
  p[kParamTopNSigma] = s.top_n_sigma;
  p[kParamDynatempRange] = s.dynatemp_range;
  p[kParamDynatempExponent] = s.dynatemp_exponent;
}

// Nothing but the penalties and the largest logit.
void set_greedy(float* p) {
  p[kParamTemperature] = 0;
  p[kParamTopK] = p[kParamMinP] = p[kParamXtcProbability] = 0;
  p[kParamTopP] = p[kParamTypicalP] = p[kParamDynatempExponent] = 1;
  p[kParamTopNSigma] = p[kParamDynatempRange] = 0;
}

// What penalties count of the history.
void keep_last(const SampleSpec& spec, std::span<const int32_t>& history, int32_t& prompt_tokens) {
  auto last = static_cast<size_t>(spec.penalty_last_n);
  if (spec.penalty_last_n < 0 || spec.dry_multiplier > 0 || last >= history.size()) return;
  prompt_tokens = std::max(0, prompt_tokens - static_cast<int32_t>(history.size() - last));
  history = history.last(last);
}

template <class T>
uint64_t capacity_bytes(const std::vector<T>& v) {
  return v.capacity() * sizeof(T);
}

}  // namespace

void SampleTable::clear() {
  rows_ = 0;
  most_tops_ = 1;
  for (auto* v : {&keys_, &order_, &history_, &breakers_, &bias_ids_, &masks_}) v->clear();
  for (auto* v : {&params_, &ordered_params_, &bias_values_}) v->clear();
  for (auto* v : {&history_start_, &breaker_start_, &bias_start_}) v->assign(1, 0);
}

void SampleTable::add(const SampleRow& sample, std::span<const int32_t> history,
                      int32_t prompt_tokens, std::span<const uint32_t> mask) {
  static const SampleSpec kNeutral;
  const SampleSpec& spec = sample.spec ? *sample.spec : kNeutral;
  bool scored = sample.mode == SampleRow::Mode::kScore;
  keep_last(spec, history, prompt_tokens);
  auto row = static_cast<size_t>(rows_++);
  params_.resize((row + 1) * kSampleParams);
  ordered_params_.resize(params_.size());
  keys_.resize((row + 1) * kSampleKeys);
  order_.resize((row + 1) * static_cast<size_t>(kSampleStages), -1);

  float *p = &params_[row * kSampleParams], *ordered = &ordered_params_[row * kSampleParams];
  set_params(spec.order.empty() ? spec : kNeutral, p);
  set_params(spec, ordered);
  if (spec.temperature <= 0) {
    set_greedy(p);
    set_greedy(ordered);
  }
  bool filtered = Mirostat::applies(sample);  // the mask has what is left
  if (filtered) {
    set_params(kNeutral, p);
    p[kParamTemperature] = spec.temperature;
  }
  for (size_t i = 0; !filtered && i < std::min<size_t>(spec.order.size(), kSampleStages); ++i)
    order_[row * static_cast<size_t>(kSampleStages) + i] = static_cast<int32_t>(spec.order[i]);

  int32_t* k = &keys_[row * kSampleKeys];
  k[kKeySeedLow] = static_cast<int32_t>(static_cast<uint32_t>(spec.seed));
  k[kKeySeedHigh] = static_cast<int32_t>(static_cast<uint32_t>(spec.seed >> 32));
  k[kKeyChoice] = sample.choice;
  k[kKeyPosition] = sample.position;
  k[kKeyPrompt] = spec.penalize_prompt ? 0 : prompt_tokens;  // none of the history is prompt
  k[kKeyDryAllowed] = spec.dry_allowed_length;
  k[kKeyDryLast] = spec.dry_last_n;
  k[kKeyTarget] = scored                                    ? sample.target
                  : sample.mode == SampleRow::Mode::kHidden ? kTargetNone
                                                            : kTargetChoose;
  int32_t tops = sample.mode == SampleRow::Mode::kHidden ? -1 : spec.top_logprobs;
  k[kKeyTops] = std::min(scored ? std::max(tops, 0) : tops, kMostTops);
  most_tops_ = std::max<int64_t>(most_tops_, k[kKeyTops]);
  k[kKeyMask] = mask.empty() ? -1 : static_cast<int32_t>(masks_.size() / mask_words(vocab_));
  for (uint32_t word : mask) masks_.push_back(static_cast<int32_t>(word));

  history_.insert(history_.end(), history.begin(), history.end());
  history_start_.push_back(static_cast<int32_t>(history_.size()));
  auto in_vocab = [&](int32_t id) { return id >= 0 && id < vocab_; };
  for (int32_t id : spec.dry_breakers)
    if (in_vocab(id)) breakers_.push_back(id);
  breaker_start_.push_back(static_cast<int32_t>(breakers_.size()));
  for (const auto& [id, bias] : spec.logit_bias)
    if (in_vocab(id)) bias_ids_.push_back(id), bias_values_.push_back(bias);
  if (sample.generated < spec.min_tokens)
    for (int32_t id : spec.banned_until_min)
      if (in_vocab(id)) bias_ids_.push_back(id), bias_values_.push_back(kBanned);
  bias_start_.push_back(static_cast<int32_t>(bias_ids_.size()));
}

void SampleTable::finish(const float* logits) {
  auto round_up = [](auto& v) { v.resize(std::bit_ceil(std::max<size_t>(v.size(), 1))); };
  round_up(history_);
  round_up(breakers_);
  round_up(bias_ids_);
  bias_values_.resize(bias_ids_.size());
  size_t words = mask_words(vocab_);
  masks_.resize(std::bit_ceil(std::max<size_t>(masks_.size() / words, 1)) * words);
  most_tops_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(most_tops_)));
  ranks_.resize(static_cast<size_t>(most_tops_));
  std::iota(ranks_.begin(), ranks_.end(), 0);
  args_ = {};
  args_.rows = rows_;
  args_.vocab = vocab_;
  args_.logits = logits;
  args_.params = params_.data();
  args_.keys = keys_.data();
  args_.order = order_.data();
  args_.ordered_params = ordered_params_.data();
  args_.history = history_.data();
  args_.history_start = history_start_.data();
  args_.breakers = breakers_.data();
  args_.breaker_start = breaker_start_.data();
  args_.bias_ids = bias_ids_.data();
  args_.bias_start = bias_start_.data();
  args_.bias_values = bias_values_.data();
  args_.masks = masks_.data();
}

InputView SampleTable::input(std::string_view name) const {
  auto view = [](const auto& v, DType dtype) {
    return InputView{dtype, v.data(), static_cast<int64_t>(v.size())};
  };
  if (name == "logits") return {DType::kF32, args_.logits, rows_ * vocab_};
  if (name == "sample.params") return view(params_, DType::kF32);
  if (name == "sample.ordered_params") return view(ordered_params_, DType::kF32);
  if (name == "sample.bias_values") return view(bias_values_, DType::kF32);
  const std::pair<std::string_view, const std::vector<int32_t>*> lists[] = {
      {"sample.keys", &keys_},         {"sample.order", &order_},
      {"sample.history", &history_},   {"sample.history_start", &history_start_},
      {"sample.breakers", &breakers_}, {"sample.breaker_start", &breaker_start_},
      {"sample.bias_ids", &bias_ids_}, {"sample.bias_start", &bias_start_},
      {"sample.masks", &masks_},       {"sample.ranks", &ranks_}};
  for (const auto& [known, list] : lists)
    if (known == name) return view(*list, DType::kI32);
  fail(ErrorCode::kUnsupported, "sampling has no input {}", name);
}

int64_t SampleTable::symbol(std::string_view name) const {
  if (name == "R") return rows_;
  if (name == "history") return std::ssize(history_);
  if (name == "breakers") return std::ssize(breakers_);
  if (name == "biases") return std::ssize(bias_ids_);
  if (name == "masks") return std::ssize(masks_) / static_cast<int64_t>(mask_words(vocab_));
  if (name == "tops") return most_tops_;
  return 0;
}

void SampleTokens::set(std::string_view name, const void* data, int64_t elements) {
  auto take = [&](auto& to) {
    using T = typename std::remove_reference_t<decltype(to)>::value_type;
    to.assign(static_cast<const T*>(data), static_cast<const T*>(data) + elements);
  };
  if (name == "ids") return take(ids);
  if (name == "logprobs") return take(logprobs);
  if (name == "tops") return take(tops);
  if (name == "values") return take(values);
  fail(ErrorCode::kUnsupported, "sampling has no result {}", name);
}

uint64_t SampleTable::bytes() const {
  uint64_t total = 0;
  for (const auto* v : {&params_, &ordered_params_, &bias_values_}) total += capacity_bytes(*v);
  for (const auto* v : {&keys_, &order_, &history_, &history_start_, &breakers_, &breaker_start_,
                        &bias_ids_, &bias_start_, &masks_, &ranks_})
    total += capacity_bytes(*v);
  return total;
}

}  // namespace tokamak
