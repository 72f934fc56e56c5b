#include "serve/openai/generation.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "serve/openai/api_error.h"
#include "serve/openai/structured.h"

namespace tokamak::openai {
namespace {

void append(Piece& whole, Piece&& more) {
  whole.text += more.text;
  whole.reasoning += more.reasoning;
  whole.ids.insert(whole.ids.end(), more.ids.begin(), more.ids.end());
  for (ScoredToken& token : more.scored) whole.scored.push_back(std::move(token));
  append_calls(whole.calls, std::move(more.calls));
  if (more.finish != nullptr) whole.finish = more.finish;
  if (!more.stop_reason.is_null()) whole.stop_reason = std::move(more.stop_reason);
  if (more.prompt_ids != nullptr) whole.prompt_ids = more.prompt_ids;
}

}  // namespace

void RunningRequests::add(const std::shared_ptr<Generation>& generation) {
  std::lock_guard lock(mutex_);
  running_.emplace(generation.get(), generation);
}

void RunningRequests::remove(const Generation& generation) {
  std::lock_guard lock(mutex_);
  running_.erase(&generation);
}

int64_t RunningRequests::abort(const std::vector<std::string>& ids, bool all,
                               const std::optional<std::string>& tenant) {
  std::vector<std::shared_ptr<Generation>> found;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, weak] : running_) {
      auto generation = weak.lock();
      if (generation == nullptr || (tenant && generation->tenant() != *tenant)) continue;
      if (all || std::any_of(ids.begin(), ids.end(),
                             [&](const std::string& id) { return generation->is(id); }))
        found.push_back(std::move(generation));
    }
  }
  for (const auto& generation : found)
    generation->abort("The request was aborted.", ErrorCode::kInvalidArgument);
  return std::ssize(found);
}

Generation::Generation(http::ExchangePtr exchange, Prepared request, std::unique_ptr<Shape> shape,
                       WorkerPool& pool, std::shared_ptr<GenerationStats> stats,
                       RequestContext context)
    : running_(stats),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      shape_(std::move(shape)),
      pool_(pool),
      stats_(std::move(stats)),
      context_(std::move(context)) {
  size_t n = static_cast<size_t>(request_.params.n);
  parts_.resize(request_.prompts.size());
  open_choices_ = n * parts_.size();
  choices_.reserve(open_choices_);
  for (size_t i = 0; i < open_choices_; ++i)
    choices_.emplace_back(static_cast<int>(i), request_, request_.prompts[i / n]);
  if (!request_.params.stream) {
    whole_.resize(open_choices_);
    for (size_t i = 0; i < open_choices_; ++i) whole_[i].index = static_cast<int>(i);
  }
}

RequestSpec Generation::spec_of(const Prompt& prompt,
                                const std::shared_ptr<const SampleSpec>& sample) const {
  const GenerationParams& params = request_.params;
  RequestSpec spec;
  spec.prompt = prompt.ids;
  spec.sample = sample;
  spec.max_tokens = static_cast<int32_t>(*params.max_tokens);
  spec.stop_ids = params.stop_ids;
  spec.n = params.n;
  spec.beams = params.beams;
  spec.length_penalty = params.length_penalty;
  spec.early_stopping = params.early_stopping;
  spec.mask = mask_of(params, *request_.model, request_.output);
  spec.jump_forward = params.jump_forward;
  spec.draft_tokens = params.draft_tokens;
  spec.draft_branches = params.draft_branches;
  spec.prediction = params.prediction;
  spec.negative_prompt = params.negative_prompt;
  const bool bos = !prompt.ids.empty() && prompt.ids[0] == request_.model->tokenizer->bos_id();
  spec.keep = params.keep == 0 && bos ? 1 : params.keep;
  spec.slot = params.slot;
  spec.streamed = params.stream;
  spec.progress = params.progress;
  spec.score_prompt = (params.echo && params.logprobs >= 0) || params.prompt_logprobs >= 0;
  spec.priority = params.priority;
  spec.cache_salt = params.cache_salt;
  spec.tenant = params.tenant;
  if (params.timeout_seconds > 0)
    spec.deadline = SteadyClock().now() + static_cast<Nanos>(params.timeout_seconds * 1e9);
  return spec;
}

