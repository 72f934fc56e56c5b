#pragma once
// Parameters shared by the two generation routes: sampling, stopping, streaming.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/call_mask.h"
#include "serve/message_mask.h"
#include "serve/openai/fields.h"
#include "serve/served_model.h"

namespace tokamak::openai {

// llama.cpp's limits of code completions.
struct LineLimits {
  int32_t indent = 0;   // a line that is indented less ends the answer; 0: none does
  int64_t time_ms = 0;  // after it, the next end of a line does; 0: no limit
};

struct GenerationParams {
  SampleSpec sample;
  std::optional<int64_t> max_tokens;
  int n = 1;
  int best = 0;   // of the n answers, how many are returned; 0: all
  int beams = 0;  // number of beams; 0: sampling
  float length_penalty = 1.0f;
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  std::vector<std::string> stops;
  bool include_stop = false;
  std::vector<int32_t>
      stop_ids;  // end-of-text ids of the model (unless ignore_eos) and the client's own
  std::vector<int32_t> own_stop_ids;  // only the client's own, sorted
  bool ignore_eos = false;
  LineLimits line_limits;
  std::shared_ptr<const grammar::Grammar> grammar;  // of the answer; null: any text
  int32_t grammar_min_tokens = 0;
  int32_t thought_budget = -1;  // most tokens of thoughts; -1: any number
  bool jump_forward = false;
  std::shared_ptr<const grammar::Grammar> call_grammar;  // where the answer begins a call
  CallBegin call_begin;                                  // where that is
  std::string warning;                                   // for the client: what has no effect
  std::vector<MessageForm> messages;            // that the answer may have (Harmony); empty: any
  std::vector<int32_t> allowed_ids;             // empty: all tokens
  std::vector<std::vector<int32_t>> bad_words;  // sequences of tokens that must not occur
  bool stream = false, include_usage = false, continuous_usage = false;
  bool echo = false;                            // completions only
  int32_t logprobs = -1, prompt_logprobs = -1;  // alternatives to report; -1: no log-probabilities
  bool skip_special = true;
  bool progress = false;  // of the prompt; in a stream
  bool return_token_ids = false, spell_ids = false, timings = false;
  int32_t draft_tokens = -1;  // RequestSpec::draft_tokens
  int32_t draft_branches = -1;
  std::vector<int32_t> prediction;
  std::vector<int32_t> negative_prompt;  // RequestSpec::negative_prompt
  int32_t keep = 0;                      // RequestSpec::keep
  int32_t slot = -1;                     // RequestSpec::slot
  int priority = 0;
  std::string cache_salt, tenant, request_id;
  double timeout_seconds = 0;  // 0: none
};

// Reads the common fields; `logprobs` differs between the routes, which read it themselves.
// seed: for a request that has none.
GenerationParams read_params(Fields& fields, const ServedModel& model, uint64_t seed);

// A number that differs for each call and each run of the program (seeds, ids).
uint64_t fresh_number();

}  // namespace tokamak::openai
