// Runs the table of op cases: every backend against ref, ref against double precision.
//   op_tests [--backend cpu|cuda|cuda-emulated|ref, or several: ref,cpu] [--filter TEXT] [--list]
//   [--part 1/2] [--perf] [--levels] [--threads N]
// Several backends share the results of ref, which take longest.
// Needs no test framework and no file, so that it also runs cross-compiled under an emulator.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "backend/cpu/calibrate.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/peak.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/emulator/fake_driver.h"
#include "backend/ref/ref_backend.h"
#include "base/error.h"
#include "loop/evaluate.h"
#include "ops/case_plan.h"
#include "ops/evaluate.h"
#include "tensor/block_formats.h"

namespace tokamak::testing {
namespace {

struct Options {
  std::vector<std::string> backends = {"cpu"};
  std::string filter;
  bool list = false, perf = false;
  bool levels = false;  // odd sizes, at each instruction-set level of cpu that this machine has
  int threads = 2;
  size_t part = 0, parts = 1;  // every parts-th case, from the part-th on
};

std::vector<std::string> parse_backends(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    std::string name = text.substr(at, end - at);
    if (name != "cpu" && name != "ref" && name != "cuda" && name != "cuda-emulated")
      fail(ErrorCode::kInvalidArgument, "unknown backend {}: use cpu, cuda, cuda-emulated or ref",
           name);
    names.push_back(std::move(name));
    at = end + 1;
  }
  return names;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    std::string_view arg = argv[i];
    auto value = [&] {
      if (i + 1 >= argc) fail(ErrorCode::kInvalidArgument, "{} needs a value", arg);
      return std::string(argv[++i]);
    };
    if (arg == "--backend")
      o.backends = parse_backends(value());
    else if (arg == "--filter")
      o.filter = value();
    else if (arg == "--threads")
      o.threads = std::max(1, std::atoi(value().c_str()));
    else if (arg == "--part") {
      std::string of = value();
      if (std::sscanf(of.c_str(), "%zu/%zu", &o.part, &o.parts) != 2 || o.part < 1 ||
          o.part > o.parts)
        fail(ErrorCode::kInvalidArgument, "--part takes 1/2, 2/2 and the like, not {}", of);
      --o.part;
    } else if (arg == "--list")
      o.list = true;
    else if (arg == "--perf")
      o.perf = true;
    else if (arg == "--levels")
      o.levels = true;
    else
      fail(ErrorCode::kInvalidArgument,
           "unknown argument {}: use --backend, --filter, --levels, --list, --part, --perf or "
           "--threads",
           arg);
  }
  return o;
}

std::unique_ptr<Backend> make(const std::string& name, int threads) {
  BackendOptions options;
  options.threads = threads;
  if (name == "cuda-emulated") cuda::install_fake_driver();
  // Every case loads a plan: the context outlives them, because making one takes most of a second.
  static std::unique_ptr<cuda::Device> device;
  if (name == "cuda" && !device) device = std::make_unique<cuda::Device>(0);
  if (name == "cuda" || name == "cuda-emulated") return make_cuda_backend(options);
  return name == "ref" ? make_ref_backend(options) : make_cpu_backend(options);
}

// Normalised mean square error; infinite when anything is not finite or the sizes differ.
double error_of(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size() || got.empty()) return INFINITY;
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += d * d;
    size += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  if (!std::isfinite(difference) || !std::isfinite(size)) return INFINITY;
  return size > 0 ? difference / size : difference;
}

// The last output of a fused region.
Tensor<double> region_in_double(const Region& region, std::vector<Tensor<double>>& in,
                                int64_t tokens) {
  const loop::Program& program = *region.whole_program();
  std::vector<Tensor<double>> out;
  for (const TensorType& type : program.out) {
    int64_t n = type.elements().eval({{"T", tokens}});
    out.push_back(values<double>({n}, std::vector<double>(static_cast<size_t>(n))));
  }
  auto refs = [](std::vector<Tensor<double>>& list) {
    std::vector<TensorRef<double>> made;
    for (Tensor<double>& t : list)
      made.push_back(
          {t.dims, t.i.empty() ? t.f.data() : nullptr, t.i.empty() ? nullptr : t.i.data()});
    return made;
  };
  std::vector<TensorRef<double>> from = refs(in), to = refs(out);
  loop::evaluate_program<double>(program, {{"T", tokens}}, from, to);
  return out.back();
}

