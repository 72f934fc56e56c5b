#pragma once
// A line of JSON for every step of an engine, to see where time goes.
#include <string>

#include "base/line_file.h"
#include "engine/step_report.h"

namespace tokamak {

// Shared by the engines of a server; they call write() on their threads.
class StepLog {
 public:
  explicit StepLog(const std::string& path) : file_("log of steps", path) {}  // throws Error
  void write(const std::string& model, const StepReport& step);

 private:
  LineFile file_;
};

}  // namespace tokamak
