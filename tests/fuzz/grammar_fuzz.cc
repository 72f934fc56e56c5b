// The parsers of grammars. The first byte picks one; what compiles also computes a few masks.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/fuzz/fuzzer.h"
#include "text/grammar/grammar_cache.h"

namespace tokamak::grammar {
namespace {

std::shared_ptr<const Vocabulary> fuzz_vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"ab", "\": ", "\"}", "},", "true", "12", "  ", "\xC3\xA9"})
    tokens.emplace_back(text);
  return std::make_shared<Vocabulary>(tokens);
}

void compute_masks(const GrammarSource& source) {
  static const auto vocabulary = fuzz_vocabulary();
  auto grammar = std::make_shared<const Grammar>(parse_grammar(source), vocabulary);
  Matcher matcher(grammar);
  std::vector<uint32_t> mask(vocabulary->words());
  for (uint32_t step = 0; step < 8 && !matcher.finished(); ++step) {
    mask.assign(mask.size(), 0);
    matcher.fill_mask(mask);
    uint32_t want = step * 37 % static_cast<uint32_t>(vocabulary->size());
    int32_t found = -1;
    for (uint32_t i = 0; i < vocabulary->size() && found < 0; ++i) {
      uint32_t id = (want + i) % static_cast<uint32_t>(vocabulary->size());
      if ((mask[id / 32] >> (id % 32) & 1) != 0) found = static_cast<int32_t>(id);
    }
    TK_CHECK(found >= 0 && matcher.accept(found), "a live grammar allows no token");
  }
}

}  // namespace
}  // namespace tokamak::grammar

TK_FUZZER(grammar) {
  using namespace tokamak::grammar;
  if (size == 0 || size > 4096) return 0;
  constexpr Kind kKinds[] = {Kind::kJsonSchema, Kind::kRegex, Kind::kGrammar};
  GrammarSource source;
  source.kind = kKinds[data[0] % 3];
  source.text.assign(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    compute_masks(source);
  } catch (const tokamak::Error& e) {
    if (e.code() == tokamak::ErrorCode::kInternal) throw;
  }
  return 0;
}
