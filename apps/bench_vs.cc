// tokamak bench vs: prefill and decode next to llama.cpp, on the same files and threads.
#include "apps/bench_vs.h"

#include <tokamak/tokamak.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "apps/child_process.h"
#include "apps/terminal.h"
#include "backend/cpu/isa.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/thread_pool.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

struct VsFlags {
  std::vector<std::string> models;
  std::string llama_bench = "llama-bench", out, commit;
  int64_t prompt = 512, gen = 64, depth = 0;
  std::vector<int> threads = {0};
  int repeat = 3;
  bool json = false;
};

// One run of one program, in tokens per second.
struct Speeds {
  double prefill = 0, decode = 0;
};

// All runs of both programs on one model with one number of threads.
struct VsRow {
  std::string model;
  int threads = 0;
  std::vector<Speeds> ours, theirs;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}
double median(const std::vector<Speeds>& runs, double Speeds::*field) {
  std::vector<double> v;
  for (const Speeds& s : runs) v.push_back(s.*field);
  return median(std::move(v));
}

std::vector<std::string> our_command(const VsFlags& f, const std::string& model, int threads) {
  std::vector<std::string> args = {"bench", "latency",  model, "--backend",
                                   "cpu",   "--repeat", "1",   "--json"};
  auto add = [&](const char* flag, int64_t v) {
    args.insert(args.end(), {flag, std::to_string(v)});
  };
  add("--prompt", f.prompt);
  add("--gen", f.gen);
  add("--threads", threads);
  if (f.depth > 0) add("--depth", f.depth);
  return args;
}
// llama-bench generates without the prompt of its other test, so the prompt is asked for as depth:
// both programs then decode with as many tokens in the cache.
std::vector<std::string> their_command(const VsFlags& f, const std::string& model, int threads,
                                       double Speeds::*test) {
  std::vector<std::string> args = {"-m", model, "-r", "1", "-o", "json", "-ngl", "0"};
  auto add = [&](const char* flag, int64_t v) {
    args.insert(args.end(), {flag, std::to_string(v)});
  };
  bool decode = test == &Speeds::decode;
  int64_t depth = f.depth + (decode ? f.prompt : 0);
  add("-p", decode ? 0 : f.prompt);
  add("-n", decode ? f.gen : 0);
  add("-t", threads);
  if (depth > 0) add("-d", depth);
  return args;
}

Speeds run_ours(const VsFlags& f, const std::string& model, int threads) {
  Value rows = parse_json(run_child(kThisProgram, our_command(f, model, threads)).output,
                          "the output of bench latency");
  const Value& row = rows.as_array().at(0);
  return {row.at("prefill_tokens_per_second").as_double(),
          row.at("decode_tokens_per_second").as_double()};
}

// `build`: set to the commit that the program was built from.
Speeds run_theirs(const VsFlags& f, const std::string& model, int threads, std::string& build) {
  Speeds out;
  for (double Speeds::*test : {&Speeds::prefill, &Speeds::decode}) {
    ChildResult done = run_child(f.llama_bench, their_command(f, model, threads, test));
    Value rows = parse_json(done.output, "the output of " + f.llama_bench);
    for (const Value& row : rows.as_array()) {
      build = row.get_string("build_commit", "unknown");
      out.*test = row.at("avg_ts").as_double();
    }
  }
  if (out.prefill <= 0 || out.decode <= 0)
    fail(ErrorCode::kUnavailable, "{} reported no speed of prefill or decode", f.llama_bench);
  return out;
}

std::string today() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

// Programs take turns, so that other load on the machine affects both; each round starts with the
// other one. llama-bench runs first, so that a missing program fails at once.
std::vector<VsRow> compare(const VsFlags& f, std::string& build) {
  std::vector<VsRow> rows;
  for (const std::string& model : f.models)
    for (int t : f.threads) rows.push_back({model, t > 0 ? t : available_cores(), {}, {}});
  ProgressBar bar("vs");
  uint64_t done = 0, total = rows.size() * static_cast<uint64_t>(f.repeat);
  for (int round = 0; round < f.repeat; ++round)
    for (VsRow& row : rows) {
      for (int turn = 0; turn < 2; ++turn)
        if ((round + turn) % 2 == 1)
          row.ours.push_back(run_ours(f, row.model, row.threads));
        else
          row.theirs.push_back(run_theirs(f, row.model, row.threads, build));
      bar.update(++done, total);
    }
  return rows;
}

Value row_value(const VsRow& row) {
  auto side = [](const std::vector<Speeds>& runs, double Speeds::*field) {
    Value all = Value::array();
    for (const Speeds& s : runs) all.push(s.*field);
    return Value::Object{{"median", median(runs, field)}, {"runs", std::move(all)}};
  };
  auto test = [&](double Speeds::*field) {
    return Value::Object{{"tokamak", side(row.ours, field)},
                         {"llamacpp", side(row.theirs, field)},
                         {"ratio", median(row.ours, field) / median(row.theirs, field)}};
  };
  return Value::Object{{"model", fs::path(row.model).filename().string()},
                       {"threads", row.threads},
                       {"prefill", test(&Speeds::prefill)},
                       {"decode", test(&Speeds::decode)}};
}

