// `tokamak bench tree`: what a step with a tree of drafts costs, compared with a chain of the same
// size.
#include "apps/bench_tree.h"

#include <fmt/format.h>
#include <algorithm>
#include <memory>
#include <vector>

#include "api/open.h"
#include "apps/model_flags.h"
#include "apps/step_driver.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "compile/compiler.h"

namespace tokamak {
namespace {

struct TreeFlags {
  OpenOptions model;
  int32_t nodes = 64, context = 512, repeat = 15;
  bool json = false;
};

// The node that each node continues; -1: the context.
std::vector<int32_t> make_parents(int32_t nodes, bool tree) {
  std::vector<int32_t> out(static_cast<size_t>(nodes));
  Rng rng(1);
  for (int32_t i = 0; i < nodes; ++i)
    out[static_cast<size_t>(i)] =
        tree ? static_cast<int32_t>(rng.below(static_cast<uint64_t>(i) + 1)) - 1 : i - 1;
  return out;
}

// A model that runs on one thread and has computed the context of one sequence.
class TreeBench {
 public:
  TreeBench(const TreeFlags& f, bool mask) : context_(f.context), mask_(mask) {
    OpenOptions o = f.model;
    o.threads = 1;
    o.context = f.context + f.nodes;
    backend_ = backend_for(o, o.backend);
    CompileOptions options = compile_options(o);
    options.tree_mask = mask;
    source_ = compile_model(o.model, *backend_, options);
    const PlanSet& plans = source_->plans();
    LoadOptions load;
    load.blocks = StepDriver::blocks_needed(plans, 1, o.context);
    load.max_rows = 1;
    executable_ = backend_->load(plans, source_->weights(), load);
    SampleSpec greedy;
    greedy.temperature = 0;
    greedy_ = std::make_shared<const SampleSpec>(greedy);
    for (int32_t at = 0; at < f.context; at += f.nodes)
      run(at, make_parents(std::min(f.nodes, f.context - at), false));
  }

  double measure(const std::vector<int32_t>& parents) { return run(context_, parents); }

 private:
  // One step with these nodes after `start` tokens; the CPU time that it took, or the GPU's time.
  double run(int32_t start, const std::vector<int32_t>& parents) {
    const PlanSet& plans = source_->plans();
    auto count = static_cast<int32_t>(parents.size());
    StepInputs step;
    for (int32_t i = 0; i < count; ++i) {
      int32_t parent = parents[static_cast<size_t>(i)];
      step.ids.push_back(static_cast<int32_t>((int64_t{start + i} * 104729 + 11) % plans.vocab));
      step.pos.push_back(parent < 0 ? start : step.pos[static_cast<size_t>(parent)] + 1);
      step.slot.push_back(start + i);
      step.seq.push_back(0);
    }
    step.q_start = {0, count};
    step.kv_len = {start + count};
    step.row = {0};
    for (const GroupEntry& g : plans.groups) {
      StepInputs::Table& table = step.tables.emplace_back();
      table.stride = static_cast<int32_t>((start + count + g.block_size - 1) / g.block_size);
      for (int32_t b = 0; b < table.stride; ++b) table.blocks.push_back(b);
    }
    if (mask_) fill_mask(parents, step);
    step.out_rows = {count - 1};
    SampleRow& row = step.samples.emplace_back();
    row.position = step.pos.back() + 1;
    row.spec = greedy_;
    StepResult result;
    double begin = process_cpu_seconds();
    executable_->collect(executable_->submit(step), result);
    double cpu = process_cpu_seconds() - begin;
    return backend_->name() == "cuda" ? result.seconds : cpu;
  }

  static void fill_mask(const std::vector<int32_t>& parents, StepInputs& step) {
    step.mask_width = static_cast<int32_t>(parents.size());
    step.mask.assign(parents.size() * parents.size(), 0);
    for (size_t i = 0; i < parents.size(); ++i)
      for (auto at = static_cast<int32_t>(i); at >= 0; at = parents[static_cast<size_t>(at)])
        step.mask[i * parents.size() + static_cast<size_t>(at)] = 1;
  }

  int32_t context_;
  bool mask_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<Executable> executable_;
  std::shared_ptr<const SampleSpec> greedy_;
};

void bench_tree(const TreeFlags& f) {
  TreeBench plain(f, false), masked(f, true);
  std::vector<int32_t> chain = make_parents(f.nodes, false), tree = make_parents(f.nodes, true);
  std::vector<double> times[3];
  for (int round = 0; round <= f.repeat; ++round) {  // in turns; the first round warms up
    double now[] = {plain.measure(chain), masked.measure(chain), masked.measure(tree)};
    for (size_t i = 0; round > 0 && i < 3; ++i) times[i].push_back(now[i]);
  }
  auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  double base = median(times[0]);
  constexpr const char* kNames[] = {"chain", "chain with a mask", "tree"};
  Value rows = Value::array();
  for (size_t i = 0; i < 3; ++i)
    rows.push(Value::Object{
        {"step", kNames[i]}, {"seconds", median(times[i])}, {"to_chain", median(times[i]) / base}});
  if (f.json) {
    fmt::print("{}\n", dump_json(rows, 2));
    return;
  }
  fmt::print("{} rows after {} tokens, one thread\n", f.nodes, f.context);
  fmt::print("{:<18} {:>12} {:>9}\n", "step", "ms", "to chain");
  for (const Value& r : rows.as_array())
    fmt::print("{:<18} {:>12.2f} {:>9.3f}\n", r.at("step").as_string(),
               1e3 * r.at("seconds").as_double(), r.at("to_chain").as_double());
}

}  // namespace

void add_bench_tree(CLI::App& bench) {
  auto f = std::make_shared<TreeFlags>();
  CLI::App* verb = bench.add_subcommand(
      "tree",
      "CPU time of a step that verifies a tree of drafts, compared with a chain of the same size");
  add_model_argument(*verb, f->model);
  verb->add_option("--nodes", f->nodes, "drafted tokens")
      ->check(CLI::Range(2, 256))
      ->capture_default_str();
  verb->add_option("--context-tokens", f->context, "tokens before them")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--repeat", f->repeat, "rounds; the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_flag("--json", f->json, "print the rows as JSON");
  add_model_flags(*verb, f->model);
  verb->footer("Example:\n  tokamak bench tree model.gguf --nodes 64");
  verb->callback([f] { bench_tree(*f); });
}

}  // namespace tokamak
