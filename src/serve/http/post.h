#pragma once
// A small HTTP client: sends one body and reads the status.
#include <chrono>
#include <string>

namespace tokamak::http {

struct Url {
  std::string host, port, path;  // path as written; may be empty
};
// http://host[:port][/path]. Throws Error(kInvalidArgument).
Url parse_url(const std::string& text);

// POSTs a JSON text and returns the status of the answer. Blocks for `limit` at most. Throws
// Error(kUnavailable) if there is no answer.
int post_json(const Url& url, const std::string& body, std::chrono::seconds limit);

}  // namespace tokamak::http