Value report(const VsFlags& f, const std::vector<VsRow>& rows, const std::string& build) {
  Value list = Value::array();
  for (const VsRow& row : rows) list.push(row_value(row));
  return Value::Object{
      {"date", today()},
      {"processor", cpu::processor_name()},
      {"cores", available_cores()},
      {"level", cpu::choose_table()->name},
      {"tokamak", f.commit.empty() ? std::string(version()) : version() + (" (" + f.commit + ")")},
      {"llamacpp", build},
      {"prompt", f.prompt},
      {"gen", f.gen},
      {"depth", f.depth},
      {"repeat", f.repeat},
      {"rows", std::move(list)}};
}

std::string command_line(const std::string& program, const std::vector<std::string>& args) {
  std::string out = "    " + program;
  for (const std::string& a : args) out += " " + a;
  return out + "\n";
}

std::string markdown(const VsFlags& f, const Value& r) {
  std::string out = fmt::format(
      "# Tokamak and llama.cpp, {}\n\n{}, {} cores, level {}. Tokamak {}, llama.cpp {}. Prompt {}, "
      "{} generated tokens",
      r.at("date").as_string(), r.at("processor").as_string(), r.at("cores").as_int(),
      r.at("level").as_string(), r.at("tokamak").as_string(), r.at("llamacpp").as_string(),
      f.prompt, f.gen);
  if (f.depth > 0) out += fmt::format(", {} tokens in the cache before them", f.depth);
  out += fmt::format("; tokens/s, medians of {} runs of both programs in turn.\n\n", f.repeat);
  int threads = static_cast<int>(r.at("rows").as_array().at(0).at("threads").as_int());
  out += command_line("tokamak", our_command(f, "MODEL", threads));
  for (double Speeds::*test : {&Speeds::prefill, &Speeds::decode})
    out += command_line("llama-bench", their_command(f, "MODEL", threads, test));
  out +=
      "\n| model | threads | prefill, Tokamak | llama.cpp | ratio | decode, Tokamak | llama.cpp | "
      "ratio |\n|---|---|---|---|---|---|---|---|\n";
  for (const Value& row : r.at("rows").as_array()) {
    out += fmt::format("| {} | {} |", row.at("model").as_string(), row.at("threads").as_int());
    for (const char* test : {"prefill", "decode"}) {
      const Value& t = row.at(test);
      out += fmt::format(" {:.1f} | {:.1f} | {:.2f} |", t.at("tokamak").at("median").as_double(),
                         t.at("llamacpp").at("median").as_double(), t.at("ratio").as_double());
    }
    out += "\n";
  }
  return out;
}

void run_vs(const VsFlags& f) {
  std::string build;
  std::vector<VsRow> rows = compare(f, build);
  Value r = report(f, rows, build);
  std::string text = f.json ? dump_json(r, 2) + "\n" : markdown(f, r);
  fmt::print("{}", text);  // first: it is all there is if the file cannot be written
  std::fflush(stdout);
  if (!f.out.empty()) write_text_file(f.out, text);
}

}  // namespace

void add_bench_vs(CLI::App& bench) {
  auto flags = std::make_shared<VsFlags>();
  CLI::App* verb = bench.add_subcommand(
      "vs", "prefill and decode speed compared with llama.cpp's llama-bench, on the CPU");
  verb->add_option("MODEL", flags->models, "GGUF files")->required()->check(CLI::ExistingFile);
  verb->add_option("--llama-bench", flags->llama_bench, "the program to compare with")
      ->capture_default_str();
  verb->add_option("--prompt", flags->prompt, "prompt tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--gen", flags->gen, "generated tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--depth", flags->depth, "tokens in the cache before the prompt")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  verb->add_option("--threads", flags->threads, "one row per number, e.g. 1,2; 0 = all cores")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024));
  verb->add_option("--repeat", flags->repeat, "runs of each program; medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--commit", flags->commit, "names the build of this program in the report");
  verb->add_option("-o,--out", flags->out, "also write the report to this file");
  verb->add_flag("--json", flags->json, "report JSON with every run instead of Markdown");
  verb->footer(
      "Each run is a process of its own, after a warm-up inside it; the programs take turns.\n"
      "Both decode after the prompt: as many tokens are in their caches.\n\n"
      "Example:\n  tokamak bench vs model-q4_0.gguf model-q8_0.gguf --threads 1,2 -o report.md");
  verb->callback([flags] { run_vs(*flags); });
}

}  // namespace tokamak
