// tokamak rag: index a folder of texts, and answer questions from it.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/model_flags.h"
#include "apps/model_store.h"
#include "apps/rag_index.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/new_file.h"
#include "text/index/passages.h"
#include "text/index/vector_index.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLargestFile = size_t{64} << 20;

struct RagFlags {
  OpenOptions model;
  std::string folder, index, question, answer_model, reranker;
  std::vector<std::string> extensions = {"txt", "md", "rst", "html", "tex", "org", "adoc"};
  size_t passage = 1000;
  int64_t top = 4;
  int32_t max_tokens = 256;
  bool json = false;
};

fs::path index_path(const RagFlags& f) {
  return f.index.empty() ? rag_index_path(f.folder) : fs::path(f.index);
}

// Files with one of the extensions, in order; hidden ones and links are skipped.
std::vector<fs::path> documents_of(const RagFlags& f) {
  std::vector<fs::path> files;
  if (!fs::is_directory(f.folder)) fail(ErrorCode::kNotFound, "{} is not a folder", f.folder);
  for (auto it = fs::recursive_directory_iterator(f.folder,
                                                  fs::directory_options::skip_permission_denied);
       it != fs::recursive_directory_iterator(); ++it) {
    std::string name = it->path().filename().string(), extension = it->path().extension().string();
    bool hidden = name.starts_with('.'), link = it->is_symlink();
    if (it->is_directory() && (hidden || link)) it.disable_recursion_pending();
    if (hidden || link || !it->is_regular_file() || extension.empty()) continue;
    extension.erase(0, 1);
    if (std::find(f.extensions.begin(), f.extensions.end(), extension) != f.extensions.end())
      files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty())
    fail(ErrorCode::kNotFound, "{} has no files with the extensions {}", f.folder,
         fmt::join(f.extensions, ", "));
  return files;
}

void make_index(const RagFlags& f) {
  std::vector<fs::path> files = documents_of(f);
  std::vector<std::string> texts;
  std::vector<IndexEntry> entries;
  for (const fs::path& file : files) {
    std::string name = fs::relative(file, f.folder).string();
    for (const Passage& p : split_passages(read_text_file(file, kLargestFile), f.passage)) {
      std::string text = utf8_lossy(p.text);
      entries.push_back(
          {{},
           dump_json(Value::Object{{"file", utf8_lossy(name)}, {"line", p.line}, {"text", text}})});
      texts.push_back(std::move(text));
    }
  }
  if (texts.empty()) fail(ErrorCode::kInvalidArgument, "the files of {} are empty", f.folder);
  { NewFile writable(index_path(f)); }  // an error now, rather than after the embedding
  Model model = open_with_progress(f.model);
  EmbedOptions options;
  options.prompt = "document";
  options.truncate = true;
  options.normalize = true;
  constexpr size_t kAtOnce = 1024;
  ProgressBar bar("embedding");
  for (size_t at = 0; at < texts.size(); at += kAtOnce) {
    size_t end = std::min(texts.size(), at + kAtOnce);
    auto first = texts.begin() + static_cast<std::ptrdiff_t>(at);
    auto vectors = model.embed({first, first + static_cast<std::ptrdiff_t>(end - at)}, options);
    for (size_t i = at; i < end; ++i) entries[i].vector = std::move(vectors[i - at]);
    bar.update(end, texts.size());
  }
  write_vector_index(index_path(f), entries,
                     Value::Object{{"model", model.info().name},
                                   {"files", static_cast<int64_t>(files.size())},
                                   {"passages", static_cast<int64_t>(texts.size())}});
  fmt::print("{} passages of {} files in {}\n", texts.size(), files.size(), index_path(f).string());
}

std::string answer_from(const RagFlags& f, const std::vector<openai::RagSource>& found) {
  OpenOptions options;
  options.model = find_model(f.answer_model);
  options.threads = f.model.threads;
  Model model = open_with_progress(options);
  std::string ask = openai::rag_prompt(f.question, found);
  Prompt prompt =
      model.info().has_chat_template ? Prompt(Chat{{"user", ask}}) : Prompt(ask + "\nAnswer:");
  return model
      .generate(prompt, {.max_tokens = f.max_tokens, .temperature = 0.0f},
                [&](std::string_view piece) {
                  if (!f.json) std::fwrite(piece.data(), 1, piece.size(), stdout);
                  return f.json || std::fflush(stdout) == 0;
                })
      .text;
}

