// Ops without a kernel of their own run as ops/ defines them: on one thread, in double. Slow, but
// every graph runs.
#include <deque>

#include "backend/cpu/exec.h"
#include "base/error.h"
#include "ops/op.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

// Allocates in every step.
class Defined final : public CpuOp {
 public:
  explicit Defined(const OpSite& site)
      : op_(*find_op(site.op)),
        attrs_(site.attrs),
        inputs_(site.in.size()),
        outputs_(site.out.size()) {
    for (const Tensor& t : site.out)
      if (t.dtype != DType::kF32 && t.dtype != DType::kI32)
        fail(ErrorCode::kUnsupported, "{}: {} supports only f32 and i32 results, not {}",
             site.label, site.kernel->name, dtype_name(t.dtype));
  }
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    if (c.thread != 0) return;
    std::deque<std::vector<float>> decoded;
    std::vector<Operand<float>> from, to;
    for (size_t i = 0; i < inputs_; ++i) from.push_back(operand(in[i], decoded));
    for (size_t i = 0; i < outputs_; ++i) to.push_back(operand(out[i], decoded));
    op_.f32({from, to, attrs_});
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    if (c.thread != 0) return;
    for (size_t i = 0; i < inputs_; ++i)
      if (!in[i].weight) list.read(in[i]);
    for (size_t i = 0; i < outputs_; ++i) list.write(out[i]);
  }

 private:
  static Operand<float> operand(const Tensor& t, std::deque<std::vector<float>>& decoded) {
    Operand<float> o;
    o.tensor.dims = {t.dims, static_cast<size_t>(t.rank)};
    if (t.dtype == DType::kI32) {
      o.tensor.i = t.i32();
    } else if (t.dtype == DType::kF32 || t.weight) {  // weights are decoded when they are loaded
      o.tensor.f = t.f32();
    } else {
      std::vector<float>& values = decoded.emplace_back(static_cast<size_t>(t.elements()));
      decode_row(t.dtype, t.data, values.data(), t.elements());
      o.tensor.f = values.data();
    }
    return o;
  }

  const OpDef& op_;
  Value attrs_;
  size_t inputs_, outputs_;
};

}  // namespace

std::unique_ptr<CpuOp> make_defined(const OpSite& site) { return std::make_unique<Defined>(site); }

}  // namespace tokamak::cpu
