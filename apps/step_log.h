#pragma once
// A line of JSON for every step of an engine, to see where time goes.
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "engine/step_report.h"

namespace tokamak {

// Shared by the engines of a server; they call write() on their threads.
class StepLog {
 public:
  explicit StepLog(const std::string& path);  // throws Error
  void write(const std::string& model, const StepReport& step);

 private:
  std::mutex mutex_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
};

}  // namespace tokamak
