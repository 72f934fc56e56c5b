#include <algorithm>
#include <chrono>
#include <thread>

#include "backend/null/null_backend.h"
#include "backend/null/step_check.h"
#include "base/clock.h"
#include "base/error.h"

namespace tokamak {
namespace {

// Runs a step when it is submitted and keeps the result until it is collected. A step that fails
// leaves nothing behind: its KV is not written, and until it is collected the steps behind it that
// hold one of its sequences compute garbage, as on a device.
class NullExecutable final : public Executable {
 public:
  NullExecutable(const PlanSet& plans, const LoadOptions& load, const NullOptions& options)
      : options_(options),
        model_(null_model(plans, options)),
        roofline_(plans, options.machine),
        checker_(plans, load.blocks, load.max_rows, model_.vocab()),
        groups_(plans.groups) {
    if (model_.vocab() <= 0) fail(ErrorCode::kInvalidArgument, "null backend: empty vocabulary");
    if (options.max_in_flight < 1)
      fail(ErrorCode::kInvalidArgument, "null backend: max_in_flight must be at least 1");
    rows_.resize(static_cast<size_t>(load.max_rows));
    for (size_t g = 0; g < groups_.size() && options.shadow; ++g)
      shadow_.emplace_back(static_cast<size_t>(load.blocks[g] * groups_[g].block_size));
    for (const auto& plane : shadow_) ledger_.other += plane.size() * sizeof(Cell);
    pending_.resize(static_cast<size_t>(options.max_in_flight));
  }

  int max_in_flight() const override { return options_.max_in_flight; }
  const MemoryLedger& memory() const override { return ledger_; }

  Ticket submit(const StepInputs& step) override {
    TK_CHECK(next_ - oldest_ < pending_.size(), "null backend: {} steps are in flight",
             next_ - oldest_);
    if (options_.check) checker_.check(step);
    if (!step.mask.empty() || !step.adapter.empty())
      fail(ErrorCode::kUnsupported, "null backend: tree masks and adapters are not modelled");
    ++submitted_;
    if (options_.fail_submit_every > 0 && submitted_ % options_.fail_submit_every == 0)
      fail(ErrorCode::kUnavailable, "null backend: injected failure of submit {}", submitted_);
    Pending& p = pending_[next_ % pending_.size()];
    p.result.clear();
    p.failed = (options_.fail_every > 0 && submitted_ % options_.fail_every == 0) ||
               (options_.fatal_token >= 0 && std::find(step.ids.begin(), step.ids.end(),
                                                       options_.fatal_token) != step.ids.end());
    p.rows.assign(step.row.begin(), step.row.end());
    if (p.failed)
      for (int32_t row : step.row) ++rows_[static_cast<size_t>(row)].poisoned;
    else
      run(step, p.result);
    if (options_.machine.real_time)  // one step after the other, as a device takes them
      p.due = device_free_ = std::max(SteadyClock().now(), device_free_) +
                             static_cast<Nanos>(roofline_.seconds(step) * 1e9);
    return next_++;
  }

