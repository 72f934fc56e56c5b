// tokamak eval perplexity: how well a model predicts a text.
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

struct PerplexityFlags {
  OpenOptions model;
  std::string file;
  int64_t window = 512, tokens = 0;
  bool json = false;
};

// Sums negative log-likelihoods as windows finish; a few windows are in the engine at a time.
class Tally {
 public:
  void add(const std::vector<float>& logprobs) {
    std::lock_guard lock(mutex_);
    for (float lp : logprobs) nll_ -= lp;
    scored_ += static_cast<int64_t>(logprobs.size());
  }
  void finish(const std::string& error) {
    std::lock_guard lock(mutex_);
    ++done_;
    if (!error.empty() && error_.empty()) error_ = error;
    changed_.notify_all();
  }
  int64_t wait_for(int64_t done) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= done || !error_.empty(); });
    if (!error_.empty()) fail(ErrorCode::kInternal, "{}", error_);
    return done_;
  }
  double nll() const { return nll_ / static_cast<double>(scored_); }
  int64_t scored() const { return scored_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  double nll_ = 0;
  int64_t scored_ = 0, done_ = 0;
  std::string error_;
};

void perplexity(const PerplexityFlags& f) {
  constexpr int64_t kInEngine = 4;
  std::string text = read_text_file(f.file);
  OpenOptions flags = f.model;
  flags.context = f.window;
  flags.kv_tokens = (kInEngine + 1) * (f.window + 64);
  LoadedModel model = load_with_progress(flags);
  const TokenizerSpec& spec = model.tokenizer->spec();
  std::vector<int32_t> ids =
      model.tokenizer->encode(text, {.add_special = true, .parse_special = false});
  if (f.tokens > 0 && static_cast<int64_t>(ids.size()) > f.tokens)
    ids.resize(static_cast<size_t>(f.tokens));
  int64_t windows = static_cast<int64_t>(ids.size()) / f.window;
  if (windows == 0)
    fail(ErrorCode::kInvalidArgument,
         "{} has {} tokens, fewer than the {} of a window; use a longer text or a smaller --window",
         f.file, ids.size(), f.window);

  Tally tally;
  ProgressBar bar("perplexity");
  SteadyClock clock;
  Nanos start = clock.now();
  for (int64_t w = 0; w < windows; ++w) {
    if (w >= kInEngine)
      bar.update(static_cast<uint64_t>(tally.wait_for(w - kInEngine + 1)),
                 static_cast<uint64_t>(windows));
    RequestSpec request;
    request.prompt.assign(ids.begin() + w * f.window, ids.begin() + (w + 1) * f.window);
    if (spec.add_bos && spec.bos_id >= 0) request.prompt[0] = spec.bos_id;
    request.max_tokens = 0;
    request.score_prompt = true;
    request.score_from = static_cast<int32_t>(f.window / 2 + 1);
    model.engine->submit(std::move(request), [&tally](Delta&& delta) {
      tally.add(delta.prompt_logprobs);
      if (delta.finish == Finish::kNone) return;
      tally.finish(delta.finish == Finish::kLength || delta.finish == Finish::kStop
                       ? ""
                       : "a window failed: " + delta.error);
    });
  }
  tally.wait_for(windows);
  bar.update(1, 1);
  double rate = static_cast<double>(windows * f.window) / seconds(clock.now() - start);
  if (f.json) {
    fmt::print("{}\n", dump_json(Value::Object{{"ppl", std::exp(tally.nll())},
                                               {"nll", tally.nll()},
                                               {"scored", tally.scored()},
                                               {"tokens_per_second", rate}}));
  } else {
    fmt::print("perplexity {:.4f} (nll {:.6f} over {} tokens in {} windows, {:.0f} tokens/s)\n",
               std::exp(tally.nll()), tally.nll(), tally.scored(), windows, rate);
  }
}

}  // namespace

void add_eval_verb(CLI::App& app) {
  CLI::App* eval = app.add_subcommand("eval", "measure the quality of a model");
  eval->require_subcommand(1);
  eval->footer("Example:\n  tokamak eval perplexity model.gguf wikitext.txt --tokens 16384");
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* verb = eval->add_subcommand(
      "perplexity",
      "perplexity of a text file, in independent windows; the second half of each is scored");
  add_model_argument(*verb, flags->model);
  verb->add_option("FILE", flags->file, "plain text")->required();
  verb->add_option("--window", flags->window, "tokens per window")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  verb->add_option("--tokens", flags->tokens,
                   "maximum number of tokens to read from the file (default: all)")
      ->check(CLI::NonNegativeNumber);
  verb->add_flag("--json", flags->json, "print {ppl, nll, scored, tokens_per_second}");
  add_model_flags(*verb, flags->model);
  verb->footer(
      "Example:\n  tokamak eval perplexity model.gguf wikitext.txt --window 512 --tokens 16384 "
      "--json");
  verb->callback([flags] { perplexity(*flags); });
}

}  // namespace tokamak
