#include "backend/cpu/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "backend/cpu/calibrate.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"
#include "base/clock.h"
#include "base/error.h"
#include "ops/attend.h"
#include "ops/op.h"
#include "tensor/plane.h"

namespace tokamak::cpu {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 64, kBlockTokens = 16;
// In every format, a usual number: 0.01 as f32 and bf16, 1.06 as f16, also as a scale.
constexpr int kWeightByte = 0x3c;

struct BenchCase {
  std::string kernel, shape;
  enum class Kind : uint8_t { kLinear, kAttend, kRows } kind;
  DType dtype = DType::kF32;       // of the matrix or of the cache
  int64_t rows = 0, n = 0, k = 0;  // kAttend: rows per sequence, sequences, older tokens of each
  std::string op = {};             // kRows
  std::string name() const { return kernel + " " + shape; }
};

std::vector<BenchCase> all_cases(const KernelBenchOptions& o) {
  using Kind = BenchCase::Kind;
  std::vector<BenchCase> out;
  for (int i = 0; i < static_cast<int>(DType::kQ8A); ++i) {
    auto dtype = static_cast<DType>(i);
    if (!qformat_of(dtype) && !ftype_of(dtype)) continue;
    for (int64_t m : o.rows)
      out.push_back({fmt::format("linear {}", dtype_name(dtype)),
                     fmt::format("m={} n={} k={}", m, o.n, o.k), Kind::kLinear, dtype, m, o.n,
                     o.k});
  }
  for (DType kv : {DType::kF32, DType::kF16, DType::kI8}) {
    std::string kernel = fmt::format("attend {}", dtype_name(kv));
    out.push_back({kernel, "prefill 512", Kind::kAttend, kv, 512, 1, 0});
    out.push_back({kernel, "prefill 512 after 4096", Kind::kAttend, kv, 512, 1, 4096});
    out.push_back({kernel, "decode 1 after 4096", Kind::kAttend, kv, 1, 1, 4096});
    out.push_back({kernel, "decode 8 after 1024", Kind::kAttend, kv, 1, 8, 1024});
  }
  for (const char* op : {"rms_norm", "softmax", "quantize", "add", "mul", "silu"})
    for (int64_t rows : {1, 512})
      out.push_back(
          {op, fmt::format("{}x{}", rows, o.n), Kind::kRows, DType::kF32, rows, o.n, 0, op});
  std::erase_if(out,
                [&](const BenchCase& c) { return c.name().find(o.filter) == std::string::npos; });
  return out;
}

Tensor tensor(void* data, DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  for (int64_t d : dims) t.dims[t.rank++] = d;
  return t;
}
Tensor integers(std::vector<int32_t>& x) {
  return tensor(x.data(), DType::kI32, {static_cast<int64_t>(x.size())});
}
Type type_of(DType dtype, std::initializer_list<int64_t> dims) {
  TensorType t{dtype, {}};
  for (int64_t d : dims) t.dims.push_back({"", d, false});
  return Type::of(t);
}

PlanSet cache_plans(DType dtype) {
  PlanSet set;
  std::vector<int64_t> dims = {kKvHeads, kHeadDim};
  PlaneEntry k{"k", dtype, dims, plane_bytes(dtype, dims)}, v = k;
  v.name = "v";
  set.groups = {{"kv", 0, kBlockTokens}};
  set.states = {{"kv", 0, false, {k, v}}};
  KernelCall attend;
  attend.op = "attend";
  attend.attrs = Value::object();
  attend.in.resize(2);
  set.plans.emplace_back().calls = {attend};
  return set;
}

class Bench {
 public:
  explicit Bench(const KernelBenchOptions& o)
      : options_(o), pool_(o.threads), table_(*choose_table()) {
    for (const MachineLevel& l : cache_levels())
      largest_cache_ = std::max(largest_cache_, l.capacity);
  }

