#pragma once
// Which web pages may use the server (CORS). A request with another Origin is refused, whatever its
// method: browsers send some requests without asking first.
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::http {

// Immutable after construction.
class Origins {
 public:
  Origins() = default;
  // Entries: an origin ("https://app.example.com"), one with any port ("http://localhost:*"),
  // "localhost" (every origin on this computer), "null", or "*". loopback: the server listens on a
  // loopback address. Throws Error(kInvalidArgument).
  Origins(const std::vector<std::string>& entries, bool loopback);

  // host: the Host header. The server's own pages are always allowed, but on a loopback address
  // only under a loopback name: another name for it means that a page elsewhere chose the address
  // (DNS rebinding).
  bool allows(std::string_view origin, std::string_view host) const;

 private:
  std::vector<std::string> exact_, any_port_;  // the latter without ":*"
  bool any_ = false, local_ = false, loopback_ = false;
};

// localhost, 127.0.0.0/8 or ::1; with or without a port.
bool is_loopback_name(std::string_view host);

}  // namespace tokamak::http
