#include "backend/cuda/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace tokamak::cuda {

// Layout of cublasLtMatmulHeuristicResult_t.
struct BlasHeuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

namespace {

// Numbers of the library's enumerations.
constexpr int kComputeF32 = 68, kRealF32 = 0, kRealF16 = 2, kRealBF16 = 14;
constexpr int kTransposeA = 3, kTranspose = 1;
constexpr int kMaxWorkspace = 1;
constexpr int kGuesses = 16, kRepeats = 3;
// The most rows that a measured algorithm is used for; of more, the first proposal is good.
constexpr std::array<int64_t, 9> kMeasuredRows = {8, 16, 32, 48, 64, 96, 128, 192, 256};
constexpr size_t kMostPlans = 1024;

int library_type(DType type) {
  return type == DType::kF32 ? kRealF32 : type == DType::kF16 ? kRealF16 : kRealBF16;
}

const void* pointer(DeviceAddress address) { return reinterpret_cast<const void*>(address); }

}  // namespace

struct Blas::Calls {
  void* library = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*desc_create)(Handle*, int, int) = nullptr;
  int (*desc_destroy)(Handle) = nullptr;
  int (*desc_set)(Handle, int, const void*, size_t) = nullptr;
  int (*layout_create)(Handle*, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*layout_destroy)(Handle) = nullptr;
  int (*preference_create)(Handle*) = nullptr;
  int (*preference_destroy)(Handle) = nullptr;
  int (*preference_set)(Handle, int, const void*, size_t) = nullptr;
  int (*heuristic)(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, BlasHeuristic*,
                   int*) = nullptr;
  int (*check)(Handle, Handle, Handle, Handle, Handle, Handle, const void*,
               BlasHeuristic*) = nullptr;
  int (*matmul)(Handle, Handle, const void*, const void*, Handle, const void*, Handle, const void*,
                const void*, Handle, void*, Handle, const void*, void*, size_t, Handle) = nullptr;

  ~Calls() {
    if (library) dlclose(library);
  }
  template <class F>
  bool find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
  }
  bool open(const char* path) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library && find(create, "cublasLtCreate") && find(destroy, "cublasLtDestroy") &&
           find(desc_create, "cublasLtMatmulDescCreate") &&
           find(desc_destroy, "cublasLtMatmulDescDestroy") &&
           find(desc_set, "cublasLtMatmulDescSetAttribute") &&
           find(layout_create, "cublasLtMatrixLayoutCreate") &&
           find(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           find(preference_create, "cublasLtMatmulPreferenceCreate") &&
           find(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
           find(check, "cublasLtMatmulAlgoCheck") && find(matmul, "cublasLtMatmul");
  }
};

// The library computes in columns: y^T[n, rows] = w[n, k] * x^T[k, rows].
struct Blas::Plan {
  const Calls& calls;
  Handle desc = nullptr, w = nullptr, x = nullptr, y = nullptr;
  bool usable = false;
  Algorithm chosen{};

