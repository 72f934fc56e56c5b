#include "apps/restart.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace tokamak {
namespace {

constexpr const char* kListener = "TOKAMAK_LISTENER";       // a file descriptor
constexpr const char* kRestarts = "TOKAMAK_RESTART_TIMES";  // seconds since 1970
constexpr int64_t kLately = 600;                            // seconds
constexpr size_t kMostRestarts = 3;

// Restarts in the last few minutes.
std::vector<int64_t> restart_times() {
  std::vector<int64_t> out;
  const char* text = std::getenv(kRestarts);
  std::istringstream stream(text ? text : "");
  for (int64_t at = 0; stream >> at;)
    if (unix_seconds() - at < kLately) out.push_back(at);
  return out;
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\0', at), bytes.size());
    out.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace

int inherited_listener() {
  const char* text = std::getenv(kListener);
  if (!text) return -1;
  const int listener = std::atoi(text);
  unsetenv(kListener);  // programs that this one starts have no use for it
  fcntl(listener, F_SETFD, FD_CLOEXEC);
  return listener;
}

std::string too_many_restarts() {
  if (const size_t count = restart_times().size(); count >= kMostRestarts)
    return fmt::format("it was restarted {} times in the last {} minutes", count, kLately / 60);
  return {};
}

void restart_program(int listener, bool counts) {
  std::string times;
  for (int64_t at : restart_times()) times += fmt::format("{} ", at);
  if (counts) times += std::to_string(unix_seconds());
  setenv(kRestarts, times.c_str(), 1);
  setenv(kListener, std::to_string(listener).c_str(), 1);
  // What the driver holds on the GPU belongs to files that it has open.
  constexpr unsigned kCloseOnExec = 1u << 2;
  constexpr unsigned kFirst = 3, kLast = ~0u;
  if (syscall(SYS_close_range, kFirst, kLast, kCloseOnExec) != 0)
    for (int fd = kFirst; fd < static_cast<int>(sysconf(_SC_OPEN_MAX)); ++fd)
      fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(listener, F_SETFD, 0);
  std::vector<std::string> arguments = own_arguments();
  std::vector<char*> pointers;
  for (std::string& a : arguments) pointers.push_back(a.data());
  pointers.push_back(nullptr);
  execv("/proc/self/exe", pointers.data());
  fail(ErrorCode::kUnavailable, "the program cannot be started again: {}", std::strerror(errno));
}

}  // namespace tokamak
