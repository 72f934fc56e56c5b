#include "base/channels.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace tokamak::log {
namespace {

std::set<std::string, std::less<>> from_environment() {
  std::set<std::string, std::less<>> names;
  const char* text = std::getenv("TOKAMAK_LOGS");
  std::string name;
  for (const char* c = text; c && (*c || !name.empty()); ++c) {
    if (*c && *c != ',') {
      name += *c;
      continue;
    }
    if (!name.empty()) names.insert(std::move(name));
    name.clear();
    if (!*c) break;
  }
  return names;
}

}  // namespace

bool channel_enabled(std::string_view name) {
  static const std::set<std::string, std::less<>> names = from_environment();
  return names.contains(name) || names.contains("all");
}

void channel(std::string_view name, std::string_view message) {
  std::string line = fmt::format("[{}] {}\n", name, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace tokamak::log
