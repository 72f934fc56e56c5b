#pragma once
// The PlanSet: how a model is computed, as plain data. It is the only thing the compiler and the
// engine share. Made by compile/, checked by plan/check.h, printed by plan/text.h, executed by a
// backend.
#include <cstdint>
#include <string>
#include <vector>

#include "base/value.h"
#include "plan/region.h"
#include "tensor/recipe.h"
#include "tensor/sym.h"
#include "tensor/tensor_type.h"

namespace tokamak {

struct WeightEntry {
  std::string name;
  DType dtype = DType::kF32;  // after the recipe
  std::vector<int64_t> dims;
  Recipe recipe;
  std::vector<double> constant;  // a compile-time constant instead of a recipe (sources empty)
  std::string layout;            // "" = row-major; otherwise a packing the backend's kernels name
};

struct PlaneEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // per token
  int64_t bytes_per_token = 0;
};

// The block size of a group of states that are kept per sequence: a block holds one row of each
// state, and every sequence has one block, however long it is.
inline constexpr int64_t kSequenceBlock = int64_t{1} << 30;

struct GroupEntry {
  std::string name;
  int64_t window = 0;       // 0 = all tokens are kept
  int64_t block_size = 16;  // tokens
  bool per_sequence() const { return block_size == kSequenceBlock; }
  int64_t block_rows() const { return per_sequence() ? 1 : block_size; }  // of a state
};

struct StateEntry {
  std::string name;
  uint32_t group = 0;
  bool per_sequence = false;
  std::vector<PlaneEntry> planes;
};

// An input of a function, bound by name to a field of StepInputs (step_fields() in plan/step.h) or
// to one of StepInputs::inputs. Views are bound to the block table of their group.
struct InputEntry {
  std::string name;
  DType dtype = DType::kI32;
  std::vector<SymExpr> dims;
};

struct KernelEntry {
  std::string name;  // "cpu.linear.q4_0"
  int abi = 1;
  std::string numeric_class;  // dot semantics, split of K, accumulator, rounding points
};

struct CallArg {
  enum class Kind : uint8_t { kArena, kWeight, kInput, kState, kView };
  Kind kind = Kind::kArena;
  uint32_t index = 0;  // weight, input, state or group index; arena: the value's number (for dumps)
  uint64_t offset = 0;        // arena: bytes from its start
  DType dtype = DType::kF32;  // tensors only
  std::vector<SymExpr> dims;  // tensors only
};

// Generated code: what a kernel of the plan was compiled to, for one target. Kept in bundles, so
// that a machine without the compiler can run it.
struct CodeObject {
  std::string target;   // "sm_90a", "x86-64+avx512"
  std::string entry;    // name of the function
  std::string options;  // of the compiler
  std::string hash;     // of the source, the options and the compiler
  std::string bytes;
};

struct KernelCall {
  uint32_t kernel = 0;   // of PlanSet::kernels: what runs it
  std::string op = {};   // the graph op this call computes, or "region"
  Value attrs = {};      // the op's attributes
  int32_t region = -1;   // of PlanSet::regions: what a region computes; -1: a single op
  int32_t code = -1;     // of PlanSet::code; -1: none
  uint64_t scratch = 0;  // bytes it needs beside its arguments while it runs
  std::vector<CallArg> in = {}, out = {};
  std::string label = {};  // the node's name, for dumps and profiles
};

// Many calls of a plan as one launch of a kernel that the backend lists in Backend::launches().
struct PlanLaunch {
  uint32_t kernel = 0;            // of PlanSet::kernels
  uint32_t first = 0, calls = 0;  // of Plan::calls: what it runs instead of
  double seconds = 0;             // predicted at the largest shape of the plan
};

struct GuardRange {
  std::string symbol;
  int64_t lo = 1, hi = 1, multiple = 1;
  // A bucket: the symbol is padded before the plan runs, to this value or, with a multiple, to the
  // next multiple, of which this is the largest. 0: nothing is padded.
  int64_t pad = 0;
};

