// Bytes of experts that a step reads, counted by page faults: the packed weights lie in memory that
// may not be accessed; the first access to a page is counted and allowed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/error.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

constexpr size_t kPage = 4096;

// Memory for the experts. One at a time: the handler of the signal needs it.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    TK_CHECK(data_ != MAP_FAILED);
    current = this;
    struct sigaction action {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~GuardedMemory() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(data_, bytes_);
    current = nullptr;
  }
  GuardedMemory(const GuardedMemory&) = delete;
  std::byte* data() { return data_; }
  void guard() {
    pages_ = 0;
    TK_CHECK(mprotect(data_, bytes_, PROT_NONE) == 0);
  }
  size_t bytes_read() const { return pages_ * kPage; }

 private:
  static void fault(int, siginfo_t* info, void*) {
    auto* at = static_cast<std::byte*>(info->si_addr);
    if (at < current->data_ || at >= current->data_ + current->bytes_) {
      sigaction(SIGSEGV, &current->before_, nullptr);  // not ours: fault again
      return;
    }
    ++current->pages_;
    mprotect(current->data_ + (at - current->data_) / static_cast<ptrdiff_t>(kPage) * kPage, kPage,
             PROT_READ);
  }
  static inline GuardedMemory* current = nullptr;
  std::byte* data_;
  size_t bytes_;
  std::atomic<size_t> pages_ = 0;
  struct sigaction before_ {};
};

// A model whose experts are packed in guarded memory.
class GuardedModel final : public ModelSource, public WeightSource {
 public:
  GuardedModel(std::unique_ptr<ModelSource> model, Backend& backend)
      : model_(std::move(model)), packing_(backend.packing()), memory_(size_t{1} << 20) {
    backend.pack_weights(plans(), model_->weights(),
                         [&](const WeightEntry& entry, const PackedWeight& packed) {
                           if (!entry.name.ends_with("_exps.weight")) return;
                           std::byte* to = memory_.data() + used_;
                           std::memcpy(to, packed.matrix.data(), packed.matrix.size());
                           packed_[entry.name].matrix = {to, packed.matrix.size()};
                           used_ += (packed.matrix.size() + kPage - 1) / kPage * kPage;
                         });
  }
  size_t expert_bytes() const { return used_; }
  GuardedMemory& memory() { return memory_; }

  const PlanSet& plans() const override { return model_->plans(); }
  const WeightSource& weights() const override { return *this; }
  const TokenizerSpec& tokenizer() const override { return model_->tokenizer(); }
  const Value& metadata() const override { return model_->metadata(); }
  const EmbeddingSpec& embedding() const override { return model_->embedding(); }
  const TensorView* find(std::string_view name) const override {
    return model_->weights().find(name);
  }
  std::vector<std::string> names() const override { return model_->weights().names(); }
  const PackedWeight* packed(std::string_view name, std::string_view) const override {
    auto it = packed_.find(name);
    return it == packed_.end() ? nullptr : &it->second;
  }
  std::string_view packing() const override { return packing_; }

 private:
  std::unique_ptr<ModelSource> model_;
  std::string packing_;
  GuardedMemory memory_;
  size_t used_ = 0;
  std::map<std::string, PackedWeight, std::less<>> packed_;
};

// Two of four experts per token and layer: half of their bytes, whichever they are. Many tokens
// read all of them once.
TEST(ExpertsRead, OnlyThoseThatAreHit) {
  const char* models = std::getenv("TOKAMAK_TINY_FAMILIES");
  if (!models) GTEST_SKIP() << "TOKAMAK_TINY_FAMILIES is not a folder";
  if (sysconf(_SC_PAGESIZE) != kPage) GTEST_SKIP() << "an expert does not fill whole pages";
  RunnerOptions options{.backend = "cpu"};
  auto backend = make_backend("cpu", {options.threads, {}});
  CompileOptions compile;
  compile.activations = "f32";
  compile.max_sequences = options.sequences;
  compile.max_tokens = compile.max_logit_rows = options.max_tokens;
  auto compiled = compile_model(std::string(models) + "/mixtral", *backend, compile);
  auto source = std::make_unique<GuardedModel>(std::move(compiled), *backend);
  GuardedModel& model = *source;
  ModelRunner runner(std::move(source), std::move(backend), options);
  size_t all = model.expert_bytes();
  EXPECT_EQ(all, 2u * 4 * 3 * 96 * 64 * 4);
  for (int32_t id : {5, 77, 30}) {
    model.memory().guard();
    runner.decode({{0, {id}}});
    EXPECT_EQ(model.memory().bytes_read(), all / 2) << "token " << id;
  }
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 40; ++i) prompt.push_back(4 + i * 3);
  model.memory().guard();
  runner.step({{1, prompt}});
  EXPECT_EQ(model.memory().bytes_read(), all);
}

}  // namespace
}  // namespace tokamak
