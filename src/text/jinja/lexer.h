#pragma once
// Template source -> tokens, with trim_blocks and lstrip_blocks as jinja2 applies them.
#include <string>
#include <string_view>
#include <vector>

namespace tokamak::jinja {

enum class Tok {
  kData,
  kVarBegin,
  kVarEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOp,
  kEnd
};

struct Token {
  Tok type;
  std::string text;  // of strings: their value
  int line = 1;
};

// Throws TemplateError with its line in `line`.
std::vector<Token> lex(std::string_view source, int& line);

}  // namespace tokamak::jinja
