#pragma once
// The engine as a state machine. Time and events go in, actions come out:
//
//   Request -> Sequence -> StepEntry -> StepInputs -> StepResult -> ids -> Delta
//   arrival    reserve     reserve      submit        completed     commit  emit
//
// It has no threads, no I/O and no clock: a driver (engine/local_engine.h, engine/simulator.h)
// gives it events and carries out its actions. The same events give the same actions.
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/config.h"
#include "engine/draft/drafter.h"
#include "engine/event.h"
#include "engine/kv/kv_cache.h"
#include "engine/sched/scheduler.h"
#include "engine/slots.h"

namespace tokamak {

// One thread at a time. Requests live in it until their last step is done.
class EngineCore {
 public:
  // `drafter` may be nullptr; it must outlive the core.
  explicit EngineCore(EngineConfig config, Drafter* drafter = nullptr);

  // Steps must be reported in the order of their submission.
  void advance(Nanos now, std::span<Event> events, Actions& actions);

  const EngineConfig& config() const { return config_; }
  const KvCache& kv() const { return kv_; }
  KvCache& kv() { return kv_; }
  Slots& slots() { return slots_; }
  const EngineStats& stats();  // brings the gauges up to date
  // The sequence of a row, for tools and tests. O(running).
  const Sequence* sequence_in_row(int32_t row) const { return scheduler_.in_row(row); }
  int64_t running() const { return static_cast<int64_t>(scheduler_.running()); }
  int64_t waiting() const { return static_cast<int64_t>(scheduler_.waiting()); }
  void hold(bool on) { held_ = on; }  // starts no step while on
  int64_t steps_in_flight() const { return static_cast<int64_t>(submitted_ - completed_); }
  bool idle() const { return requests_.empty(); }

 private:
  struct Deadline {
    Nanos at;
    RequestId request;
    bool queue;  // only if it has not started
    bool operator>(const Deadline& o) const { return at > o.at; }
  };

  // core.cc: requests
  void take(Event& event, Actions& actions);
  void arrive(RequestId id, RequestSpec&& spec, Actions& actions);
  void reject(RequestId id, int32_t n, const Error& why, Actions& actions);
  void cancel(RequestId id, Finish finish, Actions& actions);
  void stop_at(RequestId id, int32_t choice, int32_t position, Actions& actions);
  void expire(Nanos now, Actions& actions);
  void add_deadline(Deadline deadline);
  void pop_deadline();
  bool started(RequestId id) const;
  Nanos next_deadline();
  void release();  // frees what no step in flight uses
  bool reserve(PendingStep& step);
  void submit(PendingStep& step, Actions& actions);
  void ask_for_masks(Actions& actions);
  PendingStep& step_slot(Ticket ticket) { return steps_[ticket % steps_.size()]; }

  // commit.cc: steps
  void commit(Ticket ticket, const StepResult& result, Actions& actions);
  void rewind(Ticket ticket, std::string_view error, Actions& actions);
  void commit_entry(const PendingStep& step, size_t entry, const StepResult& result,
                    Actions& actions);
  void commit_shadow(const StepEntry& entry);
  void keep_path(Sequence& seq, const StepEntry& entry, std::span<const int32_t> path,
                 const StepResult& result);
  void emit(Sequence& seq, std::span<const int32_t> path, const StepResult& result,
            Actions& actions);
  void note_scores(Sequence& seq, const StepEntry& entry, const StepResult& result);
  void note_tokens(Sequence& seq, size_t count);
  void note_end(const Sequence& seq, Finish finish);
  void finish(Sequence& seq, Finish finish, std::string_view error, Actions& actions);
  void close(Sequence& seq, Finish finish, Delta& last, Actions& actions);
  void drop(Sequence& seq);  // after its last delta

  // jump.cc: tokens that a mask forces
  void find_forced(const Sequence& seq);  // forced_
  void note_jump(int64_t tokens);
  void jump_at_start(Sequence& seq);
  Finish jump(Sequence& seq, Delta& delta);
  size_t kept_before_jump(const Sequence& seq, std::span<const int32_t> path,
                          const StepResult& result);

  // pool.cc: the vector of a prompt ends its request
  static void note_vectors(Sequence& seq, const StepEntry& e, const StepResult& result,
                           const PendingStep& step);
  void commit_vector(Sequence& seq, int32_t row, const StepResult& result, const PendingStep& step,
                     Actions& actions);

  // contrastive.cc: contrastive search
  void note_states(Sequence& seq, const StepEntry& e, const StepResult& result,
                   const PendingStep& step);
  void commit_candidate(Sequence& seq, int32_t row, const StepResult& result,
                        const PendingStep& step, Actions& actions);
  void step_candidates(Request& request, Actions& actions);

  // beam.cc: beam search
  void prepare_beams(Request& request) const;
  void commit_beam(Sequence& seq, int32_t row, const StepResult& result, Actions& actions);
  void hold_beam(Sequence& seq);
  void step_beams(Request& request, Actions& actions);
  void fork_beams(Request& request, const std::vector<BeamCandidate>& next);
  void end_beams(Request& request, Finish how, std::string_view error, Actions& actions);

  void name_adapters();  // in stats_; does nothing if no adapter was asked for, started or ended
  Sequence* new_sequence();
  void retire(Sequence* seq);

  const EngineConfig config_;
  EngineStats stats_;
  KvCache kv_;
  Slots slots_;
  Scheduler scheduler_;
  std::vector<PendingStep> steps_;  // ring of max_in_flight, by ticket
  bool held_ = false;
  Ticket submitted_ = 0, completed_ = 0;  // steps submitted and steps reported
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::vector<Deadline> deadlines_;  // heap, soonest first; may include finished requests
  std::vector<std::unique_ptr<Sequence>> slab_;
  std::vector<Sequence*> free_sequences_, retired_;
  std::vector<int32_t> forced_, choices_;
  std::shared_ptr<const SampleSpec> greedy_;  // of requests without a SampleSpec
  uint64_t next_order_ = 0;
  uint64_t adapter_requests_ = 0;  // arrivals and ends of requests with adapters
  uint64_t adapters_named_ = 0;    // changes when name_adapters() last ran
  Nanos now_ = 0, last_done_ = 0;  // time of this call, and of the last completed step
};

}  // namespace tokamak
