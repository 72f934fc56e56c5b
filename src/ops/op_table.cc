// All ops, in the order of docs/ops.md.
#include <unordered_map>

#include "base/error.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

struct Table {
  std::vector<OpDef> ops;
  std::vector<const OpDef*> pointers;
  std::unordered_map<std::string_view, const OpDef*> by_name;

  Table() {
    for (auto family :
         {binary_ops,     unary_ops, cast_ops,     matmul_ops,   reduce_ops,    layout_ops,
          gather_ops,     top_k_ops, training_ops, linear_ops,   quantize_ops,  norm_ops,
          activation_ops, rope_ops,  sdpa_ops,     encoder_ops,  append_ops,    attend_ops,
          recurrent_ops,  route_ops, moe_ops,      sampling_ops, structural_ops})
      for (OpDef& op : family()) {
        if (op.storage) op.attr_names.push_back(kStorageAttr);
        ops.push_back(std::move(op));
      }
    for (const OpDef& op : ops) {
      pointers.push_back(&op);
      TK_CHECK(by_name.emplace(op.name, &op).second, "op {} is listed twice", op.name);
    }
  }
};

const Table& table() {
  static const Table instance;
  return instance;
}

}  // namespace

const OpDef* find_op(std::string_view name) {
  auto it = table().by_name.find(name);
  return it == table().by_name.end() ? nullptr : it->second;
}

std::span<const OpDef* const> all_ops() { return table().pointers; }

}  // namespace tokamak
