// Launches of element-wise ops, copies and rows by index.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr const char* kUnaryNames[] = {"neg",    "abs",  "exp",  "log",   "sqrt",   "rsqrt",
                                       "square", "sin",  "cos",  "tanh",  "erf",    "sigmoid",
                                       "relu",   "silu", "gelu", "scale", "softcap"};
constexpr Unary kUnaryOps[] = {
    Unary::kNeg,    Unary::kAbs,  Unary::kExp,      Unary::kLog,   Unary::kSqrt,   Unary::kRsqrt,
    Unary::kSquare, Unary::kSin,  Unary::kCos,      Unary::kTanh,  Unary::kErf,    Unary::kSigmoid,
    Unary::kRelu,   Unary::kSilu, Unary::kGeluTanh, Unary::kScale, Unary::kSoftcap};
static_assert(std::size(kUnaryNames) == std::size(kUnaryOps));
constexpr const char* kBinaryNames[] = {"add", "sub", "mul", "div", "maximum", "minimum"};

Grid element_grid(int64_t n) {
  constexpr int64_t kMost = 132 * 16;
  return {std::min(kMost, (n + kElementThreads - 1) / kElementThreads)};
}

// Strides of a tensor that is broadcast to `shape` (trailing-aligned).
std::vector<int64_t> broadcast_strides(const std::vector<int64_t>& shape,
                                       const std::vector<int64_t>& dims) {
  std::vector<int64_t> out(shape.size(), 0);
  int64_t stride = 1;
  for (size_t back = 1; back <= dims.size(); ++back) {
    int64_t extent = dims[dims.size() - back];
    if (extent != 1) out[shape.size() - back] = stride;
    stride *= extent;
  }
  return out;
}

// Joins axes over which both operands go on as if they were one, so that most calls have one or
// two.
struct Axes {
  std::vector<int64_t> dims, a, b;
  Axes(const std::vector<int64_t>& shape, const std::vector<int64_t>& sa,
       const std::vector<int64_t>& sb, const CallSite& site) {
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 1 && shape.size() > 1) continue;
      bool join = !dims.empty() && a.back() == sa[i] * shape[i] && b.back() == sb[i] * shape[i];
      if (join) {
        dims.back() *= shape[i];
        a.back() = sa[i];
        b.back() = sb[i];
      } else {
        dims.push_back(shape[i]);
        a.push_back(sa[i]);
        b.push_back(sb[i]);
      }
    }
    if (dims.empty()) dims = {1}, a = {0}, b = {0};
    if (dims.size() > kMaxAxes)
      fail(ErrorCode::kUnsupported, "{}: {} axes; the cuda backend takes {}", site.call.label,
           dims.size(), kMaxAxes);
  }
  void write(int64_t (&to_dims)[kMaxAxes], int64_t (&to_a)[kMaxAxes], int64_t (&to_b)[kMaxAxes],
             int32_t& rank) const {
    rank = static_cast<int32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), to_dims);
    std::copy(a.begin(), a.end(), to_a);
    std::copy(b.begin(), b.end(), to_b);
  }
};

std::vector<int64_t> dense_strides(const std::vector<int64_t>& dims) {
  std::vector<int64_t> out(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) out[i] = stride;
  return out;
}

size_t axis_of(const CallSite& site, size_t rank) {
  int64_t axis = site.call.attrs.get_int("axis", 0);
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

// `shape` elements from x to y with these strides and first elements.
void add_copy(const CallSite& site, LaunchList& list, const Tensor& x, int64_t first_x,
              const std::vector<int64_t>& sx, const Tensor& y, int64_t first_y,
              const std::vector<int64_t>& sy, const std::vector<int64_t>& shape) {
  CopyArgs args{};
  args.in = x.dtype;
  args.out = y.dtype;
  args.x = x.as<uint8_t>() + first_x * static_cast<int64_t>(dtype_bytes(x.dtype, 1));
  args.y = y.as<uint8_t>() + first_y * static_cast<int64_t>(dtype_bytes(y.dtype, 1));
  args.n = 1;
  for (int64_t d : shape) args.n *= d;
  Axes(shape, sx, sy, site).write(args.dims, args.sx, args.sy, args.rank);
  add_strided_copy(list, args);
}

void copy_concat(const CallSite& site, LaunchList& list) {
  const Tensor& y = site.out[0];
  size_t axis = axis_of(site, y.dims.size());
  std::vector<int64_t> sy = dense_strides(y.dims);
  int64_t at = 0;
  for (const Tensor& x : site.in) {
    add_copy(site, list, x, 0, dense_strides(x.dims), y, at * sy[axis], sy, x.dims);
    at += x.dims[axis];
  }
}

}  // namespace

std::span<const char* const> unary_op_names() { return kUnaryNames; }
std::span<const char* const> binary_op_names() { return kBinaryNames; }

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

