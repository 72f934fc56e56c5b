#pragma once
// HTTP/1.1 server: keep-alive, limits, streaming with timeouts for slow clients, graceful stop.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/router.h"

namespace tokamak::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;    // 0: any free one
  int listener = -1;  // a socket that listens already, in their place
  int io_threads = 1;
  int max_connections = 1024;               // more get a 503, except for probes
  size_t max_header_bytes = 64 << 10;       // 431
  size_t max_body_bytes = 16 << 20;         // 413
  size_t max_total_body_bytes = 256 << 20;  // total of all requests being read; 503
  size_t max_unsent_bytes =
      64 << 20;  // per answer; a client that falls further behind is disconnected
  std::chrono::milliseconds read_timeout{60'000};            // first byte to complete request; 408
  std::chrono::milliseconds idle_timeout{120'000};           // between requests of a connection
  std::chrono::milliseconds write_timeout{30'000};           // without any progress by the client
  std::chrono::milliseconds ping_interval{15'000};           // for idle streams
  std::vector<std::string> allowed_origins = {"localhost"};  // see http/origins.h
  std::string tls_certificate, tls_key;                      // PEM files; empty: plain HTTP
  int send_buffer_bytes = 0;                                 // per socket; 0: the system default
};

// Counters since the start; read from any thread.
struct ServerStats {
  std::atomic<int64_t> connections{0};  // open now
  std::atomic<int64_t> accepted{0}, requests{0}, rejected{0}, gone{0}, timeouts{0};
};

// Owner: the program; start and stop from one thread. The constructor binds and throws
// Error(kUnavailable) if the port is in use. An idle server sleeps. Handlers must not outlive what
// they refer to: stop() returns when no handler runs and every connection is closed, but exchanges
// may be held longer (their answers are then discarded).
class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();  // stops without draining

  void start(Router router);
  int port() const;
  std::string url() const;  // for display
  const ServerStats& stats() const;

  // Answers new requests with 503 (except routes added with `always`), waits up to `drain` for
  // those in flight, ends the rest with an error (Exchange::on_stop), then closes every connection.
  void stop(std::chrono::milliseconds drain);
  // From now on SIGINT and SIGTERM are handled by run_until_signal. Call before start().
  void catch_signals();
  // Blocks until a signal arrives, then calls stop(drain); a second signal ends the wait at once.
  // False: end_run() was called instead, and nothing is stopped.
  bool run_until_signal(std::chrono::milliseconds drain);
  void end_run();          // from any thread
  bool signalled() const;  // a signal has arrived
  // Stops accepting. The copy of the listening socket outlives this server and, if the process is
  // replaced, the process: new connections wait for ServerOptions::listener of the next one.
  int keep_listener();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokamak::http
