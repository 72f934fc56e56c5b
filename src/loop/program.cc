#include "loop/program.h"

#include <cstring>

#include "base/error.h"

namespace tokamak::loop {
namespace {

using K = OpKind;
constexpr OpInfo kOps[] = {
    {Op::kConst, "const", K::kSource, ""},
    {Op::kColumns, "columns", K::kSource, ""},
    {Op::kIndex, "index", K::kSource, ""},
    {Op::kLoad, "load", K::kSource, ""},
    {Op::kNeg, "neg", K::kUnary, "neg"},
    {Op::kAbs, "abs", K::kUnary, "abs"},
    {Op::kExp, "exp", K::kUnary, "exp"},
    {Op::kLog, "log", K::kUnary, "log"},
    {Op::kSqrt, "sqrt", K::kUnary, "sqrt"},
    {Op::kRsqrt, "rsqrt", K::kUnary, "rsqrt"},
    {Op::kSquare, "square", K::kUnary, "square"},
    {Op::kSin, "sin", K::kUnary, "sin"},
    {Op::kCos, "cos", K::kUnary, "cos"},
    {Op::kTanh, "tanh", K::kUnary, "tanh"},
    {Op::kErf, "erf", K::kUnary, "erf"},
    {Op::kSigmoid, "sigmoid", K::kUnary, "sigmoid"},
    {Op::kRelu, "relu", K::kUnary, "relu"},
    {Op::kSilu, "silu", K::kUnary, "silu"},
    {Op::kGeluTanh, "gelu_tanh", K::kUnary, "gelu", "approximate", "tanh"},
    {Op::kGeluErf, "gelu_erf", K::kUnary, "gelu", "approximate", "none"},
    {Op::kSoftcap, "softcap", K::kUnary, "softcap", "cap"},
    {Op::kRoundF16, "round_f16", K::kUnary, "cast", "dtype", "f16"},
    {Op::kRoundBF16, "round_bf16", K::kUnary, "cast", "dtype", "bf16"},
    {Op::kToF32, "to_f32", K::kUnary, "cast", "dtype", "f32"},
    {Op::kToI32, "to_i32", K::kUnary, "cast", "dtype", "i32"},
    {Op::kAdd, "add", K::kBinary, "add"},
    {Op::kSub, "sub", K::kBinary, "sub"},
    {Op::kMul, "mul", K::kBinary, "mul"},
    {Op::kDiv, "div", K::kBinary, "div"},
    {Op::kMaximum, "maximum", K::kBinary, "maximum"},
    {Op::kMinimum, "minimum", K::kBinary, "minimum"},
    {Op::kLt, "lt", K::kCompare, "compare", "kind", "lt"},
    {Op::kLe, "le", K::kCompare, "compare", "kind", "le"},
    {Op::kEq, "eq", K::kCompare, "compare", "kind", "eq"},
    {Op::kNe, "ne", K::kCompare, "compare", "kind", "ne"},
    {Op::kGe, "ge", K::kCompare, "compare", "kind", "ge"},
    {Op::kGt, "gt", K::kCompare, "compare", "kind", "gt"},
    {Op::kSelect, "select", K::kSelect, "select"},
    {Op::kSum, "sum", K::kReduce, "reduce_sum"},
    {Op::kSumSquares, "sum_squares", K::kReduce, ""},
    {Op::kMax, "max", K::kReduce, "reduce_max"},
    {Op::kMin, "min", K::kReduce, ""},
};
static_assert(std::size(kOps) == static_cast<size_t>(Op::kCount));

}  // namespace

const OpInfo& op_info(Op op) {
  const OpInfo& info = kOps[static_cast<size_t>(op)];
  TK_CHECK(info.op == op);
  return info;
}

bool Instr::operator==(const Instr& o) const {
  return op == o.op && type == o.type && in == o.in && access == o.access &&
         std::memcmp(&number, &o.number, sizeof(number)) == 0;
}

std::string row_variable(size_t axis) { return "r" + std::to_string(axis); }

Linear linear_parts(const SymExpr& index, size_t row_axes) {
  std::map<std::string, SymExpr, std::less<>> zero;
  for (size_t i = 0; i < row_axes; ++i) zero.emplace(row_variable(i), SymExpr(0));
  zero.emplace(kColumnVariable, SymExpr(0));
  zero.emplace(kByVariable, SymExpr(0));
  Linear out;
  out.offset = index.substitute(zero);
  auto coefficient = [&](std::string_view name) {
    auto one = zero;
    one.find(name)->second = SymExpr(1);
    return index.substitute(one) - out.offset;
  };
  for (size_t i = 0; i < row_axes; ++i) out.rows.push_back(coefficient(row_variable(i)));
  out.column = coefficient(kColumnVariable);
  out.by = coefficient(kByVariable);
  if (linear_index(out) != index)
    fail(ErrorCode::kInvalidArgument, "the index {} is not linear in its variables", index.text());
  return out;
}

SymExpr linear_index(const Linear& parts) {
  SymExpr out = parts.offset;
  for (size_t i = 0; i < parts.rows.size(); ++i)
    out = out + parts.rows[i] * SymExpr::symbol(row_variable(i));
  out = out + parts.column * SymExpr::symbol(std::string(kColumnVariable));
  return out + parts.by * SymExpr::symbol(std::string(kByVariable));
}

SymExpr row_count(const Program& program) {
  SymExpr n = 1;
  for (const SymExpr& r : program.rows) n = n * r;
  return n;
}

}  // namespace tokamak::loop
