#pragma once
// A second, smaller model that guesses the next tokens.
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "engine/draft/drafter.h"

namespace tokamak {

// The draft model chooses with the noise of the request (seed, choice, position), so that it draws
// the token that the target model draws wherever their distributions agree. It has its own KV
// cache: every sequence keeps the KV of its committed tokens, those that were used longest ago lose
// it when blocks run out. A proposal is one synchronous step with a phase per drafted token, for
// all sequences together: the first phase also catches up with prompts, each later one reads the
// tokens that the phase before it chose. At most one phase's worth of tokens is caught up with per
// call; a sequence is drafted for when it has caught up. If steps fail, nothing is proposed.
class ModelDrafter final : public Drafter {
 public:
  // `executable` was loaded from `plans` with `blocks` per KV group and `rows` rows. The plans must
  // outlive it.
  ModelDrafter(const PlanSet& plans, std::unique_ptr<Executable> executable,
               std::vector<int64_t> blocks, int64_t rows);

  void propose(std::span<DraftRequest> requests) override;
  void finish(uint64_t sequence, std::string_view salt, std::span<const int32_t> ids,
              int32_t prompt_length) override;
  bool expensive() const override { return true; }

  uint64_t memory_bytes() const override { return executable_->memory().total(); }
  int64_t steps() const { return steps_; }
  bool all_free() const;  // no sequence holds blocks

 private:
  struct Text {
    std::vector<int32_t> ids;                  // whose KV is computed
    std::vector<std::vector<int32_t>> blocks;  // per group
    int32_t row = -1;
    uint64_t used = 0;  // round of its last proposal
    // With branches: what the request samples with, and the same with the likeliest tokens.
    std::shared_ptr<const SampleSpec> asked, with_top;
  };
  struct Active {
    DraftRequest* request;
    Text* text;
    int32_t output = -1;  // the last one of the step being built
    int32_t drafted = 0;  // outputs of the step being built
  };
  void propose_group(std::span<DraftRequest> requests);
  Text* prepare(DraftRequest& request);
  bool make_room(Text& text, int64_t slots);
  bool evict();  // the text used longest ago, if it is not in use in this round
  void release(Text& text);
  // Phases of a proposal's step. False: there is nothing to compute.
  bool catch_up();
  bool draft_next();
  void add(Active& active, std::span<const int32_t> ids, bool chooses);
  bool end_phase();
  void set_tables();
  const std::shared_ptr<const SampleSpec>& sample_of(Active& active);
  void run();
  void add_branches(int32_t output, DraftRequest& request);
  void give_up(const char* why);

  const PlanSet& plans_;
  std::unique_ptr<Executable> executable_;
  const std::vector<int64_t> blocks_;
  int64_t most_rows_, most_tokens_, decode_batch_;
  std::unordered_map<uint64_t, Text> texts_;
  std::vector<std::vector<int32_t>> free_;  // blocks per group
  std::vector<int32_t> free_rows_;
  std::vector<Active> active_;
  std::vector<std::pair<DraftRequest*, DraftToken>> branches_;
  std::vector<int32_t> owners_;  // per output of the step: index into active_, or -1
  StepInputs step_;
  StepResult result_;
  uint64_t round_ = 0;
  int64_t steps_ = 0;
  int failures_ = 0;
};

}  // namespace tokamak
