#include <algorithm>
#include <chrono>
#include <thread>

#include "backend/common/step_check.h"
#include "backend/common/step_phases.h"
#include "backend/null/null_backend.h"
#include "backend/null/shadow_cache.h"
#include "base/clock.h"
#include "base/error.h"

namespace tokamak {
namespace {

// Runs a step when it is submitted, or, when masks are still to come for it or an earlier step,
// when it is collected. A step that fails has no effect: its KV is not written, and until it is
// collected, later steps that continue one of its sequences compute garbage, as on a device.
class NullExecutable final : public Executable {
 public:
  NullExecutable(const PlanSet& plans, const LoadOptions& load, const NullOptions& options)
      : options_(options),
        model_(null_model(plans, options)),
        roofline_(plans, options.machine),
        checker_(plans, load.blocks, load.max_rows, StepChecker::Level::kStrict, model_.vocab()),
        groups_(plans.groups),
        context_(plans.context),
        hidden_(plans.hidden) {
    if (model_.vocab() <= 0) fail(ErrorCode::kInvalidArgument, "null backend: empty vocabulary");
    if (options.max_in_flight < 1)
      fail(ErrorCode::kInvalidArgument, "null backend: max_in_flight must be at least 1");
    rows_.resize(static_cast<size_t>(load.max_rows));
    if (options.shadow) cache_ = ShadowCache(plans.groups, load.blocks);
    ledger_.other = cache_.bytes();
    steps_.resize(static_cast<size_t>(options.max_in_flight));
  }

  int max_in_flight() const override { return options_.max_in_flight; }
  const MemoryLedger& memory() const override { return ledger_; }

  Ticket submit(const StepInputs& step) override {
    TK_CHECK(submitted_ - collected_ < steps_.size(), "null backend: {} steps are in flight",
             submitted_ - collected_);
    if (options_.check) check(step);
    ++calls_;
    if (options_.fail_submit_every > 0 && calls_ % options_.fail_submit_every == 0)
      fail(ErrorCode::kUnavailable, "null backend: injected failure of submit {}", calls_);
    PendingStep& p = steps_[submitted_ % steps_.size()];
    p.result.clear();
    p.phases_done = 0;
    p.failed = (options_.fail_every > 0 && calls_ % options_.fail_every == 0) ||
               (options_.fatal_token >= 0 && std::find(step.ids.begin(), step.ids.end(),
                                                       options_.fatal_token) != step.ids.end());
    p.rows.assign(step.row.begin(), step.row.end());
    p.garbage.clear();
    for (int32_t row : step.row) p.garbage.push_back(rows_[static_cast<size_t>(row)].poisoned > 0);
    if (p.failed)
      for (int32_t row : step.row) ++rows_[static_cast<size_t>(row)].poisoned;
    bool masked = std::any_of(step.samples.begin(), step.samples.end(),
                              [](const SampleRow& s) { return s.masked; });
    p.deferred = masked || deferred_ > 0;
    if (p.deferred) {
      ++deferred_;
      reserve_tables(p.inputs);
      p.inputs = step;
      p.masks.assign(step.samples.size() * mask_words(model_.vocab()), 0);
    } else if (!p.failed) {
      run(step, p, phase_count(step));
    }
    if (options_.machine.real_time)  // one step after the other, as on a device
      p.due = device_free_ = std::max(SteadyClock().now(), device_free_) +
                             static_cast<Nanos>(roofline_.seconds(step) * 1e9);
    ++submitted_;
    return p.ticket = next_ticket_++;
  }

  // Its tokens do not depend on weights.
  void set_adapter(int32_t, const WeightSource&) override {}
  void set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) override {
    for (uint64_t i = collected_; i < submitted_; ++i) {
      PendingStep& p = steps_[i % steps_.size()];
      if (p.ticket != ticket) continue;
      bool right = p.deferred && output >= 0 && output < std::ssize(p.inputs.samples) &&
                   p.inputs.samples[static_cast<size_t>(output)].masked &&
                   allowed.size() == mask_words(model_.vocab());
      TK_CHECK(right, "null backend: output {} is not masked", output);
      std::copy(allowed.begin(), allowed.end(), p.masks.begin() + output * std::ssize(allowed));
      return;
    }
    TK_CHECK(false, "null backend: ticket {} is not in flight", ticket);
  }

