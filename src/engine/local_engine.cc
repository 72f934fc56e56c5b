#include "engine/local_engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace tokamak {
namespace {

EngineConfig fitted(EngineConfig config, const PlanSet& plans, const Executable& executable) {
  if (config.groups.size() != plans.groups.size())
    fail(ErrorCode::kInvalidArgument, "the engine configuration was made for another PlanSet");
  config.max_in_flight = std::clamp(config.max_in_flight, 1, executable.max_in_flight());
  return config;
}

// Empty: blocks cannot be transferred.
std::string layout_of(const PlanSet& plans, const EngineConfig& config,
                      const Executable& executable) {
  if (!config.prefix_cache || config.recurrent || config.encoder) return {};
  std::string out = fmt::format("{} {}", config.model, plans.numerics_id);
  try {
    for (size_t g = 0; g < plans.groups.size(); ++g)
      out += fmt::format(" {}x{}", plans.groups[g].block_size,
                         executable.block_bytes(static_cast<uint32_t>(g)));
  } catch (const Error&) {
    return {};
  }
  return out;
}

}  // namespace

LocalEngine::LocalEngine(const PlanSet& plans, std::unique_ptr<Executable> executable,
                         EngineConfig config, const Clock& clock, Drafter* drafter)
    : config_(fitted(std::move(config), plans, *executable)),
      layout_(layout_of(plans, config_, *executable)),
      executable_(std::move(executable)),
      clock_(clock),
      core_(config_, drafter),
      steps_(*executable_, config_.vocab),
      traces_(executable_->trace_next(nullptr)) {
  info_.model = config_.model;
  info_.vocab = config_.vocab;
  info_.max_model_len = config_.max_model_len;
  info_.kv_blocks_total = info_.kv_blocks_free = core_.kv().total_blocks();
  thread_ = std::thread([this] { loop(); });
}

LocalEngine::~LocalEngine() { stop(Stop::kCancel); }

// --- any thread

RequestId LocalEngine::submit(RequestSpec spec, Sink sink) {
  check_request(config_, spec);
  std::lock_guard lock(mutex_);
  if (broken_) fail(ErrorCode::kUnavailable, "the engine has stopped after an internal error");
  if (stopping_) fail(ErrorCode::kUnavailable, "the engine is shutting down");
  int64_t waiting = info_.waiting + inbox_sequences_ + taken_sequences_;
  if (waiting + spec.n > config_.max_queue)
    fail(ErrorCode::kResourceExhausted, "the queue is full: {} sequences wait, try again later",
         waiting);
  RequestId id = next_id_++;
  inbox_sequences_ += spec.n;
  inbox_listeners_.emplace_back(
      id, Listener{std::move(sink), std::vector<bool>(static_cast<size_t>(spec.n))});
  inbox_.push_back(Event::arrival(id, std::move(spec)));
  wake_.notify_one();
  return id;
}

void LocalEngine::post(Event event) {
  std::lock_guard lock(mutex_);
  if (broken_) return;
  inbox_.push_back(std::move(event));
  wake_.notify_one();
}

void LocalEngine::cancel(RequestId id) { post(Event::cancel(id)); }

void LocalEngine::stop_at(RequestId id, int32_t choice, int32_t position) {
  post(Event::stop_at(id, choice, position));
}

EngineInfo LocalEngine::info() const {
  std::lock_guard lock(mutex_);
  EngineInfo info = info_;
  info.waiting += inbox_sequences_ + taken_sequences_;
  return info;
}

EngineStats LocalEngine::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

EngineMemory LocalEngine::memory() const {
  const MemoryLedger& m = executable_->memory();
  return {m.weights, m.kv, m.arena, m.scratch, m.other, m.mapped, executable_->untouched_bytes()};
}

bool LocalEngine::between_steps(std::function<void()> job) {
  std::future<void> done;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    jobs_.emplace_back(std::move(job));
    done = jobs_.back().get_future();
    wake_.notify_one();
  }
  try {
    done.get();  // throws what the job throws
  } catch (const std::future_error&) {
    return false;
  }
  return true;
}

