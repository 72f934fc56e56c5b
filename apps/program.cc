// tokamak program: runs a generation program.
#include <atomic>
#include <cstdio>
#include <iostream>

#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct ProgramFlags {
  OpenOptions model;
  std::string file;
  std::vector<std::string> variables;
  bool json = false, events = false;
};

// NAME=VALUE replaces a variable of the program; a value that is not JSON is a text.
void set_variable(Value& request, const std::string& text) {
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(ErrorCode::kInvalidArgument, "--var {}: use NAME=VALUE", text);
  std::string written = text.substr(equals + 1);
  Value value;
  try {
    value = parse_json(written);
  } catch (const Error&) {
    value = Value(written);
  }
  if (!request.has("variables")) request.set("variables", Value::object());
  request.find("variables")->set(text.substr(0, equals), std::move(value));
}

// The program's output, or what it wrote.
void print_result(const Value& result) {
  const Value* shown = result.find("output");
  if (shown->is_null()) shown = result.find("text");
  if (shown == nullptr) shown = result.find("messages");
  fmt::print("{}\n", shown->is_string() ? shown->as_string() : dump_json(*shown, 2));
}

// The result of a call is the next line of the standard input: JSON, or a text.
std::string ask_for_result(const std::string& call) {
  fmt::print(stderr, "call {}\n", call);
  std::string line;
  if (!std::getline(std::cin, line))
    fail(ErrorCode::kNotFound, "the program calls a tool, and the standard input has no result");
  try {
    return dump_json(parse_json(line));
  } catch (const Error&) {
    return dump_json(Value(line));
  }
}

void run(const ProgramFlags& f) {
  Value request = parse_json(read_text_file(f.file), f.file);
  if (!request.is_object())
    fail(ErrorCode::kInvalidArgument, "{}: the program is not a JSON object", f.file);
  for (const std::string& variable : f.variables) set_variable(request, variable);
  if (!request.has("seed")) request.set("seed", f.model.seed);
  program::parse_program(request);  // its errors come before the model is loaded
  Model model = open_with_progress(f.model);
  std::atomic<bool> interrupted{false};
  InterruptScope interrupt([&] { interrupted = true; });
  auto on_event = [&](const std::string& event) {
    if (f.events) fmt::print("{}\n", event);
    return !interrupted;
  };
  Value result;
  try {
    result = parse_json(model.run_program(dump_json(request), on_event, ask_for_result));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCancelled) throw;
    end_by_interrupt();
    return;
  }
  if (f.json)
    fmt::print("{}\n", dump_json(result));
  else
    print_result(result);
}

}  // namespace

void add_program_verb(CLI::App& app) {
  auto flags = std::make_shared<ProgramFlags>();
  CLI::App* verb = app.add_subcommand("program", "run a generation program");
  add_model_argument(*verb, flags->model);
  verb->add_option("FILE", flags->file, "the program, as JSON (docs/programs.md)")->required();
  verb->add_option("--var", flags->variables,
                   "NAME=VALUE of a variable (may be repeated); VALUE is JSON or a text");
  verb->add_flag("--json", flags->json, "print variables, texts and usage as one JSON object");
  verb->add_flag("--events", flags->events, "print pieces of text and results as they come");
  add_model_flags(*verb, flags->model);
  add_batch_flags(*verb, flags->model);
  add_template_flag(*verb, flags->model);
  add_speculative_flags(*verb, flags->model);
  verb->footer(
      "Example:\n  tokamak program model.gguf examples/programs/self_consistency.json "
      "--var question=\"What is 12 * 7?\"");
  verb->callback([flags] { run(*flags); });
}

}  // namespace tokamak
