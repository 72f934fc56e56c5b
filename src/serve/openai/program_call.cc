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

http::Handler Api::programs() {
  return with_json(
      [this](http::ExchangePtr exchange, const Value& body, uint64_t number) {
        RequestContext context = context_of(exchange->request());
        try {
          run_program(exchange, body, number, context);
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

void Api::run_program(const http::ExchangePtr& exchange, const Value& body, uint64_t number,
                      const RequestContext& context) {
  constexpr std::string_view kOthers[] = {"model", "stream", "cache_salt", "user"};
  Fields fields(body);
  auto model = model_of(body);
  if (!model->embedding.generates())
    bad_request("model", "model_not_supported", "The model '{}' generates no text.", model->name);
  RequestContext admitted = context;
  admitted.slot = keys_.admit(tenant_of(exchange->request()), context.start);
  ProgramRequest request;
  request.stream = fields.boolean("stream").value_or(false);
  request.model = model->name;
  request.program = program::parse_program(body, kOthers);
  GenerationParams params;
  params.cache_salt = fields.string("cache_salt").value_or("");
  add_tenant(exchange->request(), params);
  program::Host& host = request.host;
  host.client = std::shared_ptr<Client>(model, model->client.get());  // keeps the model loaded
  host.tokenizer = model->tokenizer;
  host.chat_template = model->chat_template;
  host.grammars = model->grammars;
  host.defaults = model->defaults;
  host.max_model_len = model->max_model_len;
  host.cache_salt = params.cache_salt;
  host.tenant = params.tenant;
  host.seed = seed_of(number);
  host.timeout_seconds = options_.request_timeout_seconds;
  std::make_shared<ProgramCall>(exchange, std::move(request), *programs_, stats_, admitted)
      ->start();
  if (admitted.slot != nullptr) admitted.slot->accept();
}

ProgramCall::ProgramCall(http::ExchangePtr exchange, ProgramRequest request, WorkerPool& pool,
                         std::shared_ptr<GenerationStats> stats, RequestContext context)
    : running_(stats),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      pool_(pool),
      stats_(std::move(stats)),
      context_(std::move(context)),
      id_(new_id("program-")) {}

void ProgramCall::start() {
  {
    std::lock_guard lock(mutex_);
    self_ = shared_from_this();
  }
  run_ = std::make_unique<program::Run>(request_.program, request_.host, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->wake();
  });
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
  Value answer = Value::Object{
      {"id", id_}, {"object", "program"}, {"created", unix_seconds()}, {"model", request_.model}};
  Value result = run_->result();
  for (auto& [key, value] : result.as_object()) answer.set(key, std::move(value));
  const program::Usage& usage = run_->usage();
  answer.set("usage", program::usage_value(usage));
  ++stats_->finished;
  stats_->prompt_tokens += usage.prompt_tokens;
  stats_->completion_tokens += usage.completion_tokens;
  stats_->cached_tokens += usage.cached_tokens;
  log_end(200, "");
  if (streaming_) {
    exchange_->write(sse(answer) + "data: [DONE]\n\n");
    exchange_->finish();
  } else {
    http::Response response = http::json_response(answer);
    response.headers.emplace_back("traceparent", context_.trace.header());
    exchange_->respond(std::move(response));
  }
  close();
}

void ProgramCall::fail_with(const std::exception& error) {
  run_->cancel();
  bool gone = exchange_->gone();
  ++(gone ? stats_->cancelled : stats_->failed);
  http::Response response = program_error(error);
  response.headers.emplace_back("traceparent", context_.trace.header());
  log_end(gone ? 499 : response.status, error.what());
  if (streaming_) {
    exchange_->write("data: " + response.body + "\n\ndata: [DONE]\n\n");
    exchange_->finish();
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
  line.set("prompt_tokens", run_->usage().prompt_tokens);
  line.set("completion_tokens", run_->usage().completion_tokens);
  context_.log->write(context_.trace, line);
}

}  // namespace tokamak::openai