  void collect(Ticket ticket, StepResult& out) override {
    TK_CHECK(ticket == oldest_ && ticket < next_, "null backend: ticket {} is not the oldest",
             ticket);
    Pending& p = pending_[oldest_++ % pending_.size()];
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

 private:
  struct Cell {  // what a slot holds; chain 0: nothing, or garbage
    uint64_t chain = 0;
    int32_t token = -1, position = -1;
  };
  struct Row {
    int32_t last = -1;  // the last token chosen
    int poisoned = 0;   // failed steps of it that are not collected yet
  };
  struct Pending {
    StepResult result;
    std::vector<int32_t> rows;
    bool failed = false;
    Nanos due = 0;  // with a machine in real time
  };

  Cell& cell(const StepInputs& step, size_t g, size_t b, int64_t slot) {
    int64_t size = groups_[g].block_size;
    const StepInputs::Table& table = step.tables[g];
    int32_t block =
        table.blocks[b * static_cast<size_t>(table.stride) + static_cast<size_t>(slot / size)];
    TK_CHECK(block >= 0, "step: sequence {} reads slot {} of group {}, which it dropped", b, slot,
             g);
    return shadow_[g][static_cast<size_t>(block * size + slot % size)];
  }

  void run(const StepInputs& step, StepResult& out) {
    copy_blocks(step);
    chains_.resize(step.ids.size());
    out.ids.assign(step.samples.size(), -1);
    out.logprobs.assign(step.samples.size(), 0.0f);
    out.accepted.assign(step.kv_len.size(), 0);
    out.failed.assign(step.kv_len.size(), 0);
    for (size_t b = 0; b < step.kv_len.size(); ++b) forward(step, b, out);
    for (size_t b = 0, r = 0; b < step.kv_len.size(); ++b) r = sample(step, b, r, out);
    out.seconds = roofline_.seconds(step);
  }

  void copy_blocks(const StepInputs& step) {
    for (const BlockCopy& c : step.copies) {
      if (!options_.shadow) break;
      auto size = static_cast<size_t>(groups_[c.group].block_size);
      auto* cells = shadow_[c.group].data();
      std::copy_n(cells + static_cast<size_t>(c.from) * size, size,
                  cells + static_cast<size_t>(c.to) * size);
    }
  }

  // Writes the KV of a sequence's tokens and leaves the chain value of each.
  void forward(const StepInputs& step, size_t b, StepResult& out) {
    Row& row = rows_[static_cast<size_t>(step.row[b])];
    auto first = static_cast<size_t>(step.q_start[b]),
         end = static_cast<size_t>(step.q_start[b + 1]);
    bool garbage = row.poisoned > 0;
    if (options_.shadow && !garbage) check_context(step, b);
    uint64_t chain = 0;
    if (options_.shadow && step.slot[first] > 0)
      chain = cell(step, 0, b, step.slot[first] - 1).chain;
    for (size_t t = first; t < end; ++t) {
      int32_t id = step.ids[t];
      if (id < 0) id = row.last;
      TK_CHECK(garbage || id >= 0, "step: row {} has no last token", step.row[b]);
      chain = garbage ? 0 : model_.extend(chain, id, step.pos[t]);
      chains_[t] = chain;
      if (id == options_.nan_token && id >= 0) out.failed[b] = 1;
      for (size_t g = 0; g < shadow_.size(); ++g)
        cell(step, g, b, step.slot[t]) = {chain, id, step.pos[t]};
    }
  }

  // Everything the sequence will read from earlier steps is what it wrote itself.
  void check_context(const StepInputs& step, size_t b) {
    auto first = static_cast<size_t>(step.q_start[b]);
    int64_t end = step.slot[first];
    for (size_t g = 0; g < shadow_.size(); ++g) {
      int64_t window = groups_[g].window;
      int64_t lo = window > 0 ? std::max<int64_t>(0, end - window + 1) : 0;
      uint64_t before = 0;
      for (int64_t s = lo; s < end; ++s) {
        const Cell& c = cell(step, g, b, s);
        bool known = s > lo || s == 0;
        TK_CHECK(
            c.chain != 0 && c.position <= step.pos[first] - (end - s) &&
                (!known || c.chain == model_.extend(before, c.token, c.position)),
            "step: slot {} of sequence {} (group {}) holds token {} of position {}: not its own", s,
            b, g, c.token, c.position);
        before = c.chain;
      }
      TK_CHECK(lo >= end || before == cell(step, 0, b, end - 1).chain,
               "step: groups 0 and {} of sequence {} differ", g, b);
    }
  }

  size_t sample(const StepInputs& step, size_t b, size_t r, StepResult& out) {
    Row& row = rows_[static_cast<size_t>(step.row[b])];
    bool agreed = true;
    for (; r < step.samples.size() && step.out_rows[r] < step.q_start[b + 1]; ++r) {
      const SampleRow& s = step.samples[r];
      uint64_t chain = chains_[static_cast<size_t>(step.out_rows[r])];
      if (s.mode == SampleRow::Mode::kHidden) continue;
      bool score = s.mode == SampleRow::Mode::kScore;
      int32_t id = score ? s.target : model_.choose(chain, s);
      out.ids[r] = id;
      int32_t top = s.spec ? s.spec->top_logprobs : -1;
      if (score || top >= 0) out.logprobs[r] = model_.logprob(chain, id);
      for (int32_t k = 0; k < top && k < model_.vocab(); ++k) {
        auto other = static_cast<int32_t>((id + k) % model_.vocab());
        out.top.push_back(
            {static_cast<int32_t>(r), {other, out.logprobs[r] - static_cast<float>(k)}});
      }
      if (score || !agreed) continue;
      ++out.accepted[b];
      row.last = id;
      agreed = s.target == id;
    }
    return r;
  }

  NullOptions options_;
  NullModel model_;
  Roofline roofline_;
  StepChecker checker_;
  std::vector<GroupEntry> groups_;
  std::vector<Row> rows_;
  std::vector<std::vector<Cell>> shadow_;  // per group, physical slots
  std::vector<uint64_t> chains_;           // per token of the step
  std::vector<Pending> pending_;           // ring, by ticket
  Nanos device_free_ = 0;                  // with a machine in real time: when its last step ends
  uint64_t next_ = 0, oldest_ = 0;
  int64_t submitted_ = 0;
  MemoryLedger ledger_;
};

}  // namespace

std::unique_ptr<Executable> make_null_executable(const PlanSet& plans, const LoadOptions& load,
                                                 const NullOptions& options) {
  return std::make_unique<NullExecutable>(plans, load, options);
}

}  // namespace tokamak
