// Launches of ops over rows and of products with weights.
#include "backend/cuda/kernels.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr int64_t kVector = 8;  // values that a lane of op_linear loads at a time

const char* weight_kind(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kQ8_0:
      return "q8_0";
    case DType::kQ4_0:
      return "q4_0";
    case DType::kQ4_K:
      return "q4_k";
    case DType::kQ6_K:
      return "q6_k";
    case DType::kMXFP4:
      return "mxfp4";
    default:
      return "blocks";
  }
}

struct LinearTile {
  const char* suffix;
  int64_t rows, columns;
};
// Small batches read each weight once; the tiles do not change the results.
LinearTile linear_tile(int64_t rows) {
  if (rows == 1) return {"1", 1, 2};
  if (rows <= 4) return {"4", 4, 4};
  return {"8", 8, 4};
}

// Tensor cores, for bf16 weights. Whether a product runs on them does not depend on the batch.
bool takes_mma(const LinearArgs& args) {
  return args.tw == DType::kBF16 && args.vectors && args.k % kMmaChunk == 0 &&
         args.tx != DType::kQ8A;
}

void emit_mma(const CallSite& site, LaunchList& list, const LinearArgs& linear) {
  constexpr int64_t kFew = 8, kSome = 32, kRowsOfWarp = 16;
  MmaArgs args{};
  args.x = linear.x;
  args.w = reinterpret_cast<const uint16_t*>(linear.w);
  args.bias = linear.bias;
  args.y = linear.y;
  args.rows = linear.rows;
  args.n = linear.n;
  args.k = linear.k;
  args.tx = linear.tx;
  args.tb = linear.tb;
  args.ty = linear.ty;
  Grid by_columns{(args.n + kRowsOfWarp - 1) / kRowsOfWarp};
  if (args.rows <= kFew)
    return list.add("op_linear_mma", "op_linear_mma_few", by_columns, kMmaThreads, args);
  const char* pieces = "1";
  if (args.tx != DType::kBF16) {
    pieces = "3";
    SplitArgs split{args.x, reinterpret_cast<uint16_t*>(site.scratch.address), args.rows * args.k,
                    args.tx};
    TK_CHECK(split_bytes(args.rows, args.k) <= site.scratch.bytes, "{}: no room to split {} rows",
             site.call.label, args.rows);
    list.add("op_linear_mma", "op_split", {(split.n / 8 + kElementThreads - 1) / kElementThreads},
             kElementThreads, split);
    args.x = split.y;
  }
  if (args.rows <= kSome)
    return list.add("op_linear_mma", fmt::format("op_linear_mma_some_{}", pieces), by_columns,
                    kMmaThreads, args);
  list.add("op_linear_mma", fmt::format("op_linear_mma_many_{}", pieces),
           {(args.n + kMmaTileN - 1) / kMmaTileN, (args.rows + kMmaTileM - 1) / kMmaTileM},
           kMmaThreads, args);
}

// True: cuBLASLt computes the product.
bool emit_blas(const CallSite& site, LaunchList& list, const LinearArgs& args) {
  Blas* blas = site.libraries.blas;
  if (!blas || args.bias || args.tx != args.tw) return false;
  BlasProduct p;
  p.x = reinterpret_cast<DeviceAddress>(args.x);
  p.w = reinterpret_cast<DeviceAddress>(args.w);
  p.y = reinterpret_cast<DeviceAddress>(args.y);
  p.rows = args.rows;
  p.n = args.n;
  p.k = args.k;
  p.type = args.tw;
  p.out = args.ty;
  if (!Blas::takes(p)) return false;
  std::shared_ptr<const Blas::Plan> plan = blas->prepare(p);
  if (!plan) return false;
  list.add_library_call([blas, plan, p](Handle stream) { blas->run(*plan, p, stream); });
  return true;
}

// Products of many rows by cuBLASLt: weights and 8-bit activations are expanded to bf16 in scratch
// memory first. False: not here. Without the library a result does not depend on the number of
// rows.
bool emit_expanded(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[0], &w = site.in[1];
  const int64_t rows = x.rows(), n = w.dims[0], k = w.dims[1];
  if (!site.libraries.blas || rows <= kDirectRows || !is_expandable(w.dtype)) return false;
  if (x.dtype != DType::kBF16 && x.dtype != DType::kQ8A) return false;
  if (site.out[0].dtype == DType::kF32) return false;  // stored so that the batch changes no bit
  const size_t bytes = expansion_bytes(rows, n, k);
  if (bytes == 0 || bytes > site.scratch.bytes || k % kMmaChunk != 0) return false;
  CallSite plain = site;
  plain.in[1] = {DType::kBF16, {n, k}, site.scratch.address, 0};
  emit_expand(list, w, plain.in[1].address);
  if (x.dtype == DType::kQ8A) {
    plain.in[0] = {DType::kBF16, {rows, k}, site.scratch.address + expanded_bytes(n, k), 0};
    emit_expand(list, x, plain.in[0].address);
  }
  emit_linear(plain, list);
  return true;
}

}  // namespace

bool is_expandable(DType weight) {
  switch (weight) {
    case DType::kF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kMXFP4:
      return true;
    default:
      return false;
  }
}

// Where reading the weights as they are takes as long as writing and reading them as bf16. Measured
// on an H200 with 8B models: a row more costs 0.8 ms with q4_0 and q8_0 and 1.5 ms with others.
int64_t direct_rows(DType weight) {
  if (weight == DType::kQ8_0 || weight == DType::kQ4_0) return 12;
  return weight == DType::kF16 ? 4 : 1;
}

