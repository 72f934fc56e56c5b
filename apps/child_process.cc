#include "apps/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/error.h"

extern char** environ;

namespace tokamak {

ChildResult try_child(const std::string& program, std::vector<std::string> args,
                      const std::vector<std::string>& environment) {
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) fail(ErrorCode::kUnavailable, "cannot create a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  args.insert(args.begin(), program);
  std::vector<std::string> variables = environment;
  for (char** e = environ; *e; ++e) {
    std::string_view entry = *e;
    std::string_view name = entry.substr(0, entry.find('=') + 1);
    if (std::none_of(environment.begin(), environment.end(),
                     [&](const std::string& v) { return v.starts_with(name); }))
      variables.emplace_back(entry);
  }
  std::vector<char*> argv, envp;
  for (std::string& a : args) argv.push_back(a.data());
  for (std::string& e : variables) envp.push_back(e.data());
  argv.push_back(nullptr), envp.push_back(nullptr);
  pid_t pid = 0;
  int error = ::posix_spawnp(&pid, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ChildResult result;
  char buffer[4096];
  for (ssize_t n; error == 0 && (n = ::read(out[0], buffer, sizeof buffer)) > 0;)
    result.output.append(buffer, static_cast<size_t>(n));
  ::close(out[0]);
  if (error != 0)
    fail(ErrorCode::kUnavailable, "cannot start {}: {}", program, std::strerror(error));
  int status = 0;
  rusage usage{};
  while (::wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  for (const timeval& t : {usage.ru_utime, usage.ru_stime})
    result.cpu_seconds += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

ChildResult run_child(const std::string& program, std::vector<std::string> args,
                      const std::vector<std::string>& environment) {
  std::string first = args.empty() ? "" : args[0];
  ChildResult result = try_child(program, std::move(args), environment);
  if (result.exit_code != 0)
    fail(ErrorCode::kUnavailable, "{} {} failed", program == kThisProgram ? "tokamak" : program,
         first);
  return result;
}

}  // namespace tokamak
