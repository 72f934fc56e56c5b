// Generation: a request to the engine, and its deltas as text on the caller's thread.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "api/model_impl.h"
#include "base/clock.h"
#include "base/error.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace tokamak {

// Deltas on their way from the engine's thread to the caller's. Shared with the sink, which may
// outlive the stream.
class DeltaQueue {
 public:
  struct Item {
    Delta delta;
    Nanos time;
  };
  void push(Delta&& delta) {
    std::lock_guard lock(mutex_);
    items_.push_back({std::move(delta), clock_.now()});
    ready_.notify_one();
  }
  Item pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !items_.empty(); });
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Item> items_;
};

namespace {

RequestId submit(const LoadedModel& model, RequestSpec spec,
                 const std::shared_ptr<DeltaQueue>& queue) {
  return model.engine->submit(std::move(spec),
                              [queue](Delta&& delta) { queue->push(std::move(delta)); });
}

[[noreturn]] void fail_with(const Delta& delta) {
  if (delta.finish == Finish::kError) throw Error(delta.error_code, delta.error);
  fail(ErrorCode::kUnavailable, "the request ended early: {}", finish_name(delta.finish));
}

}  // namespace

// Owner: one Stream; one thread, but for cancel().
class Stream::Impl {
 public:
  Impl(std::shared_ptr<const Model::Impl> model, const Prompt& prompt,
       const GenerateOptions& options)
      : model_(std::move(model)), stops_(options.stop) {
    start_ = SteadyClock().now();
    result_.prompt_ids = model_->encode(prompt);
    const Tokenizer& tokenizer = *model_->loaded.tokenizer;
    const bool chat = std::holds_alternative<Chat>(prompt);
    detokenizer_.emplace(
        tokenizer, DecodeOptions{.skip_special = true,
                                 .continues = !chat && tokenizer.has_text(result_.prompt_ids)});
    request_ = submit(model_->loaded, model_->request(result_.prompt_ids, options), queue_);
  }
  ~Impl() { cancel(); }

  void cancel() { model_->loaded.engine->cancel(request_); }

  // Ends the answer with what was read so far.
  void abandon() {
    cancel();
    if (!ended_) result_.finish = FinishReason::kCancelled;
    ended_ = true;
  }

  std::optional<std::string> next() {
    while (!ended_)
      if (std::string text = take(queue_->pop()); !text.empty()) {
        result_.text += text;
        return text;
      }
    if (failure_) throw Error(*failure_);
    return std::nullopt;
  }

  const Result& result() {
    while (next()) {
    }
    return result_;
  }

 private:
  std::string take(const DeltaQueue::Item& item) {
    const Delta& delta = item.delta;
    result_.cached_tokens += delta.cached_tokens;
    result_.drafted_tokens += delta.drafted;
    result_.accepted_tokens += delta.accepted;
    std::string text;
    // An end token is a token too, though it is not part of the answer.
    if (result_.ids.empty() && (!delta.ids.empty() || delta.finish == Finish::kStop)) {
      first_ = item.time;
      result_.prompt_seconds = seconds(first_ - start_);
    }
    for (size_t i = 0; i < delta.ids.size() && !stops_.stopped(); ++i) {
      result_.generate_seconds = seconds(item.time - first_);
      result_.ids.push_back(delta.ids[i]);
      if (i < delta.logprobs.size()) result_.logprobs.push_back(delta.logprobs[i]);
      text += stops_.push(detokenizer_->push(delta.ids[i])).text;
    }
    if (stops_.stopped()) {
      model_->loaded.engine->stop_at(request_, 0, static_cast<int32_t>(result_.ids.size()));
      end(FinishReason::kStop);
    } else if (delta.finish != Finish::kNone) {
      text += stops_.push(detokenizer_->finish()).text;
      bool stopped = stops_.stopped();
      text += stops_.finish();
      finish(delta, stopped);
    }
    return text;
  }

  void end(FinishReason reason) {
    result_.finish = reason;
    ended_ = true;
  }

  void finish(const Delta& delta, bool stopped) {
    if (stopped || delta.finish == Finish::kStop) return end(FinishReason::kStop);
    if (delta.finish == Finish::kLength) return end(FinishReason::kLength);
    end(FinishReason::kCancelled);
    if (delta.finish == Finish::kCancelled) return;
    try {
      fail_with(delta);
    } catch (const Error& e) {
      failure_ = std::make_unique<Error>(e);
    }
  }

  std::shared_ptr<const Model::Impl> model_;
  std::optional<Detokenizer> detokenizer_;
  StopStrings stops_;
  std::shared_ptr<DeltaQueue> queue_ = std::make_shared<DeltaQueue>();
  RequestId request_ = 0;
  Nanos start_ = 0, first_ = 0;
  Result result_;
  bool ended_ = false;
  std::unique_ptr<Error> failure_;
};

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;
std::optional<std::string> Stream::next() { return impl_->next(); }
void Stream::cancel() { impl_->cancel(); }
const Result& Stream::result() { return impl_->result(); }

Stream Model::stream(const Prompt& prompt, const GenerateOptions& options) const {
  return Stream(std::make_unique<Stream::Impl>(impl_, prompt, options));
}

Result Model::generate(const Prompt& prompt, const GenerateOptions& options,
                       const OnText& on_text) const {
  Stream s = stream(prompt, options);
  while (std::optional<std::string> piece = s.next())
    if (on_text && !on_text(*piece)) s.impl_->abandon();
  return s.result();
}

std::vector<Result> Model::generate_batch(const std::vector<Prompt>& prompts,
                                          const GenerateOptions& options) const {
  // No more than the engine's queue takes; the oldest is read to its end to make room.
  auto most = static_cast<size_t>(impl_->loaded.engine->config().max_queue);
  std::deque<Stream> running;
  std::vector<Result> results;
  auto finish_oldest = [&] {
    results.push_back(running.front().result());
    running.pop_front();
  };
  for (const Prompt& prompt : prompts) {
    if (running.size() == most) finish_oldest();
    running.push_back(stream(prompt, options));
  }
  while (!running.empty()) finish_oldest();
  return results;
}

std::vector<float> Model::score(const Prompt& prompt, int32_t first) const {
  RequestSpec spec = impl_->request(impl_->encode(prompt), {.max_tokens = 0});
  if (first < 1)
    fail(ErrorCode::kInvalidArgument, "score: first is {}, but must be 1 or more", first);
  if (first >= std::ssize(spec.prompt)) return {};
  spec.score_prompt = true;
  spec.score_from = first;
  auto queue = std::make_shared<DeltaQueue>();
  submit(impl_->loaded, std::move(spec), queue);
  std::vector<float> logprobs;
  while (true) {
    Delta delta = queue->pop().delta;
    logprobs.insert(logprobs.end(), delta.prompt_logprobs.begin(), delta.prompt_logprobs.end());
    if (delta.finish == Finish::kStop || delta.finish == Finish::kLength) return logprobs;
    if (delta.finish != Finish::kNone) fail_with(delta);
  }
}

}  // namespace tokamak
