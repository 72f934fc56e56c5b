#pragma once
// The meeting point of a request's handler (any thread) and its connection (an I/O thread): the
// handler appends ready-made bytes, the connection takes them away.
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "serve/http/message.h"

namespace tokamak::http {

// Owner: the connection, and the Exchange for as long as the handler holds it.
class Turn {
 public:
  struct Traits {
    bool http10 = false;  // no chunks: the end of the connection ends a stream
    bool head = false;    // the answer's body is not sent
    bool keep_alive = true;
    std::string extra_headers;  // CORS, ready-made lines
    size_t max_unsent = 0;
  };
  // wake: called (outside the lock) when the connection should look; must be thread-safe and
  // outlive nothing.
  Turn(Request request, Traits traits, std::function<void()> wake);

  const Request& request() const { return request_; }

  // The handler's side.
  void respond(const Response& response);
  void start_stream(const StreamHead& head);
  void write(std::string_view bytes);
  void finish();
  void abandon();  // nobody will answer any more
  void on_gone(std::function<void()> callback);
  bool gone() const;

  // The connection's side.
  struct Taken {
    bool done = false;  // nothing will follow
    bool cut = false;   // must end by closing: the answer is broken or the client too slow
    bool streaming = false;
    bool keep_alive = false;  // as the head told the client
  };
  Taken take(std::string& out);  // replaces out by what is unsent
  bool overflowed() const;       // the client lags further behind than allowed
  void ping();                   // into the stream, if one runs
  void set_gone();

 private:
  enum class State { kWaiting, kStreaming, kDone };
  void append_head(int status, std::string_view content_type, const Headers& headers,
                   const size_t* length);
  void append_chunk(std::string_view bytes);
  void notify(std::unique_lock<std::mutex>& lock);

  const Request request_;
  Traits traits_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  State state_ = State::kWaiting;
  std::string unsent_, ping_;
  bool notified_ = false, gone_ = false, cut_ = false;
  std::function<void()> on_gone_;
};

}  // namespace tokamak::http
