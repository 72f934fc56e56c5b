#include "text/embedding.h"

#include <algorithm>
#include <cmath>

namespace tokamak {
namespace {

// Takes the longer one first, as transformers does.
void cut_to(std::vector<int32_t>& a, std::vector<int32_t>& b, size_t most) {
  while (a.size() + b.size() > most) (a.size() > b.size() ? a : b).pop_back();
}

size_t room_in(std::span<const int32_t> frame, size_t texts, int64_t most) {
  auto specials = static_cast<int64_t>(frame.size() - texts);
  return static_cast<size_t>(std::max<int64_t>(0, most - specials));
}

}  // namespace

EmbeddingEncoder::EmbeddingEncoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  const TokenizerSpec& spec = tokenizer_->spec();
  single_ = make_frame(spec.post_processor);
  pair_ = make_pair_frame(spec.post_processor, spec.model == TokenizerModel::kUnigram);
}

EmbeddingInput EmbeddingEncoder::encode(std::string_view text, int64_t most) const {
  std::vector<int32_t> ids = tokenizer_->encode(text, {.add_special = false});
  if (most > 0) ids.resize(std::min(ids.size(), room_in(single_, 1, most)));
  EmbeddingInput out;
  for (int32_t id : single_)
    if (id == kTextPlace)
      out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    else
      out.ids.push_back(id);
  return out;
}

EmbeddingInput EmbeddingEncoder::encode_pair(std::string_view first, std::string_view second,
                                             int64_t most) const {
  std::vector<int32_t> a = tokenizer_->encode(first, {.add_special = false}),
                       b = tokenizer_->encode(second, {.add_special = false});
  if (most > 0) cut_to(a, b, room_in(pair_.ids, 2, most));
  EmbeddingInput out;
  for (size_t i = 0; i < pair_.ids.size(); ++i) {
    if (pair_.second > 0 && i == pair_.second)
      out.second_text = static_cast<int32_t>(out.ids.size());
    int32_t id = pair_.ids[i];
    if (id == kTextPlace || id == kSecondPlace) {
      const std::vector<int32_t>& ids = id == kTextPlace ? a : b;
      out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    } else {
      out.ids.push_back(id);
    }
  }
  return out;
}

void finish_vector(std::vector<float>& vector, int64_t dimensions, bool normalize) {
  if (dimensions > 0 && dimensions < std::ssize(vector))
    vector.resize(static_cast<size_t>(dimensions));
  if (!normalize) return;
  double sum = 0;
  for (float x : vector) sum += double{x} * double{x};
  double length = std::max(std::sqrt(sum), 1e-12);
  for (float& x : vector) x = static_cast<float>(double{x} / length);
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    dot += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return dot / std::max(std::sqrt(aa * bb), 1e-12);
}

std::vector<double> label_probabilities(std::span<const float> scores) {
  if (scores.size() == 1) return {1.0 / (1.0 + std::exp(-double{scores[0]}))};
  std::vector<double> out;
  float top = scores.empty() ? 0.0f : *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (float s : scores) total += out.emplace_back(std::exp(double{s} - double{top}));
  for (double& p : out) p /= total;
  return out;
}

}  // namespace tokamak
