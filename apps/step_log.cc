#include "apps/step_log.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {

StepLog::StepLog(const std::string& path) : file_(std::fopen(path.c_str(), "ae"), std::fclose) {
  if (file_ == nullptr)
    fail(ErrorCode::kUnavailable,
         "cannot write the log of steps {}: check the folder and its permissions", path);
}

// cpu_ms is the time that the engine's thread computed since its last step: less than the time that
// has passed if it waited for a core, for another thread or for work.
void StepLog::write(const std::string& model, const StepReport& s) {
  const double cpu = thread_cpu_seconds();
  thread_local double last = cpu;
  std::string line = fmt::format(
      "{{\"model\": {}, \"end\": {:.6f}, \"ms\": {:.3f}, \"cpu_ms\": {:.3f}, \"decodes\": {}, "
      "\"chunks\": {}, \"prompt_tokens\": {}, \"depth\": {:.0f}, \"predicted_ms\": {:.3f}, "
      "\"limit_ms\": {:.3f}}}\n",
      dump_json(Value(model)), seconds(s.ended), 1e3 * seconds(s.duration),
      1e3 * (cpu - std::exchange(last, cpu)), s.decodes, s.chunks, s.prompt_tokens, s.depth,
      1e3 * s.predicted, 1e3 * s.limit);
  std::lock_guard lock(mutex_);
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size())
    std::fflush(file_.get());
}

}  // namespace tokamak
