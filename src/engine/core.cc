#include "engine/core.h"

#include <algorithm>

#include "base/error.h"
#include "engine/sched/batch.h"

namespace tokamak {

EngineCore::EngineCore(EngineConfig config, Drafter* drafter)
    : config_((check_engine_config(config), std::move(config))),
      kv_(config_.groups, config_.blocks),
      scheduler_(config_, kv_, config_.draft_tokens > 0 ? drafter : nullptr),
      steps_(static_cast<size_t>(config_.max_in_flight)) {
  for (Step& step : steps_) prepare_inputs(config_, step.inputs);
  SampleSpec greedy;
  greedy.temperature = 0;
  greedy_ = std::make_shared<const SampleSpec>(greedy);
}

// The path. A step has three moments: reserve (rows and slots), submit, and, when a later call is
// told of its completion, commit. Only commit advances a sequence and emits tokens.
void EngineCore::advance(Nanos now, std::span<Event> events, Actions& actions) {
  actions.clear();
  for (Event& event : events) take(event, actions);
  expire(now, actions);
  release();
  while (steps_in_flight() < config_.max_in_flight) {
    Step& step = step_slot(submitted_);
    if (!reserve(step)) break;
    build_inputs(config_, kv_, step);
    submit(step, actions);
  }
  actions.next_wakeup = next_deadline();
  TK_CHECK(steps_in_flight() > 0 || requests_.empty(), "{} requests can never go on",
           requests_.size());
}

void EngineCore::take(Event& event, Actions& actions) {
  switch (event.kind) {
    case Event::Kind::kArrival:
      return arrive(event.request, std::move(event.spec), actions);
    case Event::Kind::kCancel:
      return cancel(event.request, Finish::kCancelled, actions);
    case Event::Kind::kStopAt:
      return stop_at(event.request, event.choice, event.position, actions);
    case Event::Kind::kStepDone:
      return commit(event.ticket, *event.result, actions);
    case Event::Kind::kStepFailed:
      return rewind(event.ticket, event.error, actions);
  }
}

bool EngineCore::reserve(Step& step) { return scheduler_.schedule(step.entries); }

void EngineCore::submit(Step& step, Actions& actions) {
  step.ticket = submitted_++;
  ++stats_.steps;
  stats_.tokens_scheduled += step.inputs.tokens();
  actions.submits.push_back({step.ticket, &step.inputs});
}

void EngineCore::release() {
  retired_.clear();
  scheduler_.settle(retired_);
  for (Sequence* seq : retired_) retire(seq);
}

// --- requests

void EngineCore::arrive(RequestId id, RequestSpec&& spec, Actions& actions) {
  TK_CHECK(!requests_.contains(id), "request {} is there already", id);
  try {
    check_request(config_, spec);
    if (waiting() + spec.n > config_.max_queue)
      fail(ErrorCode::kResourceExhausted, "the queue is full: {} sequences wait", waiting());
  } catch (const Error& e) {
    return reject(id, spec.n, e.what(), actions);
  }
  auto request = std::make_unique<Request>();
  request->id = id;
  request->spec = std::move(spec);
  if (!request->spec.sample) request->spec.sample = greedy_;
  request->unfinished = request->unretired = request->spec.n;
  for (int32_t c = 0; c < request->spec.n; ++c) {
    Sequence* seq = new_sequence();
    seq->open(request.get(), c, next_order_++);
    request->choices.push_back(seq);
    scheduler_.enqueue(seq);
  }
  if (request->spec.deadline != kNever) {
    deadlines_.emplace_back(request->spec.deadline, id);
    std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }
  requests_.emplace(id, std::move(request));
}

void EngineCore::reject(RequestId id, int32_t n, const std::string& why, Actions& actions) {
  for (int32_t c = 0; c < std::clamp<int64_t>(n, 1, config_.max_queue); ++c) {
    Delta& d = actions.add_delta(id, c, 0);
    d.finish = Finish::kError;
    d.error = why;
  }
  actions.finished.push_back(id);
}

void EngineCore::cancel(RequestId id, Finish how, Actions& actions) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Request& request = *it->second;
  // The request goes with its last choice, so count down instead of asking it.
  for (int32_t c = 0, n = request.spec.n; c < n; ++c) {
    Sequence* seq = request.choices[static_cast<size_t>(c)];
    bool last = request.unretired == 1;
    if (seq == nullptr || seq->phase == Sequence::Phase::kFinished) continue;
    finish(*seq, how, {}, actions);
    if (last && !requests_.contains(id)) return;
  }
}

void EngineCore::stop_at(RequestId id, int32_t choice, int32_t position, Actions& actions) {
  auto it = requests_.find(id);
  if (it == requests_.end() || choice < 0 || choice >= it->second->spec.n) return;
  Sequence* seq = it->second->choices[static_cast<size_t>(choice)];
  if (seq == nullptr || seq->phase == Sequence::Phase::kFinished) return;
  position = std::max(position, 0);
  if (position >= seq->limit) return;
  seq->limit = position;
  seq->limit_is_stop = true;
  if (seq->generated() >= position) finish(*seq, Finish::kStop, {}, actions);
}

void EngineCore::expire(Nanos now, Actions& actions) {
  while (!deadlines_.empty() && deadlines_.front().first <= now) {
    RequestId id = deadlines_.front().second;
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    deadlines_.pop_back();
    cancel(id, Finish::kTimeout, actions);
  }
}

Nanos EngineCore::next_deadline() {
  while (!deadlines_.empty() && !requests_.contains(deadlines_.front().second)) {
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    deadlines_.pop_back();
  }
  return deadlines_.empty() ? kNever : deadlines_.front().first;
}

// --- sequences

Sequence* EngineCore::new_sequence() {
  if (free_sequences_.empty()) {
    slab_.push_back(std::make_unique<Sequence>());
    free_sequences_.push_back(slab_.back().get());
  }
  Sequence* seq = free_sequences_.back();
  free_sequences_.pop_back();
  return seq;
}

void EngineCore::retire(Sequence* seq) {
  Request& request = *seq->request;
  request.choices[static_cast<size_t>(seq->choice)] = nullptr;
  seq->request = nullptr;
  free_sequences_.push_back(seq);
  if (--request.unretired == 0) requests_.erase(request.id);
}

EngineStats EngineCore::stats() const {
  EngineStats s = stats_;
  s.preemptions = scheduler_.preemptions();
  return s;
}

}  // namespace tokamak
