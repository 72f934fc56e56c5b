// Dispatches a parsed message to its handler: targets, methods, CORS, and responses that need no
// handler.
#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/log.h"
#include "serve/http/session.h"

namespace tokamak::http {
namespace {

namespace beast = boost::beast;

std::string_view view(boost::string_view text) { return {text.data(), text.size()}; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool percent_decode(std::string_view text, std::string& out) {
  out.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    int hi = hex_digit(text[i + 1]), lo = hex_digit(text[i + 2]);
    if (hi < 0 || lo < 0) return false;
    out += static_cast<char>(hi * 16 + lo);
    i += 2;
  }
  return true;
}

// "/path?query", "http://host/path?query" or "*".
bool split_target(std::string_view target, Request& request) {
  if (size_t scheme = target.find("://"); scheme != std::string_view::npos && target[0] != '/') {
    size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  target = target.substr(0, target.find('#'));
  size_t mark = target.find('?');
  if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
  if (!percent_decode(target.substr(0, mark), request.path)) return false;
  // "http://host/" + "/v1/models/" is a common way to build an address.
  std::string& path = request.path;
  if (path == "*") return true;  // of OPTIONS: the server itself
  path.insert(0, 1, '/');
  path.erase(
      std::unique(path.begin(), path.end(), [](char a, char b) { return a == '/' && b == '/'; }),
      path.end());
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  return true;
}

}  // namespace

std::string Session::cors_headers(const Request& request) const {
  std::string_view origin = request.header("origin");
  if (origin.empty()) return "";
  std::string lines = fmt::format(
      "Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n"
      "Access-Control-Allow-Credentials: true\r\n"
      "Access-Control-Expose-Headers: x-request-id, retry-after, x-tokamak-warning\r\n",
      origin);
  if (request.method == "OPTIONS") {
    // A wildcard does not cover Authorization in browsers, which send the names in lower case. The
    // parser admits only valid header characters, so they can be echoed unchanged.
    std::string_view asked = request.header("access-control-request-headers");
    bool browser = !asked.empty() && std::none_of(asked.begin(), asked.end(),
                                                  [](char c) { return c >= 'A' && c <= 'Z'; });
    lines += fmt::format(
        "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\nAccess-Control-Allow-Headers: "
        "{}\r\n"
        "Access-Control-Max-Age: 86400\r\n",
        browser ? asked : "*");
  }
  return lines;
}

// For a request without a handler.
Response Session::plain_answer(const Request& request, const Router::Match& match) const {
  Response response;
  if (request.method == "OPTIONS" && (!match.allow.empty() || request.path == "*")) {
    if (!match.allow.empty()) response.headers.emplace_back("Allow", match.allow);
  } else if (match.allow.empty()) {
    response =
        error_response(404, fmt::format("Unknown route: {} {}", request.method, request.path), "",
                       "", "unknown_url");
  } else {
    response = error_response(
        405,
        fmt::format("{} does not support {}; use {}.", request.path, request.method, match.allow),
        "", "", "method_not_supported");
    response.headers.emplace_back("Allow", match.allow);
  }
  return response;
}

void Session::dispatch() {
  ++shared_->stats.requests;
  auto message = parser_->release();
  Request request;
  request.method = view(message.method_string());
  request.remote = remote_;
  bool host = false;
  for (const auto& field : message) {
    std::string name(view(field.name_string()));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    host = host || name == "host";
    request.headers.emplace_back(std::move(name), view(field.value()));
  }
  Turn::Traits traits;
  traits.http10 = message.version() < 11;
  traits.head = request.method == "HEAD";
  traits.keep_alive = message.keep_alive() && !shared_->stopping;
  if (!host && !traits.http10) return reject(error_response(400, "The Host header is missing."));
  if (!split_target(view(message.target()), request))
    return reject(error_response(400, "The request's path is not valid percent-encoding."));
  request.body = std::move(message.body());

  std::string_view origin = request.header("origin");
  const bool foreign = !origin.empty() && !shared_->origins.allows(origin, request.header("host"));
  if (foreign && request.method != "OPTIONS")
    return reject(error_response(403,
                                 fmt::format("Pages of {} may not use this server; start it with "
                                             "--allowed-origins to permit them.",
                                             origin),
                                 "", "", "origin_not_allowed"));
  // A preflight without these headers tells a browser that it may not go on.
  traits.extra_headers = foreign ? "Vary: Origin\r\n" : cors_headers(request);
  if (std::string_view id = request.request_id(); !id.empty())
    traits.extra_headers += fmt::format("X-Request-Id: {}\r\n", id);
  if (websocket::wants_upgrade(request)) return upgrade(std::move(request), traits.extra_headers);
  Router::Match match = shared_->router.find(request.method, request.path);
  if (probes_only_) {
    if (!match.always) return reject(too_many_connections());
    traits.keep_alive = false;
  }
  run(std::move(request), std::move(traits), match);
}

void Session::run(Request request, Turn::Traits traits, const Router::Match& match) {
  request.parameter = match.parameter;
  request.draining = shared_->stopping;
  auto turn = begin_turn(std::move(request), std::move(traits));
  if (shared_->stopping && !match.always) {
    Response response = error_response(503, "The server is shutting down.");
    response.headers.emplace_back("Retry-After", "5");
    return turn->respond(response);
  }
  if (match.handler == nullptr) return turn->respond(plain_answer(turn->request(), match));
  auto exchange = std::make_shared<Exchange>(turn);
  try {
    (*match.handler)(exchange);
  } catch (const std::exception& e) {
    log::error("{} {}: {}", turn->request().method, turn->request().path, e.what());
    exchange->respond(error_response(500, "The server had an error while processing the request."));
  }
}

}  // namespace tokamak::http
