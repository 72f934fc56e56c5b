// The body of a request -> a prepared request: of a program if the first byte is 'p', otherwise of
// a chat or a completion. Anything but Error is a finding.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/fake_client.h"
#include "serve/openai/prepare.h"
#include "serve/program/program.h"
#include "tests/fuzz/fuzzer.h"

using namespace tokamak;

namespace {

std::shared_ptr<const ServedModel> fuzz_model() {
  ServedModel model = tokamak::testing::fake_model(nullptr);
  model.grammars = std::make_shared<grammar::GrammarCache>(model.tokenizer);
  return std::make_shared<const ServedModel>(std::move(model));
}

void read_body(std::string_view text, char kind) {
  log::set_level(log::Level::kError);  // unknown fields are logged
  static const auto model = fuzz_model();
  Value body = parse_json(text);
  if (kind == 'p')
    program::parse_program(body);
  else if (kind % 2 == 0)
    openai::prepare_chat(body, model);
  else
    openai::prepare_completion(body, model);
}

}  // namespace

TK_FUZZER(openai) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    read_body(text, static_cast<char>(data[0]));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}
