// Bundles: which options may still change when one is opened, and how one is written.
#include <filesystem>

#include "api/open.h"
#include "base/error.h"
#include "compile/adapters.h"

namespace tokamak {
namespace {

// What was decided when the bundle was compiled cannot be chosen again.
void check_fixed_options(const OpenOptions& o, const CompileOptions& made) {
  CompileOptions asked = compile_options(o);
  auto need = [&](const char* what, bool same) {
    if (!same)
      fail(ErrorCode::kInvalidArgument,
           "{}: {} was fixed when the bundle was compiled; compile the model again to change it",
           o.model, what);
  };
  need("activations", o.activations.empty() || asked.activations == made.activations);
  need("storage", o.storage.empty() || asked.storage == made.storage);
  need("kv-dtype", o.kv_dtype.empty() || asked.kv_dtype == made.kv_dtype);
  need("disable-pass", o.disabled_passes.empty() || asked.disabled_passes == made.disabled_passes);
  need("dump-after", o.dump_after.empty());
  need("mode", o.mode.empty() || (asked.eager == made.eager && (!asked.autotune || made.autotune)));
  need("shapes", o.shapes.empty() || asked.shapes == made.shapes);
  need("buckets", o.buckets.empty() || asked.buckets == made.buckets);
  need("pooling", o.pooling.empty());
  need("materialized-prefill", !o.materialized_prefill || made.materialized_prefill);
  need("merge-adapter", o.merge_adapters.empty());
}

void check_limit(const OpenOptions& options, const char* what, int64_t asked, int64_t limit,
                 const char* compile_flag) {
  if (asked > limit)
    fail(ErrorCode::kOutOfRange,
         "{}: {} of {} is beyond the bundle's limit of {}; compile a larger one with tokamak "
         "compile {} {}",
         options.model, what, asked, limit, compile_flag, asked);
}

// A bundle that is compiled again keeps the options it was compiled with, where the caller sets
// nothing.
CompileOptions options_from_bundle(const OpenOptions& o) {
  CompileOptions asked = compile_options(o);
  CompileOptions made = bundle_options(BundleModel(BundleFile::open(o.model)));
  if (!o.activations.empty()) made.activations = asked.activations;
  if (!o.storage.empty()) made.storage = asked.storage;
  if (o.max_sequences > 0) made.max_sequences = asked.max_sequences;
  if (o.max_step_tokens > 0) made.max_tokens = asked.max_tokens;
  if (o.max_logit_rows > 0) made.max_logit_rows = asked.max_logit_rows;
  if (!o.shapes.empty()) made.shapes = asked.shapes;
  if (!o.buckets.empty()) made.buckets = asked.buckets;
  if (!o.disabled_passes.empty()) made.disabled_passes = asked.disabled_passes;
  if (!o.mode.empty()) made.eager = asked.eager, made.autotune = asked.autotune;
  // These two are part of the graph.
  if (!o.kv_dtype.empty() && asked.kv_dtype != made.kv_dtype)
    fail(ErrorCode::kInvalidArgument,
         "{}: kv-dtype is part of a bundle's graph; compile the model itself", o.model);
  if (o.context > made.context)
    fail(ErrorCode::kOutOfRange,
         "{}: a context of {} is beyond the {} tokens of its graph; compile the model itself",
         o.model, o.context, made.context);
  if (o.context > 0) made.context = o.context;
  made.dump_after = asked.dump_after;
  made.dump = asked.dump;
  return made;
}

}  // namespace

CompiledSetup open_bundle(const OpenOptions& o, const CompileCache* cache) {
  auto bundle = std::make_unique<BundleModel>(BundleFile::open(o.model));
  CompileOptions made = bundle_options(*bundle);
  check_fixed_options(o, made);
  CompiledSetup setup;
  setup.backend = backend_for(o, o.backend.empty() ? bundle->target().backend : o.backend);
  fit_bundle(*bundle, *setup.backend, cache);
  const PlanSet& plans = bundle->plans();
  check_limit(o, "a context", o.context, bundle->compiled_context(), "--max-len");
  if (o.context > 0) bundle->lower_context(o.context);
  check_limit(o, "a batch", o.max_sequences, symbol_limit(plans, "B"), "--max-batch");
  check_limit(o, "a step", o.max_step_tokens, symbol_limit(plans, "T"), "--max-tokens");
  if (o.verify) bundle->verify_weights();
  setup.eager = made.eager;
  setup.source = std::move(bundle);
  return setup;
}

const BundleModel* bundle_of(const CompiledSetup& setup) {
  return dynamic_cast<const BundleModel*>(setup.source.get());
}

BundleReport make_bundle(const OpenOptions& o, const std::string& out) {
  check_options(o);
  const std::string producer = std::string("tokamak ") + version();
  std::error_code ec;
  if (std::filesystem::equivalent(o.model, out, ec))
    fail(ErrorCode::kInvalidArgument, "the bundle {} would replace the model itself", out);
  auto backend = backend_for(o, o.backend);
  if (is_bundle(o.model) && !o.merge_adapters.empty())
    fail(ErrorCode::kUnsupported, "{}: adapters are merged into a model file, not into a bundle",
         o.model);
  if (is_bundle(o.model)) {
    CompileOptions options = options_from_bundle(o);
    check_autotune(options, *backend);
    return rewrite_bundle(o.model, *backend, options, out, producer);
  }
  OpenedModel opened = open_model(o.model);
  CompileOptions options = compile_options(o);
  if (options.adapter_slots > 0)
    fail(ErrorCode::kUnsupported,
         "a bundle has no slots for adapters; compile it with --merge-adapter");
  options.machine = machine_file_for(o, *backend);
  check_autotune(options, *backend);
  add_adapters(opened, options);
  fit_options(options, opened.model.config);
  return write_bundle(opened, *backend, options, out, producer);
}

void compile_bundle(const std::string& path, const std::string& bundle,
                    const ModelOptions& options) {
  OpenOptions open;
  static_cast<ModelOptions&>(open) = options;
  open.model = path;
  make_bundle(open, bundle);
}

}  // namespace tokamak
