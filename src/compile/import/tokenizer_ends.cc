#include "compile/import/tokenizer_ends.h"

#include <algorithm>

namespace tokamak {
namespace {

constexpr std::string_view kEnds[] = {"<|eot_id|>",
                                      "<|im_end|>",
                                      "<|end|>",
                                      "<|return|>",
                                      "<|call|>",
                                      "<|calls|>",
                                      "<|flush|>",
                                      "<end_of_turn>",
                                      "<turn|>",
                                      "<|endoftext|>",
                                      "<|eom_id|>",
                                      "<|end_of_text|>",
                                      "<EOT>",
                                      "_<EOT>",
                                      "[EOT]",
                                      "[EOS]",
                                      "</s>",
                                      "<eos>",
                                      "<｜end▁of▁sentence｜>",
                                      "<end_of_utterance>",
                                      "<|end_of_turn|>",
                                      "<|tool_response>",
                                      "<|eos|>"};

constexpr std::string_view kMiddles[] = {
    "<|fim_prefix|>",  "<fim-prefix>",    "<fim_prefix>",   "<PRE>",           "▁<PRE>",
    "<｜fim▁begin｜>", "<|code_prefix|>", "<|fim_suffix|>", "<fim-suffix>",    "<fim_suffix>",
    "<SUF>",           "▁<SUF>",          "<｜fim▁hole｜>", "<|code_suffix|>", "<|fim_middle|>",
    "<fim-middle>",    "<fim_middle>",    "<MID>",          "▁<MID>",          "<｜fim▁end｜>",
    "<|code_middle|>", "<|fim_pad|>",     "<fim-pad>",      "<fim_pad>",       "<|fim_repo|>",
    "<|repo_name|>",   "<fim-repo>",      "<reponame>",     "<|file_sep|>"};

template <size_t N>
bool among(const std::string_view (&list)[N], std::string_view token) {
  return std::find(std::begin(list), std::end(list), token) != std::end(list);
}

}  // namespace

bool ends_generation(std::string_view token) {
  if (token.empty() || (token[0] != '<' && token[0] != '[' && token[0] != '_')) return false;
  return among(kEnds, token);
}

bool fills_in_the_middle(std::string_view token) {
  if (token.size() < 5 || token.back() != '>') return false;
  return among(kMiddles, token);
}

void finish_eog_ids(TokenizerSpec& spec) {
  std::vector<int32_t>& eog = spec.eog_ids;
  std::sort(eog.begin(), eog.end());
  eog.erase(std::unique(eog.begin(), eog.end()), eog.end());
  // If a turn ends with <|return|> or <|call|>, <|end|> only ends a message within it.
  int32_t end = -1;
  bool returns = false, calls = false;
  for (const AddedToken& t : spec.added_tokens) {
    if (!std::binary_search(eog.begin(), eog.end(), t.id)) continue;
    if (t.content == "<|end|>") end = t.id;
    returns |= t.content == "<|return|>" || t.content == "<|calls|>";
    calls |= t.content == "<|call|>" || t.content == "<|flush|>";
  }
  if (end < 0 || !returns || !calls || end == spec.eos_id) return;
  std::erase(eog, end);
  if (spec.eot_id == end) spec.eot_id = -1;
}

}  // namespace tokamak