void emit_unary(const CallSite& site, LaunchList& list) {
  const std::string& op = site.call.op;
  const Value& attrs = site.call.attrs;
  const auto* name = std::find(std::begin(kUnaryNames), std::end(kUnaryNames), op);
  TK_CHECK(name != std::end(kUnaryNames), "{}", op);
  UnaryArgs args{};
  args.op = kUnaryOps[name - std::begin(kUnaryNames)];
  if (op == "gelu" && attrs.at("approximate").as_string() == "none") args.op = Unary::kGeluErf;
  if (op == "scale") args.number = static_cast<float>(attrs.at("value").as_double());
  if (op == "softcap") args.number = static_cast<float>(attrs.at("cap").as_double());
  args.x = site.in[0].as();
  args.y = site.out[0].as();
  args.n = site.out[0].elements();
  args.in = site.in[0].dtype;
  args.out = site.out[0].dtype;
  list.add("op_element", "op_unary", element_grid(args.n), kElementThreads, args);
}

void emit_binary(const CallSite& site, LaunchList& list) {
  const Tensor &a = site.in[0], &b = site.in[1], &y = site.out[0];
  const auto* name = std::find(std::begin(kBinaryNames), std::end(kBinaryNames), site.call.op);
  TK_CHECK(name != std::end(kBinaryNames), "{}", site.call.op);
  BinaryArgs args{};
  args.op = static_cast<Binary>(name - std::begin(kBinaryNames));
  args.a = a.as();
  args.b = b.as();
  args.y = y.as();
  args.n = y.elements();
  args.ta = a.dtype;
  args.tb = b.dtype;
  args.out = y.dtype;
  Axes(y.dims, broadcast_strides(y.dims, a.dims), broadcast_strides(y.dims, b.dims), site)
      .write(args.dims, args.sa, args.sb, args.rank);
  list.add("op_element", "op_binary", element_grid(args.n), kElementThreads, args);
}

void add_strided_copy(LaunchList& list, const CopyArgs& args) {
  list.add("op_element", "op_copy", element_grid(args.n), kElementThreads, args);
}

// reshape, transpose, broadcast, slice, concat, cast
void emit_copy(const CallSite& site, LaunchList& list) {
  const std::string& op = site.call.op;
  if (op == "concat") return copy_concat(site, list);
  const Tensor &x = site.in[0], &y = site.out[0];
  std::vector<int64_t> sx = dense_strides(x.dims), sy = dense_strides(y.dims);
  int64_t first = 0;
  if (op == "transpose") {
    const Value::Array& perm = site.call.attrs.at("perm").as_array();
    std::vector<int64_t> turned;
    for (const Value& p : perm) turned.push_back(sx[static_cast<size_t>(p.as_int())]);
    sx = turned;
  } else if (op == "broadcast") {
    sx = broadcast_strides(y.dims, x.dims);
  } else if (op == "slice") {
    first = site.call.attrs.at("start").as_int() * sx[axis_of(site, x.dims.size())];
  } else {  // the same elements in the same order
    sx = sy;
  }
  add_copy(site, list, x, first, sx, y, 0, sy, y.dims);
}

// gather(x, index) and embed(ids, table)
void emit_gather(const CallSite& site, LaunchList& list) {
  bool embed = site.call.op == "embed";
  const Tensor &x = site.in[embed ? 1 : 0], &index = site.in[embed ? 0 : 1], &y = site.out[0];
  size_t axis = embed ? 0 : axis_of(site, x.dims.size());
  GatherArgs args{};
  args.x = x.as();
  args.index = index.as<int32_t>();
  args.y = y.as();
  args.outer = args.inner = 1;
  for (size_t i = 0; i < axis; ++i) args.outer *= x.dims[i];
  for (size_t i = axis + 1; i < x.dims.size(); ++i) args.inner *= x.dims[i];
  args.extent = x.dims[axis];
  args.count = index.elements();
  args.in = x.dtype;
  args.out = y.dtype;
  if (!is_block_type(x.dtype))
    return list.add("op_element", "op_gather", element_grid(y.elements()), kElementThreads, args);
  if (axis != 0)
    fail(ErrorCode::kUnsupported, "{}: rows of {} can be taken along axis 0 only", site.call.label,
         dtype_name(x.dtype));
  args.row_bytes = static_cast<int64_t>(dtype_bytes(x.dtype, args.inner));
  list.add("op_element", "op_gather_blocks", element_grid(y.elements() / 8), kElementThreads, args);
}

void emit_embedding(LaunchList& list, const KvPool& kv, const WeightEntry& table,
                    DeviceAddress table_at, DeviceAddress ids, const Tensor& rows) {
  KernelCall call;
  call.op = "embed";
  const StepView view;
  CallSite site{call, {}, {}, kv, view, {}};
  site.in = {{DType::kI32, {rows.dims[0]}, ids, 0}, {table.dtype, table.dims, table_at, 0}};
  site.out = {rows};
  emit_gather(site, list);
}

void emit_iota(const CallSite& site, LaunchList& list) {
  IotaArgs args{site.out[0].as<int32_t>(), site.out[0].elements()};
  list.add("op_element", "op_iota", element_grid(args.n), kElementThreads, args);
}

}  // namespace tokamak::cuda
