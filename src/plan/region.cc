#include "plan/region.h"

#include "base/error.h"

namespace tokamak {

int RegionProgram::maker(uint32_t value) const {
  for (size_t i = 0; i < steps.size(); ++i)
    if (value >= steps[i].out && value < steps[i].out + steps[i].outputs)
      return static_cast<int>(i);
  return -1;
}

Value region_attrs(const RegionProgram& program) {
  auto numbers = [](const std::vector<uint32_t>& list) {
    Value out = Value::array();
    for (uint32_t n : list) out.push(n);
    return out;
  };
  Value steps = Value::array();
  for (const RegionStep& s : program.steps)
    steps.push(Value::Object{
        {"op", s.op}, {"attrs", s.attrs}, {"in", numbers(s.in)}, {"outputs", s.outputs}});
  return Value::Object{{"kind", program.kind},
                       {"inputs", program.inputs},
                       {"steps", std::move(steps)},
                       {"results", numbers(program.results)}};
}

RegionProgram parse_region(const Value& attrs, size_t call_inputs, size_t call_outputs) {
  constexpr int64_t kMost = 1 << 16;
  RegionProgram p;
  p.kind = attrs.get_string("kind", "");
  int64_t inputs = attrs.at("inputs").as_int(), next = inputs;
  auto numbers = [&](const Value& list) {
    std::vector<uint32_t> out;
    for (const Value& v : list.as_array()) {
      int64_t n = v.as_int();
      if (n < 0 || n >= next)
        fail(ErrorCode::kCorrupt, "region: value {} is not there; {} are", n, next);
      out.push_back(static_cast<uint32_t>(n));
    }
    return out;
  };
  if (inputs < 0 || static_cast<size_t>(inputs) > call_inputs)
    fail(ErrorCode::kCorrupt, "region: {} inputs, the call has {}", inputs, call_inputs);
  p.inputs = static_cast<uint32_t>(inputs);
  for (const Value& v : attrs.at("steps").as_array()) {
    RegionStep s;
    s.op = v.at("op").as_string();
    s.attrs = v.at("attrs");
    s.in = numbers(v.at("in"));
    s.out = static_cast<uint32_t>(next);
    int64_t outputs = v.at("outputs").as_int();
    if (outputs < 1 || outputs > 16 || next > kMost)
      fail(ErrorCode::kCorrupt, "region: a step with {} outputs", outputs);
    s.outputs = static_cast<uint32_t>(outputs);
    next += outputs;
    p.steps.push_back(std::move(s));
  }
  p.results = numbers(attrs.at("results"));
  if (p.results.size() != call_outputs)
    fail(ErrorCode::kCorrupt, "region: {} results, the call has {}", p.results.size(),
         call_outputs);
  return p;
}

}  // namespace tokamak
