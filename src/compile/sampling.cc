#include "compile/sampling.h"

#include "ops/sampling.h"

namespace tokamak {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 30;  // of the lists of all rows

class SampleBuilder {
 public:
  SampleBuilder(Module& module, const TensorType& logits)
      : fn_(module.add_function(std::string(kSampleFunction))), rows_(logits.dims[0]) {
    module.symbols.push_back({"history", 1, kMostEntries, 1});
    module.symbols.push_back({"breakers", 1, kMostEntries, 1});
    module.symbols.push_back({"biases", 1, kMostEntries, 1});
    module.symbols.push_back({"masks", 1, kMostEntries, 1});
    module.symbols.push_back({"tops", 1, kMostTops, 1});
    fn_.set_provenance("sampling");
    int64_t vocab = *logits.extent(1).constant();
    logits_ = fn_.add_input("logits", Type::of(logits));
    params_ = input("params", DType::kF32, {rows_, {"param", kSampleParams}});
    ordered_params_ = input("ordered_params", DType::kF32, {rows_, {"param", kSampleParams}});
    keys_ = input("keys", DType::kI32, {rows_, {"key", kSampleKeys}});
    order_ = input("order", DType::kI32, {rows_, {"stage", kSampleStages}});
    masks_ = input("masks", DType::kI32, {list("masks"), {"word", (vocab + 31) / 32}});
    history_ = input("history", DType::kI32, {list("history")});
    history_start_ = input("history_start", DType::kI32, {starts()});
    breakers_ = input("breakers", DType::kI32, {list("breakers")});
    breaker_start_ = input("breaker_start", DType::kI32, {starts()});
    bias_ids_ = input("bias_ids", DType::kI32, {list("biases")});
    bias_values_ = input("bias_values", DType::kF32, {list("biases")});
    ranks_ = input("ranks", DType::kI32, {list("tops")});
    bias_start_ = input("bias_start", DType::kI32, {starts()});
  }

  void build() {
    Ref x = fn_.add("penalize_tokens", {logits_, params_, keys_, history_, history_start_});
    x = fn_.add("penalize_repeats",
                {x, params_, keys_, history_, history_start_, breakers_, breaker_start_});
    x = fn_.add("bias_tokens", {x, bias_ids_, bias_values_, bias_start_});
    x = fn_.add("allow_tokens", {x, masks_, keys_});
    // Rows with an order of their own: they pass through the stages that follow unchanged.
    x = fn_.add("run_stages", {x, ordered_params_, keys_, history_, history_start_, breakers_,
                               breaker_start_, order_});
    for (const char* stage : {"keep_top_n_sigma", "temper", "keep_min_p", "keep_top_k",
                              "keep_typical", "keep_top_p", "exclude_top"})
      x = fn_.add(stage, {x, params_, keys_});
    Ref ids = fn_.add("choose_token", {x, logits_, params_, keys_});
    std::vector<Ref> scores = fn_.add_multi("token_logprobs", {logits_, ids, keys_, ranks_});
    fn_.set_result("ids", ids);
    fn_.set_result("logprobs", scores[0]);
    fn_.set_result("tops", scores[1]);
    fn_.set_result("values", scores[2]);
  }

 private:
  Ref input(const std::string& name, DType dtype, std::vector<Dim> dims) {
    return fn_.add_input("sample." + name, Type::of({dtype, std::move(dims)}));
  }
  Dim list(const std::string& symbol) const { return {"i", SymExpr::symbol(symbol)}; }
  Dim starts() const { return {"r1", rows_.extent + 1}; }

  Function& fn_;
  Dim rows_;
  Ref logits_, params_, ordered_params_, keys_, order_, masks_, history_, history_start_, breakers_,
      breaker_start_, bias_ids_, bias_values_, bias_start_, ranks_;
};

bool chooses_tokens(const Backend& backend) {
  for (const KernelDesc& kernel : backend.kernels()) {
    KernelPattern pattern = parse_pattern(kernel.pattern);
    if (pattern.kind == KernelPattern::Anchor::kAny) return true;
    if (const OpDef* op = find_op(pattern.op); op && op->chooses) return true;
  }
  return false;
}

}  // namespace

void add_sampling(Module& module, int64_t vocab, const Backend& backend) {
  const Function* step = module.find_function("step");
  if (!step || module.find_function(kSampleFunction) || !chooses_tokens(backend)) return;
  for (const Function::Result& result : step->results()) {
    if (result.name != "logits") continue;
    const TensorType& logits = step->tensor(result.ref);
    if (logits.rank() == 2 && logits.dtype == DType::kF32 && logits.extent(1) == SymExpr(vocab) &&
        logits.extent(0) == SymExpr::symbol("R"))
      SampleBuilder(module, logits).build();
    return;
  }
}

}  // namespace tokamak
