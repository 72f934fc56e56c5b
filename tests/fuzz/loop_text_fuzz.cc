// Loop IR text: a parsed program prints to a fixed point, can be scheduled, and runs inside its
// tensors or gives an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "loop/evaluate.h"
#include "loop/phases.h"
#include "tests/fuzz/fuzzer.h"

namespace {

using namespace tokamak;

// Every symbol is 3, to keep programs small.
void run_program(const loop::Program& p) {
  constexpr int64_t kMost = 2000;
  std::map<std::string, int64_t, std::less<>> symbols;
  for (const std::string& s : loop::program_symbols(p)) symbols[s] = 3;
  if (loop::row_count(p).eval(symbols) * p.columns.eval(symbols) > kMost) return;
  std::vector<std::vector<int64_t>> dims;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<int32_t>> integers;
  std::vector<TensorRef<float>> in, out;
  size_t all = p.in.size() + p.out.size();
  dims.reserve(all), values.reserve(all), integers.reserve(all);
  for (size_t i = 0; i < all; ++i) {
    const TensorType& t = i < p.in.size() ? p.in[i] : p.out[i - p.in.size()];
    int64_t n = t.elements().eval(symbols);
    if (n < 0 || n > kMost) return;
    bool integer = t.dtype == DType::kI32;
    dims.push_back({n});
    values.emplace_back(integer ? 0 : static_cast<size_t>(n), 0.5f);
    integers.emplace_back(integer ? static_cast<size_t>(n) : 0, 1);
    (i < p.in.size() ? in : out)
        .push_back({dims.back(), integer ? nullptr : values.back().data(),
                    integer ? integers.back().data() : nullptr});
  }
  loop::evaluate_program<float>(p, symbols, in, out);
}

}  // namespace

TK_FUZZER(loop_text) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    loop::Program p = loop::parse_program(text);
    const std::string printed = loop::print_program(p);
    fail_if(loop::print_program(loop::parse_program(printed)) != printed);
    loop::make_phases(p);
    loop::make_phases(loop::merge_rows(p));
    run_program(p);
    run_program(loop::merge_rows(p));
  } catch (const Error& e) {
    fail_if(e.code() == ErrorCode::kInternal);
  }
  return 0;
}
