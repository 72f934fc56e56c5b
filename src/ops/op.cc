#include "ops/op.h"

#include <algorithm>

#include "ops/infer.h"

namespace tokamak {

std::string Type::text() const {
  switch (kind) {
    case Kind::kTensor:
      return tensor.text();
    case Kind::kState:
      return fmt::format("state<{}>", name);
    case Kind::kView:
      return fmt::format("view<{}>", name);
  }
  return "?";
}

namespace {

void check_attrs(const OpDef& op, const Attrs& attrs) {
  if (!attrs.is_null() && !attrs.is_object())
    fail_infer(op.name, "attributes must be an object, got {}", attrs.type_name());
  for (int i = 0; i < op.required_attrs; ++i)
    if (!attrs.has(op.attr_names[static_cast<size_t>(i)]))
      fail_infer(op.name, "attribute \"{}\" is missing", op.attr_names[static_cast<size_t>(i)]);
  if (attrs.is_null()) return;
  for (const auto& [key, value] : attrs.as_object())
    if (std::find(op.attr_names.begin(), op.attr_names.end(), key) == op.attr_names.end())
      fail_infer(op.name, "unknown attribute \"{}\"", key);
}

void check_inputs(const OpDef& op, std::span<const Type> in) {
  auto n = static_cast<int>(in.size());
  if (n < op.min_inputs || (op.max_inputs >= 0 && n > op.max_inputs)) {
    if (op.max_inputs < 0)
      fail_infer(op.name, "takes at least {} inputs, got {}", op.min_inputs, n);
    fail_infer(op.name, "takes {} to {} inputs, got {}", op.min_inputs, op.max_inputs, n);
  }
  if (op.ragged) return;
  for (const Type& type : in)
    for (const Dim& dim : type.tensor.dims)
      if (dim.bound)
        fail_infer(op.name, "does not take the device-valued extent of {}", type.text());
}

// The node's own choice of the type that output 0 is stored in.
void choose_storage(const OpDef& op, const Attrs& attrs, Type& type) {
  const Value& value = attrs.at(kStorageAttr);
  auto dtype = value.is_string() ? storage_from_name(value.as_string()) : std::nullopt;
  if (!dtype || dtype == DType::kF32)
    fail_infer(op.name, "out must be \"f16\" or \"bf16\" (f32 is the default)");
  if (type.tensor.dtype != DType::kF32)
    fail_infer(op.name, "out = {}, but its result is {}", dtype_name(*dtype), type.text());
  type.tensor.dtype = *dtype;
}

}  // namespace

std::optional<DType> storage_from_name(std::string_view name) {
  auto dtype = dtype_from_name(name);
  bool known = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  return known ? dtype : std::nullopt;
}

std::vector<Type> infer_types(const OpDef& op, const InferContext& context) {
  if (!op.infer) fail_infer(op.name, "has no type rule: it is part of the graph's structure");
  check_inputs(op, context.in);
  check_attrs(op, context.attrs);
  std::vector<Type> types = op.infer(context);
  if (op.storage && context.attrs.has(kStorageAttr)) choose_storage(op, context.attrs, types.at(0));
  return types;
}

}  // namespace tokamak
