#pragma once
// Answers that outgrow the context. When the context is full, half of the tokens that follow the
// kept beginning are dropped, what remains is computed again as a prompt, and the answer continues.
// This is lossy: the model no longer sees the dropped tokens.
#include <memory>

#include "engine/client.h"

namespace tokamak {

// A Client in front of another one. Requests that fit the context, beam searches, guided requests
// and vectors pass unchanged. A longer one runs as several requests of the inner client; after a
// shift it waits for a place like a new request, and ends with Finish::kLength if the inner client
// does not accept it. Choice c continues with noise keyed by (seed, c, number of shifts), so that a
// seed still gives the same answer; penalties that look at the answer only start again, as does
// Mirostat. Any thread. Requests must end before the inner client is destroyed.
class ContextShift final : public Client {
 public:
  explicit ContextShift(std::shared_ptr<Client> inner);
  ~ContextShift() override;

  RequestId submit(RequestSpec spec, Sink sink) override;
  void cancel(RequestId id) override;
  void stop_at(RequestId id, int32_t choice, int32_t position) override;
  EngineInfo info() const override { return inner_->info(); }
  // A shift is not counted as an answer that ended.
  EngineStats stats() const override;
  EngineMemory memory() const override { return inner_->memory(); }
  PrefixTree prefix_tree(int64_t most) override { return inner_->prefix_tree(most); }
  SavedPrefix save_slot(int32_t slot, const std::string& salt) override {
    return inner_->save_slot(slot, salt);
  }
  void restore_slot(int32_t slot, const std::string& salt, const SavedPrefix& saved) override {
    inner_->restore_slot(slot, salt, saved);
  }
  int64_t erase_slot(int32_t slot, const std::string& salt) override {
    return inner_->erase_slot(slot, salt);
  }
  std::string kv_layout() const override { return inner_->kv_layout(); }
  bool trace_step(bool prompts, int skip, TraceSink sink) override {
    return inner_->trace_step(prompts, skip, std::move(sink));
  }

 private:
  struct Shared;
  std::shared_ptr<Client> inner_;
  std::shared_ptr<Shared> shared_;
};

// Drops half of the tokens after the first `keep` (-1: the first `prompt`) of a full context of
// `limit` tokens. Returns how many were dropped; 0: the context is too short to shift.
int64_t shift_context(std::vector<int32_t>& context, int32_t keep, int64_t prompt, int64_t limit);

}  // namespace tokamak
