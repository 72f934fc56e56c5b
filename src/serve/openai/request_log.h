#pragma once
// One JSON object per line and generating request, and the trace it belongs to.
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/value.h"
#include "serve/http/message.h"

namespace tokamak::openai {

// W3C trace context: the caller's trace if the request names one, else a new one; the span is ours.
struct Trace {
  std::string id, parent, span, flags;  // hexadecimal; parent may be empty
  std::string header() const;           // for the answer's traceparent
};
Trace trace_of(const http::Request& request);

// Owner: the program; outlives the requests. Thread-safe; a line is written whole.
class RequestLog {
 public:
  explicit RequestLog(const std::string& path);  // appends; throws Error(kUnavailable)
  void write(const Value& line);

 private:
  std::mutex mutex_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
  bool failed_ = false;
};

// What is known of a request before it is understood.
struct RequestContext {
  Trace trace;
  std::string route, remote;
  Nanos start = 0;
  RequestLog* log = nullptr;                               // may be nullptr
  Value line(int status, const std::string& error) const;  // what every line begins with
};

}  // namespace tokamak::openai
