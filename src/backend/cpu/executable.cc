#include "backend/cpu/executable.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <set>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rope_angles.h"
#include "base/clock.h"
#include "base/error.h"
#include "plan/adapter.h"

namespace tokamak::cpu {
namespace {

// Ops look at optional inputs without asking how many there are.
constexpr size_t kMinInputs = 10;

// The address of values that an eager step has not computed yet; absent arguments have none.
alignas(64) uint8_t kNotYet;

uint64_t arena_bytes_of(const PlanSet& plans, std::string_view function) {
  uint64_t most = 0;
  for (const Plan& plan : plans.plans)
    if (plan.function == function) most = std::max(most, plan.arena_bytes);
  return most;
}

// Fetches the fields of the next call: the matrices of this one evict them from the caches.
void prefetch(const ScheduledCall& call) {
  const auto* op = reinterpret_cast<const char*>(call.op);
  for (int line = 0; line < 6; ++line) __builtin_prefetch(op + 64 * line);
  for (int line = 0; line < 4; ++line)
    __builtin_prefetch(reinterpret_cast<const char*>(call.in) + 64 * line);
}

// Records nothing, and costs nothing.
struct NoRecorder {
  static Nanos now() { return 0; }
  static void add(int, const ScheduleItem&, Nanos) {}
};

// Records what each thread does, in its own list. The lists have room for all of it.
struct SpanRecorder {
  StepTrace& trace;
  Nanos start;
  uint32_t first;  // call of the trace
  static Nanos now() { return SteadyClock().now(); }
  void add(int thread, const ScheduleItem& item, Nanos begin) const {
    if (thread < std::max<int>(1, item.parts))
      trace.threads[static_cast<size_t>(thread)].push_back(
          {first + item.call, item.stage, begin - start, now() - start});
  }
};

}  // namespace

CpuExecutable::CpuExecutable(const PlanSet& plans, const WeightSource& weights,
                             const LoadOptions& options, const KernelTable& kernels,
                             std::shared_ptr<ThreadPool> pool)
    : plans_(plans),
      eager_(options.eager),
      profile_(options.profile),
      kernels_(kernels),
      pool_(std::move(pool)),
      weights_(load_weights(plans_, weights, kernels, *pool_, options.progress)),
      kv_(plans_, options.blocks),
      binder_(plans_, options.blocks, options.max_rows),
      sampler_(plans_.vocab, options.max_rows,
               has_function(plans_, kSampleFunction)
                   ? SampleFunction([this](const SampleTable& table, SampleTokens& out) {
                       run_sample(table, out);
                     })
                   : SampleFunction()),
      arena_(eager_ ? 0 : plans_.arena_bytes),
      sample_arena_(eager_ ? 0 : arena_bytes_of(plans_, kSampleFunction)),
      context_{kernels, kv_, pool_->size()} {
  prepared_.resize(plans_.plans.size());
  for (size_t i = 0; i < prepared_.size(); ++i) prepare(plans_.plans[i], prepared_[i]);
  int64_t scratch = 64;
  for (const Prepared& p : prepared_)
    for (const Call& c : p.calls) {
      scratch = std::max(scratch, c.op->scratch_bytes());
      ledger_.other += c.op->own_bytes();
    }
  scratch = (scratch + 4095) / 4096 * 4096 +
            64;  // not a multiple of a page: threads would share cache sets
  scratch_ = Buffer(static_cast<uint64_t>(scratch * pool_->size()) + plans_.scratch_bytes);
  context_.shared_scratch = scratch_.data() + scratch * pool_->size();
  context_.scratch = scratch_.data();
  context_.scratch_bytes = scratch;
  for (const Weight& w : weights_) {
    ledger_.weights += w.matrix_memory.bytes() + w.plain_memory.bytes() + w.mapped_bytes;
    ledger_.mapped += w.mapped_bytes;
  }
  ledger_.kv = kv_.bytes();
  ledger_.arena = arena_.bytes() + sample_arena_.bytes();
  ledger_.scratch = scratch_.bytes();
  ledger_.other += sampler_.bytes();
  if (std::getenv("TOKAMAK_AUDIT") && !eager_) make_audit();
}

uint64_t CpuExecutable::untouched_bytes() const {
  uint64_t total =
      kv_.untouched() + arena_.untouched() + sample_arena_.untouched() + scratch_.untouched();
  for (const Weight& w : weights_)
    total += w.matrix_memory.untouched() + w.plain_memory.untouched();
  return total;
}

void CpuExecutable::make_audit() {
  std::vector<std::span<uint8_t>> memory = {
      {arena_.data(), arena_.bytes()},
      {context_.shared_scratch,
       static_cast<size_t>(scratch_.data() + scratch_.bytes() - context_.shared_scratch)}};
  if (sample_arena_.bytes() > 0) memory.push_back({sample_arena_.data(), sample_arena_.bytes()});
  std::set<RopeAngles*> angles;
  for (const Prepared& p : prepared_)
    for (const Call& c : p.calls)
      if (RopeUse* use = c.op->rope_use(); use && angles.insert(use->angles.get()).second)
        memory.push_back(use->angles->memory());
  for (uint32_t s = 0; s < plans_.states.size(); ++s)
    for (const KvPlane& plane : kv_.state(s).planes)
      memory.push_back({plane.memory.data(), plane.memory.bytes()});
  audit_ = std::make_unique<StageAudit>(std::move(memory));
}

Tensor CpuExecutable::resolve(const CallArg& arg, const Buffer& arena,
                              const std::vector<SymbolDecl>& symbols,
                              const std::vector<std::string>& order,
                              std::vector<CompiledExpr>& dims, bool& symbolic) const {
  Tensor t;
  t.index = arg.index;
  t.dtype = arg.dtype;
  if (arg.kind == CallArg::Kind::kState || arg.kind == CallArg::Kind::kView) return t;
  if (arg.dims.size() > kMaxRank)
    fail(ErrorCode::kUnsupported, "a tensor has {} axes; the cpu backend takes {}", arg.dims.size(),
         kMaxRank);
  t.rank = static_cast<int>(arg.dims.size());
  for (int i = 0; i < t.rank; ++i) {
    const SymExpr& e = arg.dims[static_cast<size_t>(i)];
    symbolic = symbolic || !e.is_constant();
    t.dims[i] = e.upper(symbols);
    dims.emplace_back(e, order);
  }
  if (arg.kind == CallArg::Kind::kWeight) {
    t.weight = &weights_.at(arg.index);
    t.data = t.weight->plain;
  } else if (arg.kind == CallArg::Kind::kArena && !eager_) {
    TK_CHECK(arg.offset <= arena.bytes());
    t.data = arena.data() + arg.offset;
  } else if (arg.kind == CallArg::Kind::kArena) {
    t.data = &kNotYet;
  }
  return t;
}

void CpuExecutable::prepare(const Plan& plan, Prepared& out) {
  std::vector<SymbolDecl> symbols = symbol_bounds(plans_, plan);
  std::vector<std::string> order;
  for (const SymbolDecl& s : symbols) order.push_back(s.name);
  const Buffer& arena = plan.function == kSampleFunction ? sample_arena_ : arena_;
  for (const KernelCall& call : plan.calls) {
    Call& c = out.calls.emplace_back();
    auto index = static_cast<uint32_t>(out.calls.size() - 1);
    auto add = [&](const std::vector<CallArg>& args, std::vector<Tensor>& tensors, bool output) {
      for (uint32_t i = 0; i < args.size(); ++i) {
        Extents e{index, i, output, {}};
        bool symbolic = false;
        tensors.push_back(resolve(args[i], arena, symbols, order, e.dims, symbolic));
        if (symbolic) out.extents.push_back(std::move(e));
        if (args[i].kind != CallArg::Kind::kInput) continue;
        out.inputs.push_back({index, i, args[i].index});
        // Logits to sample from are a result of another plan.
        tensors.back().given = plans_.inputs[args[i].index].name != "logits";
      }
    };
    add(call.in, c.in, false);
    add(call.out, c.out, true);
    const Region* region =
        call.region < 0 ? nullptr : &plans_.regions.at(static_cast<size_t>(call.region));
    c.op = make_op(planned_kernel(plans_.kernels.at(call.kernel)),
                   {nullptr, call.op, call.attrs, c.in, c.out, kernels_, kv_, pool_->size(),
                    call.label, symbols, region});
    if (static_cast<uint64_t>(c.op->shared_bytes()) > call.scratch)
      fail(ErrorCode::kCorrupt, "{}: the plan reserves {} bytes of scratch; {} needs {}",
           call.label, call.scratch, plans_.kernels[call.kernel].name, c.op->shared_bytes());
    c.in.resize(std::max(c.in.size(), kMinInputs));
  }
  for (uint32_t i = 0; i < out.calls.size(); ++i) out.order.push_back(i);
  if (eager_)
    out.eager = std::make_unique<EagerValues>(plan);
  else
    share_angles(out);
  make_scheduler(plan, out);
  for (const PlanOutput& o : plan.outputs) {
    if (o.name == "logits") out.logits = static_cast<int>(out.outputs.size());
    if (o.name == "hidden") out.hidden = static_cast<int>(out.outputs.size());
    if (o.name == kLayerLogits) out.layer_logits = static_cast<int>(out.outputs.size());
    bool symbolic = false;
    out.output_dims.emplace_back();
    out.outputs.push_back(resolve(o.arg, arena, symbols, order, out.output_dims.back(), symbolic));
  }
}

void CpuExecutable::make_scheduler(const Plan& plan, Prepared& p) const {
  std::vector<ScheduledCall> calls;
  for (uint32_t i : p.order) {
    const Call& c = p.calls[i];
    calls.push_back({c.op.get(), c.in.data(), c.out.data(),
                     i < plan.calls.size() ? std::string_view(plan.calls[i].label) : "angles"});
  }
  p.scheduler =
      std::make_unique<ScheduleMaker>(std::move(calls), pool_->size(), plan.function, !eager_);
}

// Rotations of one plan by the same weight and the same positions have their angles made once, by a
// call in front of all others: the barrier that their users need then is there anyway.
void CpuExecutable::share_angles(Prepared& p) const {
  auto input_of = [&](size_t call, uint32_t arg) {
    for (const InputUse& u : p.inputs)
      if (u.call == call && u.arg == arg) return static_cast<int64_t>(u.input);
    return int64_t{-1};
  };
  struct Owner {
    RopeUse* use;
    const Weight* frequencies;
    int64_t positions;
  };
  std::vector<Owner> owners;
  for (size_t i = 0, n = p.calls.size(); i < n; ++i) {
    RopeUse* use = p.calls[i].op->rope_use();
    if (!use) continue;
    Owner mine{use, p.calls[i].in[use->frequencies].weight, input_of(i, use->positions)};
    if (!mine.frequencies || mine.positions < 0) continue;
    auto same = std::find_if(owners.begin(), owners.end(), [&](const Owner& o) {
      return o.frequencies == mine.frequencies && o.positions == mine.positions &&
             o.use->angles->same(*use->angles);
    });
    use->made_before = true;
    if (same != owners.end()) {
      use->angles = same->use->angles;
      continue;
    }
    owners.push_back(mine);
    p.order.insert(p.order.begin(), static_cast<uint32_t>(p.calls.size()));
    const Tensor* args = p.calls[i].in.data();
    p.calls.emplace_back().op = std::make_unique<MakeAngles>(*use, args);
  }
}

void CpuExecutable::set_shape(Prepared& p, std::span<const int64_t> values) {
  context_.symbols = values;
  if (p.shaped && std::equal(values.begin(), values.end(), p.shape.begin(), p.shape.end())) return;
  p.shaped = false;  // until everything has taken it
  for (const Extents& e : p.extents) {
    Call& c = p.calls[e.call];
    Tensor& t = (e.output ? c.out : c.in)[e.arg];
    for (size_t i = 0; i < e.dims.size(); ++i) t.dims[i] = e.dims[i].eval(values);
  }
  for (size_t o = 0; o < p.outputs.size(); ++o)
    for (size_t i = 0; i < p.output_dims[o].size(); ++i)
      p.outputs[o].dims[i] = p.output_dims[o][i].eval(values);
  for (const Call& c : p.calls) c.op->bind(c.in.data(), c.out.data(), context_);
  p.shape.assign(values.begin(), values.end());
  p.shaped = true;
}

void CpuExecutable::run(const StepInputs& step) {
  auto start = std::chrono::steady_clock::now();
  if (trace_) {
    trace_start_ = SteadyClock().now();
    trace_->threads.resize(static_cast<size_t>(pool_->size()));
  }
  result_.clear();
  for (size_t phase = 0; phase < phase_count(step); ++phase) run_phase(step, phase);
  if (trace_) trace_->nanos = SteadyClock().now() - trace_start_;
  result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void CpuExecutable::run_phase(const StepInputs& step, size_t phase) {
  auto plan = static_cast<uint32_t>(binder_.bind(step, phase));
  Prepared& p = prepared_[plan];
  last_plan_ = plan;
  if (phase == 0) {
    sampler_.begin(step);
    kv_.copy_blocks(step.copies);
    kv_.move_slots(step.moves);
  }
  sampler_.resolve(binder_.ids(), result_);
  context_.step = &binder_.phase();
  set_shape(p, binder_.symbols());
  for (const InputUse& u : p.inputs)
    p.calls[u.call].in[u.arg].data = const_cast<void*>(binder_.input(u.input).data);
  const ThreadSchedule& schedule = p.scheduler->get(binder_.symbols(), context_);
  run_calls(p, schedule, plan);
  if (p.eager) p.eager->outputs(p.outputs);
  finish_phase(plans_.plans[plan], p);
  if (p.eager) p.eager->clear();
}

void CpuExecutable::run_calls(Prepared& p, const ThreadSchedule& schedule, uint32_t plan) {
  if (p.eager || audit_ || (profile_ && profile_->on)) return run_one_by_one(p, schedule, plan);
  if (trace_ == nullptr) return run_together(p, schedule, NoRecorder{});
  const auto first = static_cast<uint32_t>(trace_->calls.size());
  for (size_t i = 0; i < p.order.size(); ++i) {
    const size_t call = p.order[i];
    const Plan& made = plans_.plans[plan];
    trace_->calls.push_back(
        {std::string(p.scheduler->calls()[i].label),
         call < made.calls.size() ? plans_.kernels[made.calls[call].kernel].name : "angles"});
  }
  for (auto& spans : trace_->threads) spans.reserve(spans.size() + schedule.items.size());
  run_together(p, schedule, SpanRecorder{*trace_, trace_start_, first});
}

template <typename Recorder>
void CpuExecutable::run_together(Prepared& p, const ThreadSchedule& schedule, Recorder recorder) {
  const std::vector<ScheduledCall>& calls = p.scheduler->calls();
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  auto walk = [&](int thread) {
    StepContext c = context_;
    c.thread = thread;
    for (const ScheduleItem& item : schedule.items) {
      if (&item != &schedule.items.back()) prefetch(calls[(&item)[1].call]);
      if (item.barrier) pool_->barrier();
      // After an error all threads skip the remaining work, but still pass the remaining barriers.
      if (failed.load(std::memory_order_relaxed)) continue;
      const ScheduledCall& call = calls[item.call];
      c.stage = item.stage;
      try {
        const Nanos begin = recorder.now();
        call.op->run(call.in, call.out, c);
        recorder.add(thread, item, begin);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  };
  if (schedule.parts == 1)  // then there is no barrier either
    walk(0);
  else
    pool_->run(walk);
  if (error) std::rethrow_exception(error);
}

// For tools and tests: the threads wait for each other after each stage.
void CpuExecutable::run_one_by_one(Prepared& p, const ThreadSchedule& schedule, uint32_t plan) {
  size_t plan_calls = plans_.plans[plan].calls.size();
  for (size_t n = 0; n < schedule.items.size();) {
    uint32_t at = schedule.items[n].call, i = p.order[at];
    Call& call = p.calls[i];
    if (p.eager) p.eager->before(i, call.in, call.out);
    Nanos begin = SteadyClock().now();
    for (; n < schedule.items.size() && schedule.items[n].call == at; ++n) {
      StepContext stage = context_;
      stage.stage = schedule.items[n].stage;
      auto part = [&](int thread) {
        StepContext c = stage;
        c.thread = thread;
        call.op->run(call.in.data(), call.out.data(), c);
      };
      if (audit_)
        audit_->run(*call.op, call.in.data(), call.out.data(), stage,
                    p.scheduler->calls()[at].label);
      else if (schedule.items[n].parts <= 1)
        part(0);
      else
        pool_->run(part);
    }
    if (profile_ && profile_->on && i < plan_calls)
      profile_->spans.push_back({plan, i, begin, SteadyClock().now()});
    if (p.eager) p.eager->after(i);
  }
}

void CpuExecutable::run_sample(const SampleTable& table, SampleTokens& out) {
  int plan = select_sample_plan(plans_, table, sample_symbols_);
  Prepared& p = prepared_[static_cast<size_t>(plan)];
  set_shape(p, sample_symbols_);
  for (const InputUse& u : p.inputs)
    p.calls[u.call].in[u.arg].data =
        const_cast<void*>(table.input(plans_.inputs[u.input].name).data);
  const ThreadSchedule& schedule = p.scheduler->get(sample_symbols_, context_);
  run_calls(p, schedule, static_cast<uint32_t>(plan));
  if (p.eager) p.eager->outputs(p.outputs);
  const Plan& entry = plans_.plans[static_cast<size_t>(plan)];
  for (size_t o = 0; o < p.outputs.size(); ++o)
    out.set(entry.outputs[o].name, p.outputs[o].data, p.outputs[o].elements());
  if (p.eager) p.eager->clear();
}

void CpuExecutable::finish_phase(const Plan& plan, Prepared& p) {
  const StepInputs& phase = binder_.phase();
  auto rows = static_cast<int64_t>(phase.out_rows.size());
  auto append = [&](std::vector<float>& to, const Tensor& from) {
    to.insert(to.end(), from.f32(), from.f32() + rows * from.last());
  };
  SamplePhase place{phase, binder_.ids(), binder_.first_output(), binder_.first_sequence()};
  if (p.logits >= 0) {
    const Tensor& logits = p.outputs[static_cast<size_t>(p.logits)];
    if (phase.return_logits) append(result_.logits, logits);
    std::span<const float> layers;
    if (p.layer_logits >= 0) {
      const Tensor& t = p.outputs[static_cast<size_t>(p.layer_logits)];
      layers = {t.f32(), static_cast<size_t>(t.elements())};
    }
    sampler_.finish(place, logits.f32(), result_, layers);
  } else {
    Sampler::skip(place, result_);
  }
  bool hidden = std::any_of(phase.samples.begin(), phase.samples.end(), wants_hidden);
  if (p.hidden >= 0 && hidden) append(result_.hidden, p.outputs[static_cast<size_t>(p.hidden)]);
  for (size_t o = 0; o < p.outputs.size(); ++o) {
    const Tensor& t = p.outputs[o];
    auto is = [&](int output) { return static_cast<int>(o) == output; };
    if (is(p.logits) || is(p.hidden) || is(p.layer_logits)) continue;
    StepTensor& out = result_.outputs.emplace_back();
    out.name = plan.outputs[o].name;
    out.dtype = t.dtype;
    int64_t elements = 1;
    for (const CompiledExpr& e : p.output_dims[o]) {
      out.dims.push_back(e.eval(binder_.own_symbols()));  // without the rows of padding
      elements *= out.dims.back();
    }
    const auto* data = static_cast<const std::byte*>(t.data);
    out.bytes.assign(data, data + dtype_bytes(t.dtype, elements));
  }
}

Ticket CpuExecutable::submit(const StepInputs& step) {
  error_ = nullptr;
  try {
    run(step);
  } catch (...) {
    error_ = std::current_exception();
  }
  trace_ = nullptr;
  return pending_ = next_++;
}

void CpuExecutable::collect(Ticket ticket, StepResult& out) {
  TK_CHECK(ticket == pending_ && ticket != 0, "ticket {} collected, {} is in flight", ticket,
           pending_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  sampler_.complete(result_);
  out = result_;
}

void CpuExecutable::set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) {
  TK_CHECK(ticket == pending_ && ticket != 0, "ticket {} is not in flight", ticket);
  if (!error_) sampler_.set_mask(output, allowed);
}

int32_t CpuExecutable::drafted(Ticket ticket, int32_t output) {
  TK_CHECK(ticket == pending_ && ticket != 0, "ticket {} is not in flight", ticket);
  return error_ ? 0 : std::max(0, result_.ids.at(static_cast<size_t>(output)));
}

void CpuExecutable::set_adapter(int32_t slot, const WeightSource& tensors) {
  for (size_t i = 0; i < weights_.size(); ++i)
    if (is_adapter_weight(plans_.weights[i]))
      set_slot(weights_[i], slot, tensors.find(plans_.weights[i].name));
}

// Steps run in submit(), so transfers can be done at once.
Ticket CpuExecutable::read_blocks(uint32_t group, std::span<const int32_t> blocks,
                                  std::span<std::byte> bytes) {
  binder_.checker().check_blocks(group, blocks, bytes.size(), kv_.block_bytes(group));
  kv_.read_blocks(group, blocks, bytes.data());
  return next_++;
}

Ticket CpuExecutable::write_blocks(uint32_t group, std::span<const int32_t> blocks,
                                   std::span<const std::byte> bytes) {
  binder_.checker().check_blocks(group, blocks, bytes.size(), kv_.block_bytes(group));
  kv_.write_blocks(group, blocks, bytes.data());
  return next_++;
}

void CpuExecutable::wait(Ticket ticket) {
  TK_CHECK(ticket < next_, "ticket {} was not given out", ticket);
}

}  // namespace tokamak::cpu
