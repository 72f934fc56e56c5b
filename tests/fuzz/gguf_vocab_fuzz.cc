// GGUF bytes -> vocabulary -> tokenizer -> ids -> text. Anything but Error is a finding.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "compile/import/tokenizer_gguf.h"
#include "tests/fuzz/fuzzer.h"
#include "text/tokenizer.h"

using namespace tokamak;

TK_FUZZER(gguf_vocab) {
  try {
    const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
    const Tokenizer tokenizer(tokenizer_from_gguf(*file));
    tokenizer.decode(tokenizer.encode("Hello a b\xC3\xB6 it's <s> 123  \n\xFF\xE4\xBD\xA0"));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInternal) throw;
  }
  return 0;
}
