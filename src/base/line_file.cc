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
  ssize_t done;
  do done = ::write(fd_, bytes.data(), bytes.size());
  while (done < 0 && errno == EINTR);
  if (done == static_cast<ssize_t>(bytes.size())) {
    torn_ = false;
    return;
  }
  const char* reason = std::strerror(done < 0 ? errno : ENOSPC);
  torn_ = torn_ || done > 0;
  if (!std::exchange(warned_, true))
    log::warn("cannot write to the {} {}: {}; lines are missing", what_, path_, reason);
}

}  // namespace tokamak
