// tokenizer.json text -> tokenizer -> ids -> text. Anything but Error is a finding.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "compile/import/tokenizer_json.h"
#include "tests/fuzz/fuzzer.h"
#include "text/tokenizer.h"

using namespace tokamak;

TK_FUZZER(tokenizer_json) {
  try {
    const Tokenizer tokenizer(
        tokenizer_from_json(std::string_view(reinterpret_cast<const char*>(data), size)));
    tokenizer.decode(tokenizer.encode("Hello w\xC3\xB6rld, it's <s> 123  \n\xFF\xE4\xBD\xA0"));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}
