#pragma once
// The queue between a request's handler (any thread) and its connection (an I/O thread): the
// handler appends formatted bytes, the connection sends them.
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "serve/http/message.h"
#include "serve/http/websocket.h"

namespace tokamak::http {

// Owner: the connection, and the Exchange while the handler holds it.
class Turn {
 public:
  struct Traits {
    bool http10 = false;  // no chunked encoding: closing the connection ends a stream
    bool head = false;    // the answer's body is not sent
    bool keep_alive = true;
    bool websocket = false;     // the answer is messages, without a head
    std::string extra_headers;  // header lines of CORS and of the request id
    size_t max_unsent = 0;
    // For requests without a connection: called once with the whole answer, on any thread.
    std::function<void(const Response&)> answer = {};
    // The same for a stream: called with its bytes, in order, and at its end.
    std::function<void(std::string_view bytes, bool end)> pieces = {};
  };
  // wake: called (outside the lock) when the connection has work; must be thread-safe and must not
  // keep anything alive.
  Turn(Request request, Traits traits, std::function<void()> wake);

  const Request& request() const { return request_; }

  // The handler's side.
  void respond(const Response& response);
  void start_stream(const StreamHead& head);
  void write(std::string_view bytes);
  void finish(std::string_view last);  // nothing comes between `last` and the end
  void abandon();                      // no answer will follow
  void on_gone(std::function<void()> callback);
  void on_stop(std::function<void()> callback);
  bool gone() const;

  // The connection's side.
  struct Taken {
    bool done = false;  // the answer is complete
    bool cut = false;   // the connection must close: the answer is broken or the client too slow
    bool streaming = false;
    bool keep_alive = false;  // as announced in the response head
  };
  Taken take(std::string& out);  // replaces out with the unsent bytes
  bool overflowed() const;       // the client is further behind than allowed
  void ping();                   // into the stream, if one is open
  // Sends something at once that any answer may have: the first bytes of its head, a ping, or a
  // space before a line of JSON. A client that has closed the connection answers with a reset.
  // Does nothing for a WebSocket.
  void probe();
  void set_gone();
  void set_stopping();

 private:
  enum class State { kWaiting, kStreaming, kDone };
  void begin_head();
  void append_head(int status, std::string_view content_type, const Headers& headers,
                   const size_t* length);
  void append_chunk(std::string_view bytes);
  void notify(std::unique_lock<std::mutex>& lock);
  void end_pieces(std::string_view last, std::unique_lock<std::mutex>& lock);

  const Request request_;
  Traits traits_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  State state_ = State::kWaiting;
  std::string unsent_, ping_;
  websocket::MessageCutter cutter_;
  bool notified_ = false, gone_ = false, stopping_ = false, cut_ = false;
  bool begun_ = false;  // the head's first bytes are sent
  std::function<void()> on_gone_, on_stop_;
};

}  // namespace tokamak::http