const std::vector<int32_t>& step_input(const StepInputs& step, std::string_view name) {
  return name == "ids"       ? step.ids
         : name == "pos"     ? step.pos
         : name == "seq"     ? step.seq
         : name == "q_start" ? step.q_start
                             : step.out_rows;
}

// Texts of extents with the number of tokens in place of T.
Value with_tokens(const Value& attr, int64_t tokens) {
  if (attr.is_string() && attr.as_string() == "T") return Value(std::to_string(tokens));
  if (!attr.is_array()) return attr;
  Value::Array list;
  for (const Value& v : attr.as_array()) list.push_back(with_tokens(v, tokens));
  return Value(std::move(list));
}

bool has_oracle(const OpCase& c) {
  return c.planes.empty() && c.earlier.empty() && c.unlike.empty() &&
         (!c.region || c.region->whole_program());
}

// The op in double on the same inputs; empty for ops on states and with several calls or unlike
// outputs (tests/golden/ops has those).
std::vector<float> in_double(const OpCase& c, const CasePlan& plan) {
  if (!has_oracle(c)) return {};
  using T = Tensor<double>;
  const StepInputs& step = plan.steps.back();
  auto decoded = [&](const CallArg& arg) {
    const WeightEntry& entry = plan.plans.weights[arg.index];
    if (arg.dtype == DType::kI32 && !entry.constant.empty())
      return integers<double>(entry.dims, {entry.constant.begin(), entry.constant.end()});
    if (!entry.constant.empty()) {
      std::vector<float> rounded(entry.constant.begin(), entry.constant.end());
      return values<double>(entry.dims, {rounded.begin(), rounded.end()});
    }
    const TensorView* view = plan.weights.find(entry.name);
    std::vector<float> f(static_cast<size_t>(view->elements()));
    decode_row(view->dtype, view->bytes.data(), f.data(), view->elements());
    return values<double>(view->dims, {f.begin(), f.end()});
  };
  auto ints = [&](const std::vector<int32_t>& v) {
    return integers<double>({static_cast<int64_t>(v.size())}, v);
  };
  // Evaluates the plan's calls in order; values are identified by their number.
  std::map<uint32_t, T> made;
  T last;
  for (const KernelCall& call : plan.plans.plans[0].calls) {
    std::vector<T> in;
    for (const CallArg& arg : call.in) {
      if (arg.kind == CallArg::Kind::kWeight) {
        in.push_back(decoded(arg));
      } else if (arg.kind == CallArg::Kind::kInput) {
        const std::string& name = plan.plans.inputs[arg.index].name;
        in.push_back(ints(step_input(step, name)));
      } else {
        T x = made.at(arg.index);
        x.dims.assign(1, step.tokens());
        for (size_t d = 1; d < arg.dims.size(); ++d) x.dims.push_back(*arg.dims[d].constant());
        in.push_back(std::move(x));
      }
    }
    Value attrs = Value::object();  // without the storage type: the result is rounded below
    for (const auto& [key, value] : call.attrs.as_object())
      if (key != kStorageAttr) attrs.set(key, with_tokens(value, step.tokens()));
    last = call.op == "region" ? region_in_double(*c.region, in, step.tokens())
                               : eval<double>(call.op, std::move(in), attrs);
    if (call.op == "quantize" &&
        call.out[0].dtype == DType::kQ8A) {  // scales are float32 in the format itself
      std::vector<float> f(last.f.begin(), last.f.end());
      std::vector<float> x(made.at(call.in[0].index).f.begin(), made.at(call.in[0].index).f.end());
      std::vector<std::byte> q(dtype_bytes(DType::kQ8A, static_cast<int64_t>(x.size())));
      encode_row(DType::kQ8A, x.data(), q.data(), static_cast<int64_t>(x.size()));
      decode_row(DType::kQ8A, q.data(), f.data(), static_cast<int64_t>(f.size()));
      last.f.assign(f.begin(), f.end());
      last.dtype = DType::kF32;
    }
    DType stored = call.out[0].dtype;
    if (stored == DType::kF16 || stored == DType::kBF16)
      for (double& x : last.f) x = nearest(stored, x);
    made[call.out[0].index] = last;
  }
  return {last.f.begin(), last.f.end()};
}

