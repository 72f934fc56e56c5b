#include <csignal>
#include <cstdio>
#include <new>

#include "apps/verbs.h"
#include "base/error.h"

namespace {

int exit_code(const tokamak::Error& e) {
  return e.code() == tokamak::ErrorCode::kInvalidArgument ? 2 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tokamak;
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("Tokamak: runs and serves large language models.", "tokamak");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tokamak " TOKAMAK_VERSION);
  app.footer(
      "Example: tokamak serve SmolLM2-135M-Instruct.Q4_1.gguf\nEvery verb has --help with "
      "examples.");
  add_run_verb(app);
  add_chat_verb(app);
  add_serve_verb(app);
  add_inspect_verb(app);
  add_tokenize_verb(app);
  add_template_verb(app);
  add_eval_verb(app);
  add_bench_verb(app);
  app.failure_message([](const CLI::App*, const CLI::Error& e) {
    return fmt::format("error: {}; see tokamak --help\n", e.what());
  });
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0) fail(ErrorCode::kUnavailable, "cannot write to standard output");
    return 0;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return exit_code(e);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "error: out of memory\n");
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
