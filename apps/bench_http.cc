#include "apps/bench_http.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/error.h"

namespace tokamak {
namespace {

// Owner: one request. Blocking; a silence of ten minutes is an error.
class Connection {
 public:
  explicit Connection(const Url& url) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (int rc = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found); rc != 0)
      fail(ErrorCode::kUnavailable, "{}: {}", url.host, gai_strerror(rc));
    std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
    for (addrinfo* a = found; a != nullptr && socket_ < 0; a = a->ai_next) {
      socket_ = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
      if (socket_ >= 0 && connect(socket_, a->ai_addr, a->ai_addrlen) != 0) {
        close(socket_);
        socket_ = -1;
      }
    }
    if (socket_ < 0) fail(ErrorCode::kUnavailable, "nobody listens at {}:{}", url.host, url.port);
    int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    timeval patience{600, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~Connection() {
    if (socket_ >= 0) close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) fail(ErrorCode::kUnavailable, "the server closed the connection");
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  // False: the end.
  bool more() {
    char chunk[16384];
    ssize_t n = recv(socket_, chunk, sizeof chunk, 0);
    if (n < 0) fail(ErrorCode::kUnavailable, "the server does not answer any more");
    buffer_.append(chunk, static_cast<size_t>(n));
    return n > 0;
  }

  std::string take(size_t bytes) {
    while (buffer_.size() < bytes)
      if (!more()) fail(ErrorCode::kUnavailable, "the answer ended too early");
    std::string out = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    return out;
  }

  std::string line() {  // without its end
    size_t end;
    while ((end = buffer_.find("\r\n")) == std::string::npos)
      if (!more()) fail(ErrorCode::kUnavailable, "the answer ended too early");
    std::string out = take(end);
    take(2);
    return out;
  }

  std::string rest() {
    while (more()) {
    }
    return std::move(buffer_);
  }

 private:
  int socket_ = -1;
  std::string buffer_;
};

int read_status(Connection& connection) {
  std::string line = connection.line();
  int status = 0;
  if (line.size() > 12) std::from_chars(line.data() + 9, line.data() + 12, status);
  if (!line.starts_with("HTTP/1.") || status < 100)
    fail(ErrorCode::kUnavailable, "not an HTTP answer: {}", line.substr(0, 40));
  return status;
}

// Hands on the body piece by piece, whichever way it is framed.
void read_body(Connection& connection, const std::function<void(std::string_view)>& on_bytes) {
  bool chunked = false;
  size_t length = std::string::npos;
  for (std::string line = connection.line(); !line.empty(); line = connection.line()) {
    std::transform(line.begin(), line.end(), line.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (line.starts_with("transfer-encoding:") && line.find("chunked") != std::string::npos)
      chunked = true;
    if (line.starts_with("content-length:"))
      length = std::strtoull(line.c_str() + sizeof("content-length:") - 1, nullptr, 10);
  }
  if (!chunked) {
    on_bytes(length == std::string::npos ? connection.rest() : connection.take(length));
    return;
  }
  while (true) {
    size_t size = std::strtoull(connection.line().c_str(), nullptr, 16);
    if (size > 0) on_bytes(connection.take(size));
    connection.line();
    if (size == 0) return;
  }
}

std::string head(const char* method, const Url& url, const std::string& path,
                 const std::string& api_key) {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n", method,
                                 url.path, path, url.host, url.port);
  if (!api_key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", api_key);
  return text;
}

}  // namespace

Url parse_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme))
    fail(ErrorCode::kInvalidArgument, "{}: write it as http://host:port (no https)", text);
  std::string rest = text.substr(kScheme.size());
  Url url;
  size_t slash = std::min(rest.find('/'), rest.size());
  url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
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

int post_events(const Url& url, const std::string& path, const std::string& api_key,
                const std::string& body, const std::function<void(std::string_view)>& on_event,
                std::string& error) {
  Connection connection(url);
  connection.send(head("POST", url, path, api_key) +
                  fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                              body.size(), body));
  int status = read_status(connection);
  std::string pending;
  read_body(connection, [&](std::string_view bytes) {
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
  return status;
}

std::string get_text(const Url& url, const std::string& path, const std::string& api_key) {
  Connection connection(url);
  connection.send(head("GET", url, path, api_key) + "\r\n");
  int status = read_status(connection);
  std::string text;
  read_body(connection, [&](std::string_view bytes) { text += bytes; });
  if (status != 200)
    fail(ErrorCode::kUnavailable, "{} answers {}: {}", path, status, text.substr(0, 200));
  return text;
}

}  // namespace tokamak
