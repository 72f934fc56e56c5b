// Bundles as a model that verbs can run: what the flags may still change, and what not.
#include "apps/model_setup.h"
#include "base/error.h"
#include "compile/bundle_compile.h"

namespace tokamak {
namespace {

// Flags whose answer is inside the bundle.
void refuse_compile_flags(const ModelFlags& flags, const CompileOptions& made) {
  auto need = [&](const char* flag, bool same) {
    if (flags.given(flag) && !same)
      fail(ErrorCode::kInvalidArgument,
           "{}: {} was decided when the bundle was made; compile the model again with it",
           flags.model, flag);
  };
  need("--activations", flags.activations == made.activations);
  need("--storage", flags.storage == made.storage);
  need("--kv-dtype", kv_dtype_of(flags) == made.kv_dtype);
  need("--disable-pass",
       made.disabled_passes ==
           std::set<std::string>(flags.disabled_passes.begin(), flags.disabled_passes.end()));
  need("--dump-after", false);
  need("--mode", (flags.mode == "eager") == made.eager);
  need("--shapes", shapes_from_name(flags.shapes) == made.shapes);
  need("--buckets", flags.buckets == made.buckets);
}

void check_limit(const ModelFlags& flags, const char* what, int64_t asked, int64_t limit,
                 const char* compile_flag) {
  if (asked > limit)
    fail(
        ErrorCode::kOutOfRange,
        "{}: {} of {} is beyond the bundle's limit of {}; tokamak compile {} {} makes a larger one",
        flags.model, what, asked, limit, compile_flag, asked);
}

}  // namespace

CompiledSetup open_bundle(const ModelFlags& flags, const CompileCache* cache) {
  auto bundle = std::make_unique<BundleModel>(BundleFile::open(flags.model));
  CompileOptions made = bundle_options(*bundle);
  refuse_compile_flags(flags, made);
  CompiledSetup setup;
  setup.backend =
      backend_for(flags, flags.given("--backend") ? flags.backend : bundle->target().backend);
  fit_bundle(*bundle, *setup.backend, cache);
  const PlanSet& plans = bundle->plans();
  check_limit(flags, "a context", flags.context, bundle->compiled_context(), "--max-len");
  if (flags.context > 0) bundle->lower_context(flags.context);
  int64_t batch = symbol_limit(plans, "B");
  check_limit(flags, "a batch", flags.need_sequences, batch, "--max-batch");
  if (flags.given("--max-num-seqs"))
    check_limit(flags, "a batch", flags.max_sequences, batch, "--max-batch");
  if (flags.given("--max-num-batched-tokens"))
    check_limit(flags, "a step", flags.max_tokens, symbol_limit(plans, "T"), "--max-tokens");
  if (!flags.no_verify) bundle->verify_weights();
  setup.eager = made.eager;
  setup.source = std::move(bundle);
  return setup;
}

const BundleModel* bundle_of(const CompiledSetup& setup) {
  return dynamic_cast<const BundleModel*>(setup.source.get());
}

}  // namespace tokamak
