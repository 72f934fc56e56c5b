#include "serve/http/router.h"

#include "base/error.h"

namespace tokamak::http {

void Router::add(std::string method, std::string pattern, Handler handler, bool always) {
  size_t brace = pattern.find('{');
  bool rest = brace != std::string::npos;
  std::string suffix;
  if (rest) {
    size_t end = pattern.find("...}", brace);
    TK_CHECK(end != std::string::npos, "route {}: parameters are written {{name...}}", pattern);
    suffix = pattern.substr(end + 4);
    pattern.resize(brace);
  }
  routes_.push_back(
      {std::move(method), std::move(pattern), std::move(suffix), rest, std::move(handler), always});
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match match;
  std::string_view wanted = method == "HEAD" ? "GET" : method;
  auto allow = [&](std::string_view name) {
    if (match.allow.find(name) != std::string::npos) return;
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += name;
  };
  for (const Route& route : routes_) {
    size_t fixed = route.prefix.size() + route.suffix.size();
    bool hit = route.rest ? path.size() > fixed && path.starts_with(route.prefix) &&
                                path.ends_with(route.suffix)
                          : path == route.prefix;
    if (!hit) continue;
    allow(route.method);
    if (route.method == "GET") allow("HEAD");
    if (match.handler == nullptr && route.method == wanted) {
      match.handler = &route.handler;
      match.always = route.always;
      if (route.rest) match.parameter = path.substr(route.prefix.size(), path.size() - fixed);
    }
  }
  if (!match.allow.empty()) allow("OPTIONS");
  return match;
}

std::vector<std::string> Router::listing() const {
  std::vector<std::string> lines;
  for (const Route& route : routes_)
    lines.push_back(route.method + " " + route.prefix + (route.rest ? "{...}" : "") + route.suffix);
  return lines;
}

}  // namespace tokamak::http
