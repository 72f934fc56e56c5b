#pragma once
// The byte stream of a connection: TCP, or TLS over TCP. Private to http/.
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <optional>
#include <utility>

namespace tokamak::http {

// Used on one strand, with at most one read and one write pending.
class Stream {
 public:
  using Error = boost::system::error_code;
  using Socket = boost::asio::ip::tcp::socket;
  using TlsContext = boost::asio::ssl::context;

  Stream(Socket socket, std::shared_ptr<TlsContext> tls)
      : socket_(std::move(socket)), context_(std::move(tls)) {
    if (context_ != nullptr) tls_.emplace(socket_, *context_);
  }

  Socket& socket() { return socket_; }
  auto get_executor() { return socket_.get_executor(); }
  bool encrypted() const { return tls_.has_value(); }

  template <class Handler>  // Handler(Error); only if encrypted()
  void async_handshake(Handler handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::move(handler));
  }

  // After a failed handshake: what is written goes out unencrypted.
  void give_up_tls() { tls_.reset(); }

  template <class Handler>  // Handler(Error, size_t)
  void async_read_some(boost::asio::mutable_buffer buffer, Handler handler) {
    if (tls_)
      tls_->async_read_some(buffer, std::move(handler));
    else
      socket_.async_read_some(buffer, std::move(handler));
  }

  template <class Handler>  // Handler(Error, size_t)
  void async_write_some(boost::asio::const_buffer buffer, Handler handler) {
    if (tls_)
      tls_->async_write_some(buffer, std::move(handler));
    else
      socket_.async_write_some(buffer, std::move(handler));
  }

  // Tells the client that nothing follows; reading goes on. `keep` is held until that is done.
  template <class Keep>
  Error end_output(Keep keep) {
    Error ec;
    if (tls_)
      tls_->async_shutdown([keep = std::move(keep)](Error) {});
    else
      socket_.shutdown(Socket::shutdown_send, ec);
    return ec;
  }

 private:
  Socket socket_;
  std::shared_ptr<TlsContext> context_;  // outlives tls_
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace tokamak::http
