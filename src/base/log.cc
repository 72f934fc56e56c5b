#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace tokamak::log {
namespace {

Level level_from_environment() {
  const char* text = std::getenv("TOKAMAK_LOG");
  if (!text) return Level::kInfo;
  const char* names[] = {"debug", "info", "warn", "error", "off"};
  for (int i = 0; i < 5; ++i)
    if (std::strcmp(text, names[i]) == 0) return static_cast<Level>(i);
  return Level::kInfo;
}

std::atomic<Level>& current() {
  static std::atomic<Level> level{level_from_environment()};
  return level;
}

}  // namespace

void set_level(Level level) { current() = level; }
bool enabled(Level level) { return level >= current().load(std::memory_order_relaxed); }

void write(Level level, std::string_view message) {
  static const char* kTags[] = {"DEBUG", "INFO ", "WARN ", "ERROR", ""};
  std::timespec ts{};
  std::timespec_get(&ts, TIME_UTC);
  std::tm tm{};
  gmtime_r(&ts.tv_sec, &tm);
  // One write call per line, so that lines from different threads never interleave.
  std::string line =
      fmt::format("{:02}:{:02}:{:02}.{:03} {} {}\n", tm.tm_hour, tm.tm_min, tm.tm_sec,
                  ts.tv_nsec / 1'000'000, kTags[static_cast<int>(level)], message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace tokamak::log