void answer_question(const RagFlags& f) {
  std::vector<openai::RagSource> found =
      RagIndex(index_path(f), f.model, f.reranker).find(f.question, f.top);
  std::string answer;
  if (!f.answer_model.empty()) answer = answer_from(f, found);
  if (f.json) {
    Value out =
        Value::Object{{"question", f.question}, {"sources", openai::rag_sources_value(found)}};
    if (!f.answer_model.empty()) out.set("answer", answer);
    fmt::print("{}\n", dump_json(out));
    return;
  }
  if (!f.answer_model.empty()) fmt::print("\n\n");
  for (size_t i = 0; i < found.size(); ++i) {
    fmt::print("[{}] {}:{} ({:.3f})\n", i + 1, found[i].file, found[i].line, found[i].score);
    if (f.answer_model.empty()) fmt::print("{}\n\n", found[i].text);
  }
}

void add_common(CLI::App& verb, RagFlags& f) {
  verb.add_option("--model,-m", f.model.model, "the embedding model")
      ->required()
      ->transform(find_model);
  verb.add_option("--index", f.index,
                  fmt::format("the index file (default: {} in the folder)", kRagIndexName));
  add_model_flags(verb, f.model);
}

}  // namespace

void add_rag_verb(CLI::App& app) {
  auto flags = std::make_shared<RagFlags>();
  CLI::App* verb =
      app.add_subcommand("rag", "find passages in a folder of texts and answer from them");
  verb->require_subcommand(1);
  CLI::App* index = verb->add_subcommand("index", "embed the passages of all texts in a folder");
  index->add_option("DIR", flags->folder, "folder with texts")->required();
  index->add_option("--extensions", flags->extensions, "extensions of the files to read")
      ->delimiter(',')
      ->capture_default_str();
  index->add_option("--passage", flags->passage, "maximum number of bytes per passage")
      ->check(CLI::Range(64, 100000))
      ->capture_default_str();
  add_common(*index, *flags);
  index->footer("Example:\n  tokamak rag index docs -m all-MiniLM-L6-v2");
  index->callback([flags] { make_index(*flags); });
  CLI::App* ask = verb->add_subcommand("ask", "find the passages that fit a question");
  ask->add_option("DIR", flags->folder, "the folder that was indexed")->required();
  ask->add_option("QUESTION", flags->question, "the question")->required();
  ask->add_option("--top", flags->top, "passages to use")
      ->check(CLI::Range(int64_t{1}, int64_t{100}))
      ->capture_default_str();
  ask->add_option("--reranker", flags->reranker, "a cross-encoder that puts them in order");
  CLI::Option* answer = ask->add_option("--answer-with", flags->answer_model,
                                        "a chat model that answers from the passages");
  ask->add_option("--max-tokens", flags->max_tokens, "maximum length of the answer in tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->needs(answer);
  ask->add_flag("--json", flags->json, "print answer and sources as one JSON object");
  add_common(*ask, *flags);
  ask->footer(
      "Example:\n  tokamak rag ask docs \"How are kernels chosen?\" -m all-MiniLM-L6-v2 "
      "--answer-with SmolLM2-135M-Instruct.Q4_1.gguf");
  ask->callback([flags] { answer_question(*flags); });
  verb->footer(
      "Examples:\n  tokamak rag index docs -m all-MiniLM-L6-v2\n"
      "  tokamak rag ask docs \"How are kernels chosen?\" -m all-MiniLM-L6-v2\n"
      "  tokamak rag ask docs \"How are kernels chosen?\" -m all-MiniLM-L6-v2 --answer-with "
      "SmolLM2-135M-Instruct.Q4_1.gguf");
}

}  // namespace tokamak
