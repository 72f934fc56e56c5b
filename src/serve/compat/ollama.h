#pragma once
#include <string>

#include "serve/compat/dialect.h"

namespace tokamak::openai {

struct OllamaOptions {
  bool chat = true;
  std::string model;  // the name that the client used
};
// The answer to a request that only loads the model.
http::Response ollama_loaded(const OllamaOptions& options, int64_t created);
std::unique_ptr<Shape> make_ollama_shape(ShapeOptions options, OllamaOptions ollama,
                                         const Tokenizer& tokenizer);

}  // namespace tokamak::openai
