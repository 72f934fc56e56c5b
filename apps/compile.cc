// tokamak compile: a model compiled ahead of time, in one file.
#include "apps/compile.h"

#include "apps/model_flags.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct CompileFlags {
  OpenOptions model;
  std::string out;
  bool json = false;
};

std::string mib(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

void compile(const CompileFlags& f) {
  BundleReport r = make_bundle(f.model, f.out);
  if (f.json) {
    Value v = Value::Object{{"file", f.out},
                            {"file_bytes", r.file_bytes},
                            {"weight_bytes", r.weight_bytes},
                            {"plans", uint64_t{r.plans}},
                            {"compile_seconds", r.compile_seconds},
                            {"pack_seconds", r.pack_seconds}};
    fmt::print("{}\n", dump_json(v));
    return;
  }
  fmt::print(
      "{}: {}, {} of it weights; {} plans compiled in {:.2f} s, packed and written in {:.2f} s\n",
      f.out, mib(r.file_bytes), mib(r.weight_bytes), r.plans, r.compile_seconds, r.pack_seconds);
}

}  // namespace

Value bundle_summary(const std::string& path) {
  BundleModel bundle(BundleFile::open(path));
  Value sections = Value::array(), plans = Value::array();
  for (const BundleSection& s : bundle.file().sections())
    sections.push(Value::Object{{"name", s.name}, {"offset", s.offset}, {"bytes", s.size}});
  for (const Plan& p : bundle.plans().plans)
    plans.push(Value::Object{{"plan", plan_name(p)},
                             {"calls", uint64_t{p.calls.size()}},
                             {"arena_bytes", p.arena_bytes}});
  Value out = bundle.meta();
  out.set("metadata", Value());
  out.set("sections", std::move(sections));
  out.set("plans", std::move(plans));
  out.set("limits", Value::Object{{"context", bundle.compiled_context()},
                                  {"batch", symbol_limit(bundle.plans(), "B")},
                                  {"step_tokens", symbol_limit(bundle.plans(), "T")}});
  return out;
}

void print_bundle_summary(const Value& v) {
  fmt::print("{} ({}), a bundle by {} for {} on {}\n\n", v.at("model").as_string(),
             v.get_string("architecture", ""), v.get_string("producer", "?"),
             v.at("backend").as_string(), v.at("isa").as_string());
  const Value& limits = v.at("limits");
  fmt::print("  limits: {} tokens of context, {} sequences, {} tokens in a step\n\n",
             limits.at("context").as_int(), limits.at("batch").as_int(),
             limits.at("step_tokens").as_int());
  for (const Value& s : v.at("sections").as_array())
    fmt::print("  section {:<10} {:>12} bytes at {}\n", s.at("name").as_string(),
               s.at("bytes").as_int(), s.at("offset").as_int());
  for (const Value& p : v.at("plans").as_array())
    fmt::print("  plan {:<32} {:>5} calls, arena {}\n", p.at("plan").as_string(),
               p.at("calls").as_int(), mib(static_cast<uint64_t>(p.at("arena_bytes").as_int())));
}

void add_compile_verb(CLI::App& app) {
  auto flags = std::make_shared<CompileFlags>();
  CLI::App* verb = app.add_subcommand(
      "compile", "compile a model ahead of time into one file that starts quickly");
  add_model_argument(*verb, flags->model);
  verb->add_option("-o,--output", flags->out, "the bundle to write, e.g. model.tkm")->required();
  add_model_flags(*verb, flags->model);
  verb->add_option("--max-len", flags->model.context,
                   "longest sequence the bundle accepts (same as --context)")
      ->excludes("--context");
  verb->add_option("--max-batch", flags->model.max_sequences,
                   "maximum number of sequences per step (default: 64)");
  verb->add_option("--max-tokens", flags->model.max_step_tokens,
                   "maximum number of tokens per step (default: 512)");
  verb->add_option("--max-logit-rows", flags->model.max_logit_rows,
                   "maximum number of rows with logits per step; --max-batch sequences decode "
                   "together only if it is at least as large (default: 64)");
  verb->add_option("--dump-dir", flags->model.dump_dir,
                   "write the output of every compiler stage to this folder, as numbered files");
  verb->add_flag("--json", flags->json, "print sizes and times as one JSON object");
  verb->footer(
      "The bundle holds plans for all shapes up to its limits, the weights as the kernels of this\n"
      "machine read them, tokenizer, chat template, generation defaults and the graph. serve, "
      "run,\n"
      "chat, eval and bench take it in place of the model; docs/bundle.md has the format.\n\n"
      "Examples:\n  tokamak compile model.gguf -o model.tkm\n"
      "  tokamak compile model.gguf -o model.tkm --max-batch 32 --max-len 4096\n"
      "  tokamak compile model.gguf -o model.tkm --dump-dir stages\n"
      "  tokamak serve model.tkm\n  tokamak inspect model.tkm");
  verb->callback([flags] { compile(*flags); });
}

}  // namespace tokamak
