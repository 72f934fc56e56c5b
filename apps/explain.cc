// tokamak explain: what a model's plan does at one shape and why; docs/explain.md.
#include "compile/explain/explain.h"

#include <cstdio>

#include "apps/explain.h"
#include "apps/model_flags.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/adapters.h"
#include "compile/autotune.h"
#include "compile/bundle_compile.h"
#include "plan/bundle.h"

namespace tokamak {
namespace {

struct ExplainFlags {
  OpenOptions model;
  std::string fn, html, trace;
  std::vector<std::string> shape;
  int steps = 5;
  bool run = false, json = false;
  bool no_count = false;
};

// What the report describes. A bundle has its plans; a model file is compiled.
struct Explained {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<ModelSource> source;  // a bundle
  std::optional<OpenedModel> opened;    // a model file
  PlanSet compiled;
  std::shared_ptr<FusionReport> fusion;
  std::shared_ptr<PassRecord> passes;
  const PlanSet& set() const { return source ? source->plans() : compiled; }
  const WeightSource& weights() const {
    return source ? source->weights() : *opened->model.weights;
  }
};

void compile_explained(const ExplainFlags& f, StepShape& shape, Explained& out) {
  CompileOptions options = compile_options(f.model);
  add_adapters(*out.opened, options);
  const ModelConfig& config = out.opened->model.config;
  fit_context(shape, config.context);
  if (config.learned_positions && shape.kv_len > config.context)
    fail(ErrorCode::kInvalidArgument,
         "--shape: sequences of S={} tokens; the model has {} positions", shape.kv_len,
         config.context);
  options.context = std::max(choose_context(options, config), shape.kv_len);
  options.max_sequences = std::max(options.max_sequences, shape.sequences);
  options.max_tokens = std::max(options.max_tokens, shape.tokens);
  options.max_logit_rows = std::max(options.max_logit_rows, shape.logit_rows);
  if (int64_t rows = rows_per_sequence(f.fn); rows > 1)
    options.verify = {static_cast<int>(rows - 1)};
  options.machine = machine_file_for(f.model, *out.backend);
  options.load_trial = trial_loader(*out.backend, out.weights());
  options.fusion = out.fusion = std::make_shared<FusionReport>();
  out.passes = std::make_shared<PassRecord>(f.fn);
  options.after_pass = [record = out.passes](const Function& fn, const PassTiming& timing) {
    record->add(fn, timing);
  };
  Module module = build_module(config, options);
  out.passes->captured(*module.find_function("step"));
  out.compiled = compile_module(module, config, *out.backend, options);
}

// A model file is not compiled yet: that depends on the function and the shape.
Explained open_explained(const ExplainFlags& f) {
  Explained out;
  if (is_bundle(f.model.model)) {
    CompiledSetup setup = compile_for(f.model);
    out.backend = std::move(setup.backend);
    out.source = std::move(setup.source);
  } else {
    out.backend = backend_for(f.model, f.model.backend);
    out.opened = open_model(f.model.model);
  }
  return out;
}

// An encoder has no decode.
std::string usual_function(const Explained& model) {
  if (model.opened) return model.opened->model.config.embedding.encoder ? "step" : "decode";
  for (const Plan& plan : model.set().plans)
    if (plan.function == "decode") return "decode";
  return "step";
}

// Runs the same step several times.
CallProfile measure_calls(const ExplainFlags& f, const StepShape& shape, const Explained& model) {
  CallProfile profile;
  profile.on = false;
  LoadOptions options;
  options.blocks = blocks_for(model.set(), shape);
  options.max_rows = shape.sequences;
  options.eager = f.model.mode == "eager";
  options.profile = &profile;
  auto executable = model.backend->load(model.set(), model.weights(), options);
  StepInputs step = make_step(model.set(), f.fn, shape);
  StepResult result;
  for (int i = -2; i < f.steps; ++i) {  // two to warm up
    profile.on = i >= 0;
    executable->collect(executable->submit(step), result);
  }
  return profile;
}

void check_flags(const ExplainFlags& f) {
  check_options(f.model);
  if (!f.trace.empty() && !f.run)
    fail(ErrorCode::kInvalidArgument, "--trace needs --run: only steps that run can be traced");
  if (f.run && f.model.backend == "null")
    fail(ErrorCode::kInvalidArgument, "--run: the null backend computes nothing; use cpu or ref");
}

void write_report(const std::string& path, const std::string& text) {
  write_text_file(path, text);
  fmt::print(stderr, "wrote {} ({:.0f} kB)\n", path, static_cast<double>(text.size()) / 1e3);
}

Value make_report(const ExplainFlags& flags, CallProfile& profile) {
  ExplainFlags f = flags;
  Explained model = open_explained(f);
  if (f.fn.empty()) f.fn = usual_function(model);
  StepShape shape = parse_shape(f.fn, f.shape);
  if (model.source)
    fit_context(shape, model.set().context);
  else
    compile_explained(f, shape, model);
  std::string file = machine_file_for(f.model, *model.backend);
  Machine machine = file.empty() ? Machine{} : load_machine_file(file);
  plan_for(model.set(), f.fn, shape);  // fails before anything is loaded
  if (f.run) profile = measure_calls(f, shape, model);
  ExplainRequest request;
  request.model = model.set().model;
  request.function = f.fn;
  request.mode = f.model.mode.empty() ? "compiled" : f.model.mode;
  request.shape = shape;
  request.backend = model.backend->name();
  request.isa = model.backend->isa();
  request.machine = machine;
  request.set = &model.set();
  request.fusion = model.fusion.get();
  request.passes = model.passes.get();
  request.profile = f.run ? &profile : nullptr;
  request.measured_steps = f.steps;
  request.count = f.run && !f.no_count;
  return explain(request);
}

void explain_model(const ExplainFlags& f) {
  check_flags(f);
  CallProfile profile;
  Value report = make_report(f, profile);
  if (f.json)
    fmt::print("{}\n", dump_json(report, 2));
  else
    fmt::print("{}", explain_text(report));
  if (!f.html.empty()) write_report(f.html, explain_html(report));
  if (!f.trace.empty()) write_report(f.trace, explain_trace(report, profile));
}

}  // namespace

Value explain_report(const OpenOptions& model, const std::string& function) {
  ExplainFlags flags;
  flags.model = model;
  flags.fn = function;
  CallProfile none;
  return make_report(flags, none);
}

void add_explain_verb(CLI::App& app) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* verb = app.add_subcommand(
      "explain",
      "show what a model's plan does at one shape and why: kernels, fusion, memory, passes");
  add_model_argument(*verb, flags->model);
  verb->add_option("--fn", flags->fn,
                   "step, decode or verify<k>; default: decode, or step of an encoder");
  verb->add_option("--shape", flags->shape,
                   "B sequences of S tokens each, e.g. B=8,S=4096; for step also T tokens of the "
                   "step and R rows of logits")
      ->delimiter(',');
  verb->add_flag("--run", flags->run, "also measure each call, and count the bytes it moves");
  verb->add_flag("--no-count", flags->no_count,
                 "with --run: do not count bytes, which takes minutes for steps of many tokens");
  verb->add_option("--steps", flags->steps, "steps to measure; medians are reported")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  verb->add_flag("--json", flags->json, "the whole report as JSON (docs/explain.md)");
  verb->add_option("--html", flags->html, "also write a page with pictures to this file");
  verb->add_option("--trace", flags->trace,
                   "also write the measured calls as a trace for ui.perfetto.dev; needs --run");
  add_model_flags(*verb, flags->model);
  verb->get_option("--machine")
      ->description("machine description for the bounds and for fusion (JSON)");
  verb->footer(
      "Examples:\n"
      "  tokamak explain model.gguf\n"
      "  tokamak explain model.gguf --fn decode --shape B=8,S=4096 --run\n"
      "  tokamak explain model.gguf --fn step --shape T=512,B=4 --mode eager\n"
      "  tokamak explain model.gguf --run --html report.html --trace trace.json");
  verb->callback([flags] { explain_model(*flags); });
}

}  // namespace tokamak
