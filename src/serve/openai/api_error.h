#pragma once
// A request error as reported to OpenAI clients: status, message, parameter and code.
#include <string>

#include "base/error.h"
#include "serve/http/message.h"

namespace tokamak::openai {

class ApiError : public Error {
 public:
  ApiError(int status, std::string message, std::string param = "", std::string code = "");
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& error_code() const { return code_; }
  // Suggested retry delay in seconds; 0: none.
  double retry_after() const { return retry_after_; }
  ApiError&& with_retry_after(double seconds) && {
    retry_after_ = seconds;
    return std::move(*this);
  }

 private:
  int status_;
  std::string param_, code_;
  double retry_after_ = 0;
};

template <class... Args>
[[noreturn]] void bad_request(std::string param, std::string code,
                              fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), std::move(param),
                 std::move(code));
}

// A known and well-formed field that this server does not support.
[[noreturn]] void unsupported(const std::string& param, const std::string& what);

// The HTTP status for an engine error.
int http_status(ErrorCode code);

std::string retry_after_header(double seconds);  // whole seconds, at least 1

// For the current exception; internal errors are logged and reported without details.
http::Response error_answer(const std::exception& error);

}  // namespace tokamak::openai
