#pragma once
// Errors: what the user, the disk or a peer did wrong ends the operation with `throw Error`; it is
// caught in main, in the HTTP handler and at the per-request boundary. Expected outcomes are return
// values. Bugs are caught by TK_CHECK, which throws Error(kInternal), so that a bug hit by one
// request does not end the process.
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace tokamak {

enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something that makes no sense        (HTTP 400, exit 2)
  kNotFound,         // a file, model or route that is not there                  (HTTP 404, exit 1)
  kCorrupt,          // a file or message whose content contradicts itself
  kUnsupported,      // well-formed, but not something this build can do
  kOutOfRange,       // beyond a declared limit (context, batch, a plan's guard)
  kResourceExhausted,  // memory, queue or blocks are used up                       (HTTP 429/503)
  kUnavailable,        // shutting down or not ready
  kCancelled,
  kInternal,  // a bug in Tokamak
};

const char* error_code_name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// fail(ErrorCode::kCorrupt, "{}: tensor {} ends at byte {}, the file has {}", path, name, end,
// size)
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace tokamak

// TK_CHECK(a == b) or TK_CHECK(a == b, "a is {}", a): always on. For bugs, never for input.
#define TK_CHECK(condition, ...)                                                              \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::tokamak::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (0)
#ifdef NDEBUG
#define TK_DCHECK(condition, ...) \
  do {                            \
  } while (0)
#else
#define TK_DCHECK(condition, ...) TK_CHECK(condition, __VA_ARGS__)
#endif
