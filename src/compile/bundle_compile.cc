#include "compile/bundle_compile.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "compile/autotune.h"

namespace tokamak {
namespace {

template <class List>
Value list_value(const List& list) {
  Value out = Value::array();
  for (const auto& item : list) out.push(Value(item));
  return out;
}

Value options_value(const CompileOptions& o) {
  Value out = Value::Object{
      {"activations", o.activations}, {"kv_dtype", dtype_name(o.kv_dtype)},
      {"block_size", o.block_size},   {"max_sequences", o.max_sequences},
      {"max_tokens", o.max_tokens},   {"max_logit_rows", o.max_logit_rows},
      {"context", o.context},         {"materialized_prefill", o.materialized_prefill},
      {"tree_mask", o.tree_mask},     {"eager", o.eager},
      {"autotune", o.autotune}};
  out.set("shapes", shapes_name(o.shapes));
  out.set("storage", o.storage);
  out.set("verify", list_value(o.verify));
  out.set("buckets", list_value(o.buckets));
  out.set("passes", list_value(o.passes));
  out.set("disabled_passes", list_value(o.disabled_passes));
  return out;
}

struct BundleSource {  // the contents of a bundle, from a model file or from another bundle
  Module module;
  ModelConfig config;  // sizes only
  const WeightSource& weights;
  const TokenizerSpec& tokenizer;
  Value metadata, generation;
  std::string name;
};

Value meta_value(const BundleSource& source, const PlanSet& plans, const Backend& backend,
                 const CompileOptions& options, std::string_view producer) {
  const ModelConfig& c = source.config;
  return Value::Object{{"producer", producer},
                       {"model", plans.model},
                       {"architecture", c.architecture},
                       {"source", source.name},
                       {"backend", backend.name()},
                       {"isa", backend.isa()},
                       {"packing", backend.packing()},
                       {"numerics_id", plans.numerics_id},
                       {"sizes", Value::Object{{"vocab", c.vocab},
                                               {"hidden", c.vector_size()},
                                               {"layers", c.layers},
                                               {"context", c.context}}},
                       {"options", options_value(options)},
                       {"generation_config", source.generation},
                       {"embedding", embedding_value(c.embedding)},
                       {"metadata", source.metadata}};
}

BundleReport write_from(BundleSource source, Backend& backend, const CompileOptions& options,
                        const std::filesystem::path& out, std::string_view producer) {
  SteadyClock clock;
  Nanos start = clock.now();
  std::string graph = print_module(source.module);
  CompileOptions with_trials = options;
  with_trials.load_trial = trial_loader(backend, source.weights);
  PlanSet plans = compile_module(source.module, source.config, backend, with_trials);
  BundleReport report;
  report.plans = plans.plans.size();
  Nanos compiled = clock.now();
  BundleWriter writer(out);
  backend.pack_weights(plans, source.weights, [&](const WeightEntry& e, const PackedWeight& p) {
    writer.add_weight(e, p);
  });
  writer.finish(meta_value(source, plans, backend, options, producer), graph, plans,
                source.tokenizer);
  report.weight_bytes = writer.weight_bytes();
  report.compile_seconds = seconds(compiled - start);
  report.pack_seconds = seconds(clock.now() - compiled);
  std::error_code ec;
  report.file_bytes = std::filesystem::file_size(out, ec);
  return report;
}

Value generation_of(const std::filesystem::path& folder) {
  std::filesystem::path file = folder / "generation_config.json";
  std::error_code ec;
  if (!std::filesystem::is_regular_file(file, ec)) return {};
  return parse_json(read_text_file(file, size_t{1} << 20), "generation_config.json");
}

ModelConfig sizes_of(const BundleModel& bundle) {
  const Value& sizes = bundle.meta().at("sizes");
  ModelConfig config;
  config.architecture = bundle.meta().get_string("architecture", "");
  config.vocab = sizes.at("vocab").as_int();
  config.hidden = sizes.at("hidden").as_int();
  config.layers = sizes.at("layers").as_int();
  config.context = sizes.at("context").as_int();
  config.embedding = bundle.embedding();
  return config;
}

// Why the plans cannot run on this backend as they are; empty: they can.
std::string misfit(const BundleModel& bundle, const Backend& backend) {
  if (!bundle.plans_readable()) return bundle.why_unreadable();
  if (bundle.target().isa != backend.isa())
    return fmt::format("it was compiled for {}, this is {}", bundle.target().isa, backend.isa());
  for (const KernelEntry& k : bundle.plans().kernels) {
    const std::string* rounding = nullptr;  // of this program's kernel
    auto find = [&](const auto& list) {
      for (const auto& d : list)
        if (d.name == k.name && d.abi == k.abi) rounding = &d.numeric_class;
    };
    find(backend.kernels());
    find(backend.launches());
    if (!rounding)
      return fmt::format("it calls the kernel {} (ABI {}), which this program does not have",
                         k.name, k.abi);
    if (*rounding != k.numeric_class)
      return fmt::format("its kernel {} rounds as \"{}\", that of this program as \"{}\"", k.name,
                         k.numeric_class, *rounding);
  }
  return "";
}

}  // namespace

CompileOptions bundle_options(const BundleModel& bundle) {
  CompileOptions o;
  try {
    const Value& v = bundle.meta().at("options");
    o.activations = v.at("activations").as_string();
    o.storage = v.get_string("storage", "");
    auto kv = dtype_from_name(v.at("kv_dtype").as_string());
    if (!kv) bundle.file().damaged("its KV cache has an unknown element type");
    o.kv_dtype = *kv;
    o.block_size = v.at("block_size").as_int();
    o.max_sequences = v.at("max_sequences").as_int();
    o.max_tokens = v.at("max_tokens").as_int();
    o.max_logit_rows = v.at("max_logit_rows").as_int();
    o.context = v.at("context").as_int();
    o.materialized_prefill = v.get_bool("materialized_prefill", false);
    o.tree_mask = v.at("tree_mask").as_bool();
    o.eager = v.at("eager").as_bool();
    o.autotune = v.get_bool("autotune", false);
    o.shapes = shapes_from_name(v.at("shapes").as_string());
    for (const Value& k : v.at("verify").as_array())
      o.verify.push_back(static_cast<int>(k.as_int()));
    for (const Value& b : v.at("buckets").as_array()) o.buckets.push_back(b.as_int());
    for (const Value& p : v.at("passes").as_array()) o.passes.push_back(p.as_string());
    for (const Value& p : v.at("disabled_passes").as_array())
      o.disabled_passes.insert(p.as_string());
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kCorrupt) throw;
    bundle.file().damaged(e.what());
  }
  return o;
}

