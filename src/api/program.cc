// Programs on a model of the public API.
#include "api/model_impl.h"
#include "base/json.h"
#include "serve/program/run.h"

namespace tokamak {

program::Host program_host(const LoadedModel& model) {
  program::Host host;
  host.client = model.engine;
  host.tokenizer = model.tokenizer;
  host.chat_template = model.chat_template;
  host.grammars = model.grammars;
  host.defaults = model.defaults;
  host.max_model_len = model.engine->info().max_model_len;
  return host;
}

std::string Model::run_program(std::string_view program, const OnEvent& on_event,
                               const OnCall& on_call) const {
  if (!impl_->info.generates)
    fail(ErrorCode::kUnsupported, "{} is an encoder: it generates no text", impl_->info.name);
  auto parsed = program::parse_program(parse_json(program, "program"));
  auto emit = [&](const Value& event) { return !on_event || on_event(dump_json(event)); };
  if (!parsed->models.empty())
    fail(ErrorCode::kUnsupported, "the program names the model '{}'; only the server has several",
         *parsed->models.begin());
  std::function<Value(const Value&)> answer;
  if (on_call)
    answer = [&](const Value& call) { return parse_json(on_call(dump_json(call)), "result"); };
  return dump_json(
      program::run_program(std::move(parsed), program_host(impl_->loaded), emit, answer));
}

}  // namespace tokamak
