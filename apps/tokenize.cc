// tokamak tokenize: text to ids and back.
#include <iostream>

#include "apps/model_store.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/json.h"
#include "compile/open_model.h"
#include "text/tokenizer.h"

namespace tokamak {
namespace {

struct TokenizeFlags {
  std::string model, text;
  bool from_stdin = true, json_lines = false, decode = false, no_special = false,
       no_parse_special = false;
};

std::vector<int32_t> ids_from(const Value& value, int64_t vocab) {
  std::vector<int32_t> ids;
  for (const Value& v : value.as_array()) {
    int64_t id = v.as_int();
    if (id < 0 || id >= vocab)
      fail(ErrorCode::kInvalidArgument, "{} is not a token id: this vocabulary has {}", id, vocab);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void answer_line(const Tokenizer& tokenizer, const TokenizeFlags& f, const std::string& line,
                 size_t number) {
  try {
    Value in = parse_json(line);
    if (f.decode) {
      std::vector<int32_t> ids = ids_from(in, tokenizer.vocab_size());
      fmt::print("{}\n", dump_json(tokenizer.decode(ids, {.skip_special = f.no_special})));
    } else {
      std::vector<int32_t> ids =
          tokenizer.encode(in.as_string(), {!f.no_special, !f.no_parse_special});
      fmt::print("{}\n", dump_json(Value(Value::Array(ids.begin(), ids.end()))));
    }
  } catch (const Error& e) {
    fail(e.code(), "line {}: {}", number, e.what());
  }
}

void tokenize(const TokenizeFlags& f) {
  Tokenizer tokenizer(open_tokenizer(f.model));
  if (f.json_lines || f.decode) {
    if (!f.from_stdin) return answer_line(tokenizer, f, f.text, 1);
    std::string line;
    for (size_t number = 1; std::getline(std::cin, line); ++number)
      if (!line.empty()) answer_line(tokenizer, f, line, number);
    return;
  }
  std::string text = f.text;
  if (f.from_stdin) text.assign(std::istreambuf_iterator<char>(std::cin), {});
  for (int32_t id : tokenizer.encode(text, {!f.no_special, !f.no_parse_special}))
    fmt::print("{:>8}  {}\n", id, dump_json(std::string(tokenizer.piece(id))));
}

}  // namespace

void add_tokenize_verb(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* verb = app.add_subcommand("tokenize", "show how a model splits text into tokens");
  verb->add_option("MODEL", flags->model,
                   "a .gguf file (vocabulary-only too), a folder with tokenizer.json, or the name "
                   "of a pulled model")
      ->required()
      ->transform(find_model);
  verb->add_option("TEXT", flags->text, "the text (default: standard input)")
      ->each([flags](const std::string&) { flags->from_stdin = false; });
  verb->add_flag(
      "--json-lines", flags->json_lines,
      "read one JSON string per line (TEXT, or standard input), print one array of ids per line");
  verb->add_flag("--decode", flags->decode, "the reverse: arrays of ids in, JSON strings out");
  verb->add_flag("--no-special", flags->no_special,
                 "leave out BOS/EOS (with --decode: skip special tokens)");
  verb->add_flag("--no-parse-special", flags->no_parse_special,
                 "treat text such as <|im_end|> as plain text");
  verb->footer(
      "Examples:\n  tokamak tokenize model.gguf \"Hello world\"\n"
      "  echo '\"Hello world\"' | tokamak tokenize model.gguf --json-lines\n"
      "  tokamak tokenize model.gguf --decode '[1,2,3]'");
  verb->callback([flags] { tokenize(*flags); });
}

}  // namespace tokamak
