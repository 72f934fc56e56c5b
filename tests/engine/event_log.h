#pragma once
// Records every call of EngineCore::advance of a run, and feeds a fresh core with the same calls.
#include <fmt/format.h>

#include <deque>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core.h"

namespace tokamak {

// Actions as text, for comparing runs.
inline std::string actions_text(const Actions& actions) {
  std::string out;
  auto at = std::back_inserter(out);
  auto list = [&](std::string_view key, const auto& values) {
    if (!values.empty()) fmt::format_to(at, " {}={}", key, fmt::join(values, ","));
  };
  for (const SubmitAction& s : actions.submits) {
    const StepInputs& in = *s.inputs;
    fmt::format_to(at, "submit {} {}", s.ticket, in.function);
    for (const StepPhase& p : in.phases)
      fmt::format_to(at, " phase={}:{}:{}:{}", p.function, p.tokens, p.sequences, p.outputs);
    list("ids", in.ids);
    list("pos", in.pos);
    list("slot", in.slot);
    list("q_start", in.q_start);
    list("kv_len", in.kv_len);
    list("row", in.row);
    list("out_rows", in.out_rows);
    for (const AdapterAction& a : actions.adapters)
      fmt::format_to(at, " adapter={}:{}", a.slot, a.adapter->id);
    for (const StepInputs::Table& t : in.tables) list("table", t.blocks);
    for (const BlockCopy& c : in.copies)
      fmt::format_to(at, " copy={}:{}:{}", c.group, c.from, c.to);
    for (const SlotMove& m : in.moves) fmt::format_to(at, " move={}:{}:{}", m.group, m.from, m.to);
    out += '\n';
  }
  for (const Delta& d : actions.deltas()) {
    fmt::format_to(at, "delta {} {} {} {}", d.request, d.choice, d.position, finish_name(d.finish));
    list("ids", d.ids);
    list("logprobs", d.logprobs);
    list("prompt_logprobs", d.prompt_logprobs);
    list("vector", d.vector);
    if (d.cached_tokens > 0) fmt::format_to(at, " cached={}", d.cached_tokens);
    if (d.drafted > 0) fmt::format_to(at, " drafted={} accepted={}", d.drafted, d.accepted);
    if (d.forced > 0) fmt::format_to(at, " forced={}", d.forced);
    if (!d.error.empty()) fmt::format_to(at, " error={}", d.error);
    out += '\n';
  }
  for (RequestId id : actions.finished) fmt::format_to(at, "finished {}\n", id);
  return out;
}

class EventLog {
 public:
  // Token masks are left out: their effect is in the results of the steps.
  void record(Nanos now, std::span<const Event> events) {
    std::vector<Event> copies(events.begin(), events.end());
    for (Event& e : copies) {
      e.spec.mask = nullptr;
      if (e.result != nullptr) e.result = &results_.emplace_back(*e.result);
    }
    calls_.emplace_back(now, std::move(copies));
  }

  // The actions that a fresh core takes, as text.
  std::string replay(EngineCore& core) const {
    std::string text;
    Actions actions;
    for (const auto& [now, events] : calls_) {
      std::vector<Event> copies = events;
      core.advance(now, copies, actions);
      text += actions_text(actions);
    }
    return text;
  }

 private:
  std::vector<std::pair<Nanos, std::vector<Event>>> calls_;
  std::deque<StepResult> results_;
};

}  // namespace tokamak
