#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/new_file.h"

namespace tokamak {

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe without a writer must not hang; pipes are rejected below.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(ErrorCode::kNotFound, "cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    fail(ErrorCode::kInvalidArgument, "{} is not a regular file", path.string());
  }
  std::shared_ptr<MappedFile> file(new MappedFile());
  file->path_ = path;
  file->size_ = static_cast<size_t>(st.st_size);
  if (file->size_ > 0) {
    void* p = ::mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      int error = errno;
      ::close(fd);
      fail(ErrorCode::kResourceExhausted, "cannot map {}: {}", path.string(), std::strerror(error));
    }
    file->data_ = static_cast<const std::byte*>(p);
  }
  ::close(fd);
  return file;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec))
    fail(ErrorCode::kInvalidArgument, "{} is a folder, not a file", path.string());
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::kNotFound, "cannot open {}: {}", path.string(), std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > max_bytes)
      fail(ErrorCode::kInvalidArgument, "{} is larger than {} bytes", path.string(), max_bytes);
  }
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const bool opened = out.is_open();
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.flush();
  if (out) return;
  const int error = errno;
  std::error_code ec;  // part of a text is not left where the whole is expected
  if (opened && std::filesystem::is_regular_file(path, ec)) std::filesystem::remove(path, ec);
  fail(ErrorCode::kInvalidArgument, "cannot write {}: {}", path.string(), std::strerror(error));
}

void replace_file(const std::filesystem::path& path, std::string_view content) {
  std::error_code ec;
  if (std::filesystem::is_other(path, ec)) return write_text_file(path, content);
  NewFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

}  // namespace tokamak
