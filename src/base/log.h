#pragma once
// Logging to stderr; stdout is for the program's output. Levels:
// TOKAMAK_LOG=debug|info|warn|error|off.
#include <fmt/format.h>

#include <string_view>

namespace tokamak::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };
void set_level(Level level);
void use_json(bool json);  // lines are objects: time (RFC 3339), level, message
bool enabled(Level level);
void write(Level level, std::string_view message);  // thread-safe, one line

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug))
    write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarn)) write(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError))
    write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tokamak::log
