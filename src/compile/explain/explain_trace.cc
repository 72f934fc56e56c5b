#include "base/json.h"
#include "compile/explain/explain.h"

namespace tokamak {
namespace {

constexpr int kCompiler = 1, kSteps = 2, kCalls = 3;

Value name_event(const char* what, int thread, std::string name) {
  return Value::Object{{"ph", "M"},
                       {"name", what},
                       {"pid", 1},
                       {"tid", thread},
                       {"args", Value::Object{{"name", std::move(name)}}}};
}

Value slice(std::string name, int thread, double begin_us, double us, Value args) {
  return Value::Object{
      {"ph", "X"}, {"name", std::move(name)}, {"pid", 1}, {"tid", thread}, {"ts", begin_us},
      {"dur", us}, {"args", std::move(args)}};
}

}  // namespace

std::string explain_trace(const Value& report, const CallProfile& profile) {
  Value events = Value::array();
  events.push(name_event("process_name", 0, "tokamak explain " + report.at("model").as_string()));
  events.push(name_event("thread_name", kCompiler, "compiler passes"));
  events.push(name_event("thread_name", kSteps, report.at("function").as_string() + " steps"));
  events.push(name_event("thread_name", kCalls, report.at("backend").as_string() + " calls"));
  double at = 0;  // passes one after the other: only their durations are known
  for (const Value& p : report.at("passes").as_array()) {
    double us = p.get_double("ms", 0) * 1e3;
    events.push(slice(p.at("name").as_string(), kCompiler, at, us,
                      Value::Object{{"function", p.at("function")},
                                    {"nodes_before", p.at("nodes_before")},
                                    {"nodes_after", p.at("nodes_after")},
                                    {"fired", p.at("fired")}}));
    at += us;
  }
  const Value::Array& calls = report.at("calls").as_array();
  const Value::Array& kernels = report.at("kernels").as_array();
  int64_t plan = report.at("plan").at("index").as_int(), origin = -1, step_begin = 0;
  int steps = 0;
  for (const CallProfile::Span& s : profile.spans) {
    if (s.plan != plan || s.call >= calls.size()) continue;
    if (origin < 0) origin = s.begin;
    auto us = [&](int64_t t) { return at + static_cast<double>(t - origin) * 1e-3; };
    if (s.call == 0) step_begin = s.begin;
    const Value& call = calls[s.call];
    const Value& kernel = kernels[static_cast<size_t>(call.at("kernel").as_int())];
    double spent = static_cast<double>(s.end - s.begin) * 1e-3;
    events.push(slice(call.at("name").as_string(), kCalls, us(s.begin), spent,
                      Value::Object{{"kernel", kernel.at("kernel")},
                                    {"bytes", kernel.at("bytes")},
                                    {"flops", kernel.at("flops")},
                                    {"bound_us", kernel.at("bound_us")}}));
    events.push(Value::Object{
        {"ph", "C"},
        {"name", "GB/s"},
        {"pid", 1},
        {"ts", us(s.begin)},
        {"args",
         Value::Object{{"GB/s", spent > 0 ? kernel.get_double("bytes", 0) / spent * 1e-3 : 0.0}}}});
    if (s.call + 1 == calls.size())
      events.push(slice(fmt::format("step {}", ++steps), kSteps, us(step_begin),
                        static_cast<double>(s.end - step_begin) * 1e-3, Value::object()));
  }
  return dump_json(Value::Object{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}});
}

}  // namespace tokamak