// One backend's share of the cases.
struct Checked {
  std::string name;
  std::unique_ptr<Backend> backend;
  int ran = 0, failures = 0, unsupported = 0;
};

// What is wrong with the results; empty if nothing is. `reference` is filled by the first backend
// that needs it.
std::string check_case(const OpCase& c, const CasePlan& plan, Checked& b, Backend& ref,
                       std::vector<float>& reference) {
  const bool oracle = b.name == "ref";
  if (reference.empty()) reference = run_case(build_case(c, ref), ref);
  std::vector<float> want = oracle ? in_double(c, plan) : reference;
  std::vector<float> got = oracle ? reference : run_case(plan, *b.backend);
  if (oracle && want.empty()) want = got;  // no oracle: only checks that values are finite
  double bound = !oracle ? c.bound : c.stored == DType::kF32 ? 1e-12 : 0;
  double error = error_of(got, want);
  return error <= bound ? "" : fmt::format("error {:.3g}, bound {:.3g}", error, bound);
}

int check(const Options& options, const std::vector<OpCase>& cases) {
  auto ref = make("ref", 1);
  std::vector<Checked> backends;
  for (const std::string& name : options.backends)
    backends.push_back({name, make(name, options.threads)});
  for (const OpCase& c : cases) {
    std::vector<float> reference;
    for (Checked& b : backends) {
      CasePlan plan = build_case(c, *b.backend);
      if (!plan.supported) {
        ++b.unsupported;
        continue;
      }
      std::string problem;
      try {
        problem = check_case(c, plan, b, *ref, reference);
      } catch (const Error& e) {
        if (e.code() == ErrorCode::kUnsupported && !c.region) {
          ++b.unsupported;
          continue;
        }
        problem = e.what();
      }
      ++b.ran;
      if (problem.empty()) continue;
      ++b.failures;
      fmt::print("FAILED {} on {}: {}\n", c.name, b.name, problem);
    }
  }
  bool good = true;
  for (const Checked& b : backends) {
    fmt::print("{} ({}): {} cases, {} failed, {} without a kernel\n", b.name, b.backend->isa(),
               b.ran, b.failures, b.unsupported);
    good = good && b.failures == 0 && b.ran > 0;
  }
  return good ? 0 : 1;
}

// Seconds of one call of the op: a plan with many calls minus a plan with one.
double measure(const OpCase& c, Backend& backend) {
  auto best = [&](int repeat) {
    CasePlan plan = build_case(c, backend, repeat);
    auto executable = backend.load(plan.plans, plan.weights, plan.options);
    StepResult result;
    for (const StepInputs& step : plan.steps) executable->collect(executable->submit(step), result);
    double seconds = INFINITY, spent = 0;
    for (int i = 0; i < 20 && spent < 0.5; ++i) {
      executable->collect(executable->submit(plan.steps.back()), result);
      seconds = std::min(seconds, result.seconds);
      spent += result.seconds;
    }
    return seconds;
  };
  constexpr int kRepeat = 9;
  double many = best(kRepeat), one = best(1);
  // On a noisy machine the difference may not be usable; then the overhead of the plan is included.
  return many > one * 1.5 ? (many - one) / (kRepeat - 1) : many / kRepeat;
}

// A figure and its share of the machine's peak; "-" if the peak is not known.
std::string with_share(double figure, double peak) {
  return peak > 0 ? fmt::format("{:9.2f} {:4.0f}%", figure / 1e9, 100 * figure / peak)
                  : fmt::format("{:9.2f}     -", figure / 1e9);
}

