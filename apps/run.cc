// tokamak run: one prompt in, one answer out.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <future>
#include <iostream>
#include <iterator>

#include "apps/model_setup.h"
#include "apps/sampling_flags.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/json.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace tokamak {
namespace {

struct RunFlags {
  ModelFlags model;
  SampleSpec sample;
  std::string prompt;
  std::string system;
  std::vector<std::string> stops;
  int32_t max_tokens = 128;
  bool chat = false, json = false, ignore_eos = false;
};

struct Answer {
  std::vector<int32_t> ids;
  std::string text;
  Finish finish = Finish::kNone;
  bool unread = false;  // standard output is closed: nobody waits for the rest
  Nanos submitted = 0, first = 0, last = 0;
};

// Collects one answer; prints text as it comes unless quiet. Ctrl-C ends the answer.
Answer generate(LoadedModel& model, RequestSpec spec, const std::vector<std::string>& stops,
                bool print) {
  SteadyClock clock;
  Answer answer;
  Detokenizer detokenizer(*model.tokenizer, {.skip_special = true});
  StopStrings matcher(stops);
  std::promise<void> done;
  std::atomic<RequestId> id{0};
  InterruptScope interrupt([&] {
    if (id) model.engine->cancel(id);
  });
  auto emit = [&](const std::string& text) {
    answer.text += text;
    if (print && !text.empty()) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      if (std::fflush(stdout) != 0) answer.unread = true;
    }
  };
  bool closed = false;
  answer.submitted = clock.now();
  id = model.engine->submit(std::move(spec), [&](Delta&& delta) {
    if (closed) return;
    for (int32_t token : delta.ids) {
      if (matcher.stopped()) break;
      answer.last = clock.now();
      if (answer.ids.empty()) answer.first = answer.last;
      answer.ids.push_back(token);
      StopStrings::Result r = matcher.push(detokenizer.push(token));
      emit(r.text);
      if (r.stopped)
        model.engine->stop_at(delta.request, delta.choice, static_cast<int32_t>(answer.ids.size()));
    }
    if (delta.finish == Finish::kNone) {
      if (answer.unread) model.engine->cancel(delta.request);
      return;
    }
    closed = true;
    if (!matcher.stopped()) {
      emit(matcher.push(detokenizer.finish()).text);
      emit(matcher.finish());
    }
    answer.finish = matcher.stopped() ? Finish::kStop : delta.finish;
    if (delta.finish == Finish::kError)
      done.set_exception(std::make_exception_ptr(Error(ErrorCode::kInternal, delta.error)));
    else
      done.set_value();
  });
  done.get_future().get();
  return answer;
}

Value timings(const LoadedModel& model, const Answer& a, size_t prompt_tokens) {
  double prefill = a.ids.empty() ? 0 : seconds(a.first - a.submitted),
         decode = seconds(a.last - a.first);
  size_t steps = a.ids.empty() ? 0 : a.ids.size() - 1;
  return Value::Object{
      {"load_seconds", model.load_seconds},
      {"prefill_seconds", prefill},
      {"prefill_tokens_per_second",
       prefill > 0 ? static_cast<double>(prompt_tokens) / prefill : 0.0},
      {"decode_seconds", decode},
      {"decode_tokens_per_second", decode > 0 ? static_cast<double>(steps) / decode : 0.0}};
}

void print_summary(size_t prompt_tokens, const Answer& a, const Value& t, double load_seconds) {
  fmt::print("\n");
  if (!isatty(STDERR_FILENO)) return;
  fmt::print(stderr, "[{} prompt tokens, {:.0f}/s; {} tokens, {:.1f}/s; loaded in {:.2f} s]\n",
             prompt_tokens, t.at("prefill_tokens_per_second").as_double(), a.ids.size(),
             t.at("decode_tokens_per_second").as_double(), load_seconds);
}

