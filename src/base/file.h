#pragma once
// Read-only files by mmap, small text files, and the cache folder.
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace tokamak {

// Owns a read-only mapping; pages are shared with the page cache, so a model is in memory once.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);
void write_text_file(const std::filesystem::path& path, std::string_view text);
// Through a NewFile: a crash leaves the old content or the new one, and nothing besides.
void replace_file(const std::filesystem::path& path, std::string_view content);

}  // namespace tokamak
