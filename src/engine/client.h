#pragma once
// The interface of the engine: tokens in, tokens out, serialisable. The local engine and the
// cluster router implement it; the server uses nothing else of the engine.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/kv/prefix_tree.h"
#include "engine/stats.h"
#include "plan/adapter.h"
#include "plan/step.h"
#include "plan/step_trace.h"

namespace tokamak {

using RequestId = uint64_t;

// Which tokens a request may generate next. A grammar implements it.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets the bits of the tokens that may follow. `answer` has the tokens of the choice so far, and
  // `drafts` those that are assumed to follow them (empty without drafts). `allowed` has
  // mask_words(vocab) words (plan/step.h), all zero. Called on the engine's thread, while the
  // device computes the step: once for every token of the answer, and once for every drafted token.
  // Must be quick and must not throw. If no bit is set, the choice ends with Finish::kError. After
  // drafts that are not allowed, any bits will do.
  virtual void allow(int32_t choice, std::span<const int32_t> answer,
                     std::span<const int32_t> drafts, std::span<uint32_t> allowed) = 0;
  // Jump-forward: appends the tokens that must follow the answer, whatever the model would choose;
  // the last one may be a stop id. Called on the engine's thread between steps, only for requests
  // with RequestSpec::jump_forward. Must be quick and must not throw.
  virtual void force(int32_t choice, std::span<const int32_t> answer,
                     std::vector<int32_t>& forced) {
    (void)choice, (void)answer, (void)forced;
  }
};

// When a beam search ends before max_tokens, once there are `beams` answers. The names are those of
// transformers' early_stopping.
enum class EarlyStopping : uint8_t {
  kFalse,  // if no partial answer, at its present length, is better than the worst of them
  kTrue,   // at once
  kNever,  // if no partial answer can become better at any length
};

struct RequestSpec {
  std::vector<int32_t> prompt;               // at least one id
  std::shared_ptr<const SampleSpec> sample;  // nullptr: greedy
  int32_t max_tokens = 16;                   // 0: only process the prompt (with score_prompt)
  std::shared_ptr<TokenMask> mask;           // nullptr: every token is allowed
  // Tokens that the mask forces (TokenMask::force) are appended without steps of their own. Has no
  // effect where log-probabilities of the answer are wanted.
  bool jump_forward = false;
  std::shared_ptr<const Adapter> adapter;  // changes the model's weights; nullptr: none
  std::vector<int32_t> stop_ids;           // end the answer; the id itself is not part of it
  int32_t n = 1;                           // choices; choice c uses noise key (seed, c)
  // Beam search: the number of partial answers that are kept. The n best answers are sent at the
  // end, one delta each, best first. 0: every choice is sampled.
  int32_t beams = 0;
  float length_penalty = 1.0f;  // the score is the sum of log-probabilities / length ^ this
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  bool streamed = false;      // its tokens are read as they come (EngineConfig::stream_pace)
  bool progress = false;      // report how much of the prompt is computed (Delta::prompt_done)
  bool score_prompt = false;  // report log-probabilities of prompt tokens 1..
  int32_t score_from = 1;     // first prompt position to score
  // Return the vector of the prompt instead of an answer; max_tokens is 0. second_text: the first
  // token of the second text of a pair, for encoders with segments; 0: there is one text.
  bool pool = false;  // with score_prompt: the vectors of all its tokens, one after the other
  int32_t second_text = 0;
  int32_t priority = 0;     // lower runs first
  std::string cache_salt;   // only requests with the same salt and adapter share cached blocks
  std::string tenant;       // counted by fair scheduling; empty: the salt
  Nanos deadline = kNever;  // absolute, by the engine's clock
  Nanos queue_deadline = kNever;  // cancelled if it has not started by then
  // Its blocks are evicted after those with a lower cache_priority. The priority ends cache_ttl
  // after their last use.
  int32_t cache_priority = 0;
  Nanos cache_ttl = kNever;
  // Most drafted tokens per step (engine/draft/): -1: the engine's limit, 0: none. They change the
  // speed and never the answer.
  int32_t draft_tokens = -1;
  int32_t draft_branches = -1;  // most drafts that continue the same token; -1: the engine's limit
  // What the answer will largely be (OpenAI's predicted outputs): drafters that look up texts use
  // it.
  std::vector<int32_t> prediction;
  // With SampleSpec::guidance_scale: the answer is kept away from what would follow these ids.
  // Empty: the last id of the prompt.
  std::vector<int32_t> negative_prompt;
  bool contrasts_layers() const { return sample && !sample->dola_layers.empty() && max_tokens > 0; }
  bool contrasts_states() const { return sample && sample->penalty_alpha > 0 && max_tokens > 0; }
  bool guided() const { return sample && sample->guidance_scale != 1.0f && max_tokens > 0; }
  int32_t slot = -1;  // whose text this becomes (Client::save_slot); -1: none
  // With ContextShift (engine/context_shift.h): tokens at the beginning of the prompt that a shift
  // keeps; -1: the whole prompt.
  int32_t keep = 0;
};

enum class Finish : uint8_t { kNone, kStop, kLength, kCancelled, kTimeout, kError };
const char* finish_name(Finish finish);  // "stop", "length", ...

