#include <tokamak/tokamak.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/verbs.h"
#include "base/error.h"

namespace {

int exit_code(const tokamak::Error& e) {
  return e.code() == tokamak::ErrorCode::kInvalidArgument ? 2 : 1;
}

// A name from a damaged file may hold any bytes; the message stays one line of readable text.
std::string one_line(std::string_view text) {
  constexpr size_t kLongest = 2000;
  std::string out;
  for (size_t i = 0; i < text.size() && out.size() < kLongest;) {
    auto lead = static_cast<unsigned char>(text[i]);
    size_t more = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    uint32_t code = more == 0 ? lead : lead & (0x3fu >> more);
    bool valid = (lead < 0x80 || (lead >= 0xc2 && lead < 0xf5)) && i + more < text.size();
    for (size_t k = 1; valid && k <= more; ++k) {
      auto next = static_cast<unsigned char>(text[i + k]);
      valid = (next & 0xc0) == 0x80;
      code = code << 6 | (next & 0x3fu);
    }
    bool control = code < 0x20 || (code >= 0x7f && code < 0xa0) || (code & ~1u) == 0x2028;
    if (valid && !control)
      out.append(text.substr(i, more + 1));
    else
      out += code == '\n' ? ' ' : '?';
    i += valid ? more + 1 : 1;
  }
  return out;
}

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      d[i][j] = i == 0 || j == 0 ? i + j : d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      if (i > 0 && j > 0) d[i][j] = std::min({d[i][j], d[i - 1][j] + 1, d[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string closest(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  size_t least = 1 + std::min<size_t>(3, word.size() / 3);
  for (const std::string& name : names) {
    size_t distance = edit_distance(word, name);
    if (distance < least) least = distance, best = name;
  }
  return best;
}

// fmt::print() throws where standard error is closed too.
int report(std::string_view message, int code) {
  std::string line = "error: " + one_line(message) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  return code;
}

// A mapped file, most often the model, that shrinks while it is read ends the process.
void on_bus_error(int) {
  constexpr std::string_view kLine =
      "error: a file that is in use was cut short or is no longer readable\n";
  ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  ::_exit(written == std::ssize(kLine) ? 1 : 2);
}

// The reader of standard output, e.g. head, has had enough: as if SIGPIPE had ended the process.
constexpr int kClosedPipe = 128 + SIGPIPE;

// Names the first argument that no verb or flag takes: it is why something else is missing.
std::string usage_error(const CLI::App& app, const CLI::Error& e) {
  const CLI::App* verb = &app;
  while (verb->remaining().empty() && !verb->get_subcommands().empty())
    verb = verb->get_subcommands().front();
  std::string path = verb->get_name();
  for (const CLI::App* up = verb->get_parent(); up != nullptr; up = up->get_parent())
    path = up->get_name() + " " + path;
  std::vector<std::string> rest = verb->remaining();
  bool usage = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) ||
               e.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (rest.empty() || !usage)
    return fmt::format("error: {}; see {} --help\n", one_line(e.what()), path);

  auto flag = std::find_if(rest.begin(), rest.end(), [](auto& r) { return r.starts_with('-'); });
  std::string word = flag != rest.end() ? *flag : rest.front();
  word = word.substr(0, word.find('='));
  auto verbs = verb->get_subcommands([](const CLI::App*) { return true; });
  std::vector<std::string> names;
  if (word.starts_with('-')) {
    for (const CLI::Option* o : verb->get_options())
      for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* v : verbs) names.push_back(v->get_name());
  }
  std::string what = word.starts_with('-') ? "flag" : verbs.empty() ? "argument" : "verb";
  std::string name = closest(word, names);
  return fmt::format("error: {} has no {} {}{}; see {} --help\n", path, what, one_line(word),
                     name.empty() ? "" : fmt::format(" (did you mean {}?)", name), path);
}

// `-o --help` would write a file of that name.
void refuse_help_as_value(CLI::App& app) {
  const CLI::Validator check(
      [](const std::string& value) {
        return value == "--help"
                   ? std::string("--help is not a value; use it without other options")
                   : std::string();
      },
      "");
  for (CLI::Option* option : app.get_options())
    if (!option->get_positional() && option->get_expected_max() > 0) option->check(check);
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; }))
    refuse_help_as_value(*verb);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tokamak;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGBUS, on_bus_error);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit then fails write() with an error
  CLI::App app("Tokamak: runs and serves large language models.", "tokamak");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("tokamak ") + version());
  app.footer(
      "Example: tokamak serve SmolLM2-135M-Instruct.Q4_1.gguf\nEvery command has --help with "
      "examples.");
  add_run_verb(app);
  add_chat_verb(app);
  add_program_verb(app);
  add_serve_verb(app);
  add_embed_verb(app);
  add_rag_verb(app);
  add_compile_verb(app);
  add_convert_verb(app);
  add_pull_verb(app);
  add_cache_verb(app);
  add_inspect_verb(app);
  add_explain_verb(app);
  add_tokenize_verb(app);
  add_template_verb(app);
  add_eval_verb(app);
  add_bench_verb(app);
  add_draft_verb(app);
  add_calibrate_verb(app);
  add_debug_verb(app);
  refuse_help_as_value(app);
  app.failure_message([&app](const CLI::App*, const CLI::Error& e) { return usage_error(app, e); });
  try {
    app.parse(argc, argv);
    if (std::fflush(stdout) == 0) return 0;
    return errno == EPIPE ? kClosedPipe : report("cannot write to standard output", 1);
  } catch (const CLI::ParseError& e) {
    if (app.exit(e) != 0) return 2;
    if (std::cout.flush()) return 0;
    return errno == EPIPE ? kClosedPipe : report("cannot write to standard output", 1);
  } catch (const Error& e) {
    return report(e.what(), exit_code(e));
  } catch (const std::bad_alloc&) {
    return report("out of memory", 1);
  } catch (const std::system_error& e) {
    if (std::ferror(stdout) == 0) return report(e.what(), 1);
    return e.code() == std::errc::broken_pipe ? kClosedPipe
                                              : report("cannot write to standard output", 1);
  } catch (const std::exception& e) {
    return report(e.what(), 1);
  }
}
