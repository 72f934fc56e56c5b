#include "compile/planner/kernels.h"

#include <algorithm>

#include "base/error.h"
#include "compile/lower/region.h"

namespace tokamak {
namespace {

using Part = OpWork::Part;

std::vector<DType> operand_types(const Function& fn, const Node& node) {
  std::vector<DType> out;
  for (Ref in : node.inputs) {
    const Type& t = fn.type(in);
    out.push_back(t.kind == Type::Kind::kTensor ? t.tensor.dtype : DType::kU8);
  }
  return out;
}

// The storage type that a node asks for; others follow from the op.
bool stores_result(const KernelDesc& kernel, const Node& node) {
  return !stored_narrow(node) || kernel.stores(node.outputs[0].tensor.dtype);
}

// One body against one pattern with an anchor.
class BodyMatcher {
 public:
  BodyMatcher(const KernelSet::Entry& entry, const Function& body, const std::vector<bool>& weights)
      : kernel_(*entry.kernel), pattern_(entry.pattern), body_(body), weights_(weights) {}

  std::optional<std::vector<Part>> run() {
    if (!find_anchors() || !find_companions()) return std::nullopt;
    mark_reach();
    std::vector<Part> parts;
    for (NodeId id = 0; id < body_.nodes().size(); ++id) {
      if (is_input(id)) continue;
      std::optional<Part> part = part_of(id);
      if (!part) return std::nullopt;
      parts.push_back(*part);
    }
    return parts;
  }

 private:
  bool is_input(NodeId id) const { return body_.node(id).op->tier == Tier::kStructural; }
  bool is_weight_input(Ref r) const { return is_weight_value(body_, r, weights_); }
  bool loop_type(DType t) const {
    return std::find(kernel_.loop_types.begin(), kernel_.loop_types.end(), t) !=
           kernel_.loop_types.end();
  }

  bool find_anchors() {
    for (NodeId id = 0; id < body_.nodes().size(); ++id) {
      const Node& node = body_.node(id);
      if (node.op->name != pattern_.op) continue;
      std::vector<DType> types = operand_types(body_, node);
      bool weight[64] = {};
      for (size_t i = 0; i < node.inputs.size() && i < 64; ++i)
        weight[i] = is_weight_input(node.inputs[i]);
      if (!kernel_matches(pattern_, node.op->name, types,
                          {weight, std::min<size_t>(64, types.size())}))
        return false;
      if (!anchors_.empty() && body_.node(anchors_[0]).inputs[0] != node.inputs[0]) return false;
      anchors_.push_back(id);
    }
    return anchors_.size() == 1 || (pattern_.several && !anchors_.empty());
  }

  // All nodes of the companion's op share the named operands and their attributes.
  bool find_companions() {
    for (NodeId id = 0; id < body_.nodes().size(); ++id) {
      const Node& node = body_.node(id);
      if (node.op->name != pattern_.companion) continue;
      companions_.push_back(id);
      const Node& first = body_.node(companions_[0]);
      if (node.attrs != first.attrs) return false;
      for (size_t i : pattern_.companion_shares)
        if (i >= node.inputs.size() || node.inputs[i] != first.inputs[i]) return false;
    }
    return true;
  }

  // From which nodes an anchor or a companion is reached, and which are reached from an anchor.
  void mark_reach() {
    size_t n = body_.nodes().size();
    feeds_.assign(n, false);
    follows_.assign(n, false);
    anchor_.assign(n, false);
    for (NodeId id : anchors_) anchor_[id] = true;
    for (NodeId id = static_cast<NodeId>(n); id-- > 0;)
      if (anchor_[id] || feeds_[id] || is_companion(id))
        for (Ref r : body_.node(id).inputs) feeds_[r.node] = true;
    for (NodeId id = 0; id < n; ++id)
      for (Ref r : body_.node(id).inputs)
        if (anchor_[r.node] || follows_[r.node]) follows_[id] = true;
  }

  bool is_companion(NodeId id) const {
    return companions_.size() > 1 && body_.node(id).op->name == pattern_.companion;
  }
  // Where the list of ops before the anchor has the node's op; a companion comes after all of it.
  size_t place(NodeId id) const {
    const std::vector<std::string>& ops = pattern_.before;
    return static_cast<size_t>(std::find(ops.begin(), ops.end(), body_.node(id).op->name) -
                               ops.begin());
  }

  std::optional<Part> part_of(NodeId id) const {
    const Node& node = body_.node(id);
    for (const Type& t : node.outputs)
      if (t.kind == Type::Kind::kTensor && has_bound(t.tensor)) return std::nullopt;
    std::optional<Part> part;
    if (anchor_[id]) {
      part = Part::kAnchor;
    } else if (follows_[id]) {
      if (!feeds_[id] && takes_after(node)) part = Part::kAfter;
    } else if ((feeds_[id] || is_companion(id)) && takes_before(id)) {
      part = Part::kBefore;
    }
    return part;
  }

  // A chain in the order of the list: the first operand is what it works on, the others are given.
  bool takes_before(NodeId id) const {
    const Node& node = body_.node(id);
    bool listed = pattern_.takes_before(node.op->name) || is_companion(id);
    if (!listed || node.inputs.empty() || node.outputs.size() != 1) return false;
    if (!loop_type(body_.tensor(node.inputs[0]).dtype)) return false;
    for (size_t i = 1; i < node.inputs.size(); ++i)
      if (!is_input(node.inputs[i].node)) return false;
    NodeId from = node.inputs[0].node;
    if (!is_input(from) && place(from) >= place(id)) return false;
    if (kernel_.before_leaves || !feeds_[id]) return true;
    return std::none_of(body_.results().begin(), body_.results().end(),
                        [&](const Function::Result& r) { return r.ref.node == id; });
  }

