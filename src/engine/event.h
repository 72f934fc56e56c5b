#pragma once
// The inputs and outputs of EngineCore::advance: plain data, so that a run can be recorded and
// replayed.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "engine/adapter_slots.h"
#include "engine/client.h"

namespace tokamak {

struct Event {
  enum class Kind : uint8_t { kArrival, kCancel, kStopAt, kStepDone, kStepFailed };
  Kind kind = Kind::kArrival;
  RequestId request = 0;               // kArrival, kCancel, kStopAt
  RequestSpec spec;                    // kArrival
  int32_t choice = 0, position = 0;    // kStopAt
  Ticket ticket = 0;                   // kStepDone, kStepFailed
  const StepResult* result = nullptr;  // kStepDone; must be valid until advance() returns
  std::string error;                   // kStepFailed

  static Event arrival(RequestId id, RequestSpec spec) {
    Event e;
    e.request = id;
    e.spec = std::move(spec);
    return e;
  }
  static Event cancel(RequestId id) {
    Event e;
    e.kind = Kind::kCancel;
    e.request = id;
    return e;
  }
  static Event stop_at(RequestId id, int32_t choice, int32_t position) {
    Event e;
    e.kind = Kind::kStopAt;
    e.request = id;
    e.choice = choice;
    e.position = position;
    return e;
  }
  static Event step_done(Ticket ticket, const StepResult* result) {
    Event e;
    e.kind = Kind::kStepDone;
    e.ticket = ticket;
    e.result = result;
    return e;
  }
  static Event step_failed(Ticket ticket, std::string error) {
    Event e;
    e.kind = Kind::kStepFailed;
    e.ticket = ticket;
    e.error = std::move(error);
    return e;
  }
};

struct SubmitAction {
  Ticket ticket = 0;
  const StepInputs* inputs = nullptr;  // valid until the step is reported done or failed
};

// Asks for the mask of an output of a step that has been submitted: Executable::set_mask.
struct MaskAction {
  Ticket ticket = 0;
  int32_t output = 0;
  TokenMask* mask = nullptr;  // valid until the step is reported done or failed
  int32_t choice = 0;
  std::span<const int32_t> answer;  // so far; valid until the next call of advance
  // The drafts that follow it, in Actions::mask_drafts: ids, or outputs of the step (id_of_output).
  uint32_t first_draft = 0, drafts = 0;
};

// Reused from call to call: a warmed-up engine does not allocate. Carried out in this order:
// deltas, adapters, submits, masks.
class Actions {
 public:
  std::vector<AdapterAction> adapters;
  std::vector<SubmitAction> submits;
  std::vector<RequestId> finished;  // the last delta of every choice has been added
  Nanos next_wakeup = kNever;       // call advance again by then, even without events

  std::span<Delta> deltas() { return {deltas_.data(), delta_count_}; }
  std::span<const Delta> deltas() const { return {deltas_.data(), delta_count_}; }
  Delta& add_delta(RequestId request, int32_t choice, int32_t position);
  std::vector<MaskAction> masks;
  std::vector<int32_t> mask_drafts;
  void clear();

 private:
  std::vector<Delta> deltas_;  // only grows: the vectors inside keep their capacity
  size_t delta_count_ = 0;
};

}  // namespace tokamak
