#pragma once
// The state of one choice of a request.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/beam.h"
#include "engine/client.h"
#include "engine/draft/drafter.h"
#include "engine/kv/kv_cache.h"

namespace tokamak {

class Sequence;

// A request and its choices. Owned by EngineCore until its last sequence is retired.
struct Request {
  RequestId id = 0;
  RequestSpec spec;                // `sample` is always there
  std::vector<Sequence*> choices;  // nullptr once retired
  int32_t unfinished = 0;          // choices without their last delta
  int32_t unretired = 0;           // choices that still have rows or blocks
  // With beam search, `choices` are its partial answers; there is one until the prompt is computed.
  std::unique_ptr<BeamSearch> beam;
  bool wants_logprobs = false;  // of its answers
  uint64_t first_order = 0;
  int32_t cached_tokens = 0;
  int32_t longest_answer = 0;  // tokens, of its choices that ended
  Nanos arrived = 0;
};

// What is known about the drafts of a sequence; written by DraftPlanner.
struct DraftRecord {
  struct Rate {
    double accepted = 0, rejected = 0;  // decayed counts; a proposal is rejected at most once
    int32_t skipped = 0, pause = 16;    // proposals not used since `off`, and until the next try
    bool off = false;                   // drafting does not pay
  };
  std::array<Rate, kMostDraftStrengths> rates;
  int32_t strength = 0;               // of the drafts in flight
  int32_t asked = -1;                 // index of its request in the step being reserved
  int32_t drafted = 0, accepted = 0;  // since the last delta
};

// Three lengths describe a sequence:
//   computed <= scheduled <= expected()
//   computed    slots whose KV is proven produced (only a commit moves it)
//   scheduled   slots that steps in flight will have written
//   expected()  committed ids plus those that steps in flight choose
// Owned by EngineCore (a slab: objects are reused), changed by the scheduler and at commit, engine
// thread only.
class Sequence {
 public:
  enum class Phase : uint8_t {
    kWaiting,     // has no row and no blocks
    kRunning,     // has a row
    kPreempting,  // will wait again once no step in flight refers to it
    kFinished,    // its last delta was sent; retired once no step in flight refers to it
  };

  void open(Request* request, int32_t choice, uint64_t order, Nanos now);  // nothing computed
  void open_shadow(Sequence& of);
  void extend(int32_t id) {  // a committed token
    ids_.push_back(id);
    if (shadow != nullptr) shadow->ids_.push_back(id);
  }
  void reserve_ids() { ids_.reserve(static_cast<size_t>(prompt_length_ + limit)); }
  void become(const Sequence& parent);  // takes its tokens; nothing is computed
  void rewind();                        // back to what is committed; results in flight become stale
  void drop_kv();                       // rewind to an empty cache; the caller releases the blocks

  std::span<const int32_t> ids() const { return ids_; }
  int32_t length() const { return static_cast<int32_t>(ids_.size()); }
  int32_t generated() const { return length() - prompt_length_; }
  int32_t prompt_length() const { return prompt_length_; }
  int32_t expected() const { return length() + pending; }
  bool stops_at(int32_t id) const;  // this next token ends the answer
  // Slots that may be taken from the cache: all but the last, whose row chooses, and scored ones.
  int64_t reusable() const;
  // Tokens that a step could take now; 0 if the answer is complete or must wait for a commit. With
  // a shadow, the larger number of the two: at 1, both take their last token in the same step.
  int32_t schedulable() const;
  int32_t left() const { return expected() - scheduled; }  // tokens that no step has taken
  // The step that feeds the slot before `end` chooses a token.
  bool chooses_at(int32_t end) const { return leader == nullptr && limit > 0 && end == expected(); }

  // Prompt scores: the rows first_score_row(start) .. last_score_row() - 1 report the next id's.
  bool scores() const { return choice == 0 && leader == nullptr && request->spec.score_prompt; }
  int32_t first_score_row(int32_t start) const;
  int32_t last_score_row() const { return scores() ? prompt_length_ - 1 : 0; }
  int32_t score_rows(int32_t start, int32_t end) const;

  // The step that feeds the slot before `end` completes a prompt whose vector is wanted.
  bool pools_at(int32_t end) const { return request->spec.pool && end == prompt_length_; }

  const SampleSpec& sample() const { return *request->spec.sample; }

  // Classifier-free guidance: the shadow has the negative prompt and then the same answer. It takes
  // part in the steps that choose the leader's tokens. It has a row and blocks exactly while the
  // leader has, and only the leader is known to queues. The leader's in_flight counts both.
  Sequence *shadow = nullptr, *leader = nullptr;
  Sequence& owner() { return leader != nullptr ? *leader : *this; }
  const Sequence& owner() const { return leader != nullptr ? *leader : *this; }

  Request* request = nullptr;
  int32_t choice = 0;
  uint64_t order = 0;  // of arrival
  Phase phase = Phase::kWaiting;
  int32_t row = -1;
  int32_t adapter_slot = -1;  // while it runs; -1: no adapter
  int32_t slot_waits = 0;     // times that it was passed over because its adapter had no slot
  SequenceBlocks blocks;

  int32_t computed = 0, scheduled = 0;
  int32_t pending = 0;             // tokens being chosen by steps in flight
  int32_t in_flight = 0;           // steps in flight that refer to this sequence, stale ones too
  uint32_t epoch = 0;              // a step of an older epoch is stale
  bool settling = false;           // was rewound; waits until nothing in flight refers to it
  bool reset_row = false;          // the backend must be told the row's history
  std::vector<DraftToken> drafts;  // being verified by the step in flight
  DraftRecord draft;
  // Slots {from, to} that the next step moves before it runs: the kept branch of a tree of drafts.
  // Until that step commits, slots from the first `to` on are not counted as computed.
  std::vector<std::pair<int32_t, int32_t>> moves;

  int32_t limit = 0;  // tokens of the answer: max_tokens, or where stop_at ended it
  bool limit_is_stop = false;
  int32_t failures = 0;                // failed steps since it last got further than ever
  int32_t furthest = 0;                // most tokens that were ever computed
  std::vector<float> prompt_logprobs;  // committed scores
  std::vector<float> vectors;          // of their rows, with RequestSpec::pool
  std::vector<std::vector<TokenLogprob>> prompt_top;
  bool first_delta_sent = false;
  float mirostat_mu = kMirostatStart;  // after the last committed token
  int32_t unsent = 0;  // tokens at the start of the answer that were forced before the first step
  bool held = false;   // beam search: has added its continuations and waits for the others
  double beam_score = 0;
  std::vector<float> beam_logprobs;

  int32_t lane = 0;                       // of the waiting queue
  int32_t passed_over = 0;                // later arrivals that started before it
  int64_t cached_now = 0, looked_at = 0;  // last cache lookup: tokens, round (0: none yet)
  int32_t cached_tokens = 0;              // of the prompt, at its first start
  Nanos arrived = 0, started = kNever, first_token = kNever, last_token = kNever;

 private:
  std::vector<int32_t> ids_;
  int32_t prompt_length_ = 0;
};

}  // namespace tokamak
