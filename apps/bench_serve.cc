// tokamak bench serve: a load test of any OpenAI-compatible server, measured at the client.
#include "apps/bench_serve.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "apps/bench_http.h"
#include "apps/dataset_file.h"
#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "apps/trace_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "serve/http/server.h"
#include "serve/openai/api.h"

namespace tokamak {
namespace {

struct BenchFlags {
  OpenOptions model;
  std::string url, api_key, name, trace, dataset;
  int64_t requests = 100, prompt = 128, output = 0, prefix = 0, warmup = 2, concurrency = 0;
  double rate = 0, speed = 1;  // requests per second; a trace is played so much faster
  double slo_ttft = 0, slo_tpot = 0, slo_e2e = 0;  // milliseconds; 0: no bound
  uint64_t seed = 1;
  bool json = false;
};

struct Job {
  Nanos arrival = 0;
  int64_t prompt = 0, output = 0;
  uint64_t key = 0;
  std::string text = {};  // the prompt; empty: `prompt` words
};

struct Outcome {
  bool ok = false;
  std::string error;
  double ttft = 0, tpot = 0, e2e = 0;  // seconds
  int64_t prompt_tokens = 0, tokens = 0;
  std::vector<double> gaps;
};

// Short common words: one token each in nearly every vocabulary, so the length is about right
// whatever the server's tokenizer; what the server counted is reported.
std::string make_prompt(const Job& job, int64_t shared) {
  static constexpr const char* kWords[] = {
      "time", "year",  "people", "way",   "day",   "man",   "thing", "world",
      "life", "hand",  "part",   "child", "eye",   "woman", "place", "work",
      "week", "case",  "point",  "home",  "water", "room",  "night", "line",
      "end",  "house", "door",   "light", "road",  "book",  "word",  "side"};
  std::string text;
  for (int64_t i = 0; i < job.prompt; ++i) {
    uint64_t key = i < shared ? 0 : job.key;
    text += i == 0 ? "" : " ";
    text += kWords[philox(key, 7, static_cast<uint64_t>(i))[0] % std::size(kWords)];
  }
  return text;
}

Outcome ask(const BenchFlags& f, const Url& url, const Job& job) {
  Outcome out;
  SteadyClock clock;
  Value body = Value::object();
  body.set("model", f.name);
  body.set("prompt", job.text.empty() ? make_prompt(job, f.prefix) : job.text);
  body.set("max_tokens", job.output);
  body.set("temperature", 0);
  body.set("ignore_eos", true);
  body.set("stream", true);
  body.set("stream_options", Value::Object{{"include_usage", true}});
  std::string text = dump_json(body);
  Nanos start = clock.now(), first = 0, last = 0;
  int64_t pieces = 0;
  auto on_event = [&](std::string_view data) {
    if (data == "[DONE]") return;
    Value event = parse_json(data, "event");
    if (const Value* error = event.find("error"))
      out.error = error->get_string("message", "error in the stream");
    const Value* choices = event.find("choices");
    if (choices != nullptr && choices->is_array() && choices->size() > 0 &&
        !choices->as_array()[0].get_string("text", "").empty()) {
      Nanos now = clock.now();
      if (pieces++ == 0)
        first = now;
      else
        out.gaps.push_back(seconds(now - last));
      last = now;
    }
    const Value* usage = event.find("usage");
    if (usage != nullptr && usage->is_object()) {
      out.prompt_tokens = usage->get_int("prompt_tokens", 0);
      out.tokens = usage->get_int("completion_tokens", 0);
    }
  };
  try {
    std::string error;
    int status = post_events(url, "/v1/completions", f.api_key, text, on_event, error);
    if (status != 200) out.error = fmt::format("HTTP {}: {}", status, error.substr(0, 200));
  } catch (const std::exception& e) {
    out.error = e.what();
  }
  if (out.tokens == 0) out.tokens = pieces;
  out.e2e = seconds(clock.now() - start);
  out.ok = out.error.empty() && pieces > 0;
  if (out.error.empty() && pieces == 0) out.error = "the response has no text";
  if (!out.ok) return out;
  out.ttft = seconds(first - start);
  if (out.tokens > 1) out.tpot = seconds(last - first) / static_cast<double>(out.tokens - 1);
  return out;
}

// Counted by the server if it has /tokenize, as vLLM's, llama.cpp's and ours; otherwise estimated.
int64_t count_tokens(const BenchFlags& f, const Url& url, const std::string& text) {
  Value body =
      Value::Object{{"model", f.name}, {"prompt", text}, {"content", text}};  // llama.cpp's name
  auto [status, answer] = post_text(url, "/tokenize", f.api_key, dump_json(body));
  if (status == 200) {
    Value value = parse_json(answer, "/tokenize");
    if (const Value* tokens = value.find("tokens"); tokens != nullptr && tokens->is_array())
      return static_cast<int64_t>(tokens->size());
  }
  return static_cast<int64_t>(text.size() + 3) / 4;
}

// Entries in a random order. Those that are very short or long are left out, as in vLLM's
// benchmark of ShareGPT.
std::vector<Job> dataset_jobs(const BenchFlags& f, const Url& url) {
  constexpr int64_t kShortest = 4, kLongestPrompt = 1024, kLongest = 2048;
  std::vector<DatasetEntry> entries = load_dataset(f.dataset);
  for (size_t i = entries.size(); i > 1; --i)
    std::swap(entries[i - 1], entries[philox(f.seed, 13, i)[0] % i]);
  std::vector<Job> jobs;
  ProgressBar bar("counting tokens");
  for (DatasetEntry& e : entries) {
    if (std::ssize(jobs) == f.requests) break;
    int64_t prompt = count_tokens(f, url, e.prompt), output = f.output;
    if (f.output == 0) output = e.output > 0 ? e.output : count_tokens(f, url, e.answer);
    bool usable = prompt >= kShortest && prompt <= kLongestPrompt && output >= kShortest &&
                  prompt + output <= kLongest;
    if (e.output == 0 && f.output == 0 && !usable) continue;
    jobs.push_back({0, prompt, std::max<int64_t>(1, output), 0, std::move(e.prompt)});
    bar.update(jobs.size(), static_cast<uint64_t>(f.requests));
  }
  return jobs;
}

std::vector<Job> make_jobs(const BenchFlags& f, const Url& url) {
  std::vector<Job> jobs;
  if (!f.trace.empty()) {
    for (const TraceRequest& r : load_trace(f.trace, f.requests))
      jobs.push_back({static_cast<Nanos>(static_cast<double>(r.arrival) / f.speed), r.input,
                      std::max<int64_t>(1, r.output), 0});
  } else {
    if (!f.dataset.empty())
      jobs = dataset_jobs(f, url);
    else
      jobs.assign(static_cast<size_t>(f.requests), {0, f.prompt, f.output, 0});
    double at = 0;
    for (size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].arrival = static_cast<Nanos>(at * 1e9);
      double u = (philox(f.seed, 11, static_cast<uint64_t>(i))[0] + 0.5) * 0x1p-32;
      if (f.rate > 0) at += -std::log(u) / f.rate;
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].key = f.seed * 1000003 + i + 1;
  return jobs;
}

// Closed loop: a number of clients, each of which sends its next request when it has the answer to
// the last. Open loop: requests start at their time, whatever the server does; each has a thread.
std::vector<Outcome> run_load(const BenchFlags& f, const Url& url, const std::vector<Job>& jobs) {
  std::vector<Outcome> outcomes(jobs.size());
  std::vector<std::thread> threads;
  ProgressBar bar("bench serve");
  std::atomic<size_t> next{0}, done{0};
  auto one = [&](size_t i) {
    outcomes[i] = ask(f, url, jobs[i]);
    bar.update(++done, jobs.size());
  };
  if (f.concurrency > 0) {
    for (int64_t c = 0; c < f.concurrency; ++c)
      threads.emplace_back([&] {
        for (size_t i; (i = next++) < jobs.size();) one(i);
      });
  } else {
    SteadyClock clock;
    Nanos start = clock.now();
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (Nanos wait = start + jobs[i].arrival - clock.now(); wait > 0)
        std::this_thread::sleep_for(std::chrono::nanoseconds(wait));
      threads.emplace_back(one, i);
    }
  }
  for (std::thread& t : threads) t.join();
  return outcomes;
}

Value summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double q) {
    if (values.empty()) return 0.0;
    auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
    return values[std::clamp<size_t>(rank, 1, values.size()) - 1] * 1e3;
  };
  double sum = 0;
  for (double v : values) sum += v;
  return Value::Object{
      {"mean", values.empty() ? 0 : sum / static_cast<double>(values.size()) * 1e3},
      {"p50", at(0.5)},
      {"p90", at(0.9)},
      {"p95", at(0.95)},
      {"p99", at(0.99)},
      {"max", at(1)}};
}

