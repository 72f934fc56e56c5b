#include "backend/null/roofline.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tensor/dtype.h"

namespace tokamak {
namespace {

double positive(const Value& machine, const char* field, double fallback, const std::string& path) {
  double v = machine.get_double(field, fallback);
  if (!std::isfinite(v) || v <= 0)
    fail(ErrorCode::kInvalidArgument, "machine file {}: {} must be a positive number", path, field);
  return v;
}

double elements(const std::vector<int64_t>& dims) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(d);
  return n;
}

double stored_bytes(DType dtype, double count) {
  const DTypeInfo& info = dtype_info(dtype);
  return count * info.block_bytes / info.block_elements;
}

}  // namespace

RooflineSpec load_roofline(const std::filesystem::path& path) {
  Value file = parse_json(read_text_file(path, 1 << 20), path.string());
  RooflineSpec m;
  m.name = file.get_string("name", path.stem().string());
  m.flops = positive(file, "flops", m.flops, path.string());
  m.bandwidth = positive(file, "bandwidth", m.bandwidth, path.string());
  m.launch_seconds = positive(file, "launch_seconds", m.launch_seconds, path.string());
  if (const Value* real_time = file.find("real_time")) {
    if (!real_time->is_bool())
      fail(ErrorCode::kInvalidArgument, "{}: real_time is true or false", path.string());
    m.real_time = real_time->as_bool();
  }
  return m;
}

Roofline::Roofline(const PlanSet& plans, const RooflineSpec& machine) : machine_(machine) {
  for (const WeightEntry& w : plans.weights) {
    weight_elements_ += elements(w.dims);
    weight_bytes_ += stored_bytes(w.dtype, elements(w.dims));
  }
  for (const GroupEntry& g : plans.groups) groups_.push_back({g.window, 0, 0});
  for (const StateEntry& s : plans.states) {
    for (const PlaneEntry& p : s.planes) {
      groups_.at(s.group).elements_per_token += elements(p.dims);
      groups_[s.group].bytes_per_token += p.bytes_per_token > 0
                                              ? static_cast<double>(p.bytes_per_token)
                                              : stored_bytes(p.dtype, elements(p.dims));
    }
  }
}

double Roofline::seconds(const StepInputs& step) const {
  double bytes = weight_bytes_;
  double flops = 2 * weight_elements_ * static_cast<double>(step.tokens());
  for (size_t b = 0; b < step.kv_len.size(); ++b) {
    double rows = step.q_start[b + 1] - step.q_start[b];
    for (const Group& g : groups_) {
      double context = step.kv_len[b];
      if (g.window > 0) context = std::min(context, static_cast<double>(g.window) + rows - 1);
      bytes += context * g.bytes_per_token;
      flops += 2 * rows * context * g.elements_per_token;
    }
  }
  return machine_.launch_seconds + std::max(flops / machine_.flops, bytes / machine_.bandwidth);
}

}  // namespace tokamak
