#pragma once
// Carries out submit actions on an Executable and turns the results into events, in order.
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "engine/event.h"

namespace tokamak {

// Owned by a driver, used by its engine thread. Exceptions of the executable become step failures.
// A step submitted after one that could not be submitted is not run: it may continue it.
class StepQueue {
 public:
  StepQueue(Executable& executable, int64_t vocab)
      : executable_(executable), mask_(mask_words(vocab)) {}
  // Does not throw. If it fails, so do the steps that use the slot.
  void set_adapter(const AdapterAction& action);
  void submit(const SubmitAction& action);  // does not throw
  void set_masks(const Actions& actions);   // asks for the masks; does not throw
  bool empty() const { return head_ == queue_.size(); }
  // Waits for the oldest step and appends its event. Steps that were not run are reported together,
  // so that no later step continues one of them. Returns the number of events. Their result is
  // valid until the next call.
  size_t next(std::vector<Event>& events);

 private:
  struct Entry {
    Ticket ticket = 0, running = 0;  // the core's and the executable's
    bool failed = false;
    std::string error;
  };
  const std::string* broken_slot(const StepInputs& inputs) const;

  Executable& executable_;
  std::map<int32_t, std::string> broken_slots_;  // with the error
  std::vector<Entry> queue_;                     // from head_ on; cleared when it runs empty
  size_t head_ = 0;
  int not_submitted_ = 0;  // entries that failed in submit
  StepResult result_;
  std::vector<uint32_t> mask_;
  std::vector<int32_t> drafts_;  // of a mask
};

}  // namespace tokamak
