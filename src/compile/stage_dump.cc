#include "compile/stage_dump.h"

#include "base/error.h"
#include "base/file.h"

namespace tokamak {
namespace {

bool is_stage_file(const std::string& name) {
  return name.size() > 4 && name[3] == '-' && name.find_first_not_of("0123456789") == 3;
}

}  // namespace

StageDump::StageDump(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code ec;
  std::filesystem::create_directories(folder_, ec);
  if (!std::filesystem::is_directory(folder_, ec))
    fail(ErrorCode::kInvalidArgument, "--dump-dir {}: cannot make this folder", folder_.string());
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ec))
    if (is_stage_file(entry.path().filename().string()) && entry.is_regular_file(ec))
      std::filesystem::remove(entry.path(), ec);
}

void StageDump::write(std::string_view stage, std::string_view extension, std::string_view text) {
  write_text_file(folder_ / fmt::format("{:03}-{}.{}", next_++, stage, extension), text);
}

}  // namespace tokamak
