#pragma once
// A parsed template. Immutable; shared by all renders.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tokamak::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArgs {
  std::vector<ExprPtr> pos;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;
};

using FilterFn = Val (*)(Interp&, const Val&, Args&);
using TestFn = bool (*)(Interp&, const Val&, Args&);

enum class Op {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

struct Expr {
  enum class Type {
    kConst,
    kName,
    kList,
    kTuple,
    kDict,  // kids: key, value, key, value ...
    kGetattr,
    kGetitem,
    kSlice,  // kids: start, stop, step; null when absent
    kCall,
    kFilter,
    kTest,
    kNeg,
    kPos,
    kNot,
    kAnd,
    kOr,
    kBinary,
    kCompare,  // kids: n+1 operands, ops: n
    kConcat,
    kCond,  // kids: then, condition, else (may be null)
  };
  Type type;
  int line = 1;
  int depth = 1;     // of the subtree: bounds recursion
  std::string name;  // attribute, filter, test
  int symbol = -1;   // of names
  Val constant;
  std::vector<ExprPtr> kids;
  std::vector<Op> ops;
  CallArgs args;
  FilterFn filter = nullptr;
  TestFn test = nullptr;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct MacroNode {
  std::string name;
  std::vector<std::pair<int, std::string>> params;
  std::vector<ExprPtr> defaults;  // of the last ones
  Body body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Stmt {
  enum class Type {
    kData,
    kPrint,
    kIf,        // exprs[i] -> bodies[i]; one body more than exprs: else
    kFor,       // target, exprs: iterable, filter (may be null); bodies: body, else
    kSet,       // target, exprs: value
    kSetBlock,  // target, exprs: filters around the body (may be empty)
    kMacro,
    kCall,    // exprs: the call; macro: the caller
    kFilter,  // exprs: filters around the body
    kWith,    // targets with exprs, body
    kScope,   // a body with its own scope
    kBody,    // a body without
    kBreak,
    kContinue,
    kDo,
  };
  Type type;
  int line = 1;
  std::string text;  // data
  std::vector<ExprPtr> exprs;
  std::vector<ExprPtr> targets;
  std::vector<Body> bodies;
  std::unique_ptr<MacroNode> macro;
  int symbol = -1;  // of a macro
  bool recursive = false;
};

// The innermost operand of a filter chain, a placeholder for a block's text.
inline constexpr const char* kBlockText = "\x01";

struct Program {
  Body body;
  std::vector<std::string> symbols;
};

// Names defined in every template; their symbols are fixed.
enum FixedSymbol { kSymLoop, kSymVarargs, kSymKwargs, kSymCaller, kSymBlockText, kFixedSymbols };

Program parse_template(std::string_view source, int& line);

FilterFn find_filter(std::string_view name);
TestFn find_test(std::string_view name);

}  // namespace tokamak::jinja
