// Pooling requests: the step that completes the prompt gives its vector, and the request ends.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/core.h"

namespace tokamak {

bool vectors_complete(const PendingStep& step, const StepResult& result) {
  bool wanted = std::any_of(step.entries.begin(), step.entries.end(), [](const StepEntry& e) {
    const auto& beam = e.sequence->request->beam;
    return e.pools || (e.scores > 0 && e.sequence->request->spec.pool) ||
           (beam && beam->contrast && e.scores + (e.chooses ? 1 : 0) > 0);
  });
  size_t rows = step.inputs.out_rows.size() - static_cast<size_t>(step.draft_outputs);
  return !wanted || (!result.hidden.empty() && result.hidden.size() % rows == 0);
}

std::span<const float> hidden_row(const PendingStep& step, const StepResult& result, int32_t row) {
  size_t rows = result.ids.size() - static_cast<size_t>(step.draft_outputs);
  size_t width = result.hidden.size() / rows;
  return std::span(result.hidden)
      .subspan(static_cast<size_t>(row - step.draft_outputs) * width, width);
}

void EngineCore::note_vectors(Sequence& seq, const StepEntry& e, const StepResult& result,
                              const PendingStep& step) {
  for (int32_t row = e.first_out; row < e.first_out + e.scores; ++row) {
    std::span<const float> vector = hidden_row(step, result, row);
    seq.vectors.insert(seq.vectors.end(), vector.begin(), vector.end());
  }
}

void EngineCore::commit_vector(Sequence& seq, int32_t row, const StepResult& result,
                               const PendingStep& step, Actions& actions) {
  std::span<const float> vector = hidden_row(step, result, row);
  kv_.commit(seq.blocks, seq.computed, seq.ids());
  std::vector<float>& all = seq.vectors;
  all.insert(all.end(), vector.begin(), vector.end());
  if (!std::all_of(all.begin(), all.end(), [](float x) { return std::isfinite(x); }))
    return finish(seq, Finish::kError, "the model's output was not a finite number", actions);
  Delta& d = actions.add_delta(seq.request->id, seq.choice, 0);
  d.vector = std::move(all);
  d.cached_tokens = seq.cached_tokens;
  close(seq, Finish::kStop, d, actions);
}

}  // namespace tokamak
