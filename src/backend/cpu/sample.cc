// Sampling: the stages and the choice of a token as one kernel, and log-probabilities.
#include <algorithm>

#include "backend/common/token_chooser.h"
#include "backend/cpu/kernels.h"
#include "base/error.h"

namespace tokamak::cpu {
namespace {

// Rows are shared out. Each thread has a chooser, made when it first has a row.
class RowsOfTokens : public CpuOp {
 public:
  RowsOfTokens(int64_t vocab, int threads)
      : vocab_(vocab), choosers_(static_cast<size_t>(threads)) {}
  uint64_t own_bytes() const override { return choosers_.size() * TokenChooser::bytes(vocab_); }

 protected:
  TokenChooser& chooser(int thread) const {
    std::unique_ptr<TokenChooser>& mine = choosers_[static_cast<size_t>(thread)];
    if (!mine) mine = std::make_unique<TokenChooser>(vocab_);
    return *mine;
  }
  Part rows(const Tensor& logits, const StepContext& c) const {
    return c.part(logits.dims[0], std::max<int64_t>(1, kLightGrain / (2 * vocab_)));
  }
  void touch_row_values(const Tensor& t, Part rows, bool write, AccessList& list) const {
    int64_t width = t.elements() / std::max<int64_t>(t.dims[0], 1) * 4;
    if (write)
      list.write_rows(t, width, rows.begin, rows.end);
    else
      list.read_rows(t, width, rows.begin, rows.end);
  }
  int64_t vocab_;

 private:
  mutable std::vector<std::unique_ptr<TokenChooser>> choosers_;
};

// The stages in their order, the params that each of them reads, and which of their operands is
// which of SampleArgs.
struct Stage {
  std::string_view op;
  std::vector<SampleParam> params = {};
};
const Stage kStages[] = {
    {"penalize_tokens", {kParamRepetition, kParamPresence, kParamFrequency}},
    {"penalize_repeats", {kParamDryMultiplier, kParamDryBase}},
    {"bias_tokens"},
    {"allow_tokens"},
    {"run_stages"},
    {"keep_top_n_sigma", {kParamTopNSigma}},
    {"temper", {kParamTemperature, kParamDynatempRange, kParamDynatempExponent}},
    {"keep_min_p", {kParamMinP}},
    {"keep_top_k", {kParamTopK}},
    {"keep_typical", {kParamTypicalP}},
    {"keep_top_p", {kParamTopP}},
    {"exclude_top", {kParamXtcProbability, kParamXtcThreshold}},
};
struct Role {
  std::string_view op;
  size_t operand;
  const int32_t* SampleArgs::*integers = nullptr;
  const float* SampleArgs::*numbers = nullptr;
};
constexpr Role kRoles[] = {
    {"penalize_tokens", 3, &SampleArgs::history},
    {"penalize_tokens", 4, &SampleArgs::history_start},
    {"penalize_repeats", 3, &SampleArgs::history},
    {"penalize_repeats", 4, &SampleArgs::history_start},
    {"penalize_repeats", 5, &SampleArgs::breakers},
    {"penalize_repeats", 6, &SampleArgs::breaker_start},
    {"bias_tokens", 1, &SampleArgs::bias_ids},
    {"bias_tokens", 2, nullptr, &SampleArgs::bias_values},
    {"bias_tokens", 3, &SampleArgs::bias_start},
    {"allow_tokens", 1, &SampleArgs::masks},
    {"run_stages", 1, nullptr, &SampleArgs::ordered_params},
    {"run_stages", 3, &SampleArgs::history},
    {"run_stages", 4, &SampleArgs::history_start},
    {"run_stages", 5, &SampleArgs::breakers},
    {"run_stages", 6, &SampleArgs::breaker_start},
    {"run_stages", 7, &SampleArgs::order},
    {"choose_token", 1, nullptr, &SampleArgs::logits},
    {"choose_token", 2, nullptr, &SampleArgs::params},
    {"choose_token", 3, &SampleArgs::keys},
};

// From logits, or from what earlier stages left of them, to tokens. The region has the last stages
// of the default order, all on the same settings: that is what TokenChooser computes.
class ChooseTokens final : public RowsOfTokens {
 public:
  explicit ChooseTokens(const OpSite& site) : RowsOfTokens(vocab_of(site), site.threads) {
    const Region& region = *site.region;
    for (const Role& role : kRoles)
      for (const RegionPiece& piece : region.pieces)
        if (piece.op == role.op) uses_.push_back({&role, piece.in.at(role.operand)});
    size_t first = std::size(kStages) - (region.pieces.size() - 1);
    for (size_t i = 0; i < std::size(kStages); ++i)
      for (SampleParam p : kStages[i].params)
        if (i < first) done_ |= 1u << p;
    x_ = region.pieces[0].in[0];
    bool whole = region.pieces.size() <= std::size(kStages) + 1;
    for (size_t i = 0; whole && i < region.pieces.size(); ++i) {
      const RegionPiece& piece = region.pieces[i];
      bool last = first + i == std::size(kStages);
      whole = piece.op == (last ? "choose_token" : kStages[first + i].op) &&
              (i == 0 || piece.in[0] == region.pieces[i - 1].out[0]);
    }
    for (const Use& use : uses_) whole = whole && use.input < region.inputs;
    if (!whole || x_ >= region.inputs)
      fail(ErrorCode::kUnsupported,
           "{}: {} supports only the last sampling stages, in their usual order", site.label,
           site.kernel->name);
  }

  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    Part mine = rows(in[x_], c);
    if (mine.empty()) return;
    SampleArgs args;
    args.rows = in[x_].dims[0];
    args.vocab = vocab_;
    args.x = in[x_].f32();
    args.done = done_;
    for (const Use& use : uses_) {
      if (use.role->integers) args.*use.role->integers = in[use.input].i32();
      if (use.role->numbers) args.*use.role->numbers = in[use.input].f32();
    }
    TokenChooser& chooser = this->chooser(c.thread);
    for (int64_t r = mine.begin; r < mine.end; ++r) out[0].i32()[r] = chooser.choose(args, r);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    Part mine = rows(in[x_], c);
    if (mine.empty()) return;
    touch_row_values(in[x_], mine, false, list);
    for (const Use& use : uses_)
      if (use.role->numbers == &SampleArgs::logits)
        touch_row_values(in[use.input], mine, false, list);
    touch_row_values(out[0], mine, true, list);
  }

