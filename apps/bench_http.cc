#include "apps/bench_http.h"

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace tokamak {
namespace {

namespace beast = boost::beast;
namespace beast_http = boost::beast::http;
using boost::asio::ip::tcp;

using OnBytes = std::function<void(int status, std::string_view bytes)>;

// Owner: one request. Every operation blocks; a server that is silent for ten minutes is an error.
class BenchConnection {
 public:
  explicit BenchConnection(const Url& url) : url_(url) {
    tcp::resolver resolver(context_);
    beast::error_code error;
    auto found = resolver.resolve(url.host, url.port, error);
    if (error) fail(ErrorCode::kUnavailable, "{}: {}", url.host, error.message());
    error = wait([&](auto done) {
      stream_.async_connect(found, [done](beast::error_code e, const auto&) { done(e); });
    });
    if (error)
      fail(ErrorCode::kUnavailable, "cannot connect to {}:{}: {}", url.host, url.port,
           error.message());
    stream_.socket().set_option(tcp::no_delay(true), error);
  }

  // Sends the request and calls on_bytes with the body as it arrives. Returns the status.
  int exchange(beast_http::request<beast_http::string_body> request, const std::string& api_key,
               const OnBytes& on_bytes) {
    request.set(beast_http::field::host, url_.host + ":" + url_.port);
    if (!api_key.empty()) request.set(beast_http::field::authorization, "Bearer " + api_key);
    request.keep_alive(false);
    request.prepare_payload();
    check(wait([&](auto done) {
      beast_http::async_write(stream_, request, [done](beast::error_code e, size_t) { done(e); });
    }));
    beast_http::response_parser<beast_http::buffer_body> parser;
    parser.body_limit(std::numeric_limits<uint64_t>::max());
    std::array<char, 16384> bytes;
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = bytes.data();
      body.size = bytes.size();
      beast::error_code error = wait([&](auto done) {
        beast_http::async_read_some(stream_, buffer_, parser,
                                    [done](beast::error_code e, size_t) { done(e); });
      });
      if (error != beast_http::error::need_buffer) check(error);
      if (parser.is_header_done() && body.size < bytes.size())
        on_bytes(parser.get().result_int(), {bytes.data(), bytes.size() - body.size});
    }
    return parser.get().result_int();
  }

 private:
  // Starts one asynchronous operation, which may time out, and waits for its end.
  template <class Start>
  beast::error_code wait(Start start) {
    beast::error_code result;
    stream_.expires_after(std::chrono::minutes(10));
    start([&result](beast::error_code e) { result = e; });
    context_.restart();
    context_.run();
    return result;
  }
  void check(beast::error_code error) const {
    if (error)
      fail(ErrorCode::kUnavailable, "the connection to {}:{} failed: {}", url_.host, url_.port,
           error.message());
  }

  const Url& url_;
  boost::asio::io_context context_{1};
  beast::tcp_stream stream_{context_};
  beast::flat_buffer buffer_;
};

}  // namespace

Url parse_server_url(const std::string& text) {
  Url url = http::parse_url(text);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  return url;
}

int post_events(const Url& url, const std::string& path, const std::string& api_key,
                const std::string& body, const std::function<void(std::string_view)>& on_event,
                std::string& error) {
  beast_http::request<beast_http::string_body> request(beast_http::verb::post, url.path + path, 11,
                                                       body);
  request.set(beast_http::field::content_type, "application/json");
  std::string pending;
  return BenchConnection(url).exchange(
      std::move(request), api_key, [&](int status, std::string_view bytes) {
        if (status != 200) {
          error += bytes;
          return;
        }
        pending += bytes;
        size_t begin = 0;
        for (size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
          std::string_view line(pending.data() + begin, end - begin);
          if (line.ends_with('\r')) line.remove_suffix(1);
          if (!line.starts_with("data:")) continue;
          line.remove_prefix(5);
          if (line.starts_with(' ')) line.remove_prefix(1);
          on_event(line);
        }
        pending.erase(0, begin);
      });
}

std::string get_text(const Url& url, const std::string& path, const std::string& api_key) {
  std::string text;
  int status = BenchConnection(url).exchange({beast_http::verb::get, url.path + path, 11}, api_key,
                                             [&](int, std::string_view bytes) { text += bytes; });
  if (status != 200)
    fail(ErrorCode::kUnavailable, "{} answers {}: {}", path, status, text.substr(0, 200));
  return text;
}

}  // namespace tokamak