struct Delta {
  RequestId request = 0;
  int32_t choice = 0;
  int32_t position = 0;  // of ids[0] within the answer
  std::vector<int32_t> ids;
  std::vector<float> logprobs;                 // parallel to ids when asked for
  std::vector<std::vector<TokenLogprob>> top;  // parallel to ids when asked for
  // Once, on the first delta of choice 0: positions score_from .. prompt end.
  std::vector<float> prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> prompt_top;  // parallel to it when asked for
  std::vector<float> vector;                          // of the prompt, with RequestSpec::pool
  int32_t stop_id = -1;           // the id that ended the answer, with Finish::kStop
  Finish finish = Finish::kNone;  // the last delta of a choice says how it ended
  std::string error;              // with Finish::kError
  // With Finish::kError: kResourceExhausted means "the queue is full, try again later".
  ErrorCode error_code = ErrorCode::kInternal;
  int32_t cached_tokens = 0;  // prompt tokens found in the cache; on the first delta
  // With RequestSpec::progress, on deltas before the answer and on its first: prompt tokens that
  // are computed or were cached, and those that were cached.
  int32_t prompt_done = 0, prompt_cached = 0;
  int32_t drafted = 0, accepted = 0;  // drafts since the last delta, and how many were accepted
  int32_t forced = 0;                 // of `ids`: appended by jump-forward
  double beam_score = 0;  // with beam search: sum of log-probabilities / length ^ penalty
  bool shifted = false;   // the context was shifted before these tokens (ContextShift)
};

struct EngineInfo {
  std::string model;
  int64_t vocab = 0, max_model_len = 0;
  // Free blocks are those that a sequence could get; they may hold cached content.
  int64_t kv_blocks_total = 0, kv_blocks_free = 0, running = 0, waiting = 0;
  double retry_after = 1;  // estimated seconds until a refused request would be accepted
};

// Tokens with the content of their KV blocks. It can be restored by an engine whose kv_layout() is
// the same.
struct SavedPrefix {
  std::vector<int32_t> ids;
  std::vector<std::byte> blocks;
};

class Client {
 public:
  virtual ~Client() = default;
  // Called on the engine's thread: must not block and must not throw. Sinks of one request are
  // called in order; after a delta with a finish for each choice there are no more.
  using Sink = std::function<void(Delta&&)>;
  // Throws Error(kInvalidArgument / kOutOfRange / kResourceExhausted / kUnavailable) when the
  // request cannot be accepted.
  virtual RequestId submit(RequestSpec spec, Sink sink) = 0;
  virtual void cancel(RequestId id) = 0;  // unknown or finished ids are ignored
  // The front end found a stop string: the choice ends before answer position `position`; later
  // tokens are discarded.
  virtual void stop_at(RequestId id, int32_t choice, int32_t position) = 0;
  virtual EngineInfo info() const = 0;
  virtual EngineStats stats() const { return {}; }    // a copy of about 4 KB
  virtual EngineMemory memory() const { return {}; }  // allocated by the engine
  // The prefix cache now, with at most `most` nodes of its index. Waits until the engine is between
  // two steps: not for sinks.
  virtual PrefixTree prefix_tree(int64_t most) {
    (void)most;
    return {};
  }
  // The text of a slot (RequestSpec::slot) in the prefix cache. They wait until the engine is
  // between two steps: not for sinks. Throw Error(kNotFound) if the slot has no text with this
  // salt, Error(kUnsupported) without a prefix cache.
  virtual SavedPrefix save_slot(int32_t slot, const std::string& salt);
  virtual void restore_slot(int32_t slot, const std::string& salt, const SavedPrefix& saved);
  virtual int64_t erase_slot(int32_t slot, const std::string& salt);  // its tokens
  virtual std::string kv_layout() const { return {}; }  // model, arithmetic, sizes of blocks
  // Records what the threads do in one step that computes prompts, or one that computes none: the
  // first after `skip` others of the kind. The sink is called on the engine's thread, once, or not
  // at all if another trace is asked for or the engine stops before. False: the backend cannot.
  using TraceSink = std::function<void(StepTrace&&)>;
  virtual bool trace_step(bool prompts, int skip, TraceSink sink) {
    (void)prompts, (void)skip, (void)sink;
    return false;
  }
};

// Passes every call on to another client: the base of those that change some of them.
class ForwardingClient : public Client {
 public:
  explicit ForwardingClient(std::shared_ptr<Client> inner) : inner_(std::move(inner)) {}
  RequestId submit(RequestSpec spec, Sink sink) override {
    return inner_->submit(std::move(spec), std::move(sink));
  }
  void cancel(RequestId id) override { inner_->cancel(id); }
  void stop_at(RequestId id, int32_t choice, int32_t position) override {
    inner_->stop_at(id, choice, position);
  }
  EngineInfo info() const override { return inner_->info(); }
  EngineStats stats() const override { return inner_->stats(); }
  EngineMemory memory() const override { return inner_->memory(); }
  PrefixTree prefix_tree(int64_t most) override { return inner_->prefix_tree(most); }
  SavedPrefix save_slot(int32_t slot, const std::string& salt) override {
    return inner_->save_slot(slot, salt);
  }
  void restore_slot(int32_t slot, const std::string& salt, const SavedPrefix& saved) override {
    inner_->restore_slot(slot, salt, saved);
  }
  int64_t erase_slot(int32_t slot, const std::string& salt) override {
    return inner_->erase_slot(slot, salt);
  }
  std::string kv_layout() const override { return inner_->kv_layout(); }
  bool trace_step(bool prompts, int skip, TraceSink sink) override {
    return inner_->trace_step(prompts, skip, std::move(sink));
  }

 protected:
  const std::shared_ptr<Client> inner_;
};

}  // namespace tokamak