 private:
  struct Use {
    const Role* role;
    uint32_t input;
  };
  static int64_t vocab_of(const OpSite& site) {
    const Type& x = site.region->values.at(site.region->pieces.at(0).in.at(0));
    return *x.tensor.extent(1).constant();
  }

  std::vector<Use> uses_;
  uint32_t x_ = 0, done_ = 0;
};

class TokenLogprobs final : public RowsOfTokens {
 public:
  explicit TokenLogprobs(const OpSite& site) : RowsOfTokens(site.in[0].last(), site.threads) {}
  void run(const Tensor* in, const Tensor* out, const StepContext& c) const override {
    Part mine = rows(in[0], c);
    if (mine.empty()) return;
    SampleArgs args;
    args.rows = in[0].dims[0];
    args.vocab = vocab_;
    args.logits = in[0].f32();
    args.keys = in[2].i32();
    std::span<const int32_t> ranks(in[3].i32(), static_cast<size_t>(in[3].elements()));
    int64_t most = out[1].last();
    TokenChooser& chooser = this->chooser(c.thread);
    for (int64_t r = mine.begin; r < mine.end; ++r)
      chooser.report(args, r, in[1].i32()[r], ranks, out[0].f32()[r], out[1].i32() + r * most,
                     out[2].f32() + r * most);
  }
  void touch(const Tensor* in, const Tensor* out, const StepContext& c,
             AccessList& list) const override {
    Part mine = rows(in[0], c);
    if (mine.empty()) return;
    touch_row_values(in[0], mine, false, list);
    touch_row_values(in[1], mine, false, list);
    for (int i = 0; i < 3; ++i) touch_row_values(out[i], mine, true, list);
  }
};

}  // namespace

std::unique_ptr<CpuOp> make_choose_tokens(const OpSite& site) {
  return std::make_unique<ChooseTokens>(site);
}
std::unique_ptr<CpuOp> make_token_logprobs(const OpSite& site) {
  return std::make_unique<TokenLogprobs>(site);
}

// One kernel from logits to tokens.
void add_sample_kernels(KernelList& list) {
  std::string stages;
  for (const char* op : {"penalize_tokens", "penalize_repeats", "bias_tokens", "allow_tokens",
                         "run_stages", "keep_top_n_sigma", "temper", "keep_min_p", "keep_top_k",
                         "keep_typical", "keep_top_p", "exclude_top"}) {
    stages += std::string(stages.empty() ? "" : " ") + op;
  }
  list.add({.name = "cpu.choose_tokens",
            .abi = 2,  // the number of stages and parameters
            .pattern = "[" + stages + "] -> choose_token(f32, f32, f32, i32)",
            .weight_layout = "",
            .numeric_class = "",
            .cost = sample_cost},
           make_choose_tokens, true);
  list.add("token_logprobs", "token_logprobs(f32, i32, i32, i32)", "sums f64", make_token_logprobs);
}

}  // namespace tokamak::cpu