  bool takes_after(const Node& node) const {
    if (!pattern_.takes_after(node.op->name) || !element_by_element(body_, node, weights_))
      return false;
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](Ref r) {
      bool before = feeds_[r.node] && !is_input(r.node) && !anchor_[r.node];
      return loop_type(body_.tensor(r).dtype) && !before;
    });
  }

  const KernelDesc& kernel_;
  const KernelPattern& pattern_;
  const Function& body_;
  const std::vector<bool>& weights_;
  std::vector<NodeId> anchors_, companions_;
  std::vector<bool> anchor_, feeds_, follows_;
};

}  // namespace

bool same_shape(const TensorType& a, const TensorType& b) {
  return std::equal(
      a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(),
      [](const Dim& x, const Dim& y) { return x.extent == y.extent && !x.bound && !y.bound; });
}

bool has_bound(const TensorType& type) {
  return std::any_of(type.dims.begin(), type.dims.end(), [](const Dim& d) { return d.bound; });
}

bool element_by_element(const Function& fn, const Node& node, const std::vector<bool>& weights) {
  return node.outputs.size() == 1 &&
         std::all_of(node.inputs.begin(), node.inputs.end(), [&](Ref r) {
           return fn.type(r).kind == Type::Kind::kTensor &&
                  same_shape(fn.tensor(r), node.outputs[0].tensor) &&
                  !is_weight_value(fn, r, weights);
         });
}

bool is_weight_value(const Function& fn, Ref r, const std::vector<bool>& weights) {
  if (is_weight(fn.node(r.node))) return true;
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] && fn.inputs()[i] == r.node) return true;
  return false;
}

std::string node_signature(const Function& fn, const Node& node, const std::vector<bool>& weights) {
  std::string out(node.op->name);
  for (Ref in : node.inputs) {
    const Type& t = fn.type(in);
    out += t.kind == Type::Kind::kTensor
               ? fmt::format(" {}{}", is_weight_value(fn, in, weights) ? "weight " : "",
                             dtype_name(t.tensor.dtype))
               : " -";
  }
  if (stored_narrow(node)) out += " as " + node.attrs.get_string(kStorageAttr, "");
  return out;
}

std::vector<bool> weight_inputs(const Function& fn, const Node& region) {
  std::vector<bool> out;
  for (Ref in : region.inputs) out.push_back(is_weight(fn.node(in.node)));
  return out;
}

KernelSet::KernelSet(const Backend& backend, bool requested) : backend_(backend) {
  const std::string isa = backend.isa();
  for (const KernelDesc& k : backend.kernels())
    if (isa_has(isa, k.needs) && (requested || !k.on_request))
      entries_.push_back({&k, parse_pattern(k.pattern)});
}

bool KernelSet::has_regions() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& e) { return e.pattern.region; });
}

const std::vector<const KernelDesc*>& KernelSet::of_node(const Function& fn, const Node& node,
                                                         const std::vector<bool>& weights) const {
  auto [it, fresh] = of_signature_.try_emplace(node_signature(fn, node, weights));
  if (!fresh) return it->second;
  std::vector<DType> types = operand_types(fn, node);
  bool weight[64] = {};
  for (size_t i = 0; i < node.inputs.size() && i < 64; ++i)
    weight[i] = is_weight_value(fn, node.inputs[i], weights);
  for (const Entry& e : entries_)
    if (!e.pattern.region && stores_result(*e.kernel, node) &&
        kernel_matches(e.pattern, node.op->name, types,
                       {weight, std::min<size_t>(64, types.size())}))
      it->second.push_back(e.kernel);
  return it->second;
}

const std::optional<Region>& KernelSet::region_of(const Function& body) const {
  auto [it, fresh] = regions_.try_emplace(structural_hash(body));
  if (fresh) it->second = build_region(body).region;
  return it->second;
}

std::optional<RegionMatch> KernelSet::match(const Entry& entry, const Function& body,
                                            const std::vector<bool>& weights) const {
  if (!entry.pattern.region) return std::nullopt;
  for (const Node& node : body.nodes())
    if (!stores_result(*entry.kernel, node)) return std::nullopt;
  if (entry.pattern.kind == KernelPattern::Anchor::kLoop) {
    const std::optional<Region>& region = region_of(body);
    if (!region || !region->whole_program()) return std::nullopt;
    size_t nodes = body.nodes().size() - body.inputs().size();
    return RegionMatch{entry.kernel, std::vector<Part>(nodes, Part::kAnchor)};
  }
  auto parts = BodyMatcher(entry, body, weights).run();
  if (!parts || !region_of(body)) return std::nullopt;
  return RegionMatch{entry.kernel, std::move(*parts)};
}

bool KernelSet::packs(const KernelDesc& kernel, const Function& fn, const Node& node,
                      size_t operand) const {
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& e) { return e.kernel == &kernel; });
  const std::vector<OperandPattern>& wanted = entry->pattern.operands;
  if (!is_region(node)) return operand < wanted.size() && wanted[operand].weight;
  const Function& body = region_body(fn.module(), node.attrs);
  if (operand >= body.inputs().size()) return false;
  for (const Node& inner : body.nodes())
    for (size_t i = 0; inner.op->name == entry->pattern.op && i < inner.inputs.size(); ++i)
      if (inner.inputs[i].node == body.inputs()[operand] && i < wanted.size() && wanted[i].weight)
        return true;
  return false;
}

std::vector<RegionMatch> KernelSet::of_region(const Function& body,
                                              const std::vector<bool>& weights) const {
  std::vector<RegionMatch> out;
  for (const Entry& e : entries_)
    if (auto m = match(e, body, weights)) out.push_back(std::move(*m));
  return out;
}

}  // namespace tokamak
