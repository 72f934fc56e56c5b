#include "serve/openai/api_error.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace tokamak::openai {
namespace {

// what() ends at a NUL, which a client may have sent in a name.
std::string without_nul(std::string text) {
  for (size_t at = 0; (at = text.find('\0', at)) != std::string::npos;) text.replace(at, 1, "\\0");
  return text;
}

}  // namespace

ApiError::ApiError(int status, std::string message, std::string param, std::string code)
    : Error(ErrorCode::kInvalidArgument, without_nul(std::move(message))),
      status_(status),
      param_(std::move(param)),
      code_(std::move(code)) {}

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kOutOfRange:
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kUnavailable:
    case ErrorCode::kCancelled:
      return 503;
    case ErrorCode::kCorrupt:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

std::string retry_after_header(double seconds) {
  return fmt::format("{}", std::max<int64_t>(1, static_cast<int64_t>(std::ceil(seconds))));
}

void unsupported(const std::string& param, const std::string& what) {
  throw ApiError(400, fmt::format("Unsupported parameter: '{}'. {}", param, what), param,
                 "unsupported_parameter");
}

http::Response error_answer(const std::exception& error) {
  if (auto* api = dynamic_cast<const ApiError*>(&error)) {
    http::Response response =
        http::error_response(api->status(), api->what(), "", api->param(), api->error_code());
    if (api->retry_after() > 0)
      response.headers.emplace_back("Retry-After", retry_after_header(api->retry_after()));
    if (api->status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  auto* known = dynamic_cast<const Error*>(&error);
  int status = known != nullptr ? http_status(known->code()) : 500;
  if (status == 500) {
    log::error("request failed: {}", error.what());
    return http::error_response(500, "The server had an error while processing your request.");
  }
  http::Response response = http::error_response(status, error.what());
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace tokamak::openai
