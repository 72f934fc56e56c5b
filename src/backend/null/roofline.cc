#include "backend/null/roofline.h"

#include <algorithm>

#include "tensor/dtype.h"

namespace tokamak {
namespace {

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

Roofline::Roofline(const PlanSet& plans, const Machine& machine) : machine_(machine) {
  for (const WeightEntry& w : plans.weights) {
    weight_elements_ += elements(w.dims);
    weight_bytes_ += stored_bytes(w.dtype, elements(w.dims));
  }
  for (const GroupEntry& g : plans.groups) groups_.push_back({g.window, 0, 0, g.per_sequence()});
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
      if (g.per_sequence) {  // read and written once, used by every row
        bytes += 2 * g.bytes_per_token;
        flops += 2 * rows * g.elements_per_token;
        continue;
      }
      double context = step.kv_len[b];
      if (g.window > 0) context = std::min(context, static_cast<double>(g.window) + rows - 1);
      bytes += context * g.bytes_per_token;
      flops += 2 * rows * context * g.elements_per_token;
    }
  }
  return machine_.launch_seconds +
         std::max(flops / machine_.i8_ops, bytes / machine_.memory().bandwidth);
}

}  // namespace tokamak
