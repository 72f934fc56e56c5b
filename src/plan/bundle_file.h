#pragma once
// The container of bundles and of compile-cache entries: a header, a table of named sections,
// bytes. Everything is little endian; docs/bundle.md has the layout byte by byte.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"
#include "base/new_file.h"

namespace tokamak {

struct BundleSection {
  static constexpr uint64_t kPartsChecked =
      1;             // its checksum is 0: another section checks its parts
  std::string name;  // at most 15 bytes
  uint64_t offset = 0, size = 0, flags = 0;
  Checksum sum;
};

constexpr uint32_t kBundleVersion = 3;
constexpr uint64_t kBundlePage = 4096, kBundleAlignment = 64;

bool is_bundle(const std::filesystem::path& path);  // begins like one; false when it cannot be read

// A mapped container whose header, table and checked sections are as they were written. Immutable;
// the spans it gives live as long as it does.
class BundleFile {
 public:
  // Throws Error(kCorrupt) naming what is damaged and Error(kUnsupported) for another version; both
  // say what to do. Reads the header, the table and every section with a checksum once.
  static std::shared_ptr<const BundleFile> open(const std::filesystem::path& path);
  static std::shared_ptr<const BundleFile> from_bytes(std::string bytes, std::string name);

  const std::vector<BundleSection>& sections() const { return sections_; }
  bool has(std::string_view section) const { return find(section) != nullptr; }
  std::span<const std::byte> section(std::string_view name) const;  // throws Error(kCorrupt)
  std::string_view text(std::string_view section) const;
  const std::string& name() const { return name_; }  // for messages
  [[noreturn]] void damaged(std::string_view what) const;

 private:
  BundleFile() = default;
  void parse();
  const BundleSection* find(std::string_view name) const;

  std::string name_;
  std::shared_ptr<const MappedFile> file_;
  std::string memory_;  // instead of a file
  std::span<const std::byte> bytes_;
  std::vector<BundleSection> sections_;
};

// Writes a container as a NewFile: a reader sees the whole of it or the file that was there before.
// One thread. Without finish() nothing is left of it.
class BundleFileWriter {
 public:
  // Throws Error(kUnavailable) naming the file and the reason when a write fails.
  explicit BundleFileWriter(const std::filesystem::path& path);

  void begin_section(std::string name, uint64_t alignment = kBundleAlignment, uint64_t flags = 0);
  // Appends to the section; gives the offset of the bytes within it.
  uint64_t append(std::span<const std::byte> bytes, uint64_t alignment = 1);
  void add_section(std::string name, std::string_view bytes);
  void finish();

 private:
  void pad_to(uint64_t alignment);
  void end_section();

  static constexpr size_t kMaxSections = 16;
  NewFile file_;
  bool open_ = false;
  std::vector<BundleSection> sections_;
};

}  // namespace tokamak