void Generation::watch_client() {
  exchange_->on_gone([weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    {
      std::lock_guard lock(self->mutex_);
      self->gone_ = true;
      self->self_.reset();  // not the last reference: we hold one
      if (!self->closed_) self->schedule();
    }
    ++self->stats_->cancelled;
    self->cancel_all();
  });
  exchange_->on_stop([weak = weak_from_this()] {
    auto self = weak.lock();
    if (self != nullptr) self->abort("The server is shutting down.", ErrorCode::kUnavailable);
  });
}

void Generation::abort(const char* why, ErrorCode code) {
  Delta delta;
  delta.choice = -1;  // all of them
  delta.finish = Finish::kError;
  delta.error = why;
  delta.error_code = code;
  push(0, std::move(delta));
}

void Generation::start() {
  self_ = shared_from_this();
  watch_client();
  stats_->requests.add(shared_from_this());
  auto sample = std::make_shared<const SampleSpec>(request_.params.sample);
  for (size_t part = 0; part < parts_.size(); ++part) {
    bool gone = false;
    try {
      RequestId id = request_.model->client->submit(spec_of(request_.prompts[part], sample),
                                                    [weak = weak_from_this(), part](Delta&& delta) {
                                                      if (auto self = weak.lock())
                                                        self->push(part, std::move(delta));
                                                    });
      parts_[part].id = id;
      std::lock_guard lock(mutex_);
      submitted_.push_back(id);
      gone = gone_;
    } catch (...) {
      cancel_all();
      {
        std::lock_guard lock(mutex_);
        closed_ = true;
        self_.reset();  // not the last reference: the caller holds one
      }
      refuse();
    }
    if (gone) {
      cancel_all();
      return drain();
    }
  }
  if (request_.params.stream) {
    http::StreamHead head = shape_->head();
    head.headers = {{"Cache-Control", "no-cache"},
                    {"X-Accel-Buffering", "no"},
                    {"traceparent", context_.trace.header()}};
    add_headers(head.headers);
    exchange_->start_stream(std::move(head));
    shape_->begin(events_, static_cast<int>(choices_.size()),
                  request_.params.return_token_ids ? &request_.prompts[0].ids : nullptr, usage());
    exchange_->write(events_);
    events_.clear();
  }
  drain();
}

// The engine rejected it: a full queue gives a retry time, a request that can never fit is a client
// error.
void Generation::refuse() const {
  try {
    throw;
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::kResourceExhausted:
        throw ApiError(429, error.what(), "", "queue_full")
            .with_retry_after(request_.model->client->info().retry_after);
      case ErrorCode::kOutOfRange:
        throw ApiError(400, error.what(), request_.prompt_param, "context_length_exceeded");
      case ErrorCode::kInvalidArgument:  // the rest of the request was checked before
        throw ApiError(400, error.what(), request_.params.beams > 0 ? "best_of" : "n",
                       "invalid_value");
      case ErrorCode::kUnavailable:
        throw ApiError(503, error.what()).with_retry_after(5);
      default:
        throw;
    }
  }
}

// Must not block and must not throw: only the queue is touched here.
void Generation::push(size_t part, Delta&& delta) {
  std::lock_guard lock(mutex_);
  if (gone_ || closed_) return;
  arrivals_.push_back({part, std::move(delta)});
  schedule();
}

// Under the lock: once closed_ is set, the pool is no longer used.
void Generation::schedule() {
  if (std::exchange(scheduled_, true)) return;
  pool_.post([self = shared_from_this()] { self->drain(); });
}

void Generation::drain() {
  std::deque<Arrival> batch;
  while (true) {
    bool gone = false;
    {
      std::lock_guard lock(mutex_);
      batch.clear();
      batch.swap(arrivals_);
      gone = gone_;
      if (batch.empty() && !gone) {
        scheduled_ = false;
        return;
      }
    }
    if (gone) {  // what the client got until it left
      Usage so_far = usage();
      return log_end(499, "the client disconnected", &so_far);
    }
    try {
      for (Arrival& arrival : batch) handle(arrival);
    } catch (const std::exception& e) {
      log::error("answer {}: {}", shape_->id(), e.what());
      Delta broken;
      broken.finish = Finish::kError;
      broken.error = "The server had an error while processing your request.";
      break_off(broken);
    }
    if (!over_ && !events_.empty()) exchange_->write(events_);
    if (over_ && exchange_ != nullptr) {
      {
        std::lock_guard lock(mutex_);
        closed_ = true;
        self_.reset();  // not the last reference: the runner of this job holds one
      }
      exchange_->finish(events_);
      exchange_.reset();
    }
    events_.clear();
  }
}

