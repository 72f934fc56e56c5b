// tokamak run: one prompt in, one answer out.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct RunFlags {
  OpenOptions model;
  GenerateOptions generate;
  std::string prompt;
  std::string system;
  bool chat = false, json = false;
};

// Prints the text as it comes, unless it is to be printed as JSON. Ctrl-C ends the answer.
Result answer(const Model& model, const Prompt& prompt, const RunFlags& f) {
  Stream stream = model.stream(prompt, f.generate);
  InterruptScope interrupt([&] { stream.cancel(); });
  while (std::optional<std::string> piece = stream.next()) {
    if (f.json) continue;
    std::fwrite(piece->data(), 1, piece->size(), stdout);
    if (std::fflush(stdout) != 0) fail(ErrorCode::kUnavailable, "cannot write to standard output");
  }
  return stream.result();
}

Value timings(const Model& model, const Result& r) {
  auto rate = [](size_t tokens, double time) {
    return time > 0 ? static_cast<double>(tokens) / time : 0.0;
  };
  Value out = Value::Object{
      {"load_seconds", model.info().load_seconds},
      {"prefill_seconds", r.prompt_seconds},
      {"prefill_tokens_per_second", rate(r.prompt_ids.size(), r.prompt_seconds)},
      {"decode_seconds", r.generate_seconds},
      {"decode_tokens_per_second", rate(r.ids.empty() ? 0 : r.ids.size() - 1, r.generate_seconds)}};
  if (r.drafted_tokens > 0) {
    out.set("draft_n", r.drafted_tokens);
    out.set("draft_n_accepted", r.accepted_tokens);
  }
  return out;
}

void print_summary(const Result& r, const Value& t) {
  fmt::print("\n");
  if (!isatty(STDERR_FILENO)) return;
  std::string drafts;
  if (r.drafted_tokens > 0)
    drafts = fmt::format("; {} of {} drafted tokens accepted", r.accepted_tokens, r.drafted_tokens);
  fmt::print(stderr, "[{} prompt tokens, {:.0f}/s; {} tokens, {:.1f}/s{}; loaded in {:.2f} s]\n",
             r.prompt_ids.size(), t.at("prefill_tokens_per_second").as_double(), r.ids.size(),
             t.at("decode_tokens_per_second").as_double(), drafts,
             t.at("load_seconds").as_double());
}

void print_json(const Result& r, const Value& t) {
  auto ids_value = [](const std::vector<int32_t>& ids) {
    return Value(Value::Array(ids.begin(), ids.end()));
  };
  Value out = Value::Object{{"prompt_ids", ids_value(r.prompt_ids)},
                            {"ids", ids_value(r.ids)},
                            {"text", r.text},
                            {"finish_reason", finish_reason_name(r.finish)},
                            {"timings", t}};
  fmt::print("{}\n", dump_json(out));
}

Prompt prompt_of(const RunFlags& f, const Model& model) {
  if (!f.chat) return f.prompt;
  if (!model.info().has_chat_template)
    fail(ErrorCode::kUnsupported, "{} has no chat template; without --chat it continues raw text",
         model.info().name);
  Chat chat;
  if (!f.system.empty()) chat.push_back({"system", f.system});
  chat.push_back({"user", f.prompt});
  return chat;
}

void run(RunFlags& f) {
  check_generate_options(f.generate);
  if (f.prompt == "-") f.prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  // A token is at least a byte; a chat template adds some.
  f.model.longest = static_cast<int64_t>(f.prompt.size() + f.system.size()) +
                    f.generate.max_tokens + (f.chat ? 512 : 2);
  Model model = open_with_progress(f.model);
  f.generate.seed = f.model.seed;
  Result r = answer(model, prompt_of(f, model), f);
  Value t = timings(model, r);
  if (f.json)
    print_json(r, t);
  else
    print_summary(r, t);
  if (!f.json && !f.chat && r.text.empty() && r.finish == FinishReason::kStop &&
      f.generate.stop.empty() && model.info().has_chat_template)
    fmt::print(stderr,
               "note: the model ended the text at once; --chat wraps the prompt in its chat "
               "template\n");
  if (r.finish == FinishReason::kCancelled) end_by_interrupt();
}

}  // namespace

void add_run_verb(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  flags->generate.max_tokens = 128;
  CLI::App* verb = app.add_subcommand("run", "answer one prompt");
  add_model_argument(*verb, flags->model);
  verb->add_option("PROMPT", flags->prompt, "the text to continue; - reads standard input")
      ->required();
  CLI::Option* chat =
      verb->add_flag("--chat", flags->chat, "wrap the prompt in the model's chat template");
  verb->add_option("--system", flags->system, "system message")->needs(chat);
  verb->add_option("--max-tokens,-n", flags->generate.max_tokens,
                   "maximum length of the answer in tokens; it also ends when the context is full")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  verb->add_option("--stop", flags->generate.stop,
                   "end the answer before this text (may be repeated)");
  verb->add_flag("--ignore-eos", flags->generate.ignore_eos,
                 "do not stop at the model's end-of-text token");
  verb->add_flag("--json", flags->json,
                 "print ids, text, finish reason and timings as one JSON object");
  add_sampling_flags(*verb, flags->generate);
  add_search_flags(*verb, flags->model, flags->generate);
  add_grammar_flags(*verb, flags->generate);
  add_model_flags(*verb, flags->model);
  add_template_flag(*verb, flags->model);
  for (const char* name : {"--template-name", "--chat-template"})
    verb->get_option(name)->needs(chat);
  add_lora_flag(*verb, flags->model, flags->generate);
  add_speculative_flags(*verb, flags->model);
  verb->footer(
      "Examples:\n  tokamak run model.gguf \"The capital of France is\" --max-tokens 8 "
      "--temperature 0\n"
      "  tokamak run model.gguf \"Write a haiku\" --chat --seed 7\n  cat notes.txt | tokamak run "
      "model.gguf - --json");
  verb->callback([flags] { run(*flags); });
}

}  // namespace tokamak
