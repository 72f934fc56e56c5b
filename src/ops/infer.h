#pragma once
// Helpers for type rules: named access to inputs and attributes, with errors that name the problem.
#include "base/error.h"
#include "ops/op.h"

namespace tokamak {

template <class... Args>
[[noreturn]] void fail_infer(std::string_view op, fmt::format_string<Args...> format,
                             Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}", op, fmt::format(format, std::forward<Args>(args)...)));
}

// One rule's view of its context. `rank` -1: any.
class Rule {
 public:
  Rule(std::string_view op, const InferContext& context) : op_(op), context_(context) {}

  size_t inputs() const { return context_.in.size(); }
  const Attrs& attrs() const { return context_.attrs; }
  const TensorType& tensor(size_t i, std::string_view what, int rank = -1) const;
  const TensorType& values(size_t i, std::string_view what, int rank = -1) const;    // not integer
  const TensorType& plain(size_t i, std::string_view what, int rank = -1) const;     // not a block
  const TensorType& integers(size_t i, std::string_view what, int rank = -1) const;  // i32
  const std::string& state(size_t i) const;
  void view(size_t i) const;
  std::optional<InferContext::Plane> plane(std::string_view state, int index) const;
  bool knows_planes() const { return context_.plane != nullptr; }

  // Extents must be equal as expressions.
  void same(const SymExpr& a, std::string_view a_what, const SymExpr& b,
            std::string_view b_what) const;
  size_t axis(int rank, int64_t fallback) const;  // attribute "axis", negative from the end
  std::vector<Dim> dims_from_attrs() const;       // attributes "dims" and "axes"
  SymExpr extent_attr(const Value& value) const;  // an integer or the text of an expression
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_infer(op_, format, std::forward<Args>(args)...);
  }

 private:
  std::string_view op_;
  const InferContext& context_;
};

inline bool is_integer(DType dtype) { return !dtype_info(dtype).is_float && !is_block_type(dtype); }
inline std::vector<Type> one(DType dtype, std::vector<Dim> dims) {
  return {Type::of({dtype, std::move(dims)})};
}

// Trailing-aligned broadcasting of two shapes; axis names come from the longer, then the left one.
std::vector<Dim> broadcast_dims(const Rule& rule, const std::vector<Dim>& a,
                                const std::vector<Dim>& b);
// f32 for floating and block types, i32 for two i32; mixing the two is an error.
DType arithmetic_dtype(const Rule& rule, const TensorType& a, const TensorType& b);

}  // namespace tokamak
