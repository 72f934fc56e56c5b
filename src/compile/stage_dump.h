#pragma once
// Records what a compilation produces: numbered files for people (000-captured.tkg, 001-...), and a
// line in the log channel "recompiles".
#include <filesystem>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace tokamak {

struct CompileOptions;

// Owned by the caller that wants the dump; one compilation at a time. Each stage writes one text
// file.
class StageDump {
 public:
  // Creates the folder and removes the files of an earlier dump from it.
  explicit StageDump(std::filesystem::path folder);
  void write(std::string_view stage, std::string_view extension, std::string_view text);
  int files() const { return next_; }

 private:
  std::filesystem::path folder_;
  int next_ = 0;
};

// Owner: one call of compile_module, whose options outlive it.
class CompileRecord {
 public:
  CompileRecord(const Module& captured, const CompileOptions& options);
  void fused(const Module& module);
  void planned(const PlanSet& set);

 private:
  const CompileOptions& options_;
  Nanos start_;
};

}  // namespace tokamak
