// tokamak embed: texts in, vectors out.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>

#include "apps/model_flags.h"
#include "apps/verbs.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "text/embedding.h"

namespace tokamak {
namespace {

struct EmbedFlags {
  OpenOptions model;
  EmbedOptions embed;
  std::vector<std::string> texts;
  std::string file;
  bool json = false, similarity = false, no_normalize = false;
};

template <class In>
void read_lines(In& in, std::vector<std::string>& texts) {
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    texts.push_back(std::move(line));
  }
}

void collect_texts(EmbedFlags& f) {
  if (f.file == "-") {
    read_lines(std::cin, f.texts);
  } else if (!f.file.empty()) {
    std::ifstream in(f.file);
    if (!in) fail(ErrorCode::kNotFound, "cannot read {}", f.file);
    read_lines(in, f.texts);
  }
  if (f.texts.empty())
    fail(ErrorCode::kInvalidArgument, "no texts; give some, or --file with one per line");
}

void print_vector(const std::vector<float>& v, const char* separator) {
  std::string line;
  for (size_t i = 0; i < v.size(); ++i)
    fmt::format_to(std::back_inserter(line), "{}{}", i > 0 ? separator : "", v[i]);
  fmt::print("{}", line);
}

void print_json(const EmbedFlags& f, const std::vector<std::vector<float>>& vectors,
                const char* name) {
  for (size_t i = 0; i < vectors.size(); ++i) {
    fmt::print("{{\"index\":{},\"text\":{},\"{}\":[", i, dump_json(Value(f.texts[i])), name);
    print_vector(vectors[i], ",");
    fmt::print("]}}\n");
  }
}

void embed(EmbedFlags& f) {
  collect_texts(f);
  Model model = open_with_progress(f.model);
  if (f.no_normalize) f.embed.normalize = false;
  SteadyClock clock;
  Nanos start = clock.now();
  auto vectors = model.embed(f.texts, f.embed);
  double time = seconds(clock.now() - start);
  if (f.similarity) {
    std::vector<std::vector<float>> table(vectors.size());
    for (size_t i = 0; i < vectors.size(); ++i)
      for (const auto& b : vectors) table[i].push_back(static_cast<float>(cosine(vectors[i], b)));
    if (f.json) print_json(f, table, "similarity");
    for (size_t i = 0; i < table.size() && !f.json; ++i) {
      for (size_t j = 0; j < table[i].size(); ++j)
        fmt::print("{}{:.4f}", j > 0 ? " " : "", table[i][j]);
      fmt::print("\n");
    }
  } else if (f.json) {
    print_json(f, vectors, "embedding");
  } else {
    for (const auto& v : vectors) {
      print_vector(v, " ");
      fmt::print("\n");
    }
  }
  if (isatty(STDERR_FILENO))
    fmt::print(stderr, "[{} texts in {:.2f} s, {} numbers each]\n", vectors.size(), time,
               vectors[0].size());
}

}  // namespace

void add_embed_verb(CLI::App& app) {
  auto flags = std::make_shared<EmbedFlags>();
  CLI::App* verb = app.add_subcommand("embed", "turn texts into vectors");
  add_model_argument(*verb, flags->model);
  verb->add_option("TEXT", flags->texts, "texts to embed");
  verb->add_option("--file", flags->file, "file with one text per line; - reads standard input");
  verb->add_flag("--json", flags->json, "print one JSON object per text");
  verb->add_flag("--similarity", flags->similarity,
                 "print the cosine of every text with every other instead of the vectors");
  verb->add_option("--prompt-name", flags->embed.prompt,
                   "name of the model's prompt that precedes the texts, e.g. query");
  verb->add_option("--dimensions", flags->embed.dimensions,
                   "keep only the first N numbers of a vector")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->add_flag("--truncate", flags->embed.truncate, "cut texts that are too long");
  verb->add_flag("--no-normalize", flags->no_normalize, "do not scale vectors to length 1");
  add_batch_flags(*verb, flags->model);
  add_model_flags(*verb, flags->model);
  verb->footer(
      "Examples:\n  tokamak embed all-MiniLM-L6-v2 \"How do I boil an egg?\" --json\n"
      "  tokamak embed all-MiniLM-L6-v2 --file questions.txt > vectors.txt\n"
      "  tokamak embed all-MiniLM-L6-v2 cat dog car --similarity");
  verb->callback([flags] { embed(*flags); });
}

}  // namespace tokamak
