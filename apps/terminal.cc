#include "apps/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tokamak {
namespace {

// Where the signal handler writes; -1: no scope is active.
std::atomic<int> g_interrupt_fd{-1};

void on_interrupt(int) {
  int saved = errno;
  int fd = g_interrupt_fd.load();
  char byte = 1;
  if (fd >= 0 && ::write(fd, &byte, 1) < 0) {
    // The pipe is full: an interrupt is already on its way.
  }
  errno = saved;
}

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) != 0 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace

// SIGINT as bytes in a pipe, for as long as it lives.
struct InterruptScope::Pipe {
  int fds[2] = {-1, -1};
  struct sigaction before {};

  Pipe() {
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
      fail(ErrorCode::kResourceExhausted, "pipe: {}", std::strerror(errno));
    TK_CHECK(g_interrupt_fd.exchange(fds[1]) == -1, "two interrupt scopes at a time");
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &before);
  }
  ~Pipe() {
    sigaction(SIGINT, &before, nullptr);
    g_interrupt_fd = -1;
    close(fds[0]);
    close(fds[1]);
  }
};

bool stdout_is_terminal() { return is_terminal(STDOUT_FILENO); }
bool stderr_is_terminal() { return is_terminal(STDERR_FILENO); }

std::string coloured(Colour colour, std::string_view text, bool on) {
  const char* no_colour = std::getenv("NO_COLOR");
  if (!on || (no_colour != nullptr && *no_colour != '\0')) return std::string(text);
  const char* code = colour == Colour::kBold    ? "1"
                     : colour == Colour::kDim   ? "2"
                     : colour == Colour::kRed   ? "31"
                     : colour == Colour::kGreen ? "32"
                                                : "34";
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), enabled_(stderr_is_terminal()) {}

ProgressBar::~ProgressBar() { erase(); }

void ProgressBar::erase() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

void ProgressBar::update(uint64_t done, uint64_t total) {
  if (!enabled_ || total == 0) return;
  std::lock_guard lock(mutex_);
  if (done >= total) return erase();
  Nanos now = SteadyClock().now();
  if (drawn_ && now - last_ < 100 * kMillisecond) return;
  last_ = now;
  drawn_ = true;
  constexpr size_t kWidth = 30;
  double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  size_t filled = static_cast<size_t>(share * kWidth);
  fmt::print(stderr, "\r{} [{}{}] {:3.0f} %\033[K", label_, std::string(filled, '#'),
             std::string(kWidth - filled, '.'), share * 100);
  std::fflush(stderr);
}

void end_by_interrupt() {
  std::fflush(nullptr);
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);
}

InterruptScope::InterruptScope(std::function<void()> action)
    : pipe_(std::make_unique<Pipe>()), action_(std::move(action)) {
  thread_ = std::thread([this] {
    while (true) {
      pollfd entry{pipe_->fds[0], POLLIN, 0};
      if (poll(&entry, 1, -1) < 0) continue;
      char byte = 0;
      if (read(pipe_->fds[0], &byte, 1) != 1) continue;
      if (byte == 0) return;  // the scope ends
      if (interrupted_.exchange(true)) {
        end_by_interrupt();
        return;
      }
      action_();
    }
  });
}

InterruptScope::~InterruptScope() {
  char end = 0;
  while (write(pipe_->fds[1], &end, 1) < 0 && (errno == EINTR || errno == EAGAIN)) {
  }
  thread_.join();
}

std::optional<std::string> read_line(std::string_view prompt) {
  static std::string pending;  // read past the end of the line
  bool terminal = isatty(STDIN_FILENO) != 0;
  int wake[2];
  if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
    fail(ErrorCode::kResourceExhausted, "pipe: {}", std::strerror(errno));
  struct Closer {
    int* fds;
    ~Closer() {
      close(fds[0]);
      close(fds[1]);
    }
  } closer{wake};
  std::optional<InterruptScope> scope;
  auto listen = [&] {
    scope.reset();
    scope.emplace([&] {
      char byte = 1;
      if (write(wake[1], &byte, 1) < 0) return;
    });
  };
  auto show = [&] {
    if (!terminal) return;
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
    std::fflush(stdout);
  };
  if (terminal) listen();
  show();
  while (true) {
    if (size_t end = pending.find('\n'); end != std::string::npos) {
      std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return line;
    }
    pollfd entries[2] = {{STDIN_FILENO, POLLIN, 0}, {wake[0], POLLIN, 0}};
    if (poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) {
      char byte;
      while (read(wake[0], &byte, 1) == 1) {
      }
      pending.clear();
      std::puts("\n(Ctrl-D or /exit leaves)");
      listen();
      show();
      continue;
    }
    char chunk[4096];
    ssize_t got = read(STDIN_FILENO, chunk, sizeof chunk);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) {
      if (pending.empty()) return std::nullopt;
      return std::exchange(pending, {});
    }
    pending.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace tokamak