int perf(const Options& options, const std::vector<OpCase>& cases) {
  const std::string& name = options.backends.front();
  auto backend = make(name, options.threads);
  cpu::ArithmeticPeak peak = cpu::arithmetic_peak(cpu::choose_table()->name, options.threads);
  fmt::print(
      "{} ({}), {} threads; measured peaks: memory {:.1f} GB/s, f32 {:.0f} and int8 {:.0f} "
      "G operations/s; the share of GB/s is of reading as many bytes as the case moves\n",
      name, backend->isa(), options.threads, read_speed(options.threads, 256 << 20, 0.2) / 1e9,
      peak.f32 / 1e9, peak.i8 / 1e9);
  fmt::print("{:44} {:>10} {:>15} {:>15}\n", "case", "us", "GB/s  peak", "GOP/s  peak");
  std::map<int64_t, double> read;  // by footprint
  for (const OpCase& c : cases) {
    CasePlan plan = build_case(c, *backend);
    if (!plan.supported) continue;
    double seconds = measure(c, *backend);
    auto footprint = static_cast<int64_t>(plan.bytes);
    if (!read.count(footprint))
      read[footprint] = read_speed(options.threads, static_cast<double>(footprint), 0.1);
    bool integers = c.name.find("/q8a/") != std::string::npos;
    fmt::print("{:44} {:10.1f} {} {}\n", c.name, seconds * 1e6,
               with_share(plan.bytes / seconds, read[footprint]),
               with_share(plan.flops / seconds, integers ? peak.i8 : peak.f32));
    std::fflush(stdout);
  }
  return 0;
}

// With TOKAMAK_ISA set to each level in turn.
int check_levels(const Options& options, const std::vector<OpCase>& cases) {
  int status = 0;
  for (const cpu::KernelTable* table : cpu::available_tables()) {
    setenv("TOKAMAK_ISA", table->name, 1);
    status = std::max(status, check(options, cases));
  }
  return status;
}

// Ops without a case, except those of `sample` (tests of samplers have these) and those that no
// backend runs by themselves.
int check_coverage(const std::vector<OpCase>& cases) {
  std::set<std::string_view> covered = {
      "penalize_tokens",  "penalize_repeats", "bias_tokens",  "allow_tokens",   "run_stages",
      "keep_top_n_sigma", "temper",           "keep_min_p",   "keep_top_k",     "keep_typical",
      "keep_top_p",       "exclude_top",      "choose_token", "token_logprobs", "append",
      "quantize",         "identity",         "dropout",      "iota",           "input",
      "weight",           "constant",         "region_write"};
  for (const OpCase& c : cases) {
    covered.insert(c.op);
    for (const EarlierCall& call : c.earlier) covered.insert(call.op);
  }
  int missing = 0;
  for (const OpDef* op : all_ops()) {
    if (covered.count(op->name)) continue;
    ++missing;
    fmt::print("FAILED: no case of {}\n", op->name);
  }
  return missing == 0 ? 0 : 1;
}

int run(int argc, char** argv) {
  Options options = parse(argc, argv);
  std::vector<OpCase> cases = options.perf     ? perf_cases()
                              : options.levels ? odd_cases()
                                               : correctness_cases();
  std::erase_if(cases,
                [&](const OpCase& c) { return c.name.find(options.filter) == std::string::npos; });
  size_t at = 0;
  std::erase_if(cases, [&](const OpCase&) { return at++ % options.parts != options.part; });
  if (options.list) {
    for (const OpCase& c : cases) fmt::print("{}\n", c.name);
    return 0;
  }
  if (options.perf) return perf(options, cases);
  if (options.levels) return check_levels(options, cases);
  const bool all = options.filter.empty() && options.parts == 1;
  return std::max(check(options, cases), all ? check_coverage(cases) : 0);
}

}  // namespace
}  // namespace tokamak::testing

int main(int argc, char** argv) {
  try {
    return tokamak::testing::run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "op_tests: {}\n", e.what());
    return 2;
  }
}
