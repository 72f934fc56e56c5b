#pragma once
// Spans of requests for an OpenTelemetry collector: OTLP over HTTP, as JSON.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/value.h"
#include "serve/http/post.h"

namespace tokamak::openai {

// The span of a line of the request log, which ends now.
Value span_of(const Value& line, int64_t unix_nanoseconds);

// Owner: the request log. A thread sends the spans in batches and tries again while the collector
// is away; requests never wait. Spans beyond kMostWaiting are discarded and counted. Any thread.
class TraceExporter {
 public:
  static constexpr size_t kMostWaiting = 4096;

  // http://host:4318 or with a path, which is /v1/traces by default. Throws
  // Error(kInvalidArgument).
  TraceExporter(const std::string& endpoint, const std::string& service);
  ~TraceExporter();  // makes one attempt to send what waits

  void add(Value span);
  int64_t sent() const { return sent_; }
  int64_t discarded() const { return discarded_; }

 private:
  void loop();
  bool send(const std::vector<Value>& spans, std::chrono::seconds limit);

  http::Url url_;
  std::string service_;
  std::atomic<int64_t> sent_ = 0, discarded_ = 0;
  bool failed_ = false;  // the last attempt; of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Value> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tokamak::openai
