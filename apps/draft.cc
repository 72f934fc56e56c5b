// tokamak draft build: a library of patterns for speculation, from a corpus.
#include <algorithm>
#include <filesystem>

#include "api/speculative.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "compile/open_model.h"
#include "engine/draft/pattern_drafter.h"
#include "text/tokenizer.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

struct DraftBuildFlags {
  std::string model, out;
  std::vector<std::string> corpus;
  int64_t most_megabytes = 100;
};

std::vector<fs::path> corpus_files(const std::vector<std::string>& corpus) {
  std::vector<fs::path> files;
  for (const std::string& path : corpus) {
    if (!fs::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void build(const DraftBuildFlags& f) {
  Tokenizer tokenizer(open_tokenizer(f.model));
  auto most = static_cast<size_t>(f.most_megabytes) * 1000000 / 8;
  std::vector<int32_t> ids;
  std::vector<fs::path> files = corpus_files(f.corpus);
  ProgressBar bar("reading the corpus");
  size_t read = 0, binary = 0;
  for (; read < files.size() && ids.size() < most; ++read) {
    std::string text = read_text_file(files[read]);
    bar.update(read + 1, files.size());
    if (text.find('\0') != std::string::npos) {
      ++binary;
      continue;
    }
    auto tokens = tokenizer.encode(text, {.add_special = false, .parse_special = false});
    if (tokens.empty()) continue;
    tokens.resize(std::min(tokens.size(), most - ids.size()));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    ids.push_back(-1);
  }
  bar.update(1, 1);
  if (ids.empty()) fail(ErrorCode::kInvalidArgument, "the corpus has no text");
  PatternFile::write(f.out, ids, static_cast<uint64_t>(tokenizer.vocab_size()),
                     tokenizer_fingerprint(tokenizer));
  fmt::print("{}: {} tokens of {} files, {:.1f} MB\n", f.out, ids.size(), read - binary,
             static_cast<double>(fs::file_size(f.out)) * 1e-6);
  if (read < files.size() || ids.size() >= most)
    fmt::print("the limit of {} MB was reached after {} of {} files\n", f.most_megabytes, read,
               files.size());
}

}  // namespace

void add_draft_verb(CLI::App& app) {
  CLI::App* draft = app.add_subcommand("draft", "prepare data for speculative decoding");
  draft->require_subcommand(1);
  draft->footer("Example:\n  tokamak draft build src/ --model model.gguf -o code.patterns");
  auto f = std::make_shared<DraftBuildFlags>();
  CLI::App* verb =
      draft->add_subcommand("build", "build a library of patterns from texts of one domain");
  verb->add_option("CORPUS", f->corpus, "text files, and folders of them")
      ->required()
      ->check(CLI::ExistingPath);
  verb->add_option("--model", f->model, "a model whose tokenizer is used")->required();
  verb->add_option("-o,--output", f->out, "the file to write")->required();
  verb->add_option("--max-mb", f->most_megabytes, "largest size of the file in MB")
      ->check(CLI::Range(1, 4000))
      ->capture_default_str();
  verb->footer(
      "Example:\n  tokamak draft build src/ docs/ --model model.gguf -o code.patterns\n"
      "  tokamak serve model.gguf --speculative-config "
      "'{\"method\": \"patterns\", \"patterns\": \"code.patterns\"}'");
  verb->callback([f] { build(*f); });
}

}  // namespace tokamak
