// Regions of row ops: a row goes through all of them while it lies in the nearest cache. Norms,
// residual sums, activations, quantisation of one row, in any order.
#include <algorithm>

#include "backend/cpu/region.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

class RowsRegion final : public Op {
 public:
  RowsRegion(const OpSite& site, const RegionProgram& program) : inputs_(program.inputs) {
    TK_CHECK(!site.out.empty());
    width_ = site.out[0].last();
    values_.resize(program.values());
    for (const RegionStep& s : program.steps) {
      if (s.outputs != 1) fail(ErrorCode::kUnsupported, "{}: {} in a region", site.label, s.op);
      Step step{make_row_step(site.kernels, s, site.label), {}, s.out};
      for (size_t i = 0; i < 3; ++i) step.in[i] = i < s.in.size() ? static_cast<int>(s.in[i]) : -1;
      if (step.op.kind == RowStep::Kind::kQuantize && width_ % kQuantBlock != 0)
        fail(ErrorCode::kUnsupported, "{}: quantize of rows of {}", site.label, width_);
      steps_.push_back(step);
    }
    for (uint32_t v = 0; v < inputs_; ++v) classify(site.in[v], values_[v]);
    for (size_t r = 0; r < program.results.size(); ++r) {
      if (site.out[r].last() != width_) fail(ErrorCode::kCorrupt, "{}: rows differ", site.label);
      values_[program.results[r]].out = static_cast<int>(r);
    }
    for (Step& s : steps_)
      if (values_[s.out].out < 0) values_[s.out].buffer = buffers_++;
  }
  int64_t scratch_bytes() const override { return buffers_ * row_stride() * 4; }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    auto [begin, end] = rows(out, c);
    auto* scratch = reinterpret_cast<float*>(c.thread_scratch());
    for (int64_t r = begin; r < end; ++r) one_row(in, out, c, r, scratch);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    auto [begin, end] = rows(out, c);
    if (begin >= end) return;
    for (uint32_t v = 0; v < inputs_; ++v) {
      if (values_[v].per_row)
        list.read_rows(in[v], width_ * 4, begin, end);
      else
        list.read(in[v]);
    }
    for (const Step& s : steps_)
      if (int o = values_[s.out].out; o >= 0)
        list.write_rows(out[o], out_row_bytes(out[o]), begin, end);
  }

 private:
  Part rows(const Tensor* out, const StepContext& c) const {
    int64_t work = (width_ + 1) * static_cast<int64_t>(steps_.size());
    return c.part(out[0].rows(), std::max<int64_t>(1, kLightGrain / work));
  }
  struct ValuePlace {
    bool per_row = true;  // an input: one row for each, or the same for all
    bool scalar = false;  // an input: one number
    int out = -1;         // output of the call
    int64_t buffer = -1;  // or a row of scratch
  };
  struct Step {
    RowStep op;
    int in[3];
    uint32_t out;
  };

  void classify(const Tensor& t, ValuePlace& place) const {
    place.per_row = t.rank > 1;
    place.scalar = t.elements() == 1 && width_ != 1;
    if (place.scalar) place.per_row = false;
  }
  int64_t row_stride() const { return (width_ + 15) / 16 * 16; }
  int64_t out_row_bytes(const Tensor& t) const {
    return t.dtype == DType::kQ8A ? width_ / kQuantBlock * kActivationBlock : width_ * 4;
  }

  void one_row(const Tensor* in, const Tensor* out, const StepContext& c, int64_t row,
               float* scratch) const {
    auto at = [&](int value) -> const float* {
      if (value < 0) return nullptr;
      const ValuePlace& p = values_[static_cast<size_t>(value)];
      if (static_cast<uint32_t>(value) < inputs_)
        return in[value].f32() + (p.per_row ? row * width_ : 0);
      return p.out >= 0 ? out[p.out].f32() + row * width_ : scratch + p.buffer * row_stride();
    };
    for (const Step& s : steps_) {
      const ValuePlace& p = values_[s.out];
      void* to = p.out >= 0
                     ? static_cast<uint8_t*>(out[p.out].data) + row * out_row_bytes(out[p.out])
                     : static_cast<void*>(scratch + p.buffer * row_stride());
      bool scalar = s.in[1] >= 0 && values_[static_cast<size_t>(s.in[1])].scalar;
      s.op.run(c.kernels, at(s.in[0]), at(s.in[1]), scalar, at(s.in[2]), to, width_);
    }
  }

  uint32_t inputs_;
  int64_t width_ = 0, buffers_ = 0;
  std::vector<ValuePlace> values_;
  std::vector<Step> steps_;
};

}  // namespace

std::unique_ptr<Op> make_rows_region(const OpSite& site, const RegionProgram& program) {
  return std::make_unique<RowsRegion>(site, program);
}

}  // namespace tokamak::cpu