struct PlanOutput {
  std::string name;  // "logits", "hidden"
  CallArg arg;
};

// The function that chooses tokens from logits; a PlanSet may lack it. Its values are in an arena
// of their own, since the logits stay where "step" put them.
inline constexpr std::string_view kSampleFunction = "sample";

// The first layers of the model and its head, for one token of each sequence: it guesses the next
// tokens. It shares the weights and the KV of "step"; a PlanSet may lack it.
inline constexpr std::string_view kExitFunction = "exit";

// "step" with one more result: kLayerLogits has the head's logits for the states between layers
// that the input kLayerRows names, i32[L]: row r of the outputs before layer l is r * layers + l. A
// PlanSet may lack it.
inline constexpr std::string_view kLayersFunction = "layers";
inline constexpr std::string_view kLayerRows = "layer_rows", kLayerLogits = "layer_logits";

struct Plan {
  std::string function;           // "step", "decode", "verify3", kSampleFunction, kExitFunction
  std::vector<GuardRange> guard;  // every symbol the plan depends on
  std::vector<std::pair<std::string, std::string>>
      bound_symbols;  // e.g. T -> B after specialisation: {"T","B"}
  uint64_t arena_bytes = 0;
  uint64_t arena_lower_bound = 0;  // no placement of these values needs less; 0: not known
  std::string arena_method;        // what placed the values, for dumps
  std::vector<KernelCall> calls;
  std::vector<PlanOutput> outputs;
  // In order: a step runs the first whose kernel takes it (LaunchDesc::steps), else the calls.
  std::vector<PlanLaunch> launches;
  double seconds = 0;  // of the calls one by one, predicted at the largest shape; 0: not known
};

struct PlanSet {
  static constexpr int kVersion = 3;
  int version = kVersion;
  std::string model;
  std::string backend;  // who can run it
  std::vector<SymbolDecl>
      symbols;  // T, B, R, N.<group> ...; their order is the order of symbol values
  std::vector<InputEntry> inputs;
  std::vector<GroupEntry> groups;
  std::vector<StateEntry> states;
  std::vector<WeightEntry> weights;
  std::vector<KernelEntry> kernels;
  std::vector<Region> regions;  // layers share them
  std::vector<CodeObject> code;
  std::vector<Plan> plans;
  uint64_t arena_bytes = 0;    // maximum over the plans, except those of kSampleFunction
  uint64_t scratch_bytes = 0;  // maximum over all calls, which run one after another
  std::string
      numerics_id;  // hash of the numeric classes and the ISA: part of every block's fingerprint

  // Facts about the model that the engine needs and no plan holds.
  int64_t vocab = 0, hidden = 0, layers = 0, context = 0;
};

int64_t kv_bytes_per_token(const PlanSet& set, uint32_t group);  // all states of the group
// Bytes of a block: of all states of the group.
int64_t block_bytes(const PlanSet& set, uint32_t group);
bool has_recurrent_states(const PlanSet& set);    // states per sequence
int64_t weight_bytes(const WeightEntry& weight);  // in its dtype, before any packing

// PlanSet::symbols with the ranges that a plan's guard leaves.
std::vector<SymbolDecl> symbol_bounds(const PlanSet& set, const Plan& plan);
bool has_function(const PlanSet& set, std::string_view function);  // a plan computes it
// The most specific plan of `function` whose guard admits the values (order of PlanSet::symbols);
// -1 if none. buckets = false: only plans that pad nothing.
int select_plan(const PlanSet& set, std::string_view function, std::span<const int64_t> values,
                bool buckets = true);

void check_plan_set(
    const PlanSet& set);  // plan/check.cc; throws Error(kCorrupt, "plan decode, call 12: ...")
std::string plan_set_text(const PlanSet& set);  // plan/text.cc

}  // namespace tokamak
