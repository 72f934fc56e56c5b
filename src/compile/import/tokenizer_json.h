#pragma once
// tokenizer.json and related files (all but the first may be empty) -> TokenizerSpec.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/tokenizer_spec.h"

namespace tokamak {

struct TokenizerFiles {
  std::string_view tokenizer_json;
  std::string_view tokenizer_config_json;
  std::string_view generation_config_json;
  std::string_view special_tokens_map_json;
  std::string_view chat_template_jinja;      // chat_template.jinja; takes precedence
  std::string_view chat_template_json = {};  // {"chat_template": ...}, the oldest location
  // additional_chat_templates/NAME.jinja
  std::vector<std::pair<std::string, std::string>> named_templates = {};
};

// Throws Error(kInvalidArgument / kCorrupt / kUnsupported) naming the file and field.
TokenizerSpec tokenizer_from_json(const TokenizerFiles& files);

inline TokenizerSpec tokenizer_from_json(std::string_view tokenizer_json,
                                         std::string_view tokenizer_config_json = {},
                                         std::string_view generation_config_json = {},
                                         std::string_view special_tokens_map_json = {}) {
  return tokenizer_from_json(TokenizerFiles{
      tokenizer_json, tokenizer_config_json, generation_config_json, special_tokens_map_json, {}});
}

}  // namespace tokamak
