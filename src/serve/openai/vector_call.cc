#include "serve/openai/vector_call.h"

#include "base/log.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {

int64_t VectorRequest::tokens() const {
  int64_t n = 0;
  for (const EmbeddingInput& input : inputs) n += std::ssize(input.ids);
  return n;
}

VectorCall::VectorCall(http::ExchangePtr exchange, VectorRequest request, WorkerPool& pool,
                       std::shared_ptr<GenerationStats> stats, RequestContext context)
    : running_(stats),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      pool_(pool),
      stats_(std::move(stats)),
      context_(std::move(context)),
      vectors_(request_.inputs.size()),
      open_(request_.inputs.size()) {}

void VectorCall::watch_client() {
  exchange_->on_gone([weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    {
      std::lock_guard lock(self->mutex_);
      if (std::exchange(self->ended_, true)) return;
      self->self_.reset();  // not the last reference: we hold one
    }
    ++self->stats_->cancelled;
    self->cancel_all();
    if (self->context_.log != nullptr)
      self->context_.log->write(self->context_.trace,
                                self->context_.line(499, "the client disconnected"));
  });
  exchange_->on_stop([weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    Delta delta;
    delta.finish = Finish::kCancelled;
    delta.error = "The server is shutting down.";
    self->take(0, std::move(delta));
  });
}

void VectorCall::start() {
  {
    std::lock_guard lock(mutex_);
    self_ = shared_from_this();
  }
  watch_client();
  try {
    for (size_t i = 0; i < request_.inputs.size(); ++i) submit(i);
  } catch (const Error& error) {
    {
      std::lock_guard lock(mutex_);
      self_.reset();  // not the last reference: the caller holds one
      if (std::exchange(ended_, true)) return;
    }
    cancel_all();
    switch (error.code()) {
      case ErrorCode::kResourceExhausted:
        throw ApiError(429, error.what(), "", "queue_full")
            .with_retry_after(request_.model->client->info().retry_after);
      case ErrorCode::kOutOfRange:
        throw ApiError(400, error.what(), request_.param, "context_length_exceeded");
      case ErrorCode::kUnavailable:
        throw ApiError(503, error.what()).with_retry_after(5);
      default:
        throw;
    }
  }
}

void VectorCall::submit(size_t index) {
  RequestSpec spec;
  spec.prompt = request_.inputs[index].ids;
  spec.second_text = request_.inputs[index].second_text;
  spec.max_tokens = 0;
  spec.pool = true;
  spec.score_prompt = request_.per_token;
  spec.priority = request_.priority;
  spec.cache_salt = request_.cache_salt;
  spec.tenant = request_.tenant;
  if (request_.timeout_seconds > 0)
    spec.deadline = SteadyClock().now() + static_cast<Nanos>(request_.timeout_seconds * 1e9);
  RequestId id = request_.model->client->submit(std::move(spec),
                                                [weak = weak_from_this(), index](Delta&& delta) {
                                                  if (auto self = weak.lock())
                                                    self->take(index, std::move(delta));
                                                });
  bool ended = false;
  {
    std::lock_guard lock(mutex_);
    submitted_.push_back(id);
    ended = ended_;
  }
  if (ended) request_.model->client->cancel(id);
}

// Must not block and must not throw: the answer is written on a worker.
void VectorCall::take(size_t index, Delta&& delta) {
  std::shared_ptr<VectorCall> self;
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (delta.finish == Finish::kStop) {
      vectors_[index] = std::move(delta.vector);
      cached_tokens_ += delta.cached_tokens;
      if (--open_ > 0) return;
    }
    ended_ = true;
    self = std::move(self_);
  }
  if (self == nullptr) return;
  if (delta.finish == Finish::kStop)
    pool_.post([self] { self->complete(); });
  else
    pool_.post([self, delta = std::move(delta)]() mutable { self->fail_with(std::move(delta)); });
}

void VectorCall::complete() {
  http::Response response;
  try {
    response.body = request_.answer(std::move(vectors_));
  } catch (const std::exception& e) {
    return respond(error_answer(e), e.what());
  }
  ++stats_->finished;
  stats_->prompt_tokens += request_.tokens();
  stats_->cached_tokens += cached_tokens_;
  respond(std::move(response), "");
}

void VectorCall::fail_with(Delta delta) {
  ++stats_->failed;
  cancel_all();
  bool timeout = delta.finish == Finish::kTimeout, stopped = delta.finish == Finish::kCancelled;
  int status = timeout ? 504 : stopped ? 503 : http_status(delta.error_code);
  std::string message = !delta.error.empty() ? delta.error
                        : timeout            ? "The request timed out."
                                             : "The server had an error.";
  http::Response response =
      http::error_response(status, message, "", "", timeout ? "deadline_exceeded" : "");
  if (status == 429)
    response.headers.emplace_back("Retry-After",
                                  retry_after_header(request_.model->client->info().retry_after));
  respond(std::move(response), message);
}

void VectorCall::respond(http::Response response, const std::string& error) {
  response.headers.emplace_back("traceparent", context_.trace.header());
  if (context_.log != nullptr) {
    Value line = context_.line(response.status, error);
    line.set("model", request_.model->name);
    line.set("n", static_cast<int64_t>(request_.inputs.size()));
    line.set("prompt_tokens", request_.tokens());
    context_.log->write(context_.trace, line);
  }
  exchange_->respond(std::move(response));
}

void VectorCall::cancel_all() {
  std::vector<RequestId> ids;
  {
    std::lock_guard lock(mutex_);
    ids = submitted_;
  }
  for (RequestId id : ids) request_.model->client->cancel(id);
}

}  // namespace tokamak::openai
