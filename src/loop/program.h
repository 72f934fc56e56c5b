#pragma once
// Loop IR: one fused region of element-wise ops, broadcasts, row reductions and rows by index, as a
// small typed program over an iteration space rows x columns. It defines the value of every
// element, not how it is computed: tiles, threads and memory are up to the executor. evaluate.h has
// the meaning, phases.h the phases; docs/loop_ir.md describes the text form.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/sym.h"
#include "tensor/tensor_type.h"

namespace tokamak::loop {

// wide: an intermediate value of one graph op, which the definition does not round (the evaluator
// keeps it in double). A backend may hold it in f32.
enum class Elem : uint8_t { kF32, kWide, kI32 };
enum class Form : uint8_t { kRow, kTile };  // one number per row; one per row and column

struct ValueType {
  Elem elem = Elem::kF32;
  Form form = Form::kTile;
  bool operator==(const ValueType&) const = default;
};

enum class Op : uint8_t {
  // Sources.
  kConst,    // number
  kColumns,  // the number of columns
  kIndex,    // an index expression, as i32
  kLoad,
  // One value; meaning: the graph op of the same name.
  kNeg,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kSquare,
  kSin,
  kCos,
  kTanh,
  kErf,
  kSigmoid,
  kRelu,
  kSilu,
  kGeluTanh,
  kGeluErf,
  kSoftcap,  // number
  kRoundF16,
  kRoundBF16,
  kToF32,
  kToI32,
  // Two values: f32 or wide, or both i32.
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kLt,
  kLe,
  kEq,
  kNe,
  kGe,
  kGt,
  // Three: condition (i32), yes, no.
  kSelect,
  // A tile to one number per row.
  kSum,
  kSumSquares,
  kMax,
  kMin,
  kCount
};

enum class OpKind : uint8_t { kSource, kUnary, kBinary, kCompare, kSelect, kReduce };

struct OpInfo {
  Op op;
  std::string_view name;
  OpKind kind;
  std::string_view graph_op;    // the op that defines it; empty for sources and sum_squares
  std::string_view key = {};    // the graph op's attribute that `value` or Instr::number sets
  std::string_view value = {};  // the fixed value; empty: Instr::number
  int inputs() const {
    return kind == OpKind::kSource                               ? 0
           : kind == OpKind::kBinary || kind == OpKind::kCompare ? 2
           : kind == OpKind::kSelect                             ? 3
                                                                 : 1;
  }
};
const OpInfo& op_info(Op op);

// The offset of an element in a dense row-major tensor, in elements: an expression that is linear
// in the variables r0, r1, ... (row axes), c (column) and g (the row value `by`).
struct Access {
  uint32_t param = 0;
  SymExpr index;
  // Rows by index: g is the value of this instruction, an i32 row. Loads: a negative g gives zeros;
  // stores: the row is not written. g >= limit is an error.
  int32_t by = -1;
  SymExpr limit;
  bool operator==(const Access&) const = default;
};

struct Instr {
  Op op = Op::kConst;
  ValueType type;
  std::vector<uint32_t> in;  // instructions before this one
  double number = 0;         // kConst, kSoftcap
  Access access;             // kLoad; kIndex: the index only
  bool operator==(const Instr&) const;
};

// A store writes each element of its output once: a bijection of the space (or of the rows). With
// rows by index, elements that no row writes are zero, and the last write to an element wins.
struct Store {
  Access to;
  uint32_t value = 0;
  bool operator==(const Store&) const = default;
};

// Plain data, immutable once verified; shared by all executors.
struct Program {
  std::vector<SymExpr> rows;  // extents of the row axes, outermost first; none: one row
  SymExpr columns = 1;
  // Elements are f32, f16, bf16 or i32; outputs also q8a: values are quantised when stored.
  std::vector<TensorType> in, out;
  std::vector<Instr> code;
  std::vector<Store> stores;  // one per output, in their order
  bool operator==(const Program&) const = default;
};

constexpr size_t kMaxRowAxes = 8, kMaxParams = 64, kMaxInstrs = 512;
constexpr size_t kMaxText = 1 << 18;

// Names of the variables in index expressions; extents must not use them.
std::string row_variable(size_t axis);  // "r0"
inline constexpr std::string_view kColumnVariable = "c", kByVariable = "g";

// The coefficients of an index expression. Throws Error(kInvalidArgument) if it is not linear.
struct Linear {
  std::vector<SymExpr> rows;  // coefficient of each row axis
  SymExpr column, by, offset;
};
Linear linear_parts(const SymExpr& index, size_t row_axes);
SymExpr linear_index(const Linear& parts);

// --- Text form: text.cc, docs/loop_ir.md. print(parse(print(p))) == print(p) for all verified p.
std::string print_program(const Program& program);
Program parse_program(std::string_view text);  // verified; Error(kInvalidArgument, "line N: ...")

// --- verify.cc: throws Error(kInvalidArgument, "loop program, %3 (add): ...").
void verify_program(const Program& program);
std::vector<std::string> program_symbols(const Program& program);  // sorted, of all extents
SymExpr row_count(const Program& program);

}  // namespace tokamak::loop
