#include "plan/machine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

double machine_field(const Value& file, const char* field, double fallback, bool zero,
                     const std::string& what) {
  const Value* found = file.find(field);
  double v = !found ? fallback : found->is_number() ? found->as_double() : NAN;
  if (!std::isfinite(v) || v < 0 || (v == 0 && !zero))
    fail(ErrorCode::kInvalidArgument, "{}: {} must be a positive number", what, field);
  return v;
}

}  // namespace

const MachineLevel& Machine::level_of(double bytes) const {
  for (const MachineLevel& level : levels)
    if (level.capacity >= 2 * bytes) return level;
  return levels.back();
}

Machine machine_from_value(const Value& file, const std::string& what) {
  Machine m;
  if (!file.is_object()) fail(ErrorCode::kInvalidArgument, "{}: not a JSON object", what);
  m.name = file.get_string("name", m.name);
  m.measured_on = file.get_string("measured_on", "");
  double cores = machine_field(file, "cores", m.cores, false, what);
  if (cores != std::floor(cores) || cores > 4096)
    fail(ErrorCode::kInvalidArgument, "{}: cores must be a whole number up to 4096", what);
  m.cores = static_cast<int>(cores);
  if (const Value* levels = file.find("levels")) {
    auto objects = [](const Value::Array& list) {
      return std::all_of(list.begin(), list.end(), [](const Value& l) { return l.is_object(); });
    };
    if (!levels->is_array() || !objects(levels->as_array()))
      fail(ErrorCode::kInvalidArgument, "{}: levels must be a list of objects", what);
    m.levels.clear();
    for (const Value& l : levels->as_array())
      m.levels.push_back({l.get_string("name", ""), machine_field(l, "capacity", 0, true, what),
                          machine_field(l, "bandwidth", 0, false, what)});
    if (m.levels.empty() || m.levels.size() > 16)
      fail(ErrorCode::kInvalidArgument, "{}: levels must have 1 to 16 entries", what);
  } else if (file.has("bandwidth")) {
    m.levels.back().bandwidth = machine_field(file, "bandwidth", 0, false, what);
  }
  m.i8_ops = machine_field(file, "i8_ops", machine_field(file, "flops", m.i8_ops, false, what),
                           false, what);
  m.f32_flops = machine_field(file, "f32_flops", m.f32_flops, false, what);
  m.vector_ops = machine_field(file, "vector_ops", m.vector_ops, false, what);
  m.call_seconds = machine_field(file, "call_seconds", m.call_seconds, true, what);
  m.barrier_seconds = machine_field(file, "barrier_seconds", m.barrier_seconds, true, what);
  m.loop_seconds = machine_field(file, "loop_seconds", m.loop_seconds, true, what);
  m.loop_step_seconds = machine_field(file, "loop_step_seconds", m.loop_step_seconds, true, what);
  m.launch_seconds = machine_field(file, "launch_seconds", m.launch_seconds, true, what);
  if (const Value* real_time = file.find("real_time")) {
    if (!real_time->is_bool())
      fail(ErrorCode::kInvalidArgument, "{}: real_time must be true or false", what);
    m.real_time = real_time->as_bool();
  }
  return m;
}

Machine load_machine_file(const std::filesystem::path& path) {
  std::string what = fmt::format("machine file {}", path.string());
  Value file = parse_json(read_text_file(path, 1 << 20), what);
  Machine m = machine_from_value(file, what);
  if (!file.has("name")) m.name = path.stem().string();
  return m;
}

Value machine_value(const Machine& m) {
  Value levels = Value::array();
  for (const MachineLevel& l : m.levels)
    levels.push(
        Value::Object{{"name", l.name}, {"capacity", l.capacity}, {"bandwidth", l.bandwidth}});
  return Value::Object{{"name", m.name},
                       {"measured_on", m.measured_on},
                       {"flops", m.i8_ops},
                       {"bandwidth", m.memory().bandwidth},
                       {"launch_seconds", m.launch_seconds},
                       {"cores", m.cores},
                       {"levels", std::move(levels)},
                       {"i8_ops", m.i8_ops},
                       {"f32_flops", m.f32_flops},
                       {"vector_ops", m.vector_ops},
                       {"call_seconds", m.call_seconds},
                       {"barrier_seconds", m.barrier_seconds},
                       {"loop_seconds", m.loop_seconds},
                       {"loop_step_seconds", m.loop_step_seconds},
                       {"real_time", m.real_time}};
}

}  // namespace tokamak
