// What the plans of a model depend on, as one key.
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "compile/cache.h"
#include "compile/function_plans.h"
#include "plan/bundle_file.h"

namespace tokamak {
namespace {

// A change of any pass can change a plan, and only a build knows its passes: the program's file
// stands for them.
void add_program(Hash128& hash) {
  struct stat st {};
  if (::stat("/proc/self/exe", &st) != 0) return;
  hash.add(static_cast<uint64_t>(st.st_size));
  hash.add(static_cast<uint64_t>(st.st_mtim.tv_sec));
  hash.add(static_cast<uint64_t>(st.st_mtim.tv_nsec));
}

// Every option is named here, so that adding one does not compile until it is decided whether plans
// depend on it.
void add_options(Hash128& hash, const CompileOptions& o) {
  const auto& [activations, bf16_rows, storage, kv_dtype, block_size, max_sequences, max_tokens,
               max_logit_rows, context, max_context, longest, merge_adapters, adapter_slots,
               adapter_rank, exit_layers, layer_logits, pooling, materialized_prefill, tree_mask,
               verify, passes, disabled_passes, dump_after, rules, machine, fusion, eager, autotune,
               shapes, buckets, pads_decode_above, dump, load_trial, after_pass] = o;
  hash.add(fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", activations, storage,
                       dtype_name(kv_dtype), block_size, max_sequences, max_tokens, max_logit_rows,
                       context, tree_mask, eager, autotune, static_cast<int>(shapes),
                       pads_decode_above));
  if (materialized_prefill) hash.add("materialized prefill");
  if (activations == "mixed") hash.add(fmt::format("bf16 rows {}", bf16_rows));
  for (int k : verify) hash.add(fmt::format("verify {}", k));
  for (int64_t b : buckets) hash.add(fmt::format("bucket {}", b));
  for (const std::string& p : passes) hash.add("pass " + p);
  for (const std::string& p : disabled_passes) hash.add("without " + p);
  for (const RewriteRule& rule : rules) hash.add(rule.text);
  if (!machine.empty()) hash.add(read_text_file(machine, size_t{1} << 20));
  // These only observe, or have led to the context.
  // The added functions, the pooling and the slots of adapters are part of the graph; merged
  // adapters change weights only.
  (void)exit_layers, (void)layer_logits, (void)merge_adapters, (void)adapter_slots,
      (void)adapter_rank;
  (void)dump_after, (void)fusion, (void)pooling, (void)dump, (void)load_trial, (void)after_pass,
      (void)max_context, (void)longest;
}

}  // namespace

std::string compile_key(const Module& module, const ModelConfig& config, const Backend& backend,
                        const CompileOptions& options) {
  Hash128 hash;
  add_program(hash);
  hash.add(uint64_t{kBundleVersion} << 32 | PlanSet::kVersion);
  hash.add(backend.name());
  hash.add(backend.isa());
  if (options.autotune) hash.add(backend.measured_on());
  for (const KernelDesc& k : backend.kernels()) {
    hash.add(k.name);
    hash.add(k.pattern);
    hash.add(k.weight_layout);
    hash.add(k.numeric_class);
    hash.add(static_cast<uint64_t>(k.abi) * 2 + k.in_place);
  }
  for (const LaunchDesc& l : backend.launches())
    hash.add(fmt::format("{} {} {}", l.name, l.abi, l.numeric_class));
  hash.add(fmt::format("{} {} {} {}", config.vocab, config.hidden, config.layers, config.context));
  add_options(hash, options_for(options, backend));
  hash.add(print_module(module));
  return hash.hex();
}

}  // namespace tokamak
