#pragma once
// A log file of lines.
#include <mutex>
#include <string>
#include <string_view>

namespace tokamak {

// Appends to a file that other threads and processes may append to as well: no line is mixed with
// another. A line that cannot be written is dropped; the first time that is a warning, since the
// program goes on without its log. Thread-safe.
class LineFile {
 public:
  // `what` names the file in messages: "request log". Throws Error(kUnavailable).
  LineFile(std::string what, std::string path);
  ~LineFile();
  LineFile(const LineFile&) = delete;

  void write(std::string_view line);  // without its end

 private:
  const std::string what_, path_;
  const int fd_;
  std::mutex mutex_;
  bool torn_ = false;  // the file ends in the middle of a line
  bool warned_ = false;
};

}  // namespace tokamak