Value report(const BenchFlags& f, const std::vector<Outcome>& outcomes, double wall) {
  std::vector<double> ttft, tpot, itl, e2e;
  int64_t ok = 0, good = 0, prompt = 0, tokens = 0;
  std::string error;
  for (const Outcome& o : outcomes) {
    if (!o.ok) {
      error = o.error;
      continue;
    }
    ++ok;
    prompt += o.prompt_tokens;
    tokens += o.tokens;
    ttft.push_back(o.ttft);
    e2e.push_back(o.e2e);
    if (o.tokens > 1) tpot.push_back(o.tpot);
    itl.insert(itl.end(), o.gaps.begin(), o.gaps.end());
    auto within = [](double value, double bound) { return bound <= 0 || value * 1e3 <= bound; };
    good += within(o.ttft, f.slo_ttft) && within(o.tpot, f.slo_tpot) && within(o.e2e, f.slo_e2e);
  }
  auto per_second = [&](int64_t n) { return static_cast<double>(n) / wall; };
  return Value::Object{
      {"model", f.name},
      {"requests", static_cast<int64_t>(outcomes.size())},
      {"completed", ok},
      {"failed", static_cast<int64_t>(outcomes.size()) - ok},
      {"last_error", error.empty() ? Value() : Value(error)},
      {"rate", f.rate},
      {"concurrency", f.concurrency},
      {"seconds", wall},
      {"prompt_tokens", prompt},
      {"completion_tokens", tokens},
      {"requests_per_second", per_second(ok)},
      {"output_tokens_per_second", per_second(tokens)},
      {"total_tokens_per_second", per_second(prompt + tokens)},
      {"goodput_requests_per_second", per_second(good)},
      {"goodput_share",
       ok > 0 ? static_cast<double>(good) / static_cast<double>(outcomes.size()) : 0.0},
      {"ttft_ms", summary(ttft)},
      {"tpot_ms", summary(tpot)},
      {"itl_ms", summary(itl)},
      {"e2e_ms", summary(e2e)}};
}

