#include "serve/compat/fill_in.h"

#include <span>

#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

struct Marks {
  const char *before, *after, *middle;
};

constexpr Marks kMarks[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},  // DeepSeek
    {"▁<PRE>", "▁<SUF>", "▁<MID>"},                          // Code Llama
    {"<PRE>", "<SUF>", "<MID>"},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},  // GLM
};
// Before the name of a repository, before the name of a file, and padding.
constexpr const char *kRepository[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
                                       "<reponame>"},
                     *kFile[] = {"<|file_sep|>", "<file_sep>"},
                     *kPadding[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"};

const Marks* marks_of(const Tokenizer& tokenizer) {
  for (const Marks& marks : kMarks)
    if (tokenizer.find_piece(marks.before) >= 0 && tokenizer.find_piece(marks.after) >= 0 &&
        tokenizer.find_piece(marks.middle) >= 0)
      return &marks;
  return nullptr;
}

// The id of the first of these that the vocabulary has; -1: none.
int32_t mark_id(const Tokenizer& tokenizer, std::span<const char* const> names) {
  for (const char* name : names)
    if (int32_t id = tokenizer.find_piece(name); id >= 0) return id;
  return -1;
}

// Ids of marks and texts in a row.
class FillInPrompt {
 public:
  explicit FillInPrompt(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void mark(int32_t id) { ids_.push(id); }
  void mark(const char* name) { mark(tokenizer_.find_piece(name)); }
  void text(const std::string& text) {
    EncodeOptions encode;
    encode.add_special = encode.parse_special = false;
    for (int32_t id : tokenizer_.encode(text, encode)) ids_.push(id);
  }
  Value take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  Value ids_ = Value::array();
};

void add_repository(const Tokenizer& tokenizer, const FillInFiles& files, FillInPrompt& out) {
  const int32_t repository = mark_id(tokenizer, kRepository), file = mark_id(tokenizer, kFile);
  if (repository >= 0) {
    out.mark(repository);
    out.text("myproject\n");
  }
  for (const auto& [name, text] : files) {
    if (file >= 0) {
      out.mark(file);
      out.text(name + "\n");
    } else {
      out.text("\n\n--- snippet ---\n\n");
    }
    out.text(text);
  }
  if (file >= 0) {
    out.mark(file);
    out.text("filename\n");
  }
}

}  // namespace

bool can_fill_in(const Tokenizer& tokenizer) { return marks_of(tokenizer) != nullptr; }

Value fill_in_prompt(const ServedModel& model, const std::string& before, const std::string& after,
                     const FillInFiles* files) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const Marks* marks = marks_of(tokenizer);
  if (marks == nullptr)
    unsupported("suffix", fmt::format("The model '{}' cannot fill in text: its vocabulary has no "
                                      "tokens for it.",
                                      model.name));
  FillInPrompt prompt(tokenizer);
  if (tokenizer.spec().add_bos && tokenizer.bos_id() >= 0) prompt.mark(tokenizer.bos_id());
  if (files != nullptr) add_repository(tokenizer, *files, prompt);
  prompt.mark(marks->before);
  prompt.text(before);
  prompt.mark(marks->after);
  prompt.text(after);
  prompt.mark(marks->middle);
  return prompt.take();
}

void stop_at_next_file(const Tokenizer& tokenizer, Value& body) {
  const Value* given = body.find("stop_token_ids");
  if (given != nullptr && !given->is_array() && !given->is_null()) return;  // refused later
  Value ids = given != nullptr && given->is_array() ? *given : Value::array();
  for (std::span<const char* const> names :
       {std::span<const char* const>(kPadding), std::span<const char* const>(kRepository),
        std::span<const char* const>(kFile)})
    if (int32_t id = mark_id(tokenizer, names); id >= 0) ids.push(id);
  if (ids.size() > 0) body.set("stop_token_ids", std::move(ids));
}

}  // namespace tokamak::openai
