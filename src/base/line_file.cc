#include "base/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace tokamak {

LineFile::LineFile(std::string what, std::string path)
    : what_(std::move(what)),
      path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)) {
  if (fd_ < 0)
    fail(ErrorCode::kUnavailable, "cannot write the {} {}: {}", what_, path_, std::strerror(errno));
}

LineFile::~LineFile() { ::close(fd_); }

void LineFile::write(std::string_view line) {
  std::lock_guard lock(mutex_);
  std::string bytes = torn_ ? "\n" : "";
  bytes.append(line).push_back('\n');
  std::string_view rest = bytes;  // a signal or a disk that is almost full may cut a write short
  while (!rest.empty()) {
    const ssize_t done = ::write(fd_, rest.data(), rest.size());
    if (done > 0) {
      rest.remove_prefix(static_cast<size_t>(done));
      continue;
    }
    if (done < 0 && errno == EINTR) continue;
    const int error = done < 0 ? errno : EIO;
    torn_ = torn_ || rest.size() < bytes.size();
    if (!std::exchange(warned_, true))
      log::warn("cannot write to the {} {}: {}; lines are missing", what_, path_,
                std::strerror(error));
    return;
  }
  torn_ = false;
}

}  // namespace tokamak