PrefixTree LocalEngine::prefix_tree(int64_t most) {
  PrefixTree tree;
  between_steps([&] { tree = tokamak::prefix_tree(core_.kv(), most); });
  return tree;
}

void LocalEngine::on_slots(std::function<void()> job) {
  if (layout_.empty())
    fail(ErrorCode::kUnsupported, "{} has no prefix cache that can be saved", config_.model);
  if (!between_steps(std::move(job))) fail(ErrorCode::kUnavailable, "the engine has stopped");
}

// Gives the blocks back after the work, also if it fails.
void LocalEngine::with_blocks(SlotCopy& copy, const std::function<void()>& work) {
  auto end = [&] { between_steps([&] { Slots::end(copy, core_.kv()); }); };
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  end();
}

SavedPrefix LocalEngine::save_slot(int32_t slot, const std::string& salt) {
  SlotCopy copy;
  on_slots([&] { copy = core_.slots().begin_save(slot, salt, core_.kv(), *executable_); });
  SavedPrefix saved;
  with_blocks(copy, [&] {
    saved.blocks.resize(copy.bytes);
    for (bool more = true; more;)
      on_slots([&] { more = Slots::save_some(copy, *executable_, saved.blocks); });
    saved.ids = std::move(copy.ids);
  });
  return saved;
}

void LocalEngine::restore_slot(int32_t slot, const std::string& salt, const SavedPrefix& saved) {
  SlotCopy copy;
  on_slots([&] { copy = Slots::begin_restore(salt, saved, core_.kv(), *executable_); });
  with_blocks(copy, [&] {
    for (bool more = true; more;)
      on_slots([&] { more = Slots::restore_some(copy, *executable_, saved.blocks); });
    on_slots([&] { core_.slots().note_restored(slot, salt, copy, core_.kv()); });
  });
}

int64_t LocalEngine::erase_slot(int32_t slot, const std::string& salt) {
  int64_t tokens = 0;
  on_slots([&] { tokens = core_.slots().erase(slot, salt, core_.kv()); });
  return tokens;
}

bool LocalEngine::trace_step(bool prompts, int skip, TraceSink sink) {
  if (!traces_) return false;
  std::lock_guard lock(mutex_);
  trace_request_ = {prompts, skip, std::move(sink)};
  trace_wanted_ = true;
  return true;
}

void LocalEngine::stop(Stop how) {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (how == Stop::kCancel) cancel_all_ = true;
    wake_.notify_one();
  }
  std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

// --- the engine thread

