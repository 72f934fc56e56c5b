#include "backend/cpu/region.h"

#include "base/error.h"

namespace tokamak::cpu {

void RowStep::run(const KernelTable& k, const float* a, const float* b, bool scalar, const float* c,
                  void* out, int64_t n) const {
  auto* to = static_cast<float*>(out);
  switch (kind) {
    case Kind::kUnary:
      return unary.run(a, to, n, unary.parameter);
    case Kind::kBinary:
      return scalar ? binary_scalar(a, *b, to, n) : binary(a, b, to, n);
    case Kind::kRmsNorm:
      return k.rms_norm(a, b, to, n, eps);
    case Kind::kLayerNorm:
      return k.layer_norm(a, b, c, to, n, eps);
    case Kind::kSoftmax:
      return k.softmax(a, to, n);
    case Kind::kQuantize:
      return k.quantize_row(a, n, out);
  }
}

RowStep make_row_step(const KernelTable& kernels, const RegionStep& step, std::string_view label) {
  RowStep out;
  auto need = [&](size_t inputs) {
    if (step.in.size() < inputs)
      fail(ErrorCode::kCorrupt, "{}: {} of a region has {} inputs", label, step.op, step.in.size());
  };
  need(1);
  static constexpr std::string_view kBinary[] = {"add", "sub", "mul", "div", "maximum", "minimum"};
  for (int i = 0; i < static_cast<int>(Binary::kCount); ++i)
    if (step.op == kBinary[i]) {
      need(2);
      out.kind = RowStep::Kind::kBinary;
      out.binary = kernels.binary[i];
      out.binary_scalar = kernels.binary_scalar[i];
      return out;
    }
  if (step.op == "rms_norm" || step.op == "layer_norm") {
    need(2);
    out.kind = step.op == "rms_norm" ? RowStep::Kind::kRmsNorm : RowStep::Kind::kLayerNorm;
    out.eps = static_cast<float>(step.attrs.at("eps").as_double());
  } else if (step.op == "softmax") {
    out.kind = RowStep::Kind::kSoftmax;
  } else if (step.op == "quantize" && step.attrs.get_string("format", "q8a") == "q8a") {
    out.kind = RowStep::Kind::kQuantize;
  } else {
    out.unary = find_unary(kernels, step.op, step.attrs);
    if (!out.unary.run)
      fail(ErrorCode::kUnsupported, "{}: no region kernel for {}", label, step.op);
  }
  return out;
}

std::unique_ptr<Op> make_region_op(const OpSite& site) {
  if (site.op != "region" || site.attrs.has("program")) return nullptr;
  RegionProgram program = parse_region(site.attrs, site.in.size(), site.out.size());
  if (program.kind == "rows") return make_rows_region(site, program);
  if (program.kind == "linears") return make_linears_region(site, program);
  if (program.kind == "rope_append") return make_rope_region(site, program);
  fail(ErrorCode::kUnsupported, "{}: the cpu backend has no kernel for regions of kind \"{}\"",
       site.label, program.kind);
}

}  // namespace tokamak::cpu