  // Runs the phases of the oldest step that wait for no mask.
  int32_t drafted(Ticket ticket, int32_t output) override {
    PendingStep& p = steps_[collected_ % steps_.size()];
    TK_CHECK(collected_ < submitted_ && p.ticket == ticket,
             "null backend: ticket {} is not the oldest", ticket);
    if (p.failed) return 0;
    if (p.deferred && p.phases_done == 0) {
      run_transfers(ticket);
      run(p.inputs, p, phase_count(p.inputs) - 1);
    }
    return std::max(0, p.result.ids.at(static_cast<size_t>(output)));
  }

  void collect(Ticket ticket, StepResult& out) override {
    TK_CHECK(collected_ < submitted_ && steps_[collected_ % steps_.size()].ticket == ticket,
             "null backend: ticket {} is not the oldest", ticket);
    PendingStep& p = steps_[collected_++ % steps_.size()];
    if (p.deferred) {
      --deferred_;
      run_transfers(ticket);
      if (!p.failed) run(p.inputs, p, phase_count(p.inputs));
    }
    if (options_.machine.real_time)
      std::this_thread::sleep_for(std::chrono::nanoseconds(p.due - SteadyClock().now()));
    if (!p.failed) {
      std::swap(out, p.result);
      return;
    }
    for (int32_t row : p.rows) {
      --rows_[static_cast<size_t>(row)].poisoned;
      rows_[static_cast<size_t>(row)].last = -1;
    }
    fail(ErrorCode::kUnavailable, "null backend: injected failure of step {}", ticket);
  }

  uint64_t block_bytes(uint32_t group) const override { return cache_.block_bytes(group); }
  Ticket read_blocks(uint32_t group, std::span<const int32_t> blocks,
                     std::span<std::byte> bytes) override {
    return transfer({next_ticket_, group, {blocks.begin(), blocks.end()}, bytes, {}});
  }
  Ticket write_blocks(uint32_t group, std::span<const int32_t> blocks,
                      std::span<const std::byte> bytes) override {
    return transfer({next_ticket_, group, {blocks.begin(), blocks.end()}, {}, bytes});
  }
  void wait(Ticket ticket) override {
    for (uint64_t i = collected_; i < submitted_; ++i)
      TK_CHECK(steps_[i % steps_.size()].ticket > ticket,
               "null backend: collect the step before transfer {} first", ticket);
    TK_CHECK(ticket < next_ticket_, "null backend: ticket {} was not given out", ticket);
    run_transfers(ticket + 1);
  }

 private:
  struct Row {
    int32_t last = -1;  // the last token chosen
    int poisoned = 0;   // failed steps of it that are not collected yet
  };
  struct PendingStep {
    Ticket ticket = 0;
    StepResult result;
    std::vector<int32_t> rows;
    std::vector<uint8_t> garbage;  // by sequence: continues a step that failed
    bool failed = false, deferred = false;
    size_t phases_done = 0;
    StepInputs inputs;  // of a deferred step
    std::vector<uint32_t> masks;
    Nanos due = 0;  // with a machine in real time
  };
  struct Transfer {
    Ticket ticket;
    uint32_t group;
    std::vector<int32_t> blocks;
    std::span<std::byte> to;
    std::span<const std::byte> from;
  };

  // Tables of deferred steps do not allocate as sequences grow.
  void reserve_tables(StepInputs& inputs) const {
    if (!inputs.tables.empty()) return;
    for (const GroupEntry& g : groups_)
      inputs.tables.emplace_back().blocks.reserve(
          rows_.size() * static_cast<size_t>((context_ + g.block_size - 1) / g.block_size));
  }

  void check(const StepInputs& step) {
    checker_.check_step(step);
    for (size_t phase = 0; phase < phase_count(step); ++phase) {
      const StepInputs& own = cutter_.cut(step, phase);
      checker_.check_phase(own, cutter_.first_output());
    }
  }

  Ticket transfer(Transfer t) {
    checker_.check_blocks(t.group, t.blocks, std::max(t.to.size(), t.from.size()),
                          block_bytes(t.group));
    transfers_.push_back(std::move(t));
    ++next_ticket_;
    if (deferred_ == 0) run_transfers(next_ticket_);
    return next_ticket_ - 1;
  }

