#include "base/new_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// NAME.<process>-<number>.tmp
bool is_temporary(std::string_view name) {
  if (!name.ends_with(".tmp")) return false;
  name.remove_suffix(4);
  std::string_view tail = name.substr(name.rfind('.') + 1);
  size_t dash = tail.find('-');
  return dash != std::string_view::npos && dash > 0 && dash + 1 < tail.size() &&
         tail.find_first_not_of("0123456789") == dash &&
         tail.find_first_not_of("0123456789", dash + 1) == std::string_view::npos;
}

std::string name_of(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

}  // namespace

void remove_orphaned_temporaries(const fs::path& folder, std::string_view prefix) {
  std::error_code ec;
  fs::directory_iterator it(folder.empty() ? "." : folder, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with(prefix) || !is_temporary(name)) continue;
    int fd = ::open(it->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
    ::close(fd);
  }
}

NewFile::NewFile(fs::path path, bool unnamed) : path_(std::move(path)) {
  std::error_code ec;
  const fs::file_status there = fs::status(path_, ec);
  if (fs::is_directory(there)) {
    errno = EISDIR;
    fail_io("write");
  }
  if (fs::exists(there) && !fs::is_regular_file(there))  // a device or a pipe is not replaced
    fail(ErrorCode::kInvalidArgument, "{} is not a regular file", path_.string());
  // A symbolic link is kept and its target written, even if the target does not exist yet.
  constexpr int kMaxLinks = 40;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path_, ec); ++i) {
    const fs::path target = fs::read_symlink(path_, ec);
    if (ec) {
      errno = ec.value();
      fail_io("follow");
    }
    path_ = path_.parent_path() / target;
  }
  folder_ = path_.has_parent_path() ? path_.parent_path() : ".";
  if (!unnamed || !open_unnamed()) open_named();
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void NewFile::fail_io(const char* what) const {
  fail(ErrorCode::kUnavailable, "cannot {} {}: {}", what, path_.string(), std::strerror(errno));
}

void NewFile::next_temporary() {
  static std::atomic<unsigned> number{0};
  temporary_ = path_;
  temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), number++);
}

// False: the file system has no unnamed files, or no file can be named later.
bool NewFile::open_unnamed() {
  fd_ = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
  if (fd_ < 0) return false;
  ::flock(fd_, LOCK_EX | LOCK_NB);
  if (::access(name_of(fd_).c_str(), F_OK) == 0) return true;
  ::close(std::exchange(fd_, -1));
  return false;
}

// The lock tells others that the writer is alive: the kernel drops it when the process ends,
// however it ends. One that takes the file for an orphan before it is locked makes us try again.
void NewFile::open_named() {
  struct stat st {};
  do {
    if (fd_ >= 0) ::close(fd_);
    next_temporary();
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0) fail_io("create");
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno != EWOULDBLOCK) return;  // no locks here
  } while (::fstat(fd_, &st) == 0 && st.st_nlink == 0);
}

fs::path NewFile::readable_path() const {
  return temporary_.empty() ? fs::path(name_of(fd_)) : temporary_;
}

void NewFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_io("write");
    size_ += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void NewFile::rewrite(uint64_t at, std::span<const std::byte> bytes) {
  if (::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at)) != std::ssize(bytes))
    fail_io("write");
}

// A link cannot replace a file: then the file gets a temporary name, for the time of a rename.
void NewFile::take_name() {
  if (temporary_.empty()) {
    auto link = [&](const fs::path& to) {
      return ::linkat(AT_FDCWD, name_of(fd_).c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link(path_)) return;
    if (errno != EEXIST) fail_io("write");
    do next_temporary();
    while (!link(temporary_) && errno == EEXIST);
  }
  // Renamed while it is locked: no process can take it for an orphan.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("write");
}

void NewFile::commit() {
  if (::fsync(fd_) != 0) fail_io("write");
  take_name();
  ::close(std::exchange(fd_, -1));
  // The name reaches the disk with the folder; a folder that cannot be synced loses at most that.
  if (int fd = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
}

}  // namespace tokamak
