#pragma once
#include "serve/compat/dialect.h"

namespace tokamak::openai {

http::Response anthropic_error(http::Response response);
std::unique_ptr<Shape> make_anthropic_shape(ShapeOptions options);

// The arguments of a call as a value; text that is not an object (a truncated answer) becomes
// {"text": ...}.
Value call_input(const ToolCall& call);

}  // namespace tokamak::openai
