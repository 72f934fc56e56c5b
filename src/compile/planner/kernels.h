#pragma once
// Which kernels of a backend take a node or a region, by their patterns alone.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "graph/region.h"
#include "plan/region.h"

namespace tokamak {

// Weights and constants: known before a step runs.
inline bool is_weight(const Node& node) {
  return node.op->role == OpDef::Role::kWeight || node.op->role == OpDef::Role::kConstant;
}
// A tensor that is the same bytes as its operand. Weights are not in the arena: they are copied.
inline bool is_alias(const Function& fn, const Node& node) {
  return node.op->alias && !is_weight(fn.node(node.inputs[0].node));
}
// Its result is stored in another type than f32.
inline bool stored_narrow(const Node& node) {
  return node.op->storage && node.attrs.has(kStorageAttr);
}
// One call of a plan; the others are inputs, weights and aliases.
inline bool is_call_node(const Function& fn, const Node& node) {
  return node.op->tier != Tier::kStructural && !is_alias(fn, node);
}

// A region kernel that takes a body.
struct RegionMatch {
  const KernelDesc* kernel = nullptr;
  std::vector<OpWork::Part> parts;  // of the body's nodes, without its inputs
};

// The kernels of one backend, patterns parsed. Refers to the backend. Single-threaded: it remembers
// what it was asked.
class KernelSet {
 public:
  // `requested`: with kernels that are used on request only (KernelDesc::on_request).
  explicit KernelSet(const Backend& backend, bool requested = true);

  struct Entry {
    const KernelDesc* kernel;
    KernelPattern pattern;
  };
  const Backend& backend() const { return backend_; }
  const std::vector<Entry>& entries() const { return entries_; }
  bool has_regions() const;  // any kernel for regions

  // Kernels for the node alone, in the backend's order. `weights`: as for match().
  const std::vector<const KernelDesc*>& of_node(const Function& fn, const Node& node,
                                                const std::vector<bool>& weights = {}) const;
  // Whether one kernel takes the body; `weights`: which of its inputs are weights.
  std::optional<RegionMatch> match(const Entry& entry, const Function& body,
                                   const std::vector<bool>& weights) const;
  // Whether the kernel wants this operand of a node or region in its weight layout.
  bool packs(const KernelDesc& kernel, const Function& fn, const Node& node, size_t operand) const;
  std::vector<RegionMatch> of_region(const Function& body, const std::vector<bool>& weights) const;
  // The body as the plan has it; no value when Loop IR and anchors cannot express it.
  const std::optional<Region>& region_of(const Function& body) const;

 private:
  const Backend& backend_;
  std::vector<Entry> entries_;
  mutable std::map<std::string, std::vector<const KernelDesc*>> of_signature_;
  mutable std::map<uint64_t, std::optional<Region>> regions_;  // by the body's structure
};

// What decides which kernels take a node: its op and the types of its operands.
// `weights`: which inputs of the function are weights (bodies of regions).
std::string node_signature(const Function& fn, const Node& node,
                           const std::vector<bool>& weights = {});
// Whether a value is a weight, or an input that `weights` says is one.
bool is_weight_value(const Function& fn, Ref r, const std::vector<bool>& weights);
// What a pattern's ops after the anchor are: every operand is computed and has the result's shape.
bool element_by_element(const Function& fn, const Node& node,
                        const std::vector<bool>& weights = {});
std::vector<bool> weight_inputs(const Function& fn, const Node& region);
bool same_shape(const TensorType& a, const TensorType& b);  // extents; names of axes do not matter
bool has_bound(const TensorType& type);                     // an extent known on the device only

}  // namespace tokamak
