#pragma once
// Runs a function on concrete values by the meaning of its ops, with float (the definition), double
// (oracle) or the finite field as the scalar. For the rule verifier, constant folding, `debug
// check` and the differential tests. Values are plain vectors; it is not fast.
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "graph/graph.h"
#include "ops/field.h"

namespace tokamak {

int64_t element_count(const std::vector<int64_t>& dims);

template <class S>
struct EvalTensor {
  std::vector<int64_t> dims;
  std::vector<S> f;        // empty for integers
  std::vector<int32_t> i;  // empty for the others
  bool integer = false;
};

template <class S>
struct EvalState {
  struct Plane {
    std::string name;
    std::vector<int64_t> dims;  // per token
    std::vector<S> data;        // [slot][dims]
  };
  std::vector<Plane> planes;
  int64_t slots = 0;
};

struct EvalView {
  std::vector<int32_t> table;
  int64_t stride = 0, block_size = 16;
};

using SymbolValues = std::map<std::string, int64_t, std::less<>>;

template <class S>
struct EvalInputs {
  SymbolValues symbols;
  std::map<std::string, EvalTensor<S>> tensors;  // by input name
  std::map<std::string, EvalState<S>> states;    // by state name
  std::map<std::string, EvalView> views;         // by group name
  std::map<std::string, EvalTensor<S>> sources;  // tensors of the model file, by name
};

template <class S>
struct EvalResults {
  std::map<std::string, EvalTensor<S>> tensors;
  std::map<std::string, EvalState<S>> states;
};

// Called with every tensor after its node was computed. It may change the values; nodes that read
// the tensor see the changed ones.
template <class S>
using EvalVisitor = std::function<void(const Node&, EvalTensor<S>&)>;

// Throws what the meanings throw (an index out of range, a division by zero in the field) and
// Error(kUnsupported) when an op has no meaning over S.
template <class S>
EvalResults<S> evaluate(const Function& function, const EvalInputs<S>& inputs,
                        const EvalVisitor<S>& visit = nullptr);

// The values of some tensors of a function. Computes only the nodes these depend on.
template <class S>
std::vector<EvalTensor<S>> evaluate_refs(const Function& function, const EvalInputs<S>& inputs,
                                         std::span<const Ref> refs,
                                         const EvalVisitor<S>& visit = nullptr);

// The tensor that a weight's recipe computes from its sources.
template <class S>
EvalTensor<S> evaluate_weight(const WeightDecl& weight, const EvalInputs<S>& inputs);

// One op on tensors that are all known; nullopt when an output is neither f32 nor i32.
std::optional<std::vector<EvalTensor<float>>> evaluate_node(
    const Node& node, std::span<const EvalTensor<float>> inputs);

template <class S>
EvalInputs<S> convert_inputs(const EvalInputs<double>& inputs);

// --- random_inputs.cc ---
enum class Values : uint8_t {
  kNormal,  // around 1
  kLarge,   // around 1e4
  kTiny,    // around 1e-4
  kMedium,  // around 15: exponentials and weights of softmax are far apart
  kClose,   // almost equal: most of them differ in the last digits only
  kMixed,   // magnitudes from 1e-4 to 1e4, zeros, numbers that constants have, in one tensor
  kNasty,   // also +-0, infinities, NaN, denormals and the largest finite numbers
  // The next two enumerate: the elements of the inputs take all combinations of a short list of
  // values, as far as there are enough elements. Integers include the limits of their type.
  kEach,       // finite floating values
  kEachNasty,  // signed zeros, infinities, NaN
};

// The numbers that Values::kEach takes.
enum class SpecialNumbers : uint8_t {
  kSome,      // a short list
  kStated,    // the module's numbers
  kCombined,  // all combinations of the module's numbers and what they give
  kInverted,  // numbers that an elementary function maps to one of the module's
};

struct InputHints {
  // Indices and sources suit the first `nodes` nodes and `weights` weights.
  size_t nodes = SIZE_MAX, weights = SIZE_MAX;
  // Numbers to try besides the module's constants.
  std::span<const double> numbers = {};
  // Values::kEach: this input, counting those of integers, takes all values -128..127.
  int bytes = -1;
  // Sequences end around the windows of attention, and positions may differ from slots.
  bool windows = false;
  SpecialNumbers special = SpecialNumbers::kSome;
};

// Inputs that the function can run on: a step whose positions, slots, lengths and tables belong
// together, indices within what they index, states with older content, sources for every weight.
// All floating values are exact in f32.
EvalInputs<double> random_inputs(const Function& function, SymbolValues symbols, Rng& rng,
                                 Values kind, const InputHints& hints = {});
// Values within the declared ranges: mostly the lowest ones, sometimes up to kLargeSymbol.
constexpr int64_t kLargeSymbol = 40;
SymbolValues random_symbols(const Function& function, Rng& rng);

}  // namespace tokamak