  KernelBench run(const std::function<void(size_t, size_t)>& progress) {
    std::vector<BenchCase> cases = all_cases(options_);
    if (cases.empty())
      fail(ErrorCode::kInvalidArgument, "no kernel matches \"{}\": leave --filter out to see all",
           options_.filter);
    if (options_.n % kQuantBlock != 0 || options_.k % 256 != 0)
      fail(ErrorCode::kInvalidArgument, "matrices of {} x {}: n must be a multiple of {}, k of 256",
           options_.n, options_.k, kQuantBlock);
    KernelBench out;
    out.level = table_.name;
    out.threads = pool_.size();
    out.peak = peak_ = arithmetic_peak(table_.name, pool_.size());
    out.read_peak = read_peak(beyond_caches());
    for (const BenchCase& c : cases) {
      out.figures.push_back(c.kind == BenchCase::Kind::kLinear   ? linear(c)
                            : c.kind == BenchCase::Kind::kAttend ? attend(c)
                                                                 : rows(c));
      if (progress) progress(out.figures.size(), cases.size());
    }
    return out;
  }

 private:
  struct Call {
    std::unique_ptr<CpuOp> op;
    std::vector<Tensor> in, out;
  };

  double beyond_caches() const { return std::max(4 * largest_cache_, 256e6); }

  // Footprints within a quarter of each other share a measurement.
  double read_peak(double footprint) {
    double most = beyond_caches();
    auto bucket = static_cast<int>(std::log2(std::clamp(footprint, 4096.0, most)) * 4);
    double& speed = read_[bucket];
    if (speed == 0) speed = read_speed(pool_.size(), std::min(footprint, most), 0.3);
    return speed;
  }

  KernelFigure figure(const BenchCase& c, double seconds, double bytes, double operations,
                      double footprint, double peak) {
    return {c.kernel, c.shape, seconds, bytes, operations, read_peak(footprint), peak};
  }

  void prepare(Call& call, std::string_view kernel, std::string_view op, const Value& attrs,
               KvStore& kv, const Region* region) {
    OpSite site{nullptr, op,           attrs,   call.in, call.out, table_,
                kv,      pool_.size(), "bench", {},      region};
    call.op = make_op(planned_kernel({std::string(kernel), 1, ""}), site);
    call.in.resize(std::max<size_t>(call.in.size(), 10));
  }

  // Seconds of a call: the shortest round over all of them, divided by their number.
  double time(std::vector<Call>& calls, KvStore& kv, const StepInputs* step) {
    int64_t own = 64, shared = 64;
    for (const Call& c : calls) {
      own = std::max(own, c.op->scratch_bytes());
      shared = std::max(shared, c.op->shared_bytes());
    }
    own = (own + 4095) / 4096 * 4096 + 64;
    Buffer scratch(static_cast<uint64_t>(own * pool_.size() + shared));
    StepContext context{table_, kv, pool_.size()};
    context.step = step;
    context.scratch = scratch.data();
    context.scratch_bytes = own;
    context.shared_scratch = scratch.data() + own * pool_.size();
    for (Call& c : calls) c.op->bind(c.in.data(), c.out.data(), context);
    auto walk = [&](int thread) {
      StepContext mine = context;
      mine.thread = thread;
      for (const Call& c : calls) {
        int stages = c.op->stages(c.in.data(), c.out.data(), mine);
        for (mine.stage = 0; mine.stage < stages; ++mine.stage) {
          c.op->run(c.in.data(), c.out.data(), mine);
          pool_.barrier();
        }
      }
    };
    SteadyClock clock;
    double best = 1e30, spent = 0;
    for (int round = 0; round < 2 || spent < options_.seconds; ++round) {
      Nanos start = clock.now();
      pool_.run(walk);
      double t = seconds(clock.now() - start);
      best = std::min(best, t);
      spent += t;
    }
    return std::max(best, 1e-9) / static_cast<double>(calls.size());
  }

