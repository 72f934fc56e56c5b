#pragma once
// The routes that answer with vectors or what is computed from them: embeddings, rerank, score,
// classify.
#include <memory>

#include "base/value.h"
#include "serve/openai/vector_call.h"
#include "serve/served_model.h"

namespace tokamak::openai {

// From the body of a request; throw ApiError. `answer` is set.
using VectorRoute = VectorRequest (*)(const Value& body, std::shared_ptr<const ServedModel> model);
VectorRequest prepare_embeddings(const Value& body, std::shared_ptr<const ServedModel> model);
// llama.cpp's /embedding, also with a vector of each token (--pooling none).
VectorRequest prepare_llama_embedding(const Value& body, std::shared_ptr<const ServedModel> model);
// /embeddings is either of the two: OpenAI's, but llama.cpp's if each token has a vector.
VectorRequest prepare_bare_embeddings(const Value& body, std::shared_ptr<const ServedModel> model);
// Ollama's /api/embed and, with `prompt` instead of `input`, /api/embeddings.
VectorRequest prepare_ollama_embed(const Value& body, std::shared_ptr<const ServedModel> model);
VectorRequest prepare_rerank(const Value& body, std::shared_ptr<const ServedModel> model);
VectorRequest prepare_score(const Value& body, std::shared_ptr<const ServedModel> model);
VectorRequest prepare_classify(const Value& body, std::shared_ptr<const ServedModel> model);

}  // namespace tokamak::openai
