#pragma once
// What an operation is: name, arity, attributes, type rule, cost and meaning. One file per op (or
// per family of similar ops such as the unary functions); ops/op_table.cc lists them all.
//
// The meaning is written once, templated over the scalar: float (what backend/ref runs: the
// definition), double (oracle, rule verifier), a finite field where the op stays inside it, and
// Traced, which records memory accesses. With float, intermediate values of an op (sums,
// exponentials, angles) are computed in double and rounded once, when the result is stored, to the
// type of the output: f32 by default, f16 or bf16 if the node has the attribute "out". The
// definition has no other rounding that an implementation would have to reproduce.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/value.h"
#include "tensor/sym.h"
#include "tensor/tensor_type.h"

namespace tokamak {

using Attrs = Value;  // an object; keys sorted when a node is made

// A value in a graph is a tensor, a version of a state, or the view of a KV group that a step gets.
struct Type {
  enum class Kind : uint8_t { kTensor, kState, kView };
  Kind kind = Kind::kTensor;
  TensorType tensor;  // kTensor
  std::string name;   // kState: the state; kView: the group
  static Type of(TensorType t) { return {Kind::kTensor, std::move(t), {}}; }
  static Type state(std::string name) { return {Kind::kState, {}, std::move(name)}; }
  static Type view(std::string group) { return {Kind::kView, {}, std::move(group)}; }
  std::string text() const;  // "f32[t=T]", "state<kv.0>", "view<full>"
  bool operator==(const Type&) const = default;
};

// --- Meaning ---

// The element type of integer tensors in a meaning over S: int32, or its traced form
// (ops/traced.h).
class Traced;
class TracedIndex;
template <class S>
using IndexOf = std::conditional_t<std::is_same_v<S, Traced>, TracedIndex, int32_t>;

// A dense row-major tensor of the interpreter. Exactly one of f and i is set: i for integer
// tensors.
template <class S>
struct TensorRef {
  std::span<const int64_t> dims;
  S* f = nullptr;
  IndexOf<S>* i = nullptr;
  DType storage = DType::kF32;  // outputs: what store() rounds to (ops/meaning.h)
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
};

// One state as the interpreter sees it: planes of `slots` physical slots, row-major
// [slot][per-token extents].
template <class S>
struct StateRef {
  struct Plane {
    std::string_view name;
    S* data;
    int64_t width;                  // elements per token
    std::span<const int64_t> dims;  // per-token extents, e.g. [kv_heads, head_dim]
  };
  std::span<Plane> planes;
  int64_t slots;
  const Plane* plane(std::string_view name) const {
    for (const Plane& p : planes)
      if (p.name == name) return &p;
    return nullptr;
  }
};

// A KV group's block table for this step: physical slot of logical slot s of sequence b is
// table[b * stride + s / block_size] * block_size + s % block_size. Entries may be -1 (dropped by a
// window).
struct ViewRef {
  const int32_t* table = nullptr;
  int64_t stride = 0;
  int64_t block_size = 16;
  int64_t physical(int64_t b, int64_t s) const {
    return int64_t{table[b * stride + s / block_size]} * block_size + s % block_size;
  }
};

template <class S>
struct Operand {
  TensorRef<S> tensor;
  StateRef<S> state;  // when the operand is a state version
  ViewRef view;       // when the operand is a view
};

template <class S>
struct MeaningArgs {
  std::span<const Operand<S>> in;
  std::span<const Operand<S>> out;  // tensors are allocated by the caller from the inferred types
  const Attrs& attrs;
};
template <class S>
using Meaning = void (*)(const MeaningArgs<S>&);

// Integers modulo a 61-bit Mersenne prime, for exact checks of rewrites (ops/field.h).
class Field;

// --- Definition ---

enum class Tier : uint8_t {
  kPrimitive,
  kComposite,
  kStructural, /* input, weight, constant, return */
  kRegion      /* its type rule and meaning are a function of the module (graph/region.h) */
};

// What a type rule sees. Rules throw Error(kInvalidArgument, "<op>: ...") when the inputs do not
// fit.
struct InferContext {
  struct Plane {
    std::string_view name;
    const TensorType* type;  // per-token extents
  };
  std::span<const Type> in;
  const Attrs& attrs;
  // Plane number `index` of a state as the module declares it, nullopt after the last one. If not
  // set, attend takes the value's width from the query and append does not check its planes.
  std::function<std::optional<Plane>(std::string_view state, int index)> plane = nullptr;
};

// How Loop IR expresses an op (compile/lower): what an element of output 0 is. With it an op can be
// fused without a kernel of its own; the compiler knows it by nothing else.
struct LoopForm {
  enum class Kind : uint8_t {
    kNone,       // not at all: it can only be the anchor of a region
    kElement,    // of the same element of each operand, broadcast
    kRow,        // of a row of operand 0, its last axis; other operands are vectors along it
    kReduce,     // of the elements along attribute "axis", which "keep" = 1 keeps
    kCast,       // of operand 0 in the output's type
    kEncode,     // operand 0, encoded where a region stores it
    kSame,       // the element of operand 0 with the same number in row-major order
    kBroadcast,  // the element of operand 0 that broadcasting repeats
    kTranspose,  // of operand 0; its axes by attribute "perm"
    kSlice,      // of operand 0; attributes "axis" and "start"
    kGather,     // of operand 0; operand 1 is the index along attribute "axis"
    kIota,       // its own number
  };
  Kind kind = Kind::kNone;
  // kElement, kRow, kReduce: the value in ops of Loop IR, "d = sub(a, max(a)); exp(d)". a, b, c:
  // the operands (an absent one drops out of its add or mul); columns: elements of a row; other
  // names are attributes. Empty: Loop IR has an op for it.
  std::string_view formula = {};
};

// How much of an operand an op reads, for predictions of traffic.
struct OperandRead {
  enum class Kind : uint8_t {
    kAll,
    kSelectedRows,  // rows of its first axis that operand `by` names
    kRowPerRow,     // at most one slice of its first axis for each row of operand `by`
    kAsOutput,      // as many elements as output 0 has
    kTokenRows,     // rows of tokens, not of padding
    kSequenceEnds,  // one number per sequence that has tokens, and one more
    kOneElement,
  };
  Kind kind = Kind::kAll;
  size_t by = 0;
};

struct OpDef {
  std::string_view name;
  Tier tier;
  int min_inputs, max_inputs;  // max -1: any number
  std::vector<Type> (*infer)(const InferContext&);
  Meaning<float> f32 = nullptr;
  Meaning<double> f64 = nullptr;
  Meaning<Traced> traced = nullptr;               // counts what is read and written
  Meaning<Field> field = nullptr;                 // nullptr: outside the finite-field fragment
  std::vector<std::string_view> attr_names = {};  // required ones first
  int required_attrs = 0;
  bool writes_state = false;  // consumes a state version and yields the next; never hash-consed
  // writes_state: reads what it replaces, the state of each sequence, and yields a tensor beside
  // the next version. No other op reads the state, so there are no ordering inputs.
  bool recurrent = false;
  bool reads_state = false;
  bool ragged = false;  // may take tensors with device-valued extents
  // Output 0 is computed and stored as f32, or in the type named by the attribute kStorageAttr.
  bool storage = false;
  SymExpr (*flops)(std::span<const Type> in,
                   std::span<const Type> out) = nullptr;  // nullptr: one per output element
  std::string_view doc = {};                              // one line, shown by docs and `--help`

