#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "base/json.h"

namespace tokamak::log {
namespace {

constexpr const char* kNames[] = {"debug", "info", "warn", "error", "off"};

Level level_from_environment() {
  const char* text = std::getenv("TOKAMAK_LOG");
  if (!text) return Level::kInfo;
  for (int i = 0; i < 5; ++i)
    if (std::strcmp(text, kNames[i]) == 0) return static_cast<Level>(i);
  return Level::kInfo;
}

std::atomic<Level>& current() {
  static std::atomic<Level> level{level_from_environment()};
  return level;
}

std::atomic<bool> json_lines{false};

}  // namespace

void set_level(Level level) { current() = level; }
void use_json(bool json) { json_lines = json; }
bool enabled(Level level) { return level >= current().load(std::memory_order_relaxed); }

void write(Level level, std::string_view message) {
  static const char* kTags[] = {"DEBUG", "INFO ", "WARN ", "ERROR", ""};
  std::timespec ts{};
  std::timespec_get(&ts, TIME_UTC);
  std::tm tm{};
  gmtime_r(&ts.tv_sec, &tm);
  std::string time = fmt::format("{:02}:{:02}:{:02}.{:03}", tm.tm_hour, tm.tm_min, tm.tm_sec,
                                 ts.tv_nsec / 1'000'000);
  std::string line;
  if (json_lines) {
    std::string date = fmt::format("{}-{:02}-{:02}", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday);
    line = dump_json(Value::Object{{"time", date + "T" + time + "Z"},
                                   {"level", kNames[static_cast<int>(level)]},
                                   {"message", message}}) +
           "\n";
  } else {
    line = fmt::format("{} {} {}\n", time, kTags[static_cast<int>(level)], message);
  }
  // One write call per line, so that lines from different threads never interleave.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace tokamak::log
