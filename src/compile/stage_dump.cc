#include "compile/stage_dump.h"

#include "base/channels.h"
#include "base/error.h"
#include "base/file.h"
#include "compile/compiler.h"

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
    fail(ErrorCode::kInvalidArgument, "cannot create the folder {} for the dump", folder_.string());
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ec))
    if (is_stage_file(entry.path().filename().string()) && entry.is_regular_file(ec))
      std::filesystem::remove(entry.path(), ec);
}

void StageDump::write(std::string_view stage, std::string_view extension, std::string_view text) {
  write_text_file(folder_ / fmt::format("{:03}-{}.{}", next_++, stage, extension), text);
}

CompileRecord::CompileRecord(const Module& captured, const CompileOptions& options)
    : options_(options), start_(SteadyClock().now()) {
  if (options_.dump) options_.dump->write("captured", "tkg", print_module(captured));
}

void CompileRecord::fused(const Module& module) {
  if (options_.dump) options_.dump->write("fused", "tkg", print_module(module));
}

void CompileRecord::planned(const PlanSet& set) {
  if (options_.dump) options_.dump->write("planned", "txt", plan_set_text(set));
  if (log::channel_enabled("recompiles"))
    log::channel("recompiles",
                 fmt::format("compiled {} for {}: {} plans in {:.1f} ms", set.model, set.backend,
                             set.plans.size(), seconds(SteadyClock().now() - start_) * 1e3));
}

}  // namespace tokamak
