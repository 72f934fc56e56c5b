// tokamak chat: a conversation in the terminal.
#include <cstdio>

#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "apps/verbs.h"
#include "base/error.h"

namespace tokamak {
namespace {

struct ChatFlags {
  OpenOptions model;
  GenerateOptions generate;
  std::string system;
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, const Model& model) : flags_(flags), model_(model) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!flags_.system.empty()) messages_.push_back({"system", flags_.system});
  }

  // Asks, prints the answer as it comes, and keeps both. An error leaves the conversation as it
  // was.
  void ask(const std::string& text) {
    Chat before = messages_;
    try {
      messages_.push_back({"user", text});
      messages_.push_back({"assistant", answer()});
    } catch (const Error& e) {
      messages_ = std::move(before);
      fmt::print(stderr, "{} {}\n", coloured(Colour::kRed, "error:", stderr_is_terminal()),
                 e.what());
    }
  }

 private:
  Stream start() {
    std::vector<int32_t> prompt = model_.prompt_ids(messages_);
    if (std::ssize(prompt) >= model_.info().context)
      fail(ErrorCode::kOutOfRange,
           "the conversation has {} tokens and fills the context; /reset starts a new one, "
           "--context allows longer ones",
           prompt.size());
    GenerateOptions options = flags_.generate;
    options.seed = flags_.model.seed + messages_.size();  // each turn has its own noise
    return model_.stream(std::move(prompt), options);
  }

  std::string answer() {
    Stream stream = start();
    {
      InterruptScope interrupt([&] { stream.cancel(); });
      for (const std::string& piece : stream) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      }
    }
    std::puts("");
    std::fflush(stdout);
    const Result& result = stream.result();
    bool on = stderr_is_terminal();
    if (result.finish == FinishReason::kCancelled)
      fmt::print(stderr, "{}\n", coloured(Colour::kDim, "(stopped)", on));
    if (result.finish == FinishReason::kLength)
      fmt::print(stderr, "{}\n", coloured(Colour::kDim, "(cut off at the length limit)", on));
    return result.text;
  }

  const ChatFlags& flags_;
  const Model& model_;
  Chat messages_;
};

void chat(ChatFlags& flags) {
  check_generate_options(flags.generate);
  Model model = open_with_progress(flags.model);
  if (!model.info().has_chat_template)
    fail(ErrorCode::kUnsupported, "{} has no chat template; use `tokamak run` for raw text",
         model.info().name);
  bool terminal = stdout_is_terminal();
  if (stderr_is_terminal())
    fmt::print(stderr,
               "{} loaded in {:.1f} s. /help shows the commands, Ctrl-C stops an answer, "
               "Ctrl-D leaves.\n",
               model.info().name, model.info().load_seconds);
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
  verb->add_option("--max-tokens,-n", flags->generate.max_tokens,
                   "maximum length of an answer in tokens (default: until the context is full)")
      ->check(CLI::Range(1, 1 << 24));
  add_sampling_flags(*verb, flags->generate);
  add_search_flags(*verb, flags->model, flags->generate);
  add_grammar_flags(*verb, flags->generate);
  add_model_flags(*verb, flags->model);
  add_template_flag(*verb, flags->model);
  add_lora_flag(*verb, flags->model, flags->generate);
  add_speculative_flags(*verb, flags->model);
  verb->footer(
      "Examples:\n  tokamak chat model.gguf\n"
      "  tokamak chat model.gguf --system \"You answer in one sentence.\" --temperature 0.7\n"
      "Inside: /reset, /exit, /help; Ctrl-C stops the answer, Ctrl-D leaves.");
  verb->callback([flags] { chat(*flags); });
}

}  // namespace tokamak
