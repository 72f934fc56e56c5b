// Embeddings, scores of pairs and labels: pooling requests, many at a time.
#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "api/model_impl.h"
#include "base/error.h"

namespace tokamak {
namespace {

// The vectors of a call. Shared with the sinks, which run on the engine's thread.
struct VectorBatch {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<float>> vectors;
  size_t open = 0;             // requests without an answer
  std::optional<Error> error;  // the first one

  void take(size_t index, Delta&& delta) {
    std::lock_guard lock(mutex);
    --open;
    if (delta.finish == Finish::kStop)
      vectors[index] = std::move(delta.vector);
    else if (!error)
      error.emplace(delta.finish == Finish::kError ? delta.error_code : ErrorCode::kUnavailable,
                    delta.error.empty() ? "the request ended early" : delta.error);
    changed.notify_one();
  }
};

int64_t text_limit(const LoadedModel& model) {
  int64_t context = model.engine->config().max_model_len, own = model.embedding.max_tokens;
  return own > 0 ? std::min(own, context) : context;
}

// All of them, in order. If one fails, its error is thrown after the others have ended.
std::vector<std::vector<float>> pool(const LoadedModel& model, std::vector<EmbeddingInput> inputs) {
  auto batch = std::make_shared<VectorBatch>();
  batch->vectors.resize(inputs.size());
  const auto most = static_cast<size_t>(model.engine->config().max_queue);
  auto wait_below = [&](size_t count) {
    std::unique_lock lock(batch->mutex);
    batch->changed.wait(lock, [&] { return batch->open < count; });
    return !batch->error;
  };
  for (size_t i = 0; i < inputs.size() && wait_below(most); ++i) {
    RequestSpec spec;
    spec.prompt = std::move(inputs[i].ids);
    spec.second_text = inputs[i].second_text;
    spec.max_tokens = 0;
    spec.pool = true;
    {
      std::lock_guard lock(batch->mutex);
      ++batch->open;
    }
    try {
      model.engine->submit(std::move(spec),
                           [batch, i](Delta&& d) { batch->take(i, std::move(d)); });
    } catch (const Error& e) {
      Delta refused;
      refused.finish = Finish::kError;
      refused.error = e.what();
      refused.error_code = e.code();
      batch->take(i, std::move(refused));
    }
  }
  wait_below(1);
  if (batch->error) throw Error(*batch->error);
  return std::move(batch->vectors);
}

void check_length(const LoadedModel& model, const EmbeddingInput& input, size_t index) {
  if (input.ids.empty()) fail(ErrorCode::kInvalidArgument, "text {} has no tokens", index);
  if (std::ssize(input.ids) > text_limit(model))
    fail(ErrorCode::kOutOfRange, "text {} has {} tokens, {} reads {}; shorten it, or set truncate",
         index, input.ids.size(), model.name, text_limit(model));
}

const std::string& prompt_text(const LoadedModel& model, const EmbedOptions& options) {
  const EmbeddingSpec& spec = model.embedding;
  const std::string& name = options.prompt.empty() ? spec.default_prompt : options.prompt;
  if (name.empty() || name == "query" || name == "document") return spec.prompt_for(name);
  if (const std::string* text = spec.prompt(name)) return *text;
  fail(ErrorCode::kInvalidArgument, "{} has no prompt named {}", model.name, name);
}

std::vector<EmbeddingInput> encode_all(const LoadedModel& model,
                                       const std::vector<std::string>& texts,
                                       const std::string& prefix, bool truncate) {
  std::vector<EmbeddingInput> inputs;
  for (const std::string& text : texts) {
    inputs.push_back(model.embedder->encode(prefix + text, truncate ? text_limit(model) : 0));
    check_length(model, inputs.back(), inputs.size() - 1);
  }
  return inputs;
}

}  // namespace

std::vector<std::vector<float>> Model::embed(const std::vector<std::string>& texts,
                                             const EmbedOptions& options) const {
  const LoadedModel& model = impl_->loaded;
  if (!model.embedding.embeds())
    fail(ErrorCode::kUnsupported, "{} gives no embeddings{}", model.name,
         model.embedding.classifies() ? ": it is a classifier"
                                      : "; to use its last token's state, open it with pooling "
                                        "\"last\" (--pooling last)");
  int64_t width = impl_->info.embedding_size;
  if (options.dimensions < 0 || options.dimensions > width)
    fail(ErrorCode::kInvalidArgument, "dimensions is {}: use 1 to {}", options.dimensions, width);
  auto vectors =
      pool(model, encode_all(model, texts, prompt_text(model, options), options.truncate));
  bool normalize = options.normalize.value_or(model.embedding.normalize);
  for (std::vector<float>& v : vectors) finish_vector(v, options.dimensions, normalize);
  return vectors;
}

std::vector<float> Model::embed_one(const std::string& text, const EmbedOptions& options) const {
  return std::move(embed(std::vector{text}, options)[0]);
}

std::vector<double> Model::rerank(const std::string& query,
                                  const std::vector<std::string>& documents,
                                  const EmbedOptions& options) const {
  const LoadedModel& model = impl_->loaded;
  std::vector<double> scores;
  if (!model.embedding.classifies()) {
    EmbedOptions kind = options;
    kind.prompt = "query";
    std::vector<float> wanted = embed_one(query, kind);
    kind.prompt = "document";
    for (const std::vector<float>& v : embed(documents, kind)) scores.push_back(cosine(wanted, v));
    return scores;
  }
  if (model.embedding.labels.size() != 1)
    fail(ErrorCode::kUnsupported, "{} has {} labels; a model that scores pairs has one", model.name,
         model.embedding.labels.size());
  std::vector<EmbeddingInput> inputs;
  for (const std::string& text : documents) {
    inputs.push_back(
        model.embedder->encode_pair(query, text, options.truncate ? text_limit(model) : 0));
    check_length(model, inputs.back(), inputs.size() - 1);
  }
  for (const std::vector<float>& v : pool(model, std::move(inputs)))
    scores.push_back(label_probabilities(v)[0]);
  return scores;
}

std::vector<std::vector<double>> Model::classify(const std::vector<std::string>& texts,
                                                 const EmbedOptions& options) const {
  const LoadedModel& model = impl_->loaded;
  if (!model.embedding.classifies())
    fail(ErrorCode::kUnsupported, "{} is not a classifier", model.name);
  std::vector<std::vector<double>> out;
  for (const std::vector<float>& v : pool(model, encode_all(model, texts, "", options.truncate)))
    out.push_back(label_probabilities(v));
  return out;
}

}  // namespace tokamak