void Generation::handle(Arrival& arrival) {
  if (over_) return;
  Delta& delta = arrival.delta;
  Part& part = parts_[arrival.part];
  if (!delta.prompt_logprobs.empty()) {
    part.scores.logprobs = std::move(delta.prompt_logprobs);
    part.scores.top = std::move(delta.prompt_top);
  }
  if (delta.prompt_done > 0 && arrival.part == 0) report_progress(delta);
  if (first_token_ == 0 && !delta.ids.empty()) {
    first_token_ = SteadyClock().now();
    shape_->started();
  }
  if (delta.choice == 0)
    cached_tokens_ += delta.cached_tokens;  // the other choices share its prompt
  drafted_ += delta.drafted;
  accepted_ += delta.accepted;
  shifted_ = shifted_ || delta.shifted;
  bool known = delta.choice >= 0 && delta.choice < request_.params.n;
  if (!known || (delta.finish != Finish::kNone && delta.finish != Finish::kStop &&
                 delta.finish != Finish::kLength)) {
    size_t index = arrival.part * request_.params.n + std::max(0, known ? delta.choice : 0);
    if (known && choices_[index].done())
      return;  // stopped by us; how the engine ends it does not matter
    return break_off(delta);
  }
  handle_choice(choices_[arrival.part * request_.params.n + delta.choice], arrival);
  if (open_choices_ == 0) complete();
}

// The first report says what was cached, before anything was computed.
void Generation::report_progress(const Delta& delta) {
  if (!request_.params.stream) return;
  PromptProgress progress{std::ssize(request_.prompts[0].ids), delta.prompt_cached,
                          delta.prompt_cached};
  if (!std::exchange(progress_begun_, true)) shape_->progress(events_, progress);
  progress.done = delta.prompt_done;
  progress.time = SteadyClock().now() - context_.start;
  if (progress.done > progress.cached) shape_->progress(events_, progress);
}

void Generation::handle_choice(Choice& choice, Arrival& arrival) {
  if (choice.done()) return;
  Part& part = parts_[arrival.part];
  Piece piece = choice.push(arrival.delta, part.scores);
  if (choice.done()) {
    --open_choices_;
    if (choice.stopped_at() >= 0 && arrival.delta.finish == Finish::kNone)
      request_.model->client->stop_at(part.id, arrival.delta.choice, choice.stopped_at());
  }
  if (request_.params.stream)
    shape_->piece(events_, piece, shape_->counts() ? usage() : Usage{});
  else
    append(whole_[piece.index], std::move(piece));
}

Usage Generation::usage() const {
  Usage usage;
  for (const Prompt& prompt : request_.prompts) usage.prompt_tokens += std::ssize(prompt.ids);
  // One for each prompt, as the engine computes it.
  usage.negative_tokens =
      std::ssize(request_.params.negative_prompt) * std::ssize(request_.prompts);
  usage.prompt_tokens += usage.negative_tokens;
  for (const Choice& choice : choices_) usage.completion_tokens += choice.tokens();
  usage.cached_tokens = cached_tokens_;
  usage.drafted_tokens = drafted_;
  usage.accepted_tokens = accepted_;
  for (const Choice& choice : choices_) usage.reasoning_tokens += choice.reasoning_tokens();
  usage.truncated = shifted_;
  const int64_t limit = request_.model->max_model_len;
  for (size_t i = 0; i < choices_.size() && limit > 0; ++i) {
    const Prompt& prompt = request_.prompts[i / static_cast<size_t>(request_.params.n)];
    if (std::ssize(prompt.ids) + choices_[i].tokens() >= limit) usage.truncated = true;
  }
  if (first_token_ > 0) {
    usage.prompt_time = first_token_ - context_.start;
    usage.answer_time = SteadyClock().now() - first_token_;
  }
  return usage;
}

void Generation::complete() {
  over_ = true;
  Usage total = usage();
  ++stats_->finished;
  stats_->prompt_tokens += total.prompt_tokens;
  stats_->completion_tokens += total.completion_tokens;
  stats_->cached_tokens += total.cached_tokens;
  log_end(200, "", &total);
  if (request_.params.stream) return shape_->end(events_, total);
  http::Response response;
  response.headers.emplace_back("traceparent", context_.trace.header());
  add_headers(response.headers);
  if (request_.params.prompt_logprobs >= 0)
    for (size_t i = 0; i < whole_.size(); ++i) {
      size_t part = i / static_cast<size_t>(request_.params.n);
      parts_[part].scores.ids = request_.prompts[part].ids;
      whole_[i].prompt_scores = &parts_[part].scores;
    }
  if (request_.params.best > 0) keep_best();
  response.body = shape_->whole(whole_, total);
  exchange_->respond(std::move(response));
}

