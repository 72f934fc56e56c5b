#pragma once
#include <string>
#include <vector>

namespace tokamak {

struct ChildResult {
  std::string output;      // of its standard output
  double cpu_seconds = 0;  // processor time, which a busy machine changes little
  int exit_code = 0;
};

// Starts `program` (searched on PATH when it has no slash), waits for it and returns what it
// printed. `environment`: NAME=value, in place of the variables of that name. Throws
// Error(kUnavailable), naming the program, when it cannot be started or does not exit with 0.
ChildResult run_child(const std::string& program, std::vector<std::string> args,
                      const std::vector<std::string>& environment = {});
// The same, also when it does not exit with 0; a signal gives -1.
ChildResult try_child(const std::string& program, std::vector<std::string> args,
                      const std::vector<std::string>& environment = {});

// The running program itself.
inline constexpr const char* kThisProgram = "/proc/self/exe";

}  // namespace tokamak
