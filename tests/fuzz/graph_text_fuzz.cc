// Graph text: parsed text prints to a fixed point, and verification and derivation give a result or
// an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "graph/graph.h"
#include "tests/fuzz/fuzzer.h"

TK_FUZZER(graph_text) {
  using namespace tokamak;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    Module m = parse_module(text);
    const std::string printed = print_module(m);
    fail_if(print_module(parse_module(printed)) != printed);
    verify_module(m);
    if (m.find_function("step")) {
      specialize_decode(m);
      verify_module(m);
    }
    for (const auto& f : m.functions) structural_hash(*f);
  } catch (const Error& e) {
    fail_if(e.code() == ErrorCode::kInternal);
  }
  return 0;
}