void Generation::keep_best() {
  auto n = static_cast<size_t>(request_.params.n);
  std::vector<Piece> kept;
  for (size_t first = 0; first < whole_.size(); first += n) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return choices_[a].score() > choices_[b].score(); });
    for (size_t i = 0; i < static_cast<size_t>(request_.params.best); ++i) {
      kept.push_back(std::move(whole_[order[i]]));
      kept.back().index = static_cast<int>(kept.size()) - 1;
    }
  }
  whole_ = std::move(kept);
}

void Generation::break_off(const Delta& delta) {
  if (over_) return;
  over_ = true;
  ++stats_->failed;
  int status = delta.finish == Finish::kTimeout     ? 504
               : delta.finish == Finish::kCancelled ? 503
                                                    : http_status(delta.error_code);
  std::string message = !delta.error.empty()                 ? delta.error
                        : delta.finish == Finish::kTimeout   ? "The request timed out."
                        : delta.finish == Finish::kCancelled ? "The server stopped this request."
                                                             : "The server had an error.";
  Usage so_far = usage();
  log_end(status, message, &so_far);
  const char* code = delta.finish == Finish::kTimeout    ? "deadline_exceeded"
                     : status == 429                     ? "queue_full"
                     : delta.choice < 0 && status == 400 ? "request_aborted"
                                                         : "";
  http::Response response = shape_->error(http::error_response(status, message, "", "", code));
  response.headers.emplace_back("traceparent", context_.trace.header());
  add_headers(response.headers);
  if (status == 429)
    response.headers.emplace_back("Retry-After",
                                  retry_after_header(request_.model->client->info().retry_after));
  if (request_.params.stream)
    shape_->broken(events_, response);
  else
    exchange_->respond(std::move(response));
  cancel_all();
}

// The client's id if it sent one: in the header, which every answer repeats, or in the body. What
// the grammar leaves out.
void Generation::add_headers(http::Headers& headers) const {
  constexpr size_t kMaxWarnings = 8;  // clients and proxies limit the size of all headers
  const GenerationParams& p = request_.params;
  std::vector<std::string> warnings;
  auto add = [&](std::string text) {
    if (warnings.size() < kMaxWarnings &&
        std::find(warnings.begin(), warnings.end(), text) == warnings.end())
      warnings.push_back(std::move(text));
  };
  auto warn = [&](const std::shared_ptr<const grammar::Grammar>& grammar) {
    if (grammar == nullptr) return;
    for (const std::string& note : grammar->notes()) add(printable(note.substr(0, 200)));
  };
  if (!p.warning.empty()) add(p.warning);
  warn(p.grammar);
  warn(p.call_grammar);
  for (const MessageForm& m : p.messages) warn(m.grammar);
  for (std::string& text : warnings) headers.emplace_back("X-Tokamak-Warning", std::move(text));
  const std::string& own = request_.params.request_id;
  if (exchange_->request().request_id().empty())
    headers.emplace_back("X-Request-Id", own.empty() ? shape_->id() : own);
}

// Once, on the first thread that learns the outcome.
void Generation::log_end(int status, const std::string& error, const Usage* total) {
  if (context_.log == nullptr || logged_.test_and_set()) return;
  Value line = context_.line(status, error);
  line.set("id", shape_->id());
  if (!request_.params.request_id.empty()) line.set("request_id", request_.params.request_id);
  line.set("model", request_.model->name);
  line.set("stream", request_.params.stream);
  line.set("n", request_.params.n);
  if (total != nullptr) {
    line.set("prompt_tokens", total->prompt_tokens);
    line.set("cached_tokens", total->cached_tokens);
    line.set("completion_tokens", total->completion_tokens);
    if (first_token_ > 0) line.set("ttft_ms", seconds(first_token_ - context_.start) * 1e3);
  }
  context_.log->write(context_.trace, line);
}

void Generation::cancel_all() {
  std::vector<RequestId> ids;
  {
    std::lock_guard lock(mutex_);
    ids = submitted_;
  }
  for (RequestId id : ids) request_.model->client->cancel(id);
}

}  // namespace tokamak::openai