  Plan(const Calls& c, const BlasProduct& p) : calls(c) {
    auto rows = static_cast<uint64_t>(p.rows), n = static_cast<uint64_t>(p.n),
         k = static_cast<uint64_t>(p.k);
    int type = library_type(p.type), transpose = kTranspose;
    usable = c.desc_create(&desc, kComputeF32, kRealF32) == 0 &&
             c.desc_set(desc, kTransposeA, &transpose, sizeof transpose) == 0 &&
             c.layout_create(&w, type, k, n, p.k) == 0 &&
             c.layout_create(&x, type, k, rows, p.k) == 0 &&
             c.layout_create(&y, library_type(p.out), n, rows, p.n) == 0;
  }
  ~Plan() {
    for (Handle layout : {w, x, y})
      if (layout) calls.layout_destroy(layout);
    if (desc) calls.desc_destroy(desc);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

std::unique_ptr<Blas> Blas::load() {
  const char* named = std::getenv("TOKAMAK_CUBLASLT");
  std::vector<std::string> names = {"libcublasLt.so.13", "libcublasLt.so.12"};
  if (named) names = {named};
  if (named && std::string_view(named) == "0") return nullptr;
  for (const std::string& name : names) {
    auto calls = std::make_unique<Calls>();
    if (!calls->open(name.c_str())) continue;
    auto made = std::unique_ptr<Blas>(new Blas(std::move(calls)));
    if (made->handle_) return made;
  }
  log::info("cuBLASLt was not found: products run in the backend's own kernels");
  return nullptr;
}

Blas::Blas(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {
  if (calls_->create(&handle_) != 0) handle_ = nullptr;
  if (handle_) workspace_ = Buffer(kWorkspaceBytes);
}
Blas::~Blas() {
  plans_.clear();
  if (handle_) calls_->destroy(handle_);
}

bool Blas::takes(const BlasProduct& p) {
  const bool narrow = p.type == DType::kBF16 || p.type == DType::kF16;
  return narrow && (p.out == p.type || p.out == DType::kF32) && p.k % 8 == 0 && p.n % 8 == 0 &&
         p.x % 16 == 0 && p.w % 16 == 0 && p.y % 16 == 0 && p.rows > 0;
}

int Blas::multiply(const Plan& plan, const void* algorithm, const BlasProduct& p,
                   Handle stream) const {
  const float one = 1, zero = 0;
  auto* y = reinterpret_cast<void*>(p.y);
  return calls_->matmul(handle_, plan.desc, &one, pointer(p.w), plan.w, pointer(p.x), plan.x, &zero,
                        y, plan.y, y, plan.y, algorithm, workspace_.as<void>(), workspace_.bytes(),
                        stream);
}

std::vector<Blas::Algorithm> Blas::proposals(const Plan& plan, int most) const {
  std::vector<BlasHeuristic> guesses(static_cast<size_t>(most));
  int found = 0;
  Handle preference = nullptr;
  const size_t workspace = workspace_.bytes();
  const bool asked =
      calls_->preference_create(&preference) == 0 &&
      calls_->preference_set(preference, kMaxWorkspace, &workspace, sizeof workspace) == 0 &&
      calls_->heuristic(handle_, plan.desc, plan.w, plan.x, plan.y, plan.y, preference, most,
                        guesses.data(), &found) == 0;
  if (preference) calls_->preference_destroy(preference);
  std::vector<Algorithm> list;
  for (int i = 0; asked && i < found; ++i)
    std::copy_n(guesses[static_cast<size_t>(i)].algorithm, 8, list.emplace_back().words);
  return list;
}

// Whether what was measured for another number of rows computes this one.
bool Blas::works(const Plan& plan, const Algorithm& algorithm) const {
  BlasHeuristic result{};
  return calls_->check(handle_, plan.desc, plan.w, plan.x, plan.y, plan.y, algorithm.words,
                       &result) == 0 &&
         result.status == 0 && result.workspace <= workspace_.bytes();
}

std::shared_ptr<const Blas::Plan> Blas::prepare(const BlasProduct& p) {
  if (plans_.size() >= kMostPlans) plans_.clear();
  std::shared_ptr<const Plan>& known = plans_[key(p)];
  if (!known) {
    auto plan = std::make_shared<Plan>(*calls_, p);
    auto of_matrix = measured_.find(matrix(p));
    const Algorithm* chosen = nullptr;
    if (plan->usable && of_matrix != measured_.end())
      if (auto it = of_matrix->second.lower_bound(p.rows); it != of_matrix->second.end())
        if (works(*plan, it->second)) chosen = &it->second;
    std::vector<Algorithm> first;
    if (plan->usable && !chosen && !(first = proposals(*plan, 1)).empty()) chosen = &first[0];
    plan->usable = chosen != nullptr;
    if (chosen) plan->chosen = *chosen;
    known = std::move(plan);
  }
  return known->usable ? known : nullptr;
}

double Blas::seconds_of(const Plan& plan, const Algorithm& algorithm, const BlasProduct& p,
                        const DeviceStream& stream) const {
  const DeviceEvent begin, end;
  const size_t half = workspace_.bytes() / 2;
  double best = std::numeric_limits<double>::infinity();
  for (int r = 0; r < kRepeats; ++r) {
    // Other bytes take the place of the weights in the cache, as in a step.
    stream.copy(workspace_.address(), workspace_.address() + half, half);
    begin.record(stream);
    if (multiply(plan, algorithm.words, p, stream.get()) != 0) break;
    end.record(stream);
    end.wait();
    best = std::min(best, end.seconds_since(begin));
  }
  return best;
}

void Blas::measure(BlasProduct p, const DeviceStream& stream) {
  if (measured_.contains(matrix(p))) return;
  const int64_t most = std::min(p.rows, kMeasuredRows.back());
  auto bytes = [](int64_t elements, DType type) { return dtype_bytes(type, elements); };
  const Buffer x(bytes(most * p.k, p.type)), y(bytes(most * p.n, p.out));
  check(driver().stream_wait(nullptr), "clearing memory");
  p.x = x.address();
  p.y = y.address();
  // Weights serve as values: zeros would take less power, and so less time.
  stream.copy(p.x, p.w, bytes(std::min(most, p.n) * p.k, p.type));
  std::map<int64_t, Algorithm>& of_matrix = measured_[matrix(p)];
  for (int64_t rows : kMeasuredRows) {
    if (rows > most) break;
    p.rows = rows;
    const Plan plan(*calls_, p);
    if (!plan.usable || !takes(p)) continue;
    double best = std::numeric_limits<double>::infinity();
    for (const Algorithm& algorithm : proposals(plan, kGuesses)) {
      const double seconds = seconds_of(plan, algorithm, p, stream);
      if (seconds >= best) continue;
      best = seconds;
      of_matrix[rows] = algorithm;
    }
  }
}

void Blas::run(const Plan& plan, const BlasProduct& p, Handle stream) const {
  if (int status = multiply(plan, plan.chosen.words, p, stream); status != 0)
    fail(ErrorCode::kInternal, "cuBLASLt failed with status {} on a product of {} x {} x {}",
         status, p.rows, p.n, p.k);
}

}  // namespace tokamak::cuda
