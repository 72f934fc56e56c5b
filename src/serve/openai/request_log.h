#pragma once
// One line of JSON and one span per generation request, and the trace it belongs to.
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/line_file.h"
#include "base/value.h"
#include "serve/http/message.h"
#include "serve/openai/api_keys.h"
#include "serve/openai/trace_exporter.h"

namespace tokamak::openai {

// W3C trace context: the client's trace if the request has one, otherwise a new one; the span is
// ours.
struct Trace {
  std::string id, parent, span, flags;  // hexadecimal; parent may be empty
  std::string header() const;           // for the answer's traceparent
  bool sampled() const;                 // the client has not decided against recording it
};
Trace trace_of(const http::Request& request);

// Owner: the program; outlives the requests. Thread-safe; lines are written atomically.
class RequestLog {
 public:
  // Appends to the file and sends spans to the collector, unless they are empty. Throws Error.
  RequestLog(const std::string& path, const std::string& collector, const std::string& service);
  void write(const Trace& trace, const Value& line);
  const TraceExporter* exporter() const { return exporter_.get(); }

 private:
  std::unique_ptr<TraceExporter> exporter_;
  std::optional<LineFile> file_;
};

// What is known about a request before it is parsed.
struct RequestContext {
  Trace trace;
  std::string route, remote;
  Nanos start = 0;
  RequestLog* log = nullptr;                               // may be nullptr
  std::shared_ptr<Admission> slot;                         // nullptr: the key has no limits
  Value line(int status, const std::string& error) const;  // the beginning of every line
};

}  // namespace tokamak::openai