  // --- What the compiler knows about it: no pass or planner knows an op by its name. The defaults
  // suit an op that reads all of its operands.
  enum class Role : uint8_t { kOp, kInput, kWeight, kConstant };  // structural ops have the others
  Role role = Role::kOp;
  bool alias = false;      // output 0 is the bytes of operand 0 under other extents
  bool dots = false;       // its flops are dot products
  bool key_flops = false;  // `flops` counts one visible key of the state
  bool takes_q8a = false;  // operand 0 may be q8a where operand 1 is a quantised matrix
  bool sum = false;        // output 0 is the sum of its two operands
  bool product = false;    // each row of operand 0 times the transpose of the matrix operand 1
  bool chooses = false;    // output 0 is the token that sampling chose for each row
  // The operand that multiplies the columns of output 0, after which later operands are added. 0:
  // none does.
  size_t gain = 0;
  double element_ops = 1;  // vector operations per element of the outputs or written planes
  int first_plane = 0;     // writes_state: the first operand that is written to a plane
  LoopForm loop = {};
  OperandRead (*reads)(size_t operand, const Attrs& attrs) = nullptr;  // nullptr: all of each
  // Element i of n of an integer operand that another op computes, when rows (of operand 0) are
  // spread evenly: what counts of traffic assume. nullptr: 0.
  int32_t (*typical)(size_t operand, int64_t i, int64_t n, int64_t rows) = nullptr;
  // reads_state: names of the planes that it reads.
  std::vector<std::string> (*planes)(const Attrs& attrs) = nullptr;
};

// The attribute that selects the storage type of a node's output 0: "f16" or "bf16". The default is
// the type that the op's rule gives (f32); writing "f32" is an error, so that equal nodes have one
// spelling.
inline constexpr std::string_view kStorageAttr = "out";
std::optional<DType> storage_from_name(std::string_view name);  // "f32", "f16", "bf16"

const OpDef* find_op(std::string_view name);  // nullptr when unknown
std::span<const OpDef* const> all_ops();      // in the order of docs/ops.md

// Checks the number of inputs and the attribute names, runs the op's own rule and applies
// kStorageAttr.
// Throws Error(kInvalidArgument, "<op>: ...").
std::vector<Type> infer_types(const OpDef& op, const InferContext& context);

}  // namespace tokamak
