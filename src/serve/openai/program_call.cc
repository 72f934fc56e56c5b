#include "serve/openai/program_call.h"

#include "base/json.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

// OpenAI's form of errors; the parameter is the path in the program.
http::Response program_error(const std::exception& error) {
  if (const auto* e = dynamic_cast<const program::ProgramError*>(&error))
    return http::error_response(400, e->what(), "", e->path(),
                                e->is_limit() ? "program_limit_exceeded" : "invalid_program");
  return error_answer(error);
}

std::string sse(const Value& value) { return "data: " + dump_json(value) + "\n\n"; }

}  // namespace

// Errors have the form that both routes of programs share.
http::Handler Api::program_route(ProgramStart start) {
  return with_json(
      [this, start](http::ExchangePtr exchange, const Value& body, uint64_t number) {
        RequestContext context = context_of(exchange->request());
        try {
          (this->*start)(exchange, body, number, context);
        } catch (const ModelNotLoaded&) {
          throw;
        } catch (const std::exception& e) {
          http::Response response = program_error(e);
          response.headers.emplace_back("traceparent", context.trace.header());
          if (log_ != nullptr) log_->write(context.trace, context.line(response.status, e.what()));
          exchange->respond(std::move(response));
        }
      },
      true);
}

void Api::add_program_routes(http::Router& router, const std::string& base) {
  router.add("POST", base + "/programs", program_route(&Api::run_program));
  router.add("POST", base + "/programs/{id...}/results", program_route(&Api::resume_program));
}

program::Host Api::program_host(const std::shared_ptr<const ServedModel>& model) {
  if (!model->embedding.generates())
    bad_request("model", "model_not_supported", "The model '{}' generates no text.", model->name);
  program::Host host;
  host.client = std::shared_ptr<Client>(model, model->client.get());  // keeps the model loaded
  host.tokenizer = model->tokenizer;
  host.chat_template = model->chat_template;
  host.grammars = model->grammars;
  host.defaults = model->defaults;
  host.max_model_len = model->max_model_len;
  return host;
}

void Api::run_program(const http::ExchangePtr& exchange, const Value& body, uint64_t number,
                      const RequestContext& context) {
  constexpr std::string_view kOthers[] = {"model", "stream", "cache_salt", "user"};
  Fields fields(body);
  auto model = model_of(body);
  ProgramRequest request;
  request.host = program_host(model);
  RequestContext admitted = context;
  request.tenant = tenant_of(exchange->request());
  admitted.slot = keys_.admit(request.tenant, context.start);
  request.id = new_id("program-");
  request.paused = paused_programs_;
  request.stream = fields.boolean("stream").value_or(false);
  request.model = model->name;
  request.program = program::parse_program(body, kOthers);
  GenerationParams params;
  params.cache_salt = fields.string("cache_salt").value_or("");
  add_tenant(exchange->request(), params);
  program::Host& host = request.host;
  for (const std::string& name : request.program->models)
    host.models[name] = std::make_shared<const program::Host>(program_host(loaded_model(name)));
  host.cache_salt = params.cache_salt;
  host.tenant = params.tenant;
  host.seed = seed_of(number);
  host.timeout_seconds = options_.request_timeout_seconds;
  std::make_shared<ProgramCall>(exchange, std::move(request), *programs_, stats_, admitted)
      ->start();
  if (admitted.slot != nullptr) admitted.slot->accept();
}

void Api::resume_program(const http::ExchangePtr& exchange, const Value& body, uint64_t,
                         const RequestContext& context) {
  Fields fields(body);
  const Value& results = fields.require("results");
  ProgramRequest request;
  request.stream = fields.boolean("stream").value_or(false);
  log_unknown_fields(fields.unknown());
  request.id = exchange->request().parameter;
  request.tenant = tenant_of(exchange->request());
  request.paused = paused_programs_;
  RequestContext admitted = context;
  admitted.slot = keys_.admit(request.tenant, context.start);
  PausedPrograms::Entry entry = paused_programs_->take(request.id, request.tenant);
  try {
    entry.run->give_results(results);
  } catch (const program::ProgramError&) {
    paused_programs_->put_back(request.id, std::move(entry));
    throw;
  }
  request.model = entry.model;
  request.run = std::move(entry.run);
  std::make_shared<ProgramCall>(exchange, std::move(request), *programs_, stats_, admitted)
      ->start();
}

void PausedPrograms::drop_old() {
  Nanos now = SteadyClock().now();
  std::erase_if(entries_, [&](const auto& item) { return item.second.run->deadline() < now; });
}

void PausedPrograms::put(const std::string& id, Entry entry) {
  constexpr size_t kMost = 256;
  std::lock_guard lock(mutex_);
  drop_old();
  if (entries_.size() >= kMost)
    throw ApiError(429, fmt::format("{} programs wait for results already.", kMost), "",
                   "too_many_programs");
  entries_[id] = std::move(entry);
}

void PausedPrograms::put_back(const std::string& id, Entry entry) {
  std::lock_guard lock(mutex_);
  entries_[id] = std::move(entry);
}

PausedPrograms::Entry PausedPrograms::take(const std::string& id, const std::string& tenant) {
  std::lock_guard lock(mutex_);
  drop_old();
  auto it = entries_.find(id);
  if (it == entries_.end() || it->second.tenant != tenant)
    throw ApiError(404, fmt::format("No program '{}' waits for results.", id.substr(0, 64)), "id",
                   "program_not_found");
  Entry entry = std::move(it->second);
  entries_.erase(it);
  return entry;
}

