#pragma once
// One HTTP exchange as the rest of serve/ sees it: plain strings, no socket types.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/value.h"

namespace tokamak::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // upper case as sent
  std::string path;    // percent-decoded, without the query
  std::string query;   // as sent
  Headers headers;     // names in lower case
  std::string body;
  std::string parameter;  // matched by the route's {name...}
  std::string remote;     // address of the peer, for logs
  bool draining = false;  // the server is stopping

  // The first header with that (lower-case) name; "" if absent.
  std::string_view header(std::string_view name) const;
  // The value of name=value in the query; "" if absent. Not decoded: for ids, numbers and names.
  std::string query_value(std::string_view name) const;
  // KServe's requests may be JSON followed by binary tensors; Inference-Header-Content-Length then
  // has the size of the JSON. Without it all of the body is JSON.
  std::string_view json() const;
  std::string_view binary() const;
  // The client's X-Request-Id, if it is usable as one; every answer then carries it.
  std::string_view request_id() const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  Headers headers;
};

bool is_request_id(std::string_view text);  // 1 to 128 visible ASCII characters
const char* status_text(int status);

Response json_response(const Value& value);
// The form OpenAI's clients expect for every error. An empty param or code becomes null.
Response error_response(int status, std::string_view message, std::string_view type = "",
                        std::string_view param = "", std::string_view code = "");
// OpenAI's error type for this status.
const char* error_type(int status);

// A stream of server-sent events (or any text); the server sends `ping` when the stream is idle.
struct StreamHead {
  std::string content_type = "text/event-stream; charset=utf-8";
  std::string ping = ": ping\n\n";
  Headers headers;
};

class Turn;  // the connection's side of an exchange

// Answers one request, from any thread; calls never block. Held by the code that will answer: if
// the last reference is dropped without an answer, the client gets a 500 (or a truncated stream).
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Turn> turn);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request& request() const;
  void respond(Response response);     // the whole answer; later calls are ignored
  void start_stream(StreamHead head);  // then write ... finish
  void write(std::string_view bytes);
  void finish(std::string_view last = {});  // nothing comes between `last` and the end
  // Called once, on an I/O thread, if the client disconnects before the answer is complete;
  // immediately
  // if it already has.
  void on_gone(std::function<void()> callback);
  // Called once, on an I/O thread, if the server gives up waiting for the answer when it stops, and
  // immediately if it already has: what is sent at once still reaches the client.
  void on_stop(std::function<void()> callback);
  bool gone() const;

 private:
  std::shared_ptr<Turn> turn_;
};

using ExchangePtr = std::shared_ptr<Exchange>;

// Called on an I/O thread: must be quick or pass the exchange to a worker. An exception becomes a
// 500.
using Handler = std::function<void(ExchangePtr)>;

}  // namespace tokamak::http