  // The same matrix `count` times.
  std::vector<Weight> matrices(DType dtype, int64_t n, int64_t k, size_t count) {
    WeightTable table;
    WeightEntry entry{"w", dtype, {n, k}, {}, {}, matrix_layout(dtype)};
    entry.recipe.sources = {"w"};
    table.add("w", dtype, {n, k},
              std::vector<std::byte>(dtype_bytes(dtype, k) * static_cast<size_t>(n),
                                     static_cast<std::byte>(kWeightByte)));
    std::vector<Weight> out;
    for (size_t i = 0; i < count; ++i) out.push_back(load_cpu_weight(entry, table, table_, pool_));
    return out;
  }

  KernelFigure linear(const BenchCase& c) {
    bool integers = qformat_of(c.dtype).has_value();
    bool tiles = table_.tile_unit.multiply,
         half = c.dtype == DType::kBF16 || c.dtype == DType::kF16;
    bool rounded = half ? tiles || table_.bf16_pack : tiles && integers && options_.bf16;
    bool bf16 = rounded && (tiles || table_.rounded[static_cast<int>(*ftype_of(c.dtype))].row);
    DType type = rounded ? DType::kBF16 : integers ? DType::kQ8A : DType::kF32;
    Weight first = std::move(matrices(c.dtype, c.n, c.k, 1)[0]);
    double weight = static_cast<double>(panels_of(c.n) * first.panel_bytes);
    size_t count = c.rows > 32 ? 1 : static_cast<size_t>(beyond_caches() / weight) + 1;
    std::vector<Weight> weights = matrices(c.dtype, c.n, c.k, count - 1);
    weights.push_back(std::move(first));
    Buffer x(dtype_bytes(type, c.rows * c.k)), y(static_cast<uint64_t>(c.rows * c.n) * 4);
    fill(x, type, c.rows * c.k);
    Region region;
    region.inputs = 2;
    region.values = {type_of(type, {c.rows, c.k}), type_of(c.dtype, {c.n, c.k}),
                     type_of(DType::kF32, {c.rows, c.n})};
    region.pieces = {{nullptr, "linear", Value::object(), {0, 1}, {2}}};
    region.results = {2};
    KvStore kv;
    std::vector<Call> calls(weights.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      Tensor w = tensor(nullptr, c.dtype, {c.n, c.k});
      w.weight = &weights[i];
      calls[i].in = {tensor(x.data(), type, {c.rows, c.k}), w};
      calls[i].out = {tensor(y.data(), DType::kF32, {c.rows, c.n})};
      const char* kernel = integers                  ? "cpu.region.linears"
                           : c.dtype == DType::kBF16 ? "cpu.region.linears.bf16"
                                                     : "cpu.region.linears.float";
      prepare(calls[i], kernel, "region", Value(), kv, &region);
    }
    double bytes = weight + static_cast<double>(dtype_bytes(type, c.rows * c.k)) +
                   static_cast<double>(c.rows * c.n) * 4;
    double operations = 2.0 * static_cast<double>(c.rows) * static_cast<double>(c.n * c.k);
    return figure(c, time(calls, kv, nullptr), bytes, operations,
                  weight * static_cast<double>(count),
                  bf16       ? peak_.bf16
                  : integers ? peak_.i8
                             : peak_.f32);
  }

  void fill(const Buffer& x, DType type, int64_t elements) const {
    std::vector<float> values(static_cast<size_t>(elements));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) * 0.02f;
    if (type == DType::kF32)
      std::memcpy(x.data(), values.data(), values.size() * 4);
    else
      encode_activations(table_, type, values.data(), elements, x.data());
  }

