#pragma once
// Runs a model file through import, compiler and backend, step by step, and returns logits, for the
// numerics tests. Sequences get their KV blocks in shuffled order, to expose paging bugs.
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/rng.h"
#include "compile/open_model.h"
#include "plan/adapter.h"

namespace tokamak {

struct RunnerOptions {
  std::string backend = "ref";
  std::string activations = "f32";
  int64_t bf16_rows = 0;     // as CompileOptions
  std::string storage = {};  // as CompileOptions::storage
  DType kv_dtype = DType::kF32;
  int threads = 2;
  int64_t sequences = 8, length = 128, max_tokens = 64, block_size = 16;
  int64_t context = 0;  // as CompileOptions::context
  std::set<std::string> disabled_passes = {};
  bool eager = false;                 // as LoadOptions::eager
  bool materialized_prefill = false;  // as CompileOptions
};

class ModelRunner {
 public:
  ModelRunner(const std::string& path, const RunnerOptions& options);
  ModelRunner(std::unique_ptr<ModelSource> source, std::unique_ptr<Backend> backend,
              const RunnerOptions& options);

  struct Part {  // some tokens of one sequence in a step
    int sequence;
    std::vector<int32_t> ids;
  };
  // One step over all parts; returns one row of logits per token, in order.
  std::vector<std::vector<float>> step(const std::vector<Part>& parts);
  // One token per sequence through the `decode` function.
  std::vector<std::vector<float>> decode(const std::vector<Part>& parts) {
    return run(parts, "decode");
  }
  // Logits of every position of `ids`, in chunks.
  std::vector<std::vector<float>> all_logits(int sequence, const std::vector<int32_t>& ids,
                                             size_t chunk);
  std::vector<int32_t> greedy(int sequence, const std::vector<int32_t>& prompt, int count);

  // The KV blocks of a sequence as the executable stores them, in order, of all groups. Slots that
  // were never written are zero.
  std::vector<std::byte> kv(int sequence);

  void set_adapter(int32_t slot, const Adapter& adapter) {
    executable_->set_adapter(slot, adapter.tensors);
  }
  void restart(int sequence) { lengths_[static_cast<size_t>(sequence)] = 0; }
  const PlanSet& plans() const { return source_->plans(); }
  const MemoryLedger& memory() const { return executable_->memory(); }
  const DispatchStats& dispatch() const { return executable_->dispatch(); }

  std::function<void(StepInputs&)>
      edit;  // last change to a step before it is submitted: masks, named inputs, positions

 private:
  std::vector<std::vector<float>> run(const std::vector<Part>& parts, const std::string& function);
  void load();

  RunnerOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<Executable> executable_;
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [group][sequence]
  std::vector<int64_t> lengths_;
};

double nmse(const std::vector<float>& got, const std::vector<double>& want);

}  // namespace tokamak
