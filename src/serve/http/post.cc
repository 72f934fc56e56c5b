#include "serve/http/post.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "base/error.h"

namespace tokamak::http {

Url parse_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme))
    fail(ErrorCode::kInvalidArgument, "{}: write it as http://host:port (no https)", text);
  std::string rest = text.substr(kScheme.size());
  Url url;
  size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  rest.resize(slash);
  size_t colon = rest.rfind(':');
  bool port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
  url.host = rest.substr(0, port ? colon : rest.size());
  url.port = port ? rest.substr(colon + 1) : "80";
  if (url.host.starts_with('[') && url.host.ends_with(']'))
    url.host = url.host.substr(1, url.host.size() - 2);
  if (url.host.empty() || url.port.empty())
    fail(ErrorCode::kInvalidArgument, "{}: write it as http://host:port", text);
  return url;
}

int post_json(const Url& url, const std::string& body, std::chrono::seconds limit) {
  namespace beast = boost::beast;
  using boost::asio::ip::tcp;
  boost::asio::io_context context(1);
  tcp::resolver resolver(context);
  beast::tcp_stream stream(context);
  beast::flat_buffer buffer;
  beast::http::request<beast::http::string_body> request(
      beast::http::verb::post, url.path.empty() ? "/" : url.path, 11, body);
  request.set(beast::http::field::host, url.host + ":" + url.port);
  request.set(beast::http::field::content_type, "application/json");
  request.keep_alive(false);
  request.prepare_payload();
  beast::http::response_parser<beast::http::string_body> parser;
  parser.body_limit(1 << 20);
  beast::error_code error = boost::asio::error::timed_out;
  // Each operation starts the next one; the first error ends the chain.
  auto received = [&](beast::error_code e, size_t) { error = e; };
  auto sent = [&](beast::error_code e, size_t) {
    error = e;
    if (!e) beast::http::async_read(stream, buffer, parser, received);
  };
  auto connected = [&](beast::error_code e, const tcp::endpoint&) {
    error = e;
    if (!e) beast::http::async_write(stream, request, sent);
  };
  resolver.async_resolve(url.host, url.port,
                         [&](beast::error_code e, const tcp::resolver::results_type& found) {
                           error = e;
                           if (!e) stream.async_connect(found, connected);
                         });
  context.run_for(limit);
  if (!context.stopped()) error = boost::asio::error::timed_out;
  if (error)
    fail(ErrorCode::kUnavailable, "cannot reach http://{}:{}: {}", url.host, url.port,
         error.message());
  return parser.get().result_int();
}

}  // namespace tokamak::http
