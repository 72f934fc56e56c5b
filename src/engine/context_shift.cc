#include "engine/context_shift.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "base/rng.h"

namespace tokamak {

// One choice of an answer.
struct ShiftPart {
  RequestId id = 0;    // of the inner request that computes it now
  int32_t choice = 0;  // there
  int32_t before = 0;  // tokens of the answer that earlier requests computed
  int32_t length = 0;  // of the answer so far
  int32_t shifts = 0;
  int32_t stop = INT32_MAX;      // stop_at
  std::vector<int32_t> context;  // that the model sees
  std::vector<int32_t> answer;   // only with a mask
};

struct ShiftAnswer {
  RequestSpec spec;  // as submitted
  Client::Sink sink;
  int64_t limit = 0;  // tokens of the context
  std::mutex mutex;   // guards the rest
  RequestId id = 0;
  bool listed = false, cancelled = false;
  int32_t open = 0;  // choices without an end
  std::vector<ShiftPart> parts;
};
using AnswerPtr = std::shared_ptr<ShiftAnswer>;

namespace {

constexpr int64_t kLeastDropped = 4;  // tokens after the kept ones, as in llama.cpp

// The mask of an answer whose first tokens became part of the prompt.
class ShiftedMask final : public TokenMask {
 public:
  ShiftedMask(std::shared_ptr<TokenMask> mask, int32_t choice, std::vector<int32_t> before)
      : mask_(std::move(mask)), choice_(choice), before_(before.size()), all_(std::move(before)) {}

  void allow(int32_t, std::span<const int32_t> answer, std::span<const int32_t> drafts,
             std::span<uint32_t> allowed) override {
    mask_->allow(choice_, whole(answer), drafts, allowed);
  }
  void force(int32_t, std::span<const int32_t> answer, std::vector<int32_t>& forced) override {
    mask_->force(choice_, whole(answer), forced);
  }

 private:
  std::span<const int32_t> whole(std::span<const int32_t> answer) {
    all_.resize(before_);
    all_.insert(all_.end(), answer.begin(), answer.end());
    return all_;
  }

  std::shared_ptr<TokenMask> mask_;
  const int32_t choice_;
  const size_t before_;
  std::vector<int32_t> all_;
};

RequestSpec rest_of(const ShiftAnswer& answer, const ShiftPart& part, int32_t choice) {
  RequestSpec spec = answer.spec;
  spec.prompt = part.context;
  spec.n = 1;
  spec.max_tokens = static_cast<int32_t>(
      std::min<int64_t>(answer.spec.max_tokens - part.length,
                        answer.limit - static_cast<int64_t>(part.context.size())));
  spec.score_prompt = false;
  spec.queue_deadline = kNever;
  if (answer.spec.sample) {
    auto sample = std::make_shared<SampleSpec>(*answer.spec.sample);
    auto bits =
        philox(sample->seed, static_cast<uint64_t>(choice) + 1, static_cast<uint64_t>(part.shifts));
    sample->seed = uint64_t{bits[0]} << 32 | bits[1];
    sample->min_tokens = std::max(0, sample->min_tokens - part.length);
    spec.sample = std::move(sample);
  }
  if (answer.spec.mask)
    spec.mask = std::make_shared<ShiftedMask>(answer.spec.mask, choice, part.answer);
  return spec;
}

}  // namespace

int64_t shift_context(std::vector<int32_t>& context, int32_t keep, int64_t prompt, int64_t limit) {
  int64_t kept =
      std::clamp<int64_t>(keep < 0 ? prompt : keep, 0, std::max<int64_t>(0, limit - kLeastDropped));
  int64_t dropped = (std::ssize(context) - kept) / 2;
  if (dropped <= 0) return 0;
  context.erase(context.begin() + kept, context.begin() + kept + dropped);
  return dropped;
}

// What sinks use: they may run after the ContextShift is gone, but not after the inner client.
struct ContextShift::Shared : std::enable_shared_from_this<ContextShift::Shared> {
  explicit Shared(Client& client) : inner(client) {}

  void take(const AnswerPtr& answer, int32_t choice, Delta&& delta);
  Finish go_on(const AnswerPtr& answer, int32_t choice);
  void close(const AnswerPtr& answer);
  AnswerPtr find(RequestId id) {
    std::lock_guard lock(mutex);
    auto it = answers.find(id);
    return it == answers.end() ? nullptr : it->second;
  }

