#include "serve/compat/fill_in.h"

#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

struct Marks {
  const char *before, *after, *middle, *file;  // file: before the name of a file; "": none
};

constexpr Marks kMarks[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"},  // Qwen, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"},          // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", ""},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ""},  // DeepSeek
    {"▁<PRE>", "▁<SUF>", "▁<MID>", ""},                          // Code Llama
    {"<PRE>", "<SUF>", "<MID>", ""},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", ""},  // GLM
};

const Marks* marks_of(const Tokenizer& tokenizer) {
  for (const Marks& marks : kMarks)
    if (tokenizer.find_piece(marks.before) >= 0 && tokenizer.find_piece(marks.after) >= 0 &&
        tokenizer.find_piece(marks.middle) >= 0)
      return &marks;
  return nullptr;
}

}  // namespace

bool can_fill_in(const Tokenizer& tokenizer) { return marks_of(tokenizer) != nullptr; }

Value fill_in_prompt(const ServedModel& model, const std::string& before, const std::string& after,
                     const std::vector<std::pair<std::string, std::string>>& files) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const Marks* marks = marks_of(tokenizer);
  if (marks == nullptr)
    unsupported("suffix", fmt::format("The model '{}' cannot fill in text: its vocabulary has no "
                                      "tokens for it.",
                                      model.name));
  Value ids = Value::array();
  auto add_mark = [&](const char* mark) { ids.push(tokenizer.find_piece(mark)); };
  auto add_text = [&](const std::string& text) {
    EncodeOptions encode;
    encode.add_special = encode.parse_special = false;
    for (int32_t id : tokenizer.encode(text, encode)) ids.push(id);
  };
  if (tokenizer.spec().add_bos && tokenizer.bos_id() >= 0) ids.push(tokenizer.bos_id());
  const bool separates = *marks->file != '\0' && tokenizer.find_piece(marks->file) >= 0;
  for (const auto& [name, text] : files) {
    if (separates) add_mark(marks->file);
    add_text(name + "\n" + text + (separates ? "" : "\n"));
  }
  if (!files.empty() && separates) add_mark(marks->file);
  add_mark(marks->before);
  add_text(before);
  add_mark(marks->after);
  add_text(after);
  add_mark(marks->middle);
  return ids;
}

}  // namespace tokamak::openai
