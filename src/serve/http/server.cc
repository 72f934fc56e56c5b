#include "serve/http/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <future>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/session.h"
#include "serve/http/tls.h"

namespace tokamak::http {
namespace {

using tcp = net::ip::tcp;
using SystemError = boost::system::error_code;

constexpr std::chrono::seconds kLastWords{2};
constexpr int64_t kProbeSeats = 32;  // connections above the limit that may ask for health

std::vector<std::shared_ptr<Session>> open_sessions(SharedState& shared) {
  std::vector<std::shared_ptr<Session>> open;
  std::lock_guard lock(shared.mutex);
  for (auto& [raw, weak] : shared.sessions)
    if (auto session = weak.lock()) open.push_back(std::move(session));
  return open;
}

}  // namespace

struct Server::Impl {
  std::shared_ptr<SharedState> shared = std::make_shared<SharedState>();
  net::io_context io;
  net::strand<net::io_context::executor_type> strand{net::make_strand(io)};
  tcp::acceptor acceptor{strand};
  net::steady_timer retry{strand};
  net::signal_set signals{strand};
  net::executor_work_guard<net::io_context::executor_type> work{net::make_work_guard(io)};
  std::vector<std::thread> threads;
  int port = 0;
  int signals_seen = 0;  // under shared->mutex
  bool ended = false;    // the same
  bool started = false, stopped = false;
  bool closing = false;  // on the strand

  void bind();
  void take_listener(int socket);
  void check(SystemError ec) const;
  void accept();
  void on_accept(SystemError ec, tcp::socket socket);
  void stop_accepting();
  void await_signal();
};

// Describes an address error in terms of the command-line flags.
void Server::Impl::check(SystemError ec) const {
  const ServerOptions& options = shared->options;
  if (!ec) return;
  if (ec == net::error::address_in_use)
    fail(ErrorCode::kUnavailable, "port {} on {} is already in use; choose another with --port",
         options.port, options.host);
  if (ec == net::error::access_denied)
    fail(ErrorCode::kUnavailable,
         "port {} on {}: not permitted; choose a port above 1023 with --port", options.port,
         options.host);
  fail(ErrorCode::kUnavailable, "cannot listen on {} port {}: {}", options.host, options.port,
       ec.message());
}

void Server::Impl::take_listener(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    fail(ErrorCode::kInvalidArgument, "descriptor {} is not a socket", socket);
  SystemError ec;
  acceptor.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), socket, ec);
  check(ec);
  const tcp::endpoint endpoint = acceptor.local_endpoint(ec);
  check(ec);
  shared->origins = Origins(shared->options.allowed_origins, endpoint.address().is_loopback());
  port = endpoint.port();
}

void Server::Impl::bind() {
  const ServerOptions& options = shared->options;
  if (options.listener >= 0) return take_listener(options.listener);
  SystemError ec;
  tcp::resolver resolver(io);
  std::string host = options.host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  auto found = resolver.resolve(host, std::to_string(options.port),
                                tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec || found.empty())
    fail(ErrorCode::kInvalidArgument, "--host {}: no such address ({})", options.host,
         ec.message());
  tcp::endpoint endpoint = *found.begin();
  for (const auto& entry : found)  // "localhost" is both: most clients try IPv4
    if (entry.endpoint().address().is_v4()) {
      endpoint = entry.endpoint();
      break;
    }
  shared->origins = Origins(options.allowed_origins, endpoint.address().is_loopback());
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) port = acceptor.local_endpoint(ec).port();
  check(ec);
}

void Server::Impl::accept() {
  acceptor.async_accept(net::make_strand(io), [this](SystemError ec, tcp::socket socket) {
    on_accept(ec, std::move(socket));
  });
}

void Server::Impl::on_accept(SystemError ec, tcp::socket socket) {
  if (ec == net::error::operation_aborted || !acceptor.is_open()) return;
  if (ec) {
    // Out of file descriptors or memory: let connections end before trying again.
    log::warn("accept: {}", ec.message());
    retry.expires_after(std::chrono::milliseconds(100));
    retry.async_wait([this](SystemError stop) {
      if (!stop && acceptor.is_open()) accept();
    });
    return;
  }
  ++shared->stats.accepted;
  int64_t over = ++shared->stats.connections - shared->options.max_connections;
  auto session = std::make_shared<Session>(std::move(socket), shared);
  {
    std::lock_guard lock(shared->mutex);
    shared->sessions[session.get()] = session;
  }
  if (over > kProbeSeats)
    session->refuse(too_many_connections());
  else
    session->start(over > 0);
  accept();
}

// Waits: a connection that is accepted later would never be closed.
void Server::Impl::stop_accepting() {
  std::promise<void> closed;
  net::post(strand, [this, &closed] {
    SystemError ec;
    acceptor.close(ec);
    retry.cancel();
    closed.set_value();
  });
  closed.get_future().wait();
}