  // Those that were submitted before `end`.
  void run_transfers(Ticket end) {
    size_t done = 0;
    for (; done < transfers_.size() && transfers_[done].ticket < end; ++done) {
      const Transfer& t = transfers_[done];
      if (t.from.empty())
        cache_.read(t.group, t.blocks, t.to);
      else
        cache_.write(t.group, t.blocks, t.from);
    }
    transfers_.erase(transfers_.begin(), transfers_.begin() + static_cast<std::ptrdiff_t>(done));
  }

  void begin(const StepInputs& step, StepResult& out) {
    out.ids.assign(step.samples.size(), -1);
    out.guesses.assign(step.samples.size(), -1);
    out.logprobs.assign(step.samples.size(), 0.0f);
    out.failed.assign(step.kv_len.size(), StepFailure::kNone);
    out.path_start.assign(1, 0);
    cache_.copy(step.copies);
    cache_.move(step.moves);
  }

  // The phases before `end` that have not run yet.
  void run(const StepInputs& step, PendingStep& p, size_t end) {
    StepResult& out = p.result;
    if (p.phases_done == 0) begin(step, out);
    for (size_t phase = 0; phase < end; ++phase) {
      const StepInputs& own = cutter_.cut(step, phase);
      if (phase < p.phases_done) continue;
      chains_.resize(own.ids.size());
      ids_.resize(own.ids.size());
      for (size_t b = 0; b < own.kv_len.size(); ++b) forward(own, b, p);
      for (size_t b = 0, r = 0; b < own.kv_len.size(); ++b) {
        r = sample(own, b, r, p);
        out.path_start.push_back(static_cast<int32_t>(out.path.size()));
      }
      add_vectors(own, out);
    }
    p.phases_done = end;
    out.seconds = roofline_.seconds(step);
  }

  // The row that a row of a tree continues: the last one it sees, one position before it.
  static size_t parent_of(const StepInputs& step, size_t first, size_t t) {
    if (step.mask_width == 0 || t == first) return t - 1;
    const int32_t* seen = step.mask.data() + t * static_cast<size_t>(step.mask_width);
    for (size_t m = t; m-- > first;)
      if (seen[m - first] != 0 && step.pos[m] == step.pos[t] - 1) return m;
    TK_CHECK(false, "step: token {} continues no token of its sequence", t);
    return first;
  }

  int32_t id_of(const StepInputs& step, size_t t, const StepResult& out) const {
    int32_t id = step.ids[t];
    if (id >= 0) return id;
    return is_output_id(id) ? std::max(0, out.ids[static_cast<size_t>(output_of_id(id))])
                            : rows_[static_cast<size_t>(row_of_id(id))].last;
  }

  // Writes the KV of a sequence's tokens and computes the chain value of each.
  void forward(const StepInputs& step, size_t b, PendingStep& p) {
    auto first = static_cast<size_t>(step.q_start[b]),
         end = static_cast<size_t>(step.q_start[b + 1]);
    size_t sequence = static_cast<size_t>(cutter_.first_sequence()) + b;
    bool garbage = p.garbage[sequence] != 0;
    if (cache_.on() && !garbage) cache_.check_context(step, b, model_);
    uint64_t before = 0;
    if (cache_.on() && step.slot[first] > 0)
      before = cache_.cell(step, 0, b, step.slot[first] - 1).chain;
    for (size_t t = first; t < end; ++t) {
      int32_t id = ids_[t] = id_of(step, t, p.result);
      TK_CHECK(garbage || id >= 0, "step: row {} has no last token", step.row[b]);
      uint64_t chain = t == first ? before : chains_[parent_of(step, first, t)];
      chains_[t] = chain = garbage ? 0 : model_.extend(chain, id, step.pos[t]);
      if (id == options_.nan_token && id >= 0) p.result.failed[sequence] = StepFailure::kNotFinite;
      for (size_t g = 0; g < cache_.groups(); ++g)
        cache_.cell(step, g, b, step.slot[t]) = {chain, id, step.pos[t]};
    }
  }

