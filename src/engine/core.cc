#include "engine/core.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "engine/sched/batch.h"

namespace tokamak {
namespace {

// Keys and values depend on the adapter, so its identity becomes part of the salt: NUL, id, NUL,
// and the salt itself. A salt that begins with NUL is marked the same way, as id 0, which no
// adapter has.
void separate_caches(RequestSpec& spec) {
  bool marked = spec.cache_salt.starts_with('\0');
  if (!spec.adapter && !marked) return;
  if (spec.tenant.empty()) spec.tenant = spec.cache_salt;
  constexpr std::string_view kNul("\0", 1);
  spec.cache_salt =
      fmt::format("{}{}{}{}", kNul, spec.adapter ? spec.adapter->id : 0, kNul, spec.cache_salt);
}

// A prefix can be shared only together with the state after it, which is not kept.
EngineConfig checked(EngineConfig config) {
  check_engine_config(config);
  if (config.recurrent) config.prefix_cache = false;
  return config;
}

}  // namespace

EngineCore::EngineCore(EngineConfig config, Drafter* drafter)
    : config_(checked(std::move(config))),
      kv_(config_.groups, config_.blocks, config_.prefix_cache),
      scheduler_(config_, kv_, drafter, stats_),
      steps_(static_cast<size_t>(config_.max_in_flight)) {
  stats_.draft_limit = drafter != nullptr ? config_.draft_tokens : 0;
  for (PendingStep& step : steps_) prepare_inputs(config_, step.inputs);
  SampleSpec greedy;
  greedy.temperature = 0;
  greedy_ = std::make_shared<const SampleSpec>(greedy);
}

// A step is reserved (rows and slots), submitted and, when a later call reports its completion,
// committed. Only commit advances a sequence and emits tokens.
void EngineCore::advance(Nanos now, std::span<Event> events, Actions& actions) {
  actions.clear();
  now_ = now;
  kv_.set_time(now);
  for (Event& event : events) take(event, actions);
  expire(now, actions);
  release();
  while (!held_ && steps_in_flight() < config_.max_in_flight) {
    PendingStep& step = step_slot(submitted_);
    if (!reserve(step)) break;
    build_inputs(config_, kv_, step);
    submit(step, actions);
  }
  ask_for_masks(actions);
  actions.next_wakeup = next_deadline();
  TK_CHECK(held_ || steps_in_flight() > 0 || requests_.empty(),
           "{} requests wait and no step is in flight", requests_.size());
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

bool EngineCore::reserve(PendingStep& step) { return scheduler_.schedule(now_, step); }

void EngineCore::submit(PendingStep& step, Actions& actions) {
  step.ticket = submitted_++;
  scheduler_.adapters().move_loads(actions.adapters);
  step.masks_sent = false;
  step.submitted = now_;
  ++stats_.steps;
  int64_t tokens = step.inputs.tokens() - step.draft_sequences;
  stats_.tokens_scheduled += tokens;
  stats_.step_tokens.add(static_cast<double>(tokens));
  stats_.step_sequences.add(static_cast<double>(step.entries.size()));
  actions.submits.push_back({step.ticket, &step.inputs});
}

// The masks of the oldest step in flight: all tokens before its own are known now.
void EngineCore::ask_for_masks(Actions& actions) {
  if (steps_in_flight() == 0) return;
  PendingStep& step = step_slot(completed_);
  if (std::exchange(step.masks_sent, true)) return;
  for (const StepEntry& e : step.entries) {
    const Sequence& seq = *e.sequence;
    bool stale = e.epoch != seq.epoch || seq.phase == Sequence::Phase::kFinished;
    TokenMask* mask = stale || !e.chooses ? nullptr : seq.request->spec.mask.get();
    if (mask == nullptr) continue;
    auto answer = seq.ids().subspan(static_cast<size_t>(seq.prompt_length()));
    for (int32_t i = 0; i <= e.drafts; ++i) {
      auto first = actions.mask_drafts.size();
      for (int32_t d = i - 1; d >= 0; d = seq.drafts[static_cast<size_t>(d)].parent)
        actions.mask_drafts.push_back(seq.drafts[static_cast<size_t>(d)].id);
      std::reverse(actions.mask_drafts.begin() + static_cast<std::ptrdiff_t>(first),
                   actions.mask_drafts.end());
      actions.masks.push_back({step.ticket, e.first_choice() + i, mask, seq.choice, answer,
                               static_cast<uint32_t>(first),
                               static_cast<uint32_t>(actions.mask_drafts.size() - first)});
    }
  }
}

void EngineCore::release() {
  retired_.clear();
  scheduler_.settle(retired_);
  for (Sequence* seq : retired_) retire(seq);
}

// --- requests

void EngineCore::arrive(RequestId id, RequestSpec&& spec, Actions& actions) {
  TK_CHECK(!requests_.contains(id), "request {} exists already", id);
  try {
    check_request(config_, spec);
    if (waiting() + spec.n > config_.max_queue)
      fail(ErrorCode::kResourceExhausted, "the queue is full: {} sequences wait", waiting());
  } catch (const Error& e) {
    return reject(id, spec.n, e, actions);
  }
  auto request = std::make_unique<Request>();
  request->id = id;
  request->spec = std::move(spec);
  if (!request->spec.sample) request->spec.sample = greedy_;
  // A draft would need a guide, or the logits of its layers, too.
  if (request->spec.guided() || request->spec.contrasts_layers()) request->spec.draft_tokens = 0;
  separate_caches(request->spec);
  request->unfinished = request->spec.n;
  request->arrived = now_;
  stats_.asked_tokens.add(request->spec.max_tokens);
  stats_.asked_choices.add(request->spec.n);
  request->first_order = next_order_;
  bool beams = request->spec.beams > 0;
  next_order_ += static_cast<uint64_t>(beams ? request->spec.beams : request->spec.n);
  if (beams) prepare_beams(*request);
  for (int32_t c = 0; c < (beams ? 1 : request->spec.n); ++c) {
    Sequence* seq = new_sequence();
    seq->open(request.get(), c, request->first_order + static_cast<uint64_t>(c), now_);
    request->choices.push_back(seq);
    ++request->unretired;
    if (request->spec.guided()) new_sequence()->open_shadow(*seq);
    jump_at_start(*seq);
    scheduler_.join(*seq);
    scheduler_.wait(*seq);
  }
  if (request->spec.adapter) ++adapter_requests_;
  add_deadline({request->spec.deadline, id, false});
  add_deadline({request->spec.queue_deadline, id, true});
  requests_.emplace(id, std::move(request));
}

void EngineCore::reject(RequestId id, int32_t n, const Error& why, Actions& actions) {
  ++stats_.requests_rejected;
  for (int32_t c = 0; c < std::clamp<int64_t>(n, 1, config_.max_queue); ++c) {
    Delta& d = actions.add_delta(id, c, 0);
    d.finish = Finish::kError;
    d.error = why.what();
    d.error_code = why.code();
  }
  actions.finished.push_back(id);
}

void EngineCore::cancel(RequestId id, Finish how, Actions& actions) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Request& request = *it->second;
  if (request.beam) {
    if (request.unfinished > 0) end_beams(request, how, {}, actions);
    return;
  }
  // The request is deleted with its last choice, so it must not be read after that.
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
  if (it->second->beam) return;  // answers of a beam search are sent complete
  Sequence* seq = it->second->choices[static_cast<size_t>(choice)];
  if (seq == nullptr || seq->phase == Sequence::Phase::kFinished) return;
  position = std::max(position, 0);
  if (position >= seq->limit) return;
  seq->limit = position;
  seq->limit_is_stop = true;
  if (seq->generated() >= position) finish(*seq, Finish::kStop, {}, actions);
}

void EngineCore::add_deadline(Deadline deadline) {
  if (deadline.at == kNever) return;
  deadlines_.push_back(deadline);
  std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
}

void EngineCore::pop_deadline() {
  std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  deadlines_.pop_back();
}

bool EngineCore::started(RequestId id) const {
  auto it = requests_.find(id);
  if (it == requests_.end()) return true;
  for (const Sequence* s : it->second->choices)
    if (s == nullptr || s->started != kNever) return true;
  return false;
}

void EngineCore::expire(Nanos now, Actions& actions) {
  while (!deadlines_.empty() && deadlines_.front().at <= now) {
    Deadline d = deadlines_.front();
    pop_deadline();
    if (!d.queue || !started(d.request)) cancel(d.request, Finish::kTimeout, actions);
  }
}

Nanos EngineCore::next_deadline() {
  while (!deadlines_.empty()) {
    const Deadline& d = deadlines_.front();
    if (d.queue ? !started(d.request) : requests_.contains(d.request)) return d.at;
    pop_deadline();
  }
  return kNever;
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
  scheduler_.forget(*seq);
  seq->request = nullptr;
  free_sequences_.push_back(seq);
  if (seq->shadow != nullptr) free_sequences_.push_back(std::exchange(seq->shadow, nullptr));
  if (--request.unretired > 0) return;
  if (request.spec.adapter) ++adapter_requests_;
  requests_.erase(request.id);
}

// An adapter that runs for one request and is waited for by another is in both lists.
void EngineCore::name_adapters() {
  uint64_t changes = adapter_requests_ + scheduler_.adapters().changes();
  if (std::exchange(adapters_named_, changes) == changes) return;
  std::set<std::string_view> running, waiting;
  for (const auto& [id, request] : requests_) {
    if (!request->spec.adapter) continue;
    bool runs = std::any_of(request->choices.begin(), request->choices.end(),
                            [](const Sequence* s) { return s != nullptr && s->row >= 0; });
    (runs ? running : waiting).insert(request->spec.adapter->name);
  }
  stats_.running_adapters = fmt::format("{}", fmt::join(running, ","));
  stats_.waiting_adapters = fmt::format("{}", fmt::join(waiting, ","));
}

const EngineStats& EngineCore::stats() {
  EngineStats& s = stats_;
  s.blocks_evicted = kv_.evicted();
  s.blocks_copied = kv_.copied();
  s.running = running();
  s.waiting = waiting();
  s.kv_blocks_total = kv_.total_blocks();
  auto block_tokens = [&](const GroupEntry& g) {
    return g.per_sequence() ? config_.max_model_len : g.block_size;
  };
  s.kv_block_size = config_.groups.empty() ? 0 : block_tokens(config_.groups[0]);
  for (size_t g = 0; g < config_.groups.size(); ++g)
    if (g == 0 || !config_.groups[g].per_sequence())
      s.kv_tokens = std::max(s.kv_tokens, config_.blocks[g] * block_tokens(config_.groups[g]));
  s.kv_blocks_cached = kv_.cached_blocks();
  s.kv_blocks_free = kv_.free_blocks() - s.kv_blocks_cached;
  s.kv_blocks_used = s.kv_blocks_total - kv_.free_blocks();
  s.token_budget = scheduler_.token_budget();
  s.adapter_slots = config_.adapter_slots;
  if (s.adapter_slots == 0) return s;
  s.adapter_loads = scheduler_.adapters().loads();
  name_adapters();
  return s;
}

}  // namespace tokamak
