#include "serve/http/message.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/json.h"

namespace tokamak::http {

std::string_view Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

std::string Request::query_value(std::string_view name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (pair.starts_with(name) && pair.substr(name.size()).starts_with('='))
      return std::string(pair.substr(name.size() + 1));
  }
  return "";
}

std::string_view Request::json() const {
  std::string_view header_size = header("inference-header-content-length");
  size_t size = 0;
  auto [end, error] =
      std::from_chars(header_size.data(), header_size.data() + header_size.size(), size);
  bool valid = error == std::errc() && end == header_size.data() + header_size.size();
  return std::string_view(body).substr(0, valid ? size : body.size());
}

std::string_view Request::binary() const { return std::string_view(body).substr(json().size()); }

bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= 128 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string_view Request::request_id() const {
  std::string_view id = header("x-request-id");
  return is_request_id(id) ? id : std::string_view();
}

const char* status_text(int status) {
  switch (status) {
    case 101:
      return "Switching Protocols";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 426:
      return "Upgrade Required";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Response json_response(const Value& value) {
  Response response;
  response.body = dump_json(value);
  return response;
}

Response error_response(int status, std::string_view message, std::string_view type,
                        std::string_view param, std::string_view code) {
  Value error = Value::object();
  error.set("message", message);
  error.set("type", type.empty() ? std::string_view(error_type(status)) : type);
  error.set("param", param.empty() ? Value() : Value(param));
  error.set("code", code.empty() ? Value() : Value(code));
  Value body = Value::object();
  body.set("error", std::move(error));
  Response response = json_response(body);
  response.status = status;
  return response;
}

}  // namespace tokamak::http
