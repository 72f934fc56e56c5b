// The table of families: every tiny model with goldens of transformers, as folder and as GGUF, on
// each backend. Prints Markdown and exits with 1 if a model that a backend runs differs from its
// golden.
//   family_table [BACKEND ...]      default: ref cpu cuda
// The folders of tools/tiny_models.py are in $TOKAMAK_TINY_MODELS and $TOKAMAK_TINY_FAMILIES. cuda
// is a GPU with TOKAMAK_TEST_GPU, otherwise the emulator. With $TOKAMAK_TABLE_GOLDENS those goldens
// alone, of models in $TOKAMAK_TINY_FAMILIES (tools/check_variants.py).
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "compile/import/import_model.h"
#include "tests/numerics/golden_file.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr double kBound = 1e-6;

struct Cell {
  std::string text;
  bool wrong = false;
};

Cell run_model(const std::string& path, const Golden& golden, const std::string& backend,
               std::map<std::string, std::string>& refusals) {
  try {
    RunnerOptions options{.backend = backend};
    if (backend == "cuda") options.storage = "f32";
    ModelRunner runner(path, options);
    double worst = 0;
    int equal = 0, all = 0;
    for (size_t s = 0; s < golden.sequences.size(); ++s) {
      const GoldenSequence& q = golden.sequences[s];
      auto logits = runner.all_logits(static_cast<int>(s), q.ids, 64);
      for (size_t r = 0; r < q.rows.size(); ++r)
        worst = std::max(worst, nmse(logits[static_cast<size_t>(q.rows[r])], q.logits[r]));
      runner.restart(static_cast<int>(s));
      auto tokens = runner.greedy(static_cast<int>(s), q.ids, static_cast<int>(q.greedy.size()));
      for (size_t i = 0; i < tokens.size(); ++i, ++all) equal += tokens[i] == q.greedy[i];
    }
    return {fmt::format("{:.1e}, {}/{}", worst, equal, all), worst > kBound || equal != all};
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) return {fmt::format("failed: {}", e.what()), true};
    auto [it, fresh] = refusals.try_emplace(e.what(), fmt::format("({})", refusals.size() + 1));
    return {it->second, false};
  }
}

int print_table(const std::vector<std::string>& backends) {
  std::string head = "| model | architecture |", line = "|---|---|";
  for (const char* format : {"folder", "GGUF"})
    for (const std::string& backend : backends) {
      head += fmt::format(" {} {} |", format, backend);
      line += "---|";
    }
  fmt::print("{}\n{}\n", head, line);
  std::map<std::string, std::string> refusals;
  int wrong = 0;
  std::vector<std::pair<const char*, const char*>> sources = {
      {TK_GOLDEN_DIR, "TOKAMAK_TINY_MODELS"}, {TK_FAMILIES_DIR, "TOKAMAK_TINY_FAMILIES"}};
  if (const char* own = std::getenv("TOKAMAK_TABLE_GOLDENS"))
    sources = {{own, "TOKAMAK_TINY_FAMILIES"}};
  for (auto [goldens, variable] : sources) {
    const char* models = std::getenv(variable);
    if (!models) fail(ErrorCode::kInvalidArgument, "{} is not set", variable);
    for (const std::string& name : golden_names(goldens)) {
      Golden golden = read_golden(fs::path(goldens) / (name + ".json"));
      std::string folder = (fs::path(models) / golden.model).string(),
                  row = fmt::format("| {} | {} |", name, import_model(folder).config.architecture);
      for (const std::string& path : {folder, folder + ".gguf"})
        for (const std::string& backend : backends) {
          bool there = path == folder ? golden.folder : golden.gguf;
          Cell cell = there ? run_model(path, golden, backend, refusals) : Cell{"-"};
          row += fmt::format(" {}{} |", cell.text, cell.wrong ? " WRONG" : "");
          wrong += cell.wrong;
        }
      fmt::print("{}\n", row);
      std::fflush(stdout);
    }
  }
  std::map<std::string, std::string> notes;
  for (const auto& [message, note] : refusals) notes[fmt::format("{:>5}", note)] = message;
  for (const auto& [note, message] : notes) fmt::print("\n{} {}\n", note, message);
  fmt::print("\n{} wrong\n", wrong);
  return wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tokamak

int main(int argc, char** argv) {
  std::vector<std::string> backends(argv + 1, argv + argc);
  if (backends.empty()) backends = {"ref", "cpu", "cuda"};
  try {
    return tokamak::print_table(backends);
  } catch (const tokamak::Error& e) {
    fmt::print(stderr, "family_table: {}\n", e.what());
    return 2;
  }
}
