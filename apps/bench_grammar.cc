// tokamak bench grammar: how long it takes to compile grammars and to compute token masks, along
// documents that follow them.
#include "apps/bench_grammar.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/open_model.h"
#include "text/grammar/grammar_cache.h"

namespace tokamak {
namespace {

using grammar::Grammar;
using grammar::GrammarSource;
using grammar::Kind;

struct GrammarBenchFlags {
  std::string model, cases = "bench/grammar_cases.json";
  int repeat = 5;
  bool check = false;
  bool json = false;  // accepted as in the other benchmarks
};

Value mask_summary(std::vector<double>& micros) {
  std::sort(micros.begin(), micros.end());
  auto at = [&](double q) {
    return micros[std::min(micros.size() - 1,
                           static_cast<size_t>(q * static_cast<double>(micros.size())))];
  };
  return Value::Object{
      {"masks", micros.size()}, {"median_us", at(0.5)}, {"p99_us", at(0.99)}, {"max_us", at(1)}};
}

// A mask has exactly the tokens that the matcher accepts one by one.
void check_mask(grammar::Matcher& matcher, const std::vector<uint32_t>& mask, int32_t tokens,
                const std::string& name) {
  for (int32_t id = 0; id < tokens; ++id) {
    const bool accepted = matcher.accept(id);
    if (accepted) matcher.rollback(1);
    if (accepted != ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0))
      fail(ErrorCode::kInternal, "{}: after {} tokens, the mask is wrong for token {}", name,
           matcher.size(), id);
  }
}

// Follows the document token by token; adds the CPU time of each mask, which other programs on the
// machine change little.
void time_masks(const std::shared_ptr<const Grammar>& grammar, const std::vector<int32_t>& ids,
                const std::string& name, bool check, std::vector<double>& micros) {
  grammar::Matcher matcher(grammar);
  std::vector<uint32_t> mask(grammar->vocabulary().words());
  for (size_t i = 0; i <= ids.size(); ++i) {
    std::fill(mask.begin(), mask.end(), 0);
    double start = process_cpu_seconds();
    matcher.fill_mask(mask);
    bool end = matcher.accepting();
    micros.push_back((process_cpu_seconds() - start) * 1e6);
    if (check) check_mask(matcher, mask, static_cast<int32_t>(grammar->vocabulary().size()), name);
    if (i == ids.size() && !end)
      fail(ErrorCode::kInvalidArgument, "{}: the document is cut off", name);
    if (i < ids.size() && !matcher.accept(ids[i]))
      fail(ErrorCode::kInvalidArgument, "{}: token {} of the document does not follow the grammar",
           name, i);
  }
}

void bench_grammar(const GrammarBenchFlags& f) {
  SteadyClock clock;
  Tokenizer tokenizer(open_tokenizer(f.model));
  Nanos start = clock.now();
  auto vocabulary = std::make_shared<grammar::Vocabulary>(tokenizer);
  Value out = Value::object();
  out.set("vocabulary", tokenizer.vocab_size());
  out.set("vocabulary_seconds", seconds(clock.now() - start));
  std::vector<double> cold, warm, hot, compile;
  Value cases = Value::array();
  Value input = parse_json(read_text_file(f.cases), f.cases);
  for (const Value& c : input.as_array()) {
    const std::string& name = c.at("name").as_string();
    GrammarSource source{Kind::kJsonSchema, dump_json(c.at("schema"))};
    std::vector<int32_t> ids =
        tokenizer.encode(c.at("document").as_string(), {.add_special = false});
    std::vector<double> own_cold, own_warm, own_hot, own_compile;
    for (int i = 0; i < f.repeat; ++i) {
      double begin = process_cpu_seconds();
      auto grammar = std::make_shared<const Grammar>(grammar::parse_grammar(source), vocabulary);
      own_compile.push_back((process_cpu_seconds() - begin) * 1e6);
      time_masks(grammar, ids, name, f.check, own_cold);
      time_masks(grammar, ids, name, f.check, own_warm);
      time_masks(grammar, ids, name, f.check, own_hot);
    }
    for (auto [all, own] : {std::pair(&cold, &own_cold),
                            {&warm, &own_warm},
                            {&hot, &own_hot},
                            {&compile, &own_compile}})
      all->insert(all->end(), own->begin(), own->end());
    Value line = Value::Object{{"name", name},
                               {"tokens", ids.size()},
                               {"first", mask_summary(own_cold)},
                               {"second", mask_summary(own_warm)},
                               {"later", mask_summary(own_hot)}};
    std::sort(own_compile.begin(), own_compile.end());
    line.set("compile_us", own_compile[own_compile.size() / 2]);
    cases.push(std::move(line));
  }
  if (compile.empty()) fail(ErrorCode::kInvalidArgument, "{} has no cases", f.cases);
  std::sort(compile.begin(), compile.end());
  out.set("first", mask_summary(cold));
  out.set("second", mask_summary(warm));
  out.set("later", mask_summary(hot));
  out.set("compile_median_us", compile[compile.size() / 2]);
  out.set("compile_max_us", compile.back());
  out.set("cases", std::move(cases));
  fmt::print("{}\n", dump_json(out, 1));
}

}  // namespace

void add_bench_grammar(CLI::App& bench) {
  auto flags = std::make_shared<GrammarBenchFlags>();
  CLI::App* verb = bench.add_subcommand(
      "grammar", "time to compile JSON schemas, and to compute the token masks of documents");
  verb->add_option("MODEL", flags->model, "a model or a folder with tokenizer.json")->required();
  verb->add_option("--cases", flags->cases, "JSON file with names, schemas and documents")
      ->capture_default_str();
  verb->add_option("--repeat", flags->repeat, "grammars compiled per case")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_flag("--check", flags->check,
                 "compare every mask with all tokens, one by one (seconds to minutes)");
  verb->add_flag("--json", flags->json, "has no effect: the output is always JSON");
  verb->footer("Example:\n  tokamak bench grammar model.gguf --repeat 3");
  verb->callback([flags] { bench_grammar(*flags); });
}

}  // namespace tokamak