void LocalEngine::loop() {
  try {
    while (take_inbox()) {
      core_.hold(!run_jobs());
      core_.advance(clock_.now(), events_, actions_);
      carry_out();
      events_.clear();
      if (!steps_.empty()) steps_.next(events_);
    }
  } catch (const std::exception& e) {
    log::error("the engine stops: {}", e.what());
    give_up(e.what());
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  jobs_.clear();  // who waits for one gets an exception
}

// Jobs run while no step is in flight. False: they wait, and no step may be started.
bool LocalEngine::run_jobs() {
  std::vector<std::packaged_task<void()>> jobs;
  {
    std::lock_guard lock(mutex_);
    if (!steps_.empty()) return jobs_.empty();
    jobs.swap(jobs_);
  }
  for (std::packaged_task<void()>& job : jobs) job();
  return true;
}

// Sleeps while there is nothing to do. events_ may have the completion of a step.
bool LocalEngine::take_inbox() {
  std::unique_lock lock(mutex_);
  auto something = [&] {
    return !inbox_.empty() || stopping_ || !events_.empty() || !steps_.empty() || !jobs_.empty();
  };
  if (!something()) {
    Nanos wakeup = actions_.next_wakeup;
    if (wakeup == kNever)
      wake_.wait(lock, something);
    else if (Nanos now = clock_.now(); wakeup > now)
      wake_.wait_for(lock, std::chrono::nanoseconds(wakeup - now), something);
  }
  if (stopping_ && events_.empty() && inbox_.empty() && core_.idle()) return false;
  for (Event& e : inbox_) events_.push_back(std::move(e));
  inbox_.clear();
  arrived_.swap(inbox_listeners_);
  taken_sequences_ = inbox_sequences_;
  inbox_sequences_ = 0;
  if (cancel_all_) {
    for (const auto& [id, listener] : listeners_) events_.push_back(Event::cancel(id));
    for (const auto& [id, listener] : arrived_) events_.push_back(Event::cancel(id));
  }
  lock.unlock();
  for (auto& [id, listener] : arrived_) listeners_.emplace(id, std::move(listener));
  arrived_.clear();
  return true;
}

// Deltas are sent before steps are submitted: a backend that computes in submit() would delay them
// by a whole step. Statistics are updated before deltas are sent, so that they include every answer
// that a client has seen.
void LocalEngine::carry_out() {
  {
    std::lock_guard lock(mutex_);
    taken_sequences_ = 0;
    info_.waiting = core_.waiting();
    info_.running = core_.running();
    info_.kv_blocks_free = core_.kv().free_blocks();
    stats_ = core_.stats();
    stats_.dispatch = executable_->dispatch();
    // Time per finished sequence when all rows are busy.
    double pace = (stats_.e2e_seconds.mean() - stats_.queue_seconds.mean()) /
                  static_cast<double>(config_.max_num_seqs);
    info_.retry_after = std::clamp(pace * static_cast<double>(info_.waiting), 1.0, 60.0);
  }
  for (Delta& d : actions_.deltas()) deliver(std::move(d));
  for (RequestId id : actions_.finished) listeners_.erase(id);
  for (const AdapterAction& a : actions_.adapters) steps_.set_adapter(a);
  for (const SubmitAction& s : actions_.submits) submit_step(s);
  steps_.set_masks(actions_);
}

// Steps with a trace are rare: the lock is taken only while one is wanted.
void LocalEngine::submit_step(const SubmitAction& action) {
  TraceSink sink;
  if (trace_wanted_) {
    std::lock_guard lock(mutex_);
    const bool prompts = action.inputs->phases.empty() && action.inputs->function == "step";
    if (prompts == trace_request_.prompts && trace_request_.skip-- == 0) {
      sink = std::exchange(trace_request_.sink, nullptr);
      trace_wanted_ = false;
    }
  }
  if (!sink) return steps_.submit(action);
  StepTrace trace;
  trace.function = action.inputs->phases.empty() ? action.inputs->function
                                                 : action.inputs->phases.back().function;
  trace.tokens = action.inputs->tokens();
  trace.sequences = action.inputs->sequences();
  executable_->trace_next(&trace);
  steps_.submit(action);
  executable_->trace_next(nullptr);  // the step may have failed before it ran
  try {
    sink(std::move(trace));
  } catch (const std::exception& e) {
    log::error("the sink of a trace threw: {}", e.what());
  }
}

void LocalEngine::deliver(Delta&& delta) {
  auto it = listeners_.find(delta.request);
  if (it == listeners_.end()) return;
  Listener& listener = it->second;
  if (delta.finish != Finish::kNone) listener.ended[static_cast<size_t>(delta.choice)] = true;
  if (!listener.sink) return;
  try {
    listener.sink(std::move(delta));
  } catch (const std::exception& e) {
    log::error("the sink of request {} threw: {}", it->first, e.what());
    listener.sink = nullptr;
    post(Event::cancel(it->first));
  }
}

// After a bug in the core its state cannot be trusted, but every client gets an answer.
void LocalEngine::give_up(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    broken_ = true;
    inbox_.clear();
    for (auto& [id, listener] : inbox_listeners_) listeners_.emplace(id, std::move(listener));
    inbox_listeners_.clear();
    inbox_sequences_ = taken_sequences_ = info_.waiting = info_.running = 0;
  }
  while (!steps_.empty()) steps_.next(events_);
  for (auto& [id, listener] : listeners_) {
    for (size_t c = 0; c < listener.ended.size(); ++c) {
      if (listener.ended[c]) continue;
      Delta d;
      d.request = id;
      d.choice = static_cast<int32_t>(c);
      d.finish = Finish::kError;
      d.error = why;
      deliver(std::move(d));
    }
  }
  listeners_.clear();
}

}  // namespace tokamak
