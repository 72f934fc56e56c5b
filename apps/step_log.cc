#include "apps/step_log.h"

#include <cmath>
#include <utility>

#include "base/json.h"

namespace tokamak {

// cpu_ms is the time that the engine's thread computed since its last step: less than the time that
// has passed if it waited for a core, for another thread or for work.
void StepLog::write(const std::string& model, const StepReport& s) {
  const double cpu = thread_cpu_seconds();
  thread_local double last = cpu;
  auto ms = [](double seconds) { return std::round(1e6 * seconds) / 1e3; };  // to microseconds
  Value line = Value::object();
  line.set("model", model);
  line.set("end", seconds(s.ended));
  line.set("ms", ms(seconds(s.duration)));
  line.set("cpu_ms", ms(cpu - std::exchange(last, cpu)));
  line.set("decodes", s.decodes);
  line.set("chunks", s.chunks);
  line.set("prompt_tokens", s.prompt_tokens);
  line.set("depth", s.depth);
  line.set("predicted_ms", ms(s.predicted));
  line.set("limit_ms", ms(s.limit));
  file_.write(dump_json(line));
}

}  // namespace tokamak