size_t expanded_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(n) * static_cast<size_t>(k) * sizeof(uint16_t);
}

size_t expansion_bytes(int64_t rows, int64_t n, int64_t k) {
  constexpr size_t kMost = size_t{512} << 20;
  const size_t bytes = expanded_bytes(n, k) + expanded_bytes(rows, k);
  return bytes > kMost ? 0 : bytes;
}

void emit_expand(LaunchList& list, const Tensor& rows, DeviceAddress to) {
  ExpandArgs args{rows.as<uint8_t>(), reinterpret_cast<uint16_t*>(to), rows.last(),
                  static_cast<int64_t>(dtype_bytes(rows.dtype, rows.last())), rows.dtype};
  constexpr int64_t kPerBlock = kElementThreads * kVector;
  list.add("op_pack", "op_expand", {rows.rows(), (args.width + kPerBlock - 1) / kPerBlock},
           kElementThreads, args);
}

size_t linear_bytes(const PlanSet& plans, const KernelCall& call) {
  const CallArg &x = call.in[0], &w = call.in[1];
  if (x.dims.empty() || w.kind != CallArg::Kind::kWeight) return 0;
  SymExpr product = 1;
  for (size_t i = 0; i + 1 < x.dims.size(); ++i) product = product * x.dims[i];
  const int64_t rows = product.upper(plans.symbols);
  const std::vector<int64_t>& dims = plans.weights.at(w.index).dims;
  if (w.dtype == DType::kBF16) return split_bytes(rows, dims.at(1));
  if (!is_expandable(w.dtype) || rows <= kDirectRows) return 0;
  return expansion_bytes(rows, dims.at(0), dims.at(1));
}

size_t split_bytes(int64_t rows, int64_t k) {
  return static_cast<size_t>(rows * k) * 3 * sizeof(uint16_t);
}

// rms_norm, layer_norm, softmax
void emit_norm(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[0], &y = site.out[0];
  NormArgs args{};
  args.x = x.as();
  args.y = y.as();
  args.n = x.last();
  args.tx = x.dtype;
  args.ty = y.dtype;
  if (site.has(1)) {
    args.w = site.in[1].as();
    args.tw = site.in[1].dtype;
    args.eps = static_cast<float>(site.call.attrs.at("eps").as_double());
  }
  if (site.has(2)) {
    args.bias = site.in[2].as();
    args.tb = site.in[2].dtype;
  }
  list.add("op_rows", "op_" + site.call.op, {x.rows()}, kRowThreads, args);
}

void emit_rope(const CallSite& site, LaunchList& list) {
  const Tensor &x = site.in[0], &frequencies = site.in[2], &y = site.out[0];
  RopeArgs args{};
  args.x = x.as();
  args.pos = site.in[1].as<int32_t>();
  args.frequencies = frequencies.as();
  args.y = y.as();
  args.rows = x.dims[0];
  args.heads = x.dims[1];
  args.d = x.dims[2];
  args.half = frequencies.dims[0];
  args.scale = site.call.attrs.get_double("scale", 1.0);
  args.tx = x.dtype;
  args.tf = frequencies.dtype;
  args.ty = y.dtype;
  list.add("op_rows", "op_rope", {args.rows}, kRowThreads, args,
           static_cast<int>(args.half) * 2 * static_cast<int>(sizeof(double)));
}

// To blocks of eight bits, or to a plain type, which is a cast.
void emit_quantize(const CallSite& site, LaunchList& list) {
  if (site.out[0].dtype != DType::kQ8A) return emit_copy(site, list);
  constexpr int64_t kBlock = 32, kPerBlock = kRowThreads / 32;
  QuantizeArgs args{site.in[0].as(), site.out[0].as<uint8_t>(), site.in[0].elements() / kBlock,
                    site.in[0].dtype};
  list.add("op_rows", "op_quantize", {(args.blocks + kPerBlock - 1) / kPerBlock}, kRowThreads,
           args);
}

void emit_linear(const CallSite& site, LaunchList& list) {
  if (emit_expanded(site, list)) return;
  const Tensor &x = site.in[0], &w = site.in[1], &y = site.out[0];
  LinearArgs args{};
  args.x = x.as();
  args.w = w.as<uint8_t>();
  args.y = y.as();
  args.rows = x.rows();
  args.n = w.dims[0];
  args.k = w.dims[1];
  args.tx = x.dtype;
  args.tw = w.dtype;
  args.ty = y.dtype;
  if (site.has(2)) {
    args.bias = site.in[2].as();
    args.tb = site.in[2].dtype;
  }
  args.x_row_bytes = static_cast<int64_t>(dtype_bytes(x.dtype, args.k));
  args.w_row_bytes = static_cast<int64_t>(dtype_bytes(w.dtype, args.k));
  args.vectors = args.k % kVector == 0 && x.address % 16 == 0 && w.address % 16 == 0;
  if (emit_blas(site, list, args)) return;
  if (takes_mma(args)) return emit_mma(site, list, args);
  LinearTile tile = linear_tile(args.rows);
  int64_t columns = tile.columns * kTileWarps;
  const char* bytes = x.dtype == DType::kQ8A ? "bytes_" : "";
  list.add("op_linear", fmt::format("op_linear_{}_{}{}", weight_kind(w.dtype), bytes, tile.suffix),
           {(args.n + columns - 1) / columns, (args.rows + tile.rows - 1) / tile.rows},
           kTileThreads, args);
}

}  // namespace tokamak::cuda