  KernelFigure attend(const BenchCase& c) {
    int64_t length = c.k + c.rows, stride = (length + kBlockTokens - 1) / kBlockTokens,
            all = c.rows * c.n;
    PlanSet set = cache_plans(c.dtype);
    KvStore kv(set, {stride * c.n});
    StepInputs step;
    std::vector<int32_t> pos, seq, q_start = {0}, kv_len;
    step.tables.resize(1);
    step.tables[0].stride = static_cast<int32_t>(stride);
    for (int64_t b = 0; b < c.n; ++b) {
      for (int64_t r = 0; r < c.rows; ++r) {
        pos.push_back(static_cast<int32_t>(c.k + r));
        seq.push_back(static_cast<int32_t>(b));
      }
      q_start.push_back(static_cast<int32_t>(pos.size()));
      kv_len.push_back(static_cast<int32_t>(length));
      for (int64_t j = 0; j < stride; ++j)
        step.tables[0].blocks.push_back(static_cast<int32_t>(b * stride + j));
    }
    Buffer q(static_cast<uint64_t>(all * kHeads * kHeadDim) * 4), y(q.bytes());
    fill(q, DType::kF32, all * kHeads * kHeadDim);
    std::vector<Call> calls(1);
    calls[0].in = {tensor(q.data(), DType::kF32, {all, kHeads, kHeadDim}),
                   Tensor{},
                   Tensor{},
                   integers(pos),
                   integers(seq),
                   integers(pos),
                   integers(q_start),
                   integers(kv_len)};
    calls[0].out = {tensor(y.data(), DType::kF32, {all, kHeads, kHeadDim})};
    Value attrs = Value::Object{{"scale", 0.125}};
    if (options_.bf16) attrs.set(std::string(kAttendProducts), "bf16");
    prepare(calls[0], "cpu.attend", "attend", attrs, kv, nullptr);
    double per_token = 2.0 * static_cast<double>(set.states[0].planes[0].bytes_per_token),
           keys = static_cast<double>(c.n) *
                  (static_cast<double>(c.rows * c.k) +
                   0.5 * static_cast<double>(c.rows) * static_cast<double>(c.rows + 1)),
           bytes = static_cast<double>(c.n * length) * per_token +
                   8.0 * static_cast<double>(all * kHeads * kHeadDim);
    return figure(c, time(calls, kv, &step), bytes, 4.0 * keys * kHeads * kHeadDim, bytes,
                  peak_.f32);
  }

  KernelFigure rows(const BenchCase& c) {
    const OpDef* op = find_op(c.op);
    int64_t elements = c.rows * c.n;
    Buffer a(static_cast<uint64_t>(elements) * 4), b(a.bytes()), y(a.bytes());
    fill(a, DType::kF32, elements);
    fill(b, DType::kF32, elements);
    Weight norm;
    norm.plain = b.data();
    bool second = c.op == "add" || c.op == "mul";
    DType stored = c.op == "quantize" ? DType::kQ8A : DType::kF32;
    std::vector<Call> calls(1);
    calls[0].in = {tensor(a.data(), DType::kF32, {c.rows, c.n})};
    if (second) calls[0].in.push_back(tensor(b.data(), DType::kF32, {c.rows, c.n}));
    if (c.op == "rms_norm") {
      calls[0].in.push_back(tensor(b.data(), DType::kF32, {c.n}));
      calls[0].in[1].weight = &norm;
    }
    calls[0].out = {tensor(y.data(), stored, {c.rows, c.n})};
    Value attrs = Value::object();
    if (c.op == "rms_norm") attrs.set("eps", 1e-5);
    KvStore kv;
    prepare(calls[0], "cpu." + c.op, c.op, attrs, kv, nullptr);
    std::vector<Type> in(second || c.op == "rms_norm" ? 2 : 1, type_of(DType::kF32, {c.rows, c.n}));
    const std::vector<Type> out = {type_of(stored, {c.rows, c.n})};
    SymExpr flops = op->flops ? op->flops(in, out) : SymExpr(elements);
    double bytes = static_cast<double>(elements) * (second ? 8 : 4) +
                   static_cast<double>(dtype_bytes(stored, elements));
    return figure(c, time(calls, kv, nullptr), bytes, static_cast<double>(*flops.constant()), bytes,
                  peak_.f32);
  }

  const KernelBenchOptions& options_;
  ThreadPool pool_;
  const KernelTable& table_;
  double largest_cache_ = 0;
  ArithmeticPeak peak_;
  std::map<int, double> read_;  // by footprint
};

}  // namespace

KernelBench bench_kernels(const KernelBenchOptions& options,
                          const std::function<void(size_t, size_t)>& progress) {
  return Bench(options).run(progress);
}

}  // namespace tokamak::cpu
