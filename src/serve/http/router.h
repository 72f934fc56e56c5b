#pragma once
// Method and path -> handler. Built once before the server starts, then read by all I/O threads.
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/message.h"

namespace tokamak::http {

class Router {
 public:
  // pattern: an exact path, or "/v1/files/{id...}/content", whose parameter matches at least one
  // character, slashes included. If several match, the first added is taken. always: also answered
  // while the server drains (health, metrics).
  void add(std::string method, std::string pattern, Handler handler, bool always = false);

  struct Match {
    const Handler* handler = nullptr;
    std::string parameter;
    std::string allow;  // methods of the path, for 405 and OPTIONS; empty: no such path
    bool always = false;
  };
  // HEAD uses the handler of GET.
  Match find(std::string_view method, std::string_view path) const;
  std::vector<std::string> listing() const;  // "GET /health", for the start-up log

 private:
  struct Route {
    std::string method, prefix, suffix;
    bool rest = false;
    Handler handler;
    bool always = false;
  };
  std::vector<Route> routes_;
};

}  // namespace tokamak::http
