#include "serve/http/origins.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak::http {
namespace {

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// "https://host:port" -> "host:port".
std::string_view authority_of(std::string_view origin) {
  size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? origin : origin.substr(scheme + 3);
}

std::string_view without_port(std::string_view host) {
  size_t colon = host.rfind(':');
  bool port = colon != std::string_view::npos && all_digits(host.substr(colon + 1)) &&
              host.find(']', colon) == std::string_view::npos;
  return port ? host.substr(0, colon) : host;
}

}  // namespace

bool is_loopback_name(std::string_view host) {
  std::string name = lower(without_port(host));
  if (name == "localhost" || name.ends_with(".localhost") || name == "[::1]") return true;
  if (!name.starts_with("127.")) return false;
  int parts = 0;
  for (size_t begin = 0; begin <= name.size(); ++parts) {
    size_t end = std::min(name.find('.', begin), name.size());
    if (!all_digits(std::string_view(name).substr(begin, end - begin)) || end - begin > 3)
      return false;
    begin = end + 1;
  }
  return parts == 4;
}

Origins::Origins(const std::vector<std::string>& entries, bool loopback) : loopback_(loopback) {
  for (std::string entry : entries) {
    entry = lower(entry);
    if (entry.ends_with('/')) entry.pop_back();
    if (entry == "*") {
      any_ = true;
    } else if (entry == "localhost") {
      local_ = true;
    } else if (entry == "null") {
      exact_.push_back(entry);
    } else if (size_t scheme = entry.find("://");
               scheme == std::string::npos || scheme == 0 || scheme + 3 == entry.size() ||
               entry.find('/', scheme + 3) != std::string::npos) {
      fail(ErrorCode::kInvalidArgument,
           "--allowed-origins {}: not an origin; use e.g. https://app.example.com, "
           "http://localhost:*, localhost or *",
           entry);
    } else if (entry.ends_with(":*")) {
      any_port_.push_back(entry.substr(0, entry.size() - 2));
    } else {
      exact_.push_back(entry);
    }
  }
}

bool Origins::allows(std::string_view origin, std::string_view host) const {
  if (any_) return true;
  const std::string asked = lower(origin);
  const std::string_view authority = authority_of(asked);
  if (local_ && is_loopback_name(authority)) return true;
  if (authority == lower(host) && asked != authority && (!loopback_ || is_loopback_name(authority)))
    return true;
  auto in = [](const std::vector<std::string>& list, std::string_view text) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  return in(exact_, asked) || in(any_port_, without_port(asked));
}

}  // namespace tokamak::http