void print_json(const std::vector<int32_t>& prompt, const Answer& a, const Value& t) {
  auto ids_value = [](const std::vector<int32_t>& ids) {
    return Value(Value::Array(ids.begin(), ids.end()));
  };
  Value out = Value::Object{{"prompt_ids", ids_value(prompt)},
                            {"ids", ids_value(a.ids)},
                            {"text", a.text},
                            {"finish_reason", finish_name(a.finish)},
                            {"timings", t}};
  fmt::print("{}\n", dump_json(out));
}

// What fits behind the prompt.
int32_t answer_length(const RunFlags& f, const LoadedModel& model,
                      const std::vector<int32_t>& prompt) {
  const PlanSet& plans = model.source->plans();
  auto length = static_cast<int64_t>(prompt.size());
  if (length > plans.context || (length == plans.context && f.max_tokens > 0))
    fail(ErrorCode::kOutOfRange, "the prompt has {} tokens, the context {}; {}", length,
         plans.context, model.context_hint);
  for (int32_t id : prompt)
    if (id < 0 || id >= plans.vocab)
      fail(ErrorCode::kCorrupt,
           "the tokenizer gives token {}, the model knows {}: they do not belong together", id,
           plans.vocab);
  return static_cast<int32_t>(std::min<int64_t>(f.max_tokens, plans.context - length));
}

void run(RunFlags& f) {
  if (!std::isfinite(f.sample.temperature))
    fail(ErrorCode::kInvalidArgument, "--temperature is not a number");
  if (f.prompt == "-") f.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  // A token is at least a byte; a chat template adds some.
  f.model.longest =
      static_cast<int64_t>(f.prompt.size() + f.system.size()) + f.max_tokens + (f.chat ? 512 : 2);
  LoadedModel model = load_model(f.model);
  RequestSpec spec;
  if (f.chat) {
    Value messages = Value::array();
    if (!f.system.empty()) messages.push(Value::Object{{"role", "system"}, {"content", f.system}});
    messages.push(Value::Object{{"role", "user"}, {"content", f.prompt}});
    spec.prompt = encode_chat(model, std::move(messages));
  } else {
    spec.prompt = model.tokenizer->encode(f.prompt);
  }
  if (spec.prompt.empty()) fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  std::vector<int32_t> prompt = spec.prompt;
  f.sample.seed = f.model.seed;
  spec.sample = std::make_shared<SampleSpec>(f.sample);
  spec.max_tokens = answer_length(f, model, prompt);
  if (!f.ignore_eos) spec.stop_ids = model.tokenizer->spec().eog_ids;
  Answer a = generate(model, std::move(spec), f.stops, !f.json);
  if (a.unread) fail(ErrorCode::kUnavailable, "cannot write to standard output");
  Value t = timings(model, a, prompt.size());
  if (f.json)
    print_json(prompt, a, t);
  else
    print_summary(prompt.size(), a, t, model.load_seconds);
  if (a.finish == Finish::kCancelled) end_by_interrupt();
}

}  // namespace

void add_run_verb(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* verb = app.add_subcommand("run", "answer one prompt");
  add_model_argument(*verb, flags->model);
  verb->add_option("PROMPT", flags->prompt, "the text to continue; - reads standard input")
      ->required();
  verb->add_flag("--chat", flags->chat, "wrap the prompt in the model's chat template");
  verb->add_option("--system", flags->system, "system message, with --chat");
  verb->add_option("--max-tokens,-n", flags->max_tokens,
                   "longest answer; it ends with the context, too")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  verb->add_option("--stop", flags->stops, "end the answer before this text (may be repeated)");
  verb->add_flag("--ignore-eos", flags->ignore_eos, "do not stop at the model's end-of-text token");
  verb->add_flag("--json", flags->json,
                 "print ids, text, finish reason and timings as one JSON object");
  add_sampling_flags(*verb, flags->sample);
  add_model_flags(*verb, flags->model);
  add_template_flag(*verb, flags->model);
  verb->footer(
      "Examples:\n  tokamak run model.gguf \"The capital of France is\" --max-tokens 8 "
      "--temperature 0\n"
      "  tokamak run model.gguf \"Write a haiku\" --chat --seed 7\n  cat notes.txt | tokamak run "
      "model.gguf - --json");
  verb->callback([flags] { run(*flags); });
}

}  // namespace tokamak
