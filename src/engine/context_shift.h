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
class ContextShift final : public ForwardingClient {
 public:
  explicit ContextShift(std::shared_ptr<Client> inner);
  ~ContextShift() override;

  RequestId submit(RequestSpec spec, Sink sink) override;
  void cancel(RequestId id) override;
  void stop_at(RequestId id, int32_t choice, int32_t position) override;
  // A shift is not counted as an answer that ended.
  EngineStats stats() const override;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Drops half of the tokens after the first `keep` (-1: the first `prompt`) of a full context of
// `limit` tokens. Returns how many were dropped; 0: the context is too short to shift.
int64_t shift_context(std::vector<int32_t>& context, int32_t keep, int64_t prompt, int64_t limit);

}  // namespace tokamak