void Server::Impl::await_signal() {
  signals.async_wait([this](SystemError ec, int number) {
    if (ec) return;
    log::info("signal {}: {}", number, number == SIGINT ? "interrupt" : "terminate");
    {
      std::lock_guard lock(shared->mutex);
      ++signals_seen;
    }
    shared->changed.notify_all();
    if (!closing) await_signal();
  });
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>()) {
  const ServerOptions& kept = impl_->shared->options = std::move(options);
  if (kept.tls_certificate.empty() != kept.tls_key.empty())
    fail(ErrorCode::kInvalidArgument,
         "--ssl-certfile and --ssl-keyfile belong together: {} is missing",
         kept.tls_key.empty() ? "--ssl-keyfile" : "--ssl-certfile");
  if (!kept.tls_key.empty()) impl_->shared->tls = load_tls(kept.tls_certificate, kept.tls_key);
  impl_->bind();
}

Server::~Server() {
  try {
    stop(std::chrono::milliseconds(0));
  } catch (const std::exception& e) {
    log::error("stopping the server: {}", e.what());
  }
}

void Server::start(Router router) {
  TK_CHECK(!impl_->started);
  impl_->shared->router = std::move(router);
  SystemError ec;
  impl_->acceptor.listen(net::socket_base::max_listen_connections, ec);
  impl_->check(ec);
  impl_->started = true;
  net::post(impl_->strand, [impl = impl_.get()] { impl->accept(); });
  for (int i = 0; i < std::max(1, impl_->shared->options.io_threads); ++i)
    impl_->threads.emplace_back([impl = impl_.get()] {
      while (true) {
        try {
          impl->io.run();
          return;
        } catch (const std::exception& e) {  // affects one connection only
          log::error("I/O thread: {}", e.what());
        }
      }
    });
}

int Server::port() const { return impl_->port; }

std::string Server::url() const {
  std::string host = impl_->shared->options.host;
  if (host == "0.0.0.0" || host == "::") host = "localhost";
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return fmt::format("{}://{}:{}", impl_->shared->tls ? "https" : "http", host, port());
}

const ServerStats& Server::stats() const { return impl_->shared->stats; }

void Server::stop(std::chrono::milliseconds drain) {
  if (impl_->stopped) return;
  impl_->stopped = true;
  SharedState& shared = *impl_->shared;
  shared.stopping = true;
  if (!impl_->started) return;
  // Keeps accepting, so that health and readiness probes get an answer.
  for (const auto& session : open_sessions(shared)) session->drain();
  {
    std::unique_lock lock(shared.mutex);
    int seen = impl_->signals_seen;
    shared.changed.wait_for(lock, drain,
                            [&] { return shared.busy == 0 || impl_->signals_seen > seen; });
  }
  // Answers that are not complete end with an error, which clients get some time to read.
  if (shared.busy > 0) {
    for (const auto& session : open_sessions(shared)) session->hurry();
    std::unique_lock lock(shared.mutex);
    shared.changed.wait_for(lock, kLastWords, [&] { return shared.busy == 0; });
  }
  impl_->stop_accepting();
  auto empty = [&] { return shared.stats.connections == 0; };
  while (!empty()) {
    for (const auto& session : open_sessions(shared)) session->kill();
    std::unique_lock lock(shared.mutex);
    shared.changed.wait_for(lock, std::chrono::milliseconds(50), empty);
  }
  // Only the signals are left: the threads run out of work, and every socket is closed when they
  // end.
  net::post(impl_->strand, [impl = impl_.get()] {
    SystemError ec;
    impl->closing = true;  // an already queued signal must not wait for the next one
    impl->signals.cancel(ec);
    impl->work.reset();
  });
  for (std::thread& thread : impl_->threads) thread.join();
}

void Server::catch_signals() {
  impl_->signals.add(SIGINT);
  impl_->signals.add(SIGTERM);
  impl_->await_signal();
}

bool Server::run_until_signal(std::chrono::milliseconds drain) {
  {
    std::unique_lock lock(impl_->shared->mutex);
    impl_->shared->changed.wait(lock, [&] { return impl_->signals_seen > 0 || impl_->ended; });
    if (impl_->signals_seen == 0) return false;
  }
  stop(drain);
  return true;
}

void Server::end_run() {
  {
    std::lock_guard lock(impl_->shared->mutex);
    impl_->ended = true;
  }
  impl_->shared->changed.notify_all();
}

bool Server::signalled() const {
  std::lock_guard lock(impl_->shared->mutex);
  return impl_->signals_seen > 0;
}

int Server::keep_listener() {
  int listener = dup(impl_->acceptor.native_handle());
  impl_->stop_accepting();
  return listener;
}

}  // namespace tokamak::http