void print_report(const Value& r) {
  auto number = [](const Value& v) { return v.as_double(); };
  fmt::print(
      "{} of {} requests in {:.2f} s: {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} in all\n",
      r.at("completed").as_int(), r.at("requests").as_int(), number(r.at("seconds")),
      number(r.at("requests_per_second")), number(r.at("output_tokens_per_second")),
      number(r.at("total_tokens_per_second")));
  fmt::print("goodput {:.2f} requests/s ({:.0f} %)\n", number(r.at("goodput_requests_per_second")),
             number(r.at("goodput_share")) * 100);
  fmt::print("{:<8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "p50", "p90", "p95",
             "p99", "max");
  for (const char* name : {"ttft", "tpot", "itl", "e2e"}) {
    const Value& s = r.at(std::string(name) + "_ms");
    fmt::print("{:<8} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name,
               number(s.at("mean")), number(s.at("p50")), number(s.at("p90")), number(s.at("p95")),
               number(s.at("p99")), number(s.at("max")));
  }
  if (!r.at("last_error").is_null())
    fmt::print("{} failed, e.g.: {}\n", r.at("failed").as_int(), r.at("last_error").as_string());
}

void measure(BenchFlags& f, const std::string& address) {
  Url url = parse_server_url(address);
  if (f.name.empty()) {
    Value models = parse_json(get_text(url, "/v1/models", f.api_key), "/v1/models");
    const Value* list = models.find("data");
    if (list == nullptr || !list->is_array() || list->size() == 0)
      fail(ErrorCode::kUnavailable, "{} lists no model: name one with --model-name", address);
    f.name = list->as_array()[0].get_string("id", "");
  }
  if (f.concurrency == 0 && f.rate <= 0 && f.trace.empty()) f.concurrency = 4;
  if (f.output == 0 && f.dataset.empty()) f.output = 64;
  std::vector<Job> jobs = make_jobs(f, url);
  if (jobs.empty()) fail(ErrorCode::kInvalidArgument, "there are no requests to send");
  for (int64_t i = 0; i < f.warmup; ++i) {
    Outcome o = ask(
        f, url, {0, f.prompt, f.output > 0 ? std::min<int64_t>(f.output, 8) : 8, f.seed * 77 + 1});
    if (!o.ok) fail(ErrorCode::kUnavailable, "{}: {}", address, o.error);
  }
  SteadyClock clock;
  Nanos start = clock.now();
  std::vector<Outcome> outcomes = run_load(f, url, jobs);
  Value result = report(f, outcomes, seconds(clock.now() - start));
  if (f.json)
    fmt::print("{}\n", dump_json(result, 2));
  else
    print_report(result);
  if (result.at("completed").as_int() == 0) fail(ErrorCode::kUnavailable, "no request succeeded");
}

