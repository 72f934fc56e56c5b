#pragma once
// Leaves what each stage of a compilation makes as numbered files: 000-captured.tkg, 001-... .
#include <filesystem>
#include <string>
#include <string_view>

namespace tokamak {

// Owned by who asked for the dump; one compilation at a time. Every stage costs one text file.
class StageDump {
 public:
  // Makes the folder; files of an earlier dump in it are removed.
  explicit StageDump(std::filesystem::path folder);
  void write(std::string_view stage, std::string_view extension, std::string_view text);
  int files() const { return next_; }

 private:
  std::filesystem::path folder_;
  int next_ = 0;
};

}  // namespace tokamak
