#pragma once
// Which drafter a model is opened with.
#include <memory>
#include <string>
#include <string_view>

#include "api/open.h"
#include "engine/config.h"
#include "engine/draft/drafter.h"
#include "engine/draft/lookahead_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/draft/pattern_drafter.h"
#include "engine/draft/suffix_drafter.h"

namespace tokamak {

struct SpeculativeOptions {
  enum class Method : uint8_t {
    kOff,
    kNgram,
    kSuffix,
    kDraftModel,
    kPatterns,
    kEarlyExit,
    kLookahead
  };
  Method method = Method::kOff;
  int32_t tokens = 8;    // most drafted tokens per sequence and step; parse_speculative() sets it
  std::string model;     // path of the draft model
  std::string patterns;  // path of the pattern library
  int64_t layers = 0;    // of an early exit; 0: a third of the model's
  PatternOptions pattern;
  NgramOptions ngram;
  SuffixOptions suffix;
  LookaheadOptions lookahead;
  int32_t branches = 1;               // most drafts that continue the same token; 1: chains
  bool rejection = false;             // SampleSpec::rejection, unless a request says otherwise
  bool adaptive = true;               // draft only as many as pay
  int64_t disable_by_batch_size = 0;  // no drafts in steps that decode more sequences; 0: no bound
};

// From ModelOptions::speculative: "" or "off", the name of a method, or a JSON object with the
// names of vLLM's --speculative-config; and from ModelOptions::draft_model. Throws
// Error(kInvalidArgument) naming what is wrong.
SpeculativeOptions parse_speculative(std::string_view text, const std::string& draft_model = {});

// The layers that draft: OpenOptions::exit_layers. Throws Error(kUnsupported) for a bundle.
int64_t exit_layers(const SpeculativeOptions& speculative, const OpenOptions& options);

// Opens the drafter that the options name, for a model whose tokenizer and backend are loaded.
// Sets model.draft and model.drafter.
void open_drafter(const SpeculativeOptions& speculative, const OpenOptions& options,
                  const EngineConfig& config, LoadedModel& model);
uint64_t tokenizer_fingerprint(const Tokenizer& tokenizer);  // of the pieces
void set_draft_limits(const SpeculativeOptions& options, EngineConfig& config);

}  // namespace tokamak
