// tokamak chat: a conversation in the terminal.
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>

#include "apps/model_setup.h"
#include "apps/sampling_flags.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "text/detokenizer.h"

namespace tokamak {
namespace {

struct ChatFlags {
  ModelFlags model;
  SampleSpec sample;
  std::string system;
  int32_t max_tokens = 0;  // 0: what the context leaves
};

// Deltas from the engine's thread, taken by the one that prints.
class DeltaQueue {
 public:
  void push(Delta&& delta) {
    std::lock_guard lock(mutex_);
    deltas_.push_back(std::move(delta));
    ready_.notify_one();
  }
  Delta pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !deltas_.empty(); });
    Delta delta = std::move(deltas_.front());
    deltas_.pop_front();
    return delta;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Delta> deltas_;
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, LoadedModel& model) : flags_(flags), model_(model) {
    reset();
  }

  void reset() {
    messages_ = Value::array();
    if (!flags_.system.empty()) add("system", flags_.system);
  }

  // Asks, prints the answer as it comes, and keeps both. What went wrong leaves the conversation as
  // it was.
  void ask(const std::string& text) {
    Value before = messages_;
    try {
      add("user", text);
      add("assistant", answer());
    } catch (const Error& e) {
      messages_ = std::move(before);
      fmt::print(stderr, "{} {}\n", coloured(Colour::kRed, "error:", stderr_is_terminal()),
                 e.what());
    }
  }

 private:
  void add(const char* role, std::string content) {
    messages_.push(Value::Object{{"role", role}, {"content", std::move(content)}});
  }

  RequestSpec request() {
    RequestSpec spec;
    spec.prompt = encode_chat(model_, messages_);
    int64_t room = model_.engine->info().max_model_len - static_cast<int64_t>(spec.prompt.size());
    if (room < 1)
      fail(
          ErrorCode::kOutOfRange,
          "the conversation is {} tokens and fills the context; /reset starts a new one, --context "
          "makes room",
          spec.prompt.size());
    spec.max_tokens = static_cast<int32_t>(
        flags_.max_tokens > 0 ? std::min<int64_t>(flags_.max_tokens, room) : room);
    SampleSpec sample = flags_.sample;
    sample.seed = flags_.model.seed + messages_.size();  // each turn has its own noise
    spec.sample = std::make_shared<SampleSpec>(std::move(sample));
    spec.stop_ids = model_.tokenizer->spec().eog_ids;
    return spec;
  }

  std::string answer() {
    DeltaQueue queue;
    Detokenizer detokenizer(*model_.tokenizer, {.skip_special = true});
    std::string text;
    auto emit = [&](const std::string& more) {
      text += more;
      std::fwrite(more.data(), 1, more.size(), stdout);
      std::fflush(stdout);
    };
    RequestId id =
        model_.engine->submit(request(), [&](Delta&& delta) { queue.push(std::move(delta)); });
    InterruptScope interrupt([&] { model_.engine->cancel(id); });
    Delta delta;
    do {
      delta = queue.pop();
      for (int32_t token : delta.ids) emit(detokenizer.push(token));
    } while (delta.finish == Finish::kNone);
    emit(detokenizer.finish());
    emit("\n");
    text.pop_back();
    bool on = stderr_is_terminal();
    if (delta.finish == Finish::kError) fail(ErrorCode::kInternal, "{}", delta.error);
    if (delta.finish == Finish::kCancelled)
      fmt::print(stderr, "{}\n", coloured(Colour::kDim, "(stopped)", on));
    if (delta.finish == Finish::kLength)
      fmt::print(stderr, "{}\n", coloured(Colour::kDim, "(cut off at the longest answer)", on));
    return text;
  }

  const ChatFlags& flags_;
  LoadedModel& model_;
  Value messages_;
};

void chat(ChatFlags& flags) {
  LoadedModel model = load_model(flags.model);
  if (model.chat_template == nullptr)
    fail(ErrorCode::kUnsupported, "{} has no chat template; use `tokamak run` for raw text",
         model.name);
  bool terminal = stdout_is_terminal();
  if (stderr_is_terminal())
    fmt::print(stderr,
               "{} loaded in {:.1f} s. /help shows the commands, Ctrl-C stops an answer, "
               "Ctrl-D leaves.\n",
               model.name, model.load_seconds);
  Conversation conversation(flags, model);
  std::string prompt = coloured(Colour::kBlue, "> ", terminal);
  while (auto line = read_line(prompt)) {
    size_t first = line->find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    std::string text = line->substr(first, line->find_last_not_of(" \t") + 1 - first);
    if (text == "/exit" || text == "/quit") return;
    if (text == "/reset") {
      conversation.reset();
      fmt::print(stderr, "(new conversation)\n");
    } else if (text == "/help") {
      fmt::print(
          "/reset  start a new conversation\n/exit   leave (also Ctrl-D)\n/help   this list\n"
          "Ctrl-C  stop the answer\n");
    } else if (text[0] == '/') {
      fmt::print(stderr, "unknown command {}; /help shows them\n", text);
    } else {
      conversation.ask(*line);
    }
  }
  if (terminal) std::puts("");
}

}  // namespace

void add_chat_verb(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* verb = app.add_subcommand("chat", "talk with a model in the terminal");
  add_model_argument(*verb, flags->model);
  verb->add_option("--system", flags->system, "system message");
  verb->add_option("--max-tokens,-n", flags->max_tokens,
                   "longest answer (default: what the context leaves)")
      ->check(CLI::Range(1, 1 << 24));
  add_sampling_flags(*verb, flags->sample);
  add_model_flags(*verb, flags->model);
  add_template_flag(*verb, flags->model);
  verb->footer(
      "Examples:\n  tokamak chat model.gguf\n"
      "  tokamak chat model.gguf --system \"You answer in one sentence.\" --temperature 0.7\n"
      "Inside: /reset, /exit, /help; Ctrl-C stops the answer, Ctrl-D leaves.");
  verb->callback([flags] { chat(*flags); });
}

}  // namespace tokamak