void PausedPrograms::clear() {
  std::lock_guard lock(mutex_);
  entries_.clear();
}

ProgramCall::ProgramCall(http::ExchangePtr exchange, ProgramRequest request, WorkerPool& pool,
                         std::shared_ptr<GenerationStats> stats, RequestContext context)
    : running_(stats),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      pool_(pool),
      stats_(std::move(stats)),
      context_(std::move(context)) {}

void ProgramCall::start() {
  {
    std::lock_guard lock(mutex_);
    self_ = shared_from_this();
  }
  auto wake_up = [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->wake();
  };
  run_ = std::move(request_.run);
  if (run_ != nullptr)
    run_->set_wake(wake_up);
  else
    run_ = std::make_unique<program::Run>(request_.program, request_.host, wake_up);
  auto end = [weak = weak_from_this()](const char* why) {
    auto self = weak.lock();
    if (self == nullptr) return;
    {
      std::lock_guard lock(self->mutex_);
      if (self->ended_ == nullptr) self->ended_ = why;
    }
    self->wake();
  };
  exchange_->on_gone([end] { end("the client disconnected"); });
  exchange_->on_stop([end] { end("The server is shutting down."); });
  wake();
}

void ProgramCall::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  if (self_ == nullptr || std::exchange(scheduled_, true)) return;
  pool_.post([self = shared_from_this()] { self->turn(); });
}

void ProgramCall::turn() {
  const char* ended = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (self_ == nullptr) return;
    woken_ = false;
    ended = ended_;
  }
  try {
    if (ended != nullptr) fail(ErrorCode::kUnavailable, "{}", ended);
    program::Run::State state = run_->advance();
    send_events();
    if (state == program::Run::State::kDone) return complete();
    if (state == program::Run::State::kPaused) return pause();
    if (state == program::Run::State::kBusy)
      return pool_.post([self = shared_from_this()] { self->turn(); });
  } catch (const std::exception& e) {
    return fail_with(e);
  }
  std::lock_guard lock(mutex_);
  if (woken_)
    pool_.post([self = shared_from_this()] { self->turn(); });
  else
    scheduled_ = false;
}

void ProgramCall::send_events() {
  std::vector<Value> events = run_->take_events();
  if (!request_.stream || events.empty()) return;
  if (!std::exchange(streaming_, true)) {
    http::StreamHead head;
    head.headers = {{"Cache-Control", "no-cache"},
                    {"X-Accel-Buffering", "no"},
                    {"traceparent", context_.trace.header()}};
    exchange_->start_stream(std::move(head));
  }
  std::string bytes;
  for (const Value& event : events) bytes += sse(event);
  exchange_->write(bytes);
}

void ProgramCall::complete() {
  const program::Usage& usage = run_->usage();
  ++stats_->finished;
  stats_->prompt_tokens += usage.prompt_tokens;
  stats_->completion_tokens += usage.completion_tokens;
  stats_->cached_tokens += usage.cached_tokens;
  answer(run_->result());
}

// The answer has the calls; another request brings their results.
void ProgramCall::pause() {
  Value result = Value::Object{{"status", "requires_action"}, {"calls", run_->calls()}};
  Value usage = program::usage_value(run_->usage());
  run_->set_wake([] {});
  request_.paused->put(request_.id, {std::move(run_), request_.model, request_.tenant});
  result.set("usage", std::move(usage));
  answer(std::move(result));
}

void ProgramCall::answer(Value result) {
  Value answer = Value::Object{{"id", request_.id},
                               {"object", "program"},
                               {"created", unix_seconds()},
                               {"model", request_.model}};
  if (run_ != nullptr) {
    answer.set("status", "completed");
    result.set("usage", program::usage_value(run_->usage()));
  }
  for (auto& [key, value] : result.as_object()) answer.set(key, std::move(value));
  log_end(200, "");
  if (streaming_) {
    exchange_->finish(sse(answer) + "data: [DONE]\n\n");
  } else {
    http::Response response = http::json_response(answer);
    response.headers.emplace_back("traceparent", context_.trace.header());
    exchange_->respond(std::move(response));
  }
  close();
}

void ProgramCall::fail_with(const std::exception& error) {
  if (run_ != nullptr) run_->cancel();
  bool gone = exchange_->gone();
  ++(gone ? stats_->cancelled : stats_->failed);
  http::Response response = program_error(error);
  response.headers.emplace_back("traceparent", context_.trace.header());
  log_end(gone ? 499 : response.status, error.what());
  if (streaming_) {
    exchange_->finish("data: " + response.body + "\n\ndata: [DONE]\n\n");
  } else {
    exchange_->respond(std::move(response));
  }
  close();
}

void ProgramCall::close() {
  std::shared_ptr<ProgramCall> self;  // not the last reference: the job holds one
  std::lock_guard lock(mutex_);
  self = std::move(self_);
}

void ProgramCall::log_end(int status, const std::string& error) const {
  if (context_.log == nullptr) return;
  Value line = context_.line(status, error);
  line.set("model", request_.model);
  if (run_ != nullptr) {
    line.set("prompt_tokens", run_->usage().prompt_tokens);
    line.set("completion_tokens", run_->usage().completion_tokens);
  }
  context_.log->write(context_.trace, line);
}

}  // namespace tokamak::openai
