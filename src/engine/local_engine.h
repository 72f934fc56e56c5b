#pragma once
// The engine in this process: one thread around EngineCore and an Executable.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/client.h"
#include "engine/core.h"
#include "engine/step_queue.h"

namespace tokamak {

// Thread-safe. submit, cancel and stop_at put an event into the inbox and return. The engine thread
// reads the inbox between steps, so a cancel waits for the running step. The thread sleeps when
// idle.
class LocalEngine final : public Client {
 public:
  // max_in_flight is limited to what the executable supports. `drafter` may be nullptr and must
  // outlive the engine.
  LocalEngine(const PlanSet& plans, std::unique_ptr<Executable> executable, EngineConfig config,
              const Clock& clock, Drafter* drafter = nullptr);
  ~LocalEngine() override;  // cancels all requests

  RequestId submit(RequestSpec spec, Sink sink) override;
  void cancel(RequestId id) override;
  void stop_at(RequestId id, int32_t choice, int32_t position) override;
  EngineInfo info() const override;

  // Refuses new requests; kDrain completes the accepted ones, kCancel cancels them. Waits for the
  // thread to end. Must not be called from a sink.
  enum class Stop { kDrain, kCancel };
  void stop(Stop how);

  EngineStats stats() const override;
  EngineMemory memory() const override;
  PrefixTree prefix_tree(int64_t most) override;
  SavedPrefix save_slot(int32_t slot, const std::string& salt) override;
  void restore_slot(int32_t slot, const std::string& salt, const SavedPrefix& saved) override;
  int64_t erase_slot(int32_t slot, const std::string& salt) override;
  std::string kv_layout() const override { return layout_; }
  bool trace_step(bool prompts, int skip, TraceSink sink) override;
  const EngineConfig& config() const { return config_; }

 private:
  struct Listener {
    Sink sink;
    std::vector<bool> ended;  // by choice: the last delta was delivered
  };
  void loop();
  bool take_inbox();  // false: stopped, and nothing is left to do
  void carry_out();   // actions_
  void give_up(const std::string& why);
  bool run_jobs();
  // Runs it on the engine's thread and waits. False: the engine has ended.
  bool between_steps(std::function<void()> job);
  void on_slots(std::function<void()> job);
  void with_blocks(SlotCopy& copy, const std::function<void()>& work);
  void submit_step(const SubmitAction& action);
  void deliver(Delta&& delta);
  void post(Event event);

  const EngineConfig config_;
  const std::string layout_;
  std::unique_ptr<Executable> executable_;
  const Clock& clock_;

  // Engine thread only.
  EngineCore core_;
  StepQueue steps_;
  const bool traces_;  // the executable can record steps
  std::unordered_map<RequestId, Listener> listeners_;
  std::vector<Event> events_;
  std::vector<std::pair<RequestId, Listener>> arrived_;
  Actions actions_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<Event> inbox_;
  std::vector<std::pair<RequestId, Listener>> inbox_listeners_;
  int64_t inbox_sequences_ = 0;  // of arrivals in the inbox
  int64_t taken_sequences_ = 0;  // of arrivals that the core is processing
  RequestId next_id_ = 1;
  bool stopping_ = false, cancel_all_ = false, broken_ = false;
  EngineInfo info_;
  EngineStats stats_;
  std::vector<std::packaged_task<void()>> jobs_;
  struct TraceRequest {
    bool prompts = false;
    int skip = 0;
    TraceSink sink;  // empty: none is wanted
  };
  TraceRequest trace_request_;
  std::atomic<bool> trace_wanted_{false};
  bool ended_ = false;  // the thread looks at no more requests

  std::mutex join_mutex_;
  std::thread thread_;  // last: started when all other members are initialised
};

}  // namespace tokamak