  Client& inner;
  std::atomic<int64_t> shifts{0}, dropped{0};
  std::mutex mutex;  // guards answers; locked after that of an answer
  std::map<RequestId, AnswerPtr> answers;
};

void ContextShift::Shared::take(const AnswerPtr& answer, int32_t choice, Delta&& delta) {
  ShiftPart& part = answer->parts[static_cast<size_t>(choice)];
  bool full = false;
  {
    std::lock_guard lock(answer->mutex);
    if (part.shifts == 0) answer->id = delta.request;
    delta.request = answer->id;
    delta.choice = choice;
    delta.position += part.before;
    delta.shifted = part.shifts > 0;
    if (part.shifts > 0) delta.cached_tokens = delta.prompt_done = 0;
    part.context.insert(part.context.end(), delta.ids.begin(), delta.ids.end());
    if (answer->spec.mask)
      part.answer.insert(part.answer.end(), delta.ids.begin(), delta.ids.end());
    part.length += static_cast<int32_t>(delta.ids.size());
    full = delta.finish == Finish::kLength && part.length < answer->spec.max_tokens;
  }
  if (full) {
    delta.finish = Finish::kNone;
    if (!delta.ids.empty()) answer->sink(std::exchange(delta, {}));
    Finish end = go_on(answer, choice);
    if (end == Finish::kNone) return;
    delta.request = answer->id;
    delta.choice = choice;
    delta.position = part.length;
    delta.finish = end;
  }
  if (delta.finish != Finish::kNone) close(answer);
  answer->sink(std::move(delta));
}

// Continues an answer whose context is full; otherwise returns how it ends.
Finish ContextShift::Shared::go_on(const AnswerPtr& answer, int32_t choice) {
  std::lock_guard lock(answer->mutex);
  ShiftPart& part = answer->parts[static_cast<size_t>(choice)];
  if (answer->cancelled) return Finish::kCancelled;
  if (part.length >= part.stop) return Finish::kStop;
  int64_t less = shift_context(part.context, answer->spec.keep, std::ssize(answer->spec.prompt),
                               answer->limit);
  if (less == 0) return Finish::kLength;
  ++part.shifts;
  part.before = part.length;
  part.choice = 0;
  try {
    part.id = inner.submit(rest_of(*answer, part, choice),
                           [self = shared_from_this(), answer, choice](Delta&& delta) {
                             self->take(answer, choice, std::move(delta));
                           });
  } catch (const Error&) {
    return Finish::kLength;
  }
  if (part.stop != INT32_MAX) inner.stop_at(part.id, 0, part.stop - part.before);
  ++shifts;
  dropped += less;
  return Finish::kNone;
}

void ContextShift::Shared::close(const AnswerPtr& answer) {
  RequestId id = 0;
  {
    std::lock_guard lock(answer->mutex);
    if (--answer->open > 0 || !answer->listed) return;
    id = answer->id;
  }
  std::lock_guard lock(mutex);
  answers.erase(id);
}

ContextShift::ContextShift(std::shared_ptr<Client> inner)
    : ForwardingClient(std::move(inner)), shared_(std::make_shared<Shared>(*inner_)) {}

ContextShift::~ContextShift() = default;

RequestId ContextShift::submit(RequestSpec spec, Sink sink) {
  const int64_t limit = inner_->info().max_model_len;
  const int64_t room = limit - std::ssize(spec.prompt);
  if (spec.max_tokens <= room || room <= 0 || spec.beams > 0 || spec.pool || spec.guided() ||
      spec.n < 1)
    return inner_->submit(std::move(spec), std::move(sink));
  auto answer = std::make_shared<ShiftAnswer>();
  answer->sink = std::move(sink);
  answer->limit = limit;
  answer->open = spec.n;
  answer->parts.resize(static_cast<size_t>(spec.n));
  for (int32_t c = 0; c < spec.n; ++c) {
    answer->parts[static_cast<size_t>(c)].choice = c;
    answer->parts[static_cast<size_t>(c)].context = spec.prompt;
  }
  answer->spec = spec;
  spec.max_tokens = static_cast<int32_t>(room);
  RequestId id = inner_->submit(std::move(spec), [shared = shared_, answer](Delta&& delta) {
    const int32_t choice = delta.choice;
    shared->take(answer, choice, std::move(delta));
  });
  std::lock_guard lock(answer->mutex);
  answer->id = id;
  for (ShiftPart& part : answer->parts)
    if (part.shifts == 0) part.id = id;
  if (answer->open == 0) return id;
  answer->listed = true;
  std::lock_guard list(shared_->mutex);
  shared_->answers.emplace(id, answer);
  return id;
}

void ContextShift::cancel(RequestId id) {
  AnswerPtr answer = shared_->find(id);
  if (answer == nullptr) return inner_->cancel(id);
  std::lock_guard lock(answer->mutex);
  answer->cancelled = true;
  for (const ShiftPart& part : answer->parts) inner_->cancel(part.id);
}

void ContextShift::stop_at(RequestId id, int32_t choice, int32_t position) {
  AnswerPtr answer = shared_->find(id);
  if (answer == nullptr) return inner_->stop_at(id, choice, position);
  std::lock_guard lock(answer->mutex);
  if (choice < 0 || choice >= answer->spec.n) return;
  ShiftPart& part = answer->parts[static_cast<size_t>(choice)];
  part.stop = std::min(part.stop, position);
  inner_->stop_at(part.id, part.choice, std::max(0, position - part.before));
}

EngineStats ContextShift::stats() const {
  EngineStats stats = inner_->stats();
  stats.context_shifts = shared_->shifts;
  stats.shifted_tokens = shared_->dropped;
  stats.finished[static_cast<size_t>(Finish::kLength)] -= stats.context_shifts;
  return stats;
}

}  // namespace tokamak
