#pragma once
// THE table of op cases: every backend runs it against ref, and it doubles as the micro-benchmark.
#include <memory>
#include <string>
#include <vector>

#include "base/value.h"
#include "plan/region.h"
#include "tensor/dtype.h"
#include "tensor/sym.h"

namespace tokamak::testing {

// One input of the op under test.
struct Arg {
  enum class Kind {
    kActivation,  // dtype[T, dims], computed by the plan, in the arena
    kQuantized,   // f32, then as q8a
    kWeight,      // dtype[dims] from the weight source
    kConstant,    // f32[dims] of the plan
    kInput,       // a named input of the step
    kState,
    kView,
    kResult,  // of an earlier call of the case
  };
  Kind kind = Kind::kActivation;
  std::vector<int64_t> dims = {};
  DType dtype = DType::kF32;
  std::string name = {};
  std::vector<double> values = {};
  size_t result = 0;  // its number, over all earlier calls
};

// A value that a call computes.
struct Result {
  DType dtype = DType::kF32;
  std::vector<SymExpr> dims = {};  // of T
};
// A call whose results the op under test takes.
struct EarlierCall {
  std::string op;
  Value attrs = Value::object();
  std::vector<Arg> in = {};
  std::vector<Result> out = {};
};

// The batch the op runs in. Sequence b has older[b] tokens from an earlier step, then own[b] of
// this one.
struct BatchSpec {
  std::vector<int32_t> own = {1}, older = {0};
  int64_t window = 0;              // of the KV group: blocks before it are dropped
  std::vector<int32_t> mask = {};  // [T, mask_width] of the last step
  int32_t mask_width = 0;
  int64_t tokens() const {
    int64_t n = 0;
    for (int32_t c : own) n += c;
    return n;
  }
};

struct PlaneSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> dims;
};

struct OpCase {
  std::string name;  // "linear/q4_0/q8a/m=5"
  std::string op;
  Value attrs = Value::object();
  std::vector<Arg> in = {};
  std::vector<int64_t> out = {};  // extents after T
  DType stored = DType::kF32;     // type of the result; f16 and bf16 are the attribute "out"
  int outputs = 1;                // of other ops than regions, all alike; the last one is compared
  std::vector<Result> unlike = {};        // outputs that differ; the first one is compared
  std::vector<EarlierCall> earlier = {};  // in order
  double bound = 1e-11;                   // normalised mean square error against ref
  BatchSpec batch = {};
  std::vector<PlaneSpec> planes = {};              // of the state: `append` runs before the op
  bool per_sequence = false;                       // a state per sequence, which the op advances
  bool perf = false;                               // a shape from real models, run by --perf
  std::shared_ptr<const Region> region = nullptr;  // op "region": what it computes
};

std::vector<DType> weight_types();  // of model files
std::vector<OpCase> correctness_cases();
// Every number of rows, columns and values that leaves a different rest in tiles and vectors.
std::vector<OpCase> odd_cases();
std::vector<OpCase> perf_cases();
void add_attention(std::vector<OpCase>& cases, bool perf);
void add_experts(std::vector<OpCase>& cases);
void add_primitives(std::vector<OpCase>& cases);
void add_recurrent(std::vector<OpCase>& cases);
void add_regions(std::vector<OpCase>& cases, bool perf);  // fused regions

}  // namespace tokamak::testing