  // A vector for every output, where any of them asks for one.
  void add_vectors(const StepInputs& step, StepResult& out) const {
    if (std::none_of(step.samples.begin(), step.samples.end(),
                     [](const SampleRow& s) { return s.mode == SampleRow::Mode::kHidden; }))
      return;
    for (int32_t row : step.out_rows)
      for (int64_t i = 0; i < hidden_; ++i)
        out.hidden.push_back(NullModel::element(chains_[static_cast<size_t>(row)], i));
  }

  // The first allowed token from `id` on; -1: there is none.
  int32_t apply_mask(const PendingStep& p, size_t output, int32_t id) const {
    size_t words = mask_words(model_.vocab());
    for (int64_t i = 0; i < model_.vocab(); ++i) {
      auto next = static_cast<size_t>((id + i) % model_.vocab());
      if ((p.masks[output * words + next / 32] >> (next % 32) & 1) != 0)
        return static_cast<int32_t>(next);
    }
    return -1;
  }

  size_t sample(const StepInputs& step, size_t b, size_t r, PendingStep& p) {
    Row& row = rows_[static_cast<size_t>(step.row[b])];
    StepResult& out = p.result;
    auto first = static_cast<size_t>(cutter_.first_output());
    StepFailure& failed = out.failed[static_cast<size_t>(cutter_.first_sequence()) + b];
    int32_t tip = -1;
    for (; r < step.samples.size() && step.out_rows[r] < step.q_start[b + 1]; ++r) {
      const SampleRow& s = step.samples[r];
      auto t = static_cast<size_t>(step.out_rows[r]);
      using Mode = SampleRow::Mode;
      if (s.mode == Mode::kHidden) continue;
      bool holds = s.parent < 0
                       ? tip < 0
                       : s.parent == tip && out.ids[first + static_cast<size_t>(tip)] == ids_[t];
      if (s.parent >= 0 && !holds) {
        out.guesses[first + r] = model_.choose(chains_[t], s);
        continue;
      }
      uint64_t chain = chains_[t];
      if (s.guide >= 0) {  // the guide's history decides too
        auto guide = static_cast<size_t>(step.out_rows[static_cast<size_t>(s.guide)]);
        chain = model_.extend(chain ^ chains_[guide], 0, step.pos[t]);
      }
      int32_t id = s.mode == Mode::kScore ? s.target : model_.choose(chain, s);
      if (s.masked) id = apply_mask(p, first + r, id);
      if (id < 0) {
        failed = StepFailure::kNothingAllowed;
        continue;
      }
      report(s, first + r, chain, id, out);
      if (s.mode != Mode::kSample || !holds) continue;
      tip = static_cast<int32_t>(r);
      out.path.push_back(static_cast<int32_t>(first + r));
      row.last = id;
    }
    return r;
  }

  void report(const SampleRow& s, size_t output, uint64_t chain, int32_t id, StepResult& out) {
    out.ids[output] = id;
    int32_t top = s.spec ? s.spec->top_logprobs : -1;
    if (s.mode == SampleRow::Mode::kScore || top >= 0)
      out.logprobs[output] = model_.logprob(chain, id);
    for (int32_t k = 0; k < top && k < model_.vocab(); ++k) {
      auto other = static_cast<int32_t>((id + k) % model_.vocab());
      out.top.push_back(
          {static_cast<int32_t>(output), {other, out.logprobs[output] - static_cast<float>(k)}});
    }
  }

  NullOptions options_;
  NullModel model_;
  Roofline roofline_;
  StepChecker checker_;
  std::vector<GroupEntry> groups_;
  int64_t context_, hidden_;
  PhaseCutter cutter_;
  std::vector<Row> rows_;
  ShadowCache cache_;
  std::vector<uint64_t> chains_;  // per token of the phase
  std::vector<int32_t> ids_;
  std::vector<PendingStep> steps_;  // ring, by number of the step
  std::vector<Transfer> transfers_;
  Nanos device_free_ = 0;  // with a machine in real time: when its last step ends
  uint64_t submitted_ = 0, collected_ = 0;
  int64_t calls_ = 0, deferred_ = 0;
  Ticket next_ticket_ = 0;
  MemoryLedger ledger_;
};

}  // namespace

std::unique_ptr<Executable> make_null_executable(const PlanSet& plans, const LoadOptions& load,
                                                 const NullOptions& options) {
  return std::make_unique<NullExecutable>(plans, load, options);
}

}  // namespace tokamak
