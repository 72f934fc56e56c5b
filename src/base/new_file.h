#pragma once
// Files that appear whole or not at all.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace tokamak {

// A file that takes its name when it is complete: bytes, fsync, then the name, so that a reader
// sees all of it or the file that was there before. Until then it has no name (O_TMPFILE), and
// nothing is left when the process ends, however it ends. File systems without unnamed files get a
// temporary one beside it, which remove_orphaned_temporaries() deletes if the process was killed.
// Symbolic links are followed, devices and pipes refused (kInvalidArgument). One thread. Throws
// Error(kUnavailable) naming the file and the reason.
class NewFile {
 public:
  explicit NewFile(std::filesystem::path path, bool unnamed = true);
  ~NewFile();  // before commit(): the file is gone
  NewFile(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes);                 // appends
  void rewrite(uint64_t at, std::span<const std::byte> bytes);  // bytes that were written
  void commit();
  // Opens what was written so far; valid until commit().
  std::filesystem::path readable_path() const;
  uint64_t size() const { return size_; }

 private:
  bool open_unnamed();
  void open_named();
  void next_temporary();
  void take_name();
  [[noreturn]] void fail_io(const char* what) const;

  std::filesystem::path path_, folder_, temporary_;  // temporary_: empty, or its name now
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Removes temporary files that writers left in the folder when their process was killed: those of
// names that begin with `prefix` and whose writer no longer runs. Does not throw.
void remove_orphaned_temporaries(const std::filesystem::path& folder, std::string_view prefix = "");

}  // namespace tokamak
