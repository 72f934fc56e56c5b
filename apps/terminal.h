#pragma once
// What the command line does with a terminal: progress, colours, Ctrl-C and lines of input.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace tokamak {

bool stdout_is_terminal();
bool stderr_is_terminal();  // and TERM is not "dumb"

// The text in a colour if `on`; callers pass stdout_is_terminal() or stderr_is_terminal(). NO_COLOR
// turns colours off.
enum class Colour { kBold, kDim, kRed, kGreen, kBlue };
std::string coloured(Colour colour, std::string_view text, bool on);

// "label  [####....] 42 %" on standard error, only on a terminal; erased at 100 %, before results
// are printed, and by the destructor. update may be called from any thread and as often as needed:
// it draws at most ten times a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(uint64_t done, uint64_t total);

 private:
  void erase();

  const std::string label_;
  const bool enabled_;
  std::mutex mutex_;
  Nanos last_ = 0;
  bool drawn_ = false;
};

// While it exists, Ctrl-C calls `action` (on its own thread) instead of ending the program; a
// second Ctrl-C ends the program. At most one at a time.
class InterruptScope {
 public:
  explicit InterruptScope(std::function<void()> action);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  bool interrupted() const { return interrupted_; }

 private:
  struct Pipe;
  std::unique_ptr<Pipe> pipe_;
  std::function<void()> action_;
  std::atomic<bool> interrupted_{false};
  std::thread thread_;
};

// Ends the program as Ctrl-C does by default, so that the shell and scripts see an interrupt. What
// was printed is flushed.
void end_by_interrupt();

// One line from standard input without its newline; nullopt at the end of input (Ctrl-D). Ctrl-C
// drops what was typed and asks again. Not inside an InterruptScope.
std::optional<std::string> read_line(std::string_view prompt);

}  // namespace tokamak
