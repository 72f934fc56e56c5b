#include "tensor/tensor_type.h"

#include <algorithm>

#include "base/error.h"
#include "base/text_cursor.h"

namespace tokamak {
namespace {

constexpr size_t kMaxRank = 16;

class TypeParser : private TextCursor {
 public:
  TypeParser(std::string_view text, size_t pos) : TextCursor(text, pos) {}

  TensorType parse() {
    TensorType type;
    auto dtype = dtype_from_name(word());
    if (!dtype) error("an element type such as f32 or q4_0");
    type.dtype = *dtype;
    if (!take('[')) error("'['");
    if (take(']')) return type;
    for (;;) {
      if (type.dims.size() == kMaxRank) error("at most 16 extents");
      type.dims.push_back(dim());
      if (take(']')) return type;
      if (!take(',')) error("',' or ']'");
    }
  }
  size_t pos() const { return pos_; }

 private:
  [[noreturn]] void error(std::string_view expected) const {
    fail(ErrorCode::kInvalidArgument, "tensor type: expected {} at \"{}\"", expected,
         text_.substr(std::min(pos_, text_.size()), 20));
  }

  Dim dim() {
    Dim d;
    skip();
    const size_t begin = pos_;
    std::string_view axis = word();
    if (take('=')) {
      if (axis.empty()) error("the name of an axis");
      d.axis = axis;
    } else if (text_.substr(std::min(pos_, text_.size()), 2) == "<=") {
      pos_ += 2;
      d.axis = axis;
      d.bound = true;
    } else {
      pos_ = begin;  // an extent without a name
    }
    d.extent = SymExpr::parse(extent_text());
    return d;
  }

  std::string_view extent_text() {
    const size_t begin = pos_;
    int depth = 0;
    for (; pos_ < text_.size() && pos_ - begin <= SymExpr::kMaxText; ++pos_) {
      const char c = text_[pos_];
      if (depth == 0 && (c == ',' || c == ']')) break;
      depth += (c == '(') - (c == ')');
      if (c == '\n') error("',' or ']'");
    }
    return text_.substr(begin, pos_ - begin);
  }
};

}  // namespace

SymExpr TensorType::elements() const {
  SymExpr n = 1;
  for (const Dim& d : dims) n = n * d.extent;
  return n;
}

SymExpr TensorType::bytes() const {
  const DTypeInfo& info = dtype_info(dtype);
  if (info.block_elements == 1) return elements() * SymExpr(info.block_bytes);
  auto last = dims.empty() ? std::nullopt : dims.back().extent.constant();
  if (!last || *last % info.block_elements != 0) {
    fail(ErrorCode::kInvalidArgument, "{}: the last extent must be a constant multiple of {}",
         text(), info.block_elements);
  }
  SymExpr n = *last / info.block_elements;
  for (size_t i = 0; i + 1 < dims.size(); ++i) n = n * dims[i].extent;
  return n * SymExpr(info.block_bytes);
}

std::string TensorType::text() const {
  std::string out(dtype_name(dtype));
  out += '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ", ";
    out += dims[i].axis;
    if (dims[i].bound) {
      out += "<=";
    } else if (!dims[i].axis.empty()) {
      out += '=';
    }
    out += dims[i].extent.text();
  }
  return out + ']';
}

TensorType parse_tensor_type(std::string_view text, size_t& pos) {
  TypeParser parser(text, pos);
  TensorType type = parser.parse();
  pos = parser.pos();
  return type;
}

}  // namespace tokamak
