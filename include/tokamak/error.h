#pragma once
// The one exception type of Tokamak. Every function of tokamak/tokamak.h that can fail throws it.
#include <stdexcept>
#include <string>

namespace tokamak {

enum class ErrorCode {
  kInvalidArgument,    // the caller asked for something that is not valid  (HTTP 400, exit 2)
  kNotFound,           // a file, model or route does not exist               (HTTP 404, exit 1)
  kCorrupt,            // a file or message contradicts itself
  kUnsupported,        // well-formed, but this build cannot do it
  kOutOfRange,         // beyond a declared limit: context, batch, a plan's guard
  kResourceExhausted,  // memory, queue or KV blocks are used up              (HTTP 429/503)
  kUnavailable,        // shutting down or not ready
  kCancelled,          // the caller cancelled the operation
  kInternal,           // a bug in Tokamak
};

const char* error_code_name(ErrorCode code);  // "invalid_argument", "not_found", ...

// what() is one readable line: what failed, where, and what to do about it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace tokamak
