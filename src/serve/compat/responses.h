#pragma once
#include <functional>
#include <string>

#include "serve/compat/dialect.h"
#include "serve/compat/response_store.h"

namespace tokamak::openai {

struct ResponsesOptions {
  std::string id;
  // In the background: the first token has come; it failed, with a message. May be empty.
  std::function<void()> started;
  std::function<void(const std::string& why)> failed;
  Value echo;  // members of the response that repeat the request
  // Receives a finished response and the messages of its output.
  std::function<void(const Value& response, const Value::Array& output)> keep;
};
std::unique_ptr<Shape> make_responses_shape(ShapeOptions options, ResponsesOptions responses,
                                            const Tokenizer& tokenizer);

}  // namespace tokamak::openai
