#include "tests/numerics/model_runner.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace tokamak {

ModelRunner::ModelRunner(const std::string& path, const RunnerOptions& options)
    : options_(options) {
  BackendOptions backend_options;
  backend_options.threads = options.threads;
  backend_ = make_backend(options.backend, backend_options);
  CompileOptions compile;
  compile.activations = options.activations;
  compile.bf16_rows = options.bf16_rows;
  compile.storage = options.storage;
  compile.kv_dtype = options.kv_dtype;
  compile.block_size = options.block_size;
  compile.max_sequences = options.sequences;
  compile.max_tokens = options.max_tokens;
  compile.max_logit_rows = options.max_tokens;
  compile.context = options.context;
  compile.disabled_passes = options.disabled_passes;
  compile.materialized_prefill = options.materialized_prefill;
  source_ = compile_model(path, *backend_, compile);
  load();
}

ModelRunner::ModelRunner(std::unique_ptr<ModelSource> source, std::unique_ptr<Backend> backend,
                         const RunnerOptions& options)
    : options_(options), backend_(std::move(backend)), source_(std::move(source)) {
  load();
}

void ModelRunner::load() {
  const PlanSet& plans = source_->plans();
  LoadOptions load;
  load.max_rows = options_.sequences;
  load.eager = options_.eager;
  Rng rng(42);
  for (const GroupEntry& g : plans.groups) {
    int64_t per_sequence = (options_.length + g.block_size - 1) / g.block_size;
    std::vector<int32_t> blocks(static_cast<size_t>(per_sequence * options_.sequences));
    std::iota(blocks.begin(), blocks.end(), 0);
    for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[rng.below(i)]);
    std::vector<std::vector<int32_t>> tables;
    for (int64_t s = 0; s < options_.sequences; ++s)
      tables.emplace_back(blocks.begin() + s * per_sequence,
                          blocks.begin() + (s + 1) * per_sequence);
    tables_.push_back(std::move(tables));
    load.blocks.push_back(static_cast<int64_t>(blocks.size()));
  }
  lengths_.assign(static_cast<size_t>(options_.sequences), 0);
  executable_ = backend_->load(plans, source_->weights(), load);
}

std::vector<std::vector<float>> ModelRunner::step(const std::vector<Part>& parts) {
  return run(parts, "step");
}

std::vector<std::vector<float>> ModelRunner::run(const std::vector<Part>& parts,
                                                 const std::string& function) {
  StepInputs step;
  step.function = function;
  step.return_logits = true;
  step.tables.resize(tables_.size());
  step.q_start.push_back(0);
  for (const Part& part : parts) {
    auto s = static_cast<size_t>(part.sequence);
    auto b = static_cast<int32_t>(step.kv_len.size());
    for (int32_t id : part.ids) {
      auto at = static_cast<int32_t>(lengths_[s]++);
      step.out_rows.push_back(static_cast<int32_t>(step.ids.size()));
      SampleRow sample;
      sample.mode = SampleRow::Mode::kHidden;
      step.samples.push_back(sample);
      step.ids.push_back(id);
      step.pos.push_back(at);
      step.slot.push_back(at);
      step.seq.push_back(b);
    }
    step.q_start.push_back(static_cast<int32_t>(step.ids.size()));
    step.kv_len.push_back(static_cast<int32_t>(lengths_[s]));
    step.row.push_back(part.sequence);
    for (size_t g = 0; g < tables_.size(); ++g) {
      step.tables[g].stride = static_cast<int32_t>(tables_[g][s].size());
      step.tables[g].blocks.insert(step.tables[g].blocks.end(), tables_[g][s].begin(),
                                   tables_[g][s].end());
    }
  }
  if (edit) edit(step);
  StepResult result;
  executable_->collect(executable_->submit(step), result);
  auto vocab = static_cast<size_t>(source_->plans().vocab);
  TK_CHECK(result.logits.size() == vocab * step.out_rows.size());
  std::vector<std::vector<float>> rows;
  for (size_t r = 0; r < step.out_rows.size(); ++r)
    rows.emplace_back(result.logits.begin() + static_cast<ptrdiff_t>(r * vocab),
                      result.logits.begin() + static_cast<ptrdiff_t>((r + 1) * vocab));
  return rows;
}

std::vector<std::vector<float>> ModelRunner::all_logits(int sequence,
                                                        const std::vector<int32_t>& ids,
                                                        size_t chunk) {
  std::vector<std::vector<float>> rows;
  for (size_t at = 0; at < ids.size(); at += chunk) {
    size_t end = std::min(ids.size(), at + chunk);
    std::vector<int32_t> part(ids.begin() + static_cast<ptrdiff_t>(at),
                              ids.begin() + static_cast<ptrdiff_t>(end));
    for (auto& row : step({{sequence, std::move(part)}})) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<int32_t> ModelRunner::greedy(int sequence, const std::vector<int32_t>& prompt,
                                         int count) {
  auto argmax = [](const std::vector<float>& row) {
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  };
  std::vector<int32_t> out = {argmax(all_logits(sequence, prompt, 16).back())};
  while (static_cast<int>(out.size()) < count)
    out.push_back(argmax(decode({{sequence, {out.back()}}}).back()));
  return out;
}

std::vector<std::byte> ModelRunner::kv(int sequence) {
  std::vector<std::byte> out;
  for (uint32_t g = 0; g < tables_.size(); ++g) {
    const std::vector<int32_t>& blocks = tables_[g][static_cast<size_t>(sequence)];
    std::vector<std::byte> bytes(blocks.size() * executable_->block_bytes(g));
    executable_->wait(executable_->read_blocks(g, blocks, bytes));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  return out;
}

double nmse(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    power += want[i] * want[i];
  }
  return error / std::max(power, 1e-30);
}

}  // namespace tokamak
