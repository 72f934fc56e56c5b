// Plans in the bundle format, without the checksum: plans that can be read are written to a fixed
// point, and the checker gives a result or an Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "plan/bundle_plans.h"
#include "tests/fuzz/fuzzer.h"

TK_FUZZER(plans) {
  using namespace tokamak;
  try {
    PlanSet set = parse_plans(std::as_bytes(std::span(data, size)));
    std::string written = serialize_plans(set);
    fail_if(serialize_plans(parse_plans(std::as_bytes(std::span(written)))) != written);
    plan_set_text(set);
    check_plan_set(set);
  } catch (const Error& e) {
    fail_if(e.code() == ErrorCode::kInternal);
  }
  return 0;
}