BundleReport write_bundle(const OpenedModel& opened, Backend& backend,
                          const CompileOptions& options, const std::filesystem::path& out,
                          std::string_view producer) {
  const ImportedModel& model = opened.model;
  return write_from(
      {build_module(model.config, options), model.config, *model.weights, opened.tokenizer,
       model.metadata, generation_of(model.path), model.path.filename().string()},
      backend, options, out, producer);
}

BundleReport rewrite_bundle(const std::filesystem::path& from, Backend& backend,
                            const CompileOptions& options, const std::filesystem::path& out,
                            std::string_view producer) {
  BundleModel bundle(BundleFile::open(from));
  bundle.verify_weights();
  const Value* generation = bundle.meta().find("generation_config");
  return write_from({parse_module(bundle.graph()), sizes_of(bundle), bundle, bundle.tokenizer(),
                     bundle.metadata(), generation ? *generation : Value(),
                     bundle.meta().get_string("source", "")},
                    backend, options, out, producer);
}

void fit_bundle(BundleModel& bundle, const Backend& backend, const CompileCache* cache) {
  const std::string &name = bundle.file().name(), &made_for = bundle.target().backend;
  if (backend.name() == "null" && bundle.plans_readable()) return;  // looks at shapes only
  if (made_for != backend.name())
    fail(ErrorCode::kUnsupported,
         "{} was compiled for backend {}: use --backend {}, or compile the model with --backend {}",
         name, made_for, made_for, backend.name());
  std::string why = misfit(bundle, backend);
  if (why.empty()) return;
  log::warn(
      "{}: {}; compiling it again from the graph inside (tokamak compile {} -o NEW.tkm keeps the "
      "result)",
      name, why, name);
  try {
    Module module = parse_module(bundle.graph());
    CompileOptions options = bundle_options(bundle);
    options.autotune = false;  // times of another machine; measuring needs the weights
    bundle.replace_plans(compile_cached(module, sizes_of(bundle), backend, options, cache));
  } catch (const Error& e) {
    fail(ErrorCode::kUnsupported, "{}: {}, and compiling it again from the graph inside fails: {}",
         name, why, e.what());
  }
}

}  // namespace tokamak
