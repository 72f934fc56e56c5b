#include "base/error.h"

namespace tokamak {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfRange:
      return "out_of_range";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const char* slash = file;
  for (const char* p = file; *p; ++p)
    if (p[0] == '/' && p[1] == 's' && p[2] == 'r' && p[3] == 'c' && p[4] == '/') slash = p + 5;
  throw Error(ErrorCode::kInternal,
              fmt::format("internal error at {}:{}: {} does not hold{}{}", slash, line, condition,
                          message.empty() ? "" : ": ", message));
}

}  // namespace tokamak