// Without a URL the server runs in this process, but still over real sockets.
void bench_serve(BenchFlags& f) {
  if (f.url.empty() == f.model.model.empty())
    fail(ErrorCode::kInvalidArgument, "give either MODEL or --url");
  if (!f.url.empty()) return measure(f, f.url);
  http::ServerOptions options;
  options.port = 0;
  http::Server server(options);
  LoadedModel loaded = load_with_progress(f.model);
  ServedModel model;
  model.name = loaded.name;
  model.client = loaded.engine;
  model.tokenizer = loaded.tokenizer;
  model.chat_template = loaded.chat_template;
  model.max_model_len = loaded.engine->info().max_model_len;
  model.defaults = loaded.defaults;
  openai::Api api({}, {model});
  http::Router router;
  api.add_routes(router);
  server.start(std::move(router));
  f.api_key.clear();
  measure(f, server.url());
  server.stop(std::chrono::milliseconds(1000));
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto f = std::make_shared<BenchFlags>();
  CLI::App* verb = bench.add_subcommand("serve", "load test of a server, measured at the client");
  verb->add_option("MODEL", f->model.model, "serve this model and measure it; or use --url");
  verb->add_option("--url", f->url, "any OpenAI-compatible server, e.g. http://127.0.0.1:8000");
  verb->add_option("--api-key", f->api_key, "key for --url");
  verb->add_option("--model-name", f->name, "model to ask for (default: the first one listed)");
  verb->add_option("--requests", f->requests,
                   "number of requests; with a trace, the maximum taken from it")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  verb->add_option("--concurrency", f->concurrency, "closed loop: number of clients (default 4)")
      ->check(CLI::Range(1, 4096));
  verb->add_option("--rate", f->rate, "open loop: requests per second, Poisson arrivals")
      ->check(CLI::Range(0.001, 1e6));
  verb->add_option("--trace", f->trace, "open loop: arrivals and lengths from a .csv or .jsonl");
  verb->add_option("--dataset", f->dataset,
                   "prompts and lengths of answers from ShareGPT (.json) or a .jsonl with prompt "
                   "and output_tokens")
      ->excludes("--trace");
  verb->add_option("--speed", f->speed, "speed-up factor of the trace")
      ->check(CLI::Range(0.001, 1e6));
  verb->add_option("--prompt", f->prompt, "prompt tokens, roughly")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--output", f->output,
                   "answer tokens (default 64; with --dataset those of its answers)")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--prefix", f->prefix, "prompt tokens that all requests share")
      ->check(CLI::Range(0, 1 << 20));
  verb->add_option("--warmup", f->warmup, "requests before the measurement")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  verb->add_option("--slo-ttft", f->slo_ttft,
                   "goodput limit for the time to the first token, in ms");
  verb->add_option("--slo-tpot", f->slo_tpot, "goodput limit for the time per later token, in ms");
  verb->add_option("--slo-e2e", f->slo_e2e, "goodput limit for the whole answer, in ms");
  verb->add_flag("--json", f->json, "print the result as JSON");
  add_model_flags(*verb, f->model);
  verb->footer(
      "Examples:\n  tokamak bench serve model.gguf --concurrency 8 --prompt 128 --output 64\n"
      "  tokamak bench serve --url http://127.0.0.1:8000 --rate 5 --slo-ttft 500 --json");
  verb->callback([f] {
    f->seed = f->model.seed + 1;
    bench_serve(*f);
  });
}

}  // namespace tokamak
