// Groups of nodes that a backend's region kernels could run: grown from anchors (matrices that
// share an input, writes of a state, row ops), as far as the kernel's pattern reaches.
#include <algorithm>
#include <set>

#include "compile/fuse/fusion_graph.h"
#include "compile/lower/lower.h"
#include "compile/planner/planner.h"

namespace tokamak {
namespace {

constexpr size_t kMaxSubsets = 4;     // matrices of one input whose subsets are all looked at
constexpr size_t kMaxRowGroups = 64;  // groups of row ops that start at one node
constexpr size_t kMaxRowOps = 8;
constexpr size_t kMaxLoopGroups = 24;
constexpr size_t kMaxLoopOps = 6;

class CandidateFinder {
 public:
  CandidateFinder(const FusionGraph& graph, const Backend& backend)
      : graph_(graph), fn_(graph.fn()), backend_(backend), kernels_(region_kernels(backend)) {}

  std::vector<Candidate> run() {
    for (const RegionKernel& kernel : kernels_) {
      kernel_ = &kernel;
      if (kernel.kind == "linears") find_linears();
      if (kernel.kind == "rows") find_rows();
      if (kernel.kind == "rope_append") find_rope_append();
      if (kernel.kind == "loop") find_loops();
    }
    return std::move(out_);
  }

 private:
  std::string_view op(NodeId id) const { return fn_.node(id).op->name; }

  void add(std::vector<NodeId> nodes, std::string rule, size_t prologue = 0) {
    std::sort(nodes.begin(), nodes.end());
    bool alone = nodes.size() == 1 && find_kernel(fn_, fn_.node(nodes[0]), backend_);
    if (nodes.empty() || alone || nodes.size() > kMaxRegionOps) return;
    if (nodes.back() - nodes.front() > kMaxSpan || !graph_.convex(nodes)) return;
    if (!seen_.emplace(kernel_->kind, nodes).second) return;
    out_.push_back({std::move(nodes), kernel_->kind, std::move(rule), prologue, 0, 0});
  }

  // --- Matrices of one input ---

  void find_linears() {
    std::set<Ref> inputs;
    for (NodeId id = 0; id < fn_.nodes().size(); ++id)
      if (graph_.is_call(id) && is_matrix(id)) inputs.insert(fn_.node(id).inputs[0]);
    for (Ref x : inputs) {
      std::vector<NodeId> users;
      for (NodeId user : graph_.consumers(x))
        if (is_matrix(user) && fn_.node(user).inputs[0] == x) users.push_back(user);
      size_t all = (size_t{1} << std::min(users.size(), kMaxSubsets)) - 1;
      if (users.size() > kMaxSubsets) {
        linears_of(x, users);
        continue;
      }
      for (size_t subset = 1; subset <= all; ++subset) {
        std::vector<NodeId> chosen;
        for (size_t i = 0; i < users.size(); ++i)
          if (subset >> i & 1) chosen.push_back(users[i]);
        linears_of(x, chosen);
      }
    }
  }

  // A matrix that lies in the model: products of two activations are another matter.
  bool is_matrix(NodeId id) const {
    const Node& node = fn_.node(id);
    if (!kernel_->takes(1, node.op->name) || node.inputs.size() < 2) return false;
    for (size_t i = 1; i < node.inputs.size(); ++i)
      if (fn_.node(node.inputs[i].node).op->name != "weight") return false;
    const TensorType& y = node.outputs[0].tensor;
    return y.rank() == 2 && y.dtype == DType::kF32 && !y.dims[0].bound;
  }

  void linears_of(Ref x, const std::vector<NodeId>& matrices) {
    std::vector<std::vector<NodeId>> prologues = prologues_of(x, matrices);
    std::vector<NodeId> epilogue = epilogue_of(matrices);
    for (const std::vector<NodeId>& prologue : prologues)
      for (size_t n = 0; n <= epilogue.size(); ++n) {
        std::vector<NodeId> nodes = prologue;
        nodes.insert(nodes.end(), matrices.begin(), matrices.end());
        nodes.insert(nodes.end(), epilogue.begin(),
                     epilogue.begin() + static_cast<std::ptrdiff_t>(n));
        std::string rule = fmt::format("{} {} of one input", matrices.size(),
                                       matrices.size() == 1 ? "matrix" : "matrices");
        append_ops(rule, ", behind", prologue);
        append_ops(rule, ", then", {nodes.end() - static_cast<std::ptrdiff_t>(n), nodes.end()});
        add(std::move(nodes), std::move(rule), prologue.size());
      }
  }

  void append_ops(std::string& rule, std::string_view intro,
                  const std::vector<NodeId>& nodes) const {
    if (nodes.empty()) return;
    rule += intro;
    for (NodeId id : nodes) rule += fmt::format(" {}", op(id));
  }

  // What makes x: nothing, the last op, the last two; each only for these matrices, or for the
  // function's caller.
  std::vector<std::vector<NodeId>> prologues_of(Ref x, const std::vector<NodeId>& matrices) const {
    std::vector<std::vector<NodeId>> out = {{}};
    std::vector<NodeId> chain, users = matrices;
    std::sort(users.begin(), users.end());
    while (chain.size() < 2) {
      NodeId id = x.node;
      const Node& node = fn_.node(id);
      bool last = chain.empty();
      if (!kernel_->takes(0, node.op->name) || graph_.consumers(x) != users) break;
      if (!last && (node.op->name == "quantize" || op(chain[0]) != "quantize")) break;
      if (node.inputs.empty() || fn_.tensor(node.inputs[0]).rank() != 2) break;
      for (size_t i = 1; i < node.inputs.size(); ++i)
        if (!graph_.structural(node.inputs[i])) return out;
      if (fn_.tensor(node.inputs[0]).dtype != DType::kF32) break;
      chain.insert(chain.begin(), id);
      out.push_back(chain);
      users = {id};
      x = node.inputs[0];
    }
    return out;
  }

  // Element-wise ops on the matrices' outputs, in order, as far as they go.
  std::vector<NodeId> epilogue_of(const std::vector<NodeId>& matrices) const {
    std::vector<NodeId> group = matrices, out;
    for (NodeId id = matrices.front() + 1;
         id < fn_.nodes().size() && id - matrices.front() <= kMaxSpan && out.size() < 6; ++id) {
      if (!graph_.needed(id) || !takes_epilogue(id, group)) continue;
      group.push_back(id);
      out.push_back(id);
    }
    return out;
  }

  bool takes_epilogue(NodeId id, const std::vector<NodeId>& group) const {
    const Node& node = fn_.node(id);
    if (!kernel_->takes(2, node.op->name)) return false;
    bool joined = false;
    const TensorType& y = node.outputs[0].tensor;
    for (Ref r : node.inputs) {
      bool inside = std::find(group.begin(), group.end(), r.node) != group.end();
      joined = joined || inside;
      const Type& t = fn_.type(r);
      if (t.kind != Type::Kind::kTensor || t.tensor.dtype != DType::kF32 ||
          !same_shape(t.tensor, y) || (!inside && graph_.structural(r)))
        return false;
      // Whole blocks of a row must come from one thread: only the end of an epilogue quantises.
      if (inside && fn_.type(r).tensor.rank() != 2) return false;
    }
    return joined;
  }

  // --- Ops on rows ---

  void find_rows() {
    row_op_.clear();
    for (NodeId id = 0; id < fn_.nodes().size(); ++id) row_op_.push_back(is_row_op(id));
    for (NodeId id = 0; id < fn_.nodes().size(); ++id)
      if (row_op_[id]) grow_rows(id);
  }

  bool is_row_op(NodeId id) const {
    const Node& node = fn_.node(id);
    if (!graph_.is_call(id) || !kernel_->takes(0, node.op->name)) return false;
    const TensorType& y = node.outputs[0].tensor;
    if (y.rank() < 2 || (y.dtype != DType::kF32 && y.dtype != DType::kQ8A)) return false;
    if (std::any_of(y.dims.begin(), y.dims.end(), [](const Dim& d) { return d.bound; }))
      return false;
    if (node.op->name == "softmax" && node.attrs.get_int("axis", -1) != -1 &&
        node.attrs.get_int("axis", -1) != y.rank() - 1)
      return false;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (!row_operand(node.inputs[i], y, i)) return false;
    return true;
  }

  // A whole row, a vector as long as a row, or (not first) one number.
  bool row_operand(Ref r, const TensorType& y, size_t index) const {
    const Type& t = fn_.type(r);
    if (t.kind != Type::Kind::kTensor) return false;
    bool weight = graph_.structural(r);
    if (t.tensor.dtype != DType::kF32 && !(weight && dtype_info(t.tensor.dtype).is_float))
      return false;
    if (same_shape(t.tensor, y)) return true;
    if (index == 0) return false;
    if (t.tensor.rank() == 1 && t.tensor.extent(0) == y.extent(-1)) return true;
    return t.tensor.elements() == SymExpr(1);
  }

  std::vector<NodeId> row_neighbours(NodeId id) const {
    std::vector<NodeId> out;
    const Node& node = fn_.node(id);
    for (Ref r : node.inputs)
      if (!graph_.structural(r)) out.push_back(r.node);
    for (uint32_t o = 0; o < node.outputs.size(); ++o)
      for (NodeId user : graph_.consumers({id, o})) out.push_back(user);
    return out;
  }

  void grow_rows(NodeId first) {
    const TensorType& shape = fn_.node(first).outputs[0].tensor;
    std::set<std::vector<NodeId>> sets = {{first}};
    std::vector<std::vector<NodeId>> queue = {{first}};
    for (size_t at = 0; at < queue.size() && queue.size() < kMaxRowGroups; ++at) {
      if (queue[at].size() >= kMaxRowOps) continue;
      for (NodeId member : std::vector<NodeId>(queue[at]))
        for (NodeId next : row_neighbours(member)) {
          if (next <= first || !row_op_[next]) continue;
          if (!same_shape(fn_.node(next).outputs[0].tensor, shape)) continue;
          std::vector<NodeId> bigger = queue[at];
          if (std::find(bigger.begin(), bigger.end(), next) != bigger.end()) continue;
          bigger.insert(std::upper_bound(bigger.begin(), bigger.end(), next), next);
          if (bigger.back() - bigger.front() > kMaxSpan) continue;
          if (sets.insert(bigger).second) queue.push_back(std::move(bigger));
        }
    }
    for (std::vector<NodeId>& nodes : queue) {
      std::string rule = "row by row:";
      append_ops(rule, "", nodes);
      add(std::move(nodes), std::move(rule));
    }
  }

  // --- What Loop IR takes and no hand-written kernel does ---

  void find_loops() {
    for (NodeId id = 0; id < fn_.nodes().size(); ++id)
      if (graph_.is_call(id) && may_lower(id) && !hand_written(id)) grow_loops(id);
  }

  // A first look; lower_region decides.
  bool may_lower(NodeId id) const {
    static const std::set<std::string_view> kNever = {
        "append", "attend", "linear", "matmul", "embed", "rope", "concat", "sdpa", "top_k"};
    const Node& node = fn_.node(id);
    if (!graph_.needed(id) || node.op->tier == Tier::kStructural) return false;
    if (node.op->writes_state || node.op->reads_state || is_region(node)) return false;
    return !kNever.contains(node.op->name) && node.outputs.size() == 1;
  }
  bool hand_written(NodeId id) const {
    for (const RegionKernel& k : kernels_)
      if (k.kind == "rows" && k.takes(0, op(id))) return true;
    return false;
  }

  void grow_loops(NodeId first) {
    std::set<std::vector<NodeId>> sets = {{first}};
    std::vector<std::vector<NodeId>> queue = {{first}};
    for (size_t at = 0; at < queue.size(); ++at) {
      std::vector<NodeId> nodes = queue[at];
      if (!lowers(nodes)) continue;
      std::string rule = "loops:";
      append_ops(rule, "", nodes);
      add(nodes, std::move(rule));
      if (nodes.size() >= kMaxLoopOps) continue;
      for (NodeId member : nodes)
        for (NodeId next : row_neighbours(member)) {
          if (queue.size() >= kMaxLoopGroups || !may_lower(next)) continue;
          std::vector<NodeId> bigger = nodes;
          auto place = std::lower_bound(bigger.begin(), bigger.end(), next);
          if (place != bigger.end() && *place == next) continue;
          bigger.insert(place, next);
          if (sets.insert(bigger).second) queue.push_back(std::move(bigger));
        }
    }
  }
  bool lowers(const std::vector<NodeId>& nodes) const {
    if (nodes.back() - nodes.front() > kMaxSpan || !graph_.convex(nodes)) return false;
    return static_cast<bool>(
        lower_region(graph_.body_of(nodes, graph_.inputs_of(nodes), graph_.outputs_of(nodes))));
  }

  // --- Rotation and write of K and V ---

  void find_rope_append() {
    for (NodeId id = 0; id < fn_.nodes().size(); ++id) {
      const Node& node = fn_.node(id);
      if (!graph_.is_call(id) || node.op->name != "append" || !kernel_->takes(0, "append"))
        continue;
      std::vector<NodeId> keys = rotation(node.inputs[4], id);
      if (keys.empty()) continue;
      std::vector<NodeId> queries = query_rotation(id, keys.back());
      for (size_t k = 0; k < keys.size(); ++k)
        for (size_t q = 0; q <= queries.size(); ++q) {
          std::vector<NodeId> nodes(keys.begin() + static_cast<std::ptrdiff_t>(k), keys.end());
          nodes.insert(nodes.end(), queries.end() - static_cast<std::ptrdiff_t>(q), queries.end());
          nodes.push_back(id);
          std::string rule = "rotate and write:";
          append_ops(rule, "", nodes);
          add(std::move(nodes), std::move(rule));
        }
    }
  }

  // [norm] rope that makes r for `user` alone, in order; empty when there is no rope.
  std::vector<NodeId> rotation(Ref r, NodeId user) const {
    std::vector<NodeId> out;
    for (std::string_view want : {"rope", "norm"}) {
      const Node& node = fn_.node(r.node);
      bool fits = want == "rope" ? node.op->name == "rope" : node.op->name.ends_with("_norm");
      if (!fits || !kernel_->takes(0, node.op->name)) break;
      if (graph_.consumers(r) != std::vector<NodeId>{user} || graph_.is_result(r)) break;
      if (fn_.tensor(node.inputs[0]).dtype != DType::kF32 || fn_.tensor(r).rank() != 3) break;
      for (size_t i = 1; i < node.inputs.size(); ++i)
        if (want == "norm" && !graph_.structural(node.inputs[i])) return out;
      if (want == "rope" && !graph_.structural(node.inputs[2])) return out;
      out.insert(out.begin(), r.node);
      user = r.node;
      r = node.inputs[0];
    }
    return out;
  }

  // The queries that read what `write` wrote, if they turn by the same angles as its keys.
  std::vector<NodeId> query_rotation(NodeId write, NodeId key_rope) const {
    for (NodeId reader : graph_.consumers({write, 0})) {
      const Node& node = fn_.node(reader);
      if (node.op->name != "attend") continue;
      std::vector<NodeId> queries = rotation(node.inputs[0], reader);
      if (queries.empty()) continue;
      const Node &q = fn_.node(queries.back()), &k = fn_.node(key_rope);
      if (q.inputs[1] == k.inputs[1] && q.inputs[2] == k.inputs[2] && q.attrs == k.attrs)
        return queries;
    }
    return {};
  }

  const FusionGraph& graph_;
  const Function& fn_;
  const Backend& backend_;
  const std::vector<RegionKernel> kernels_;
  const RegionKernel* kernel_ = nullptr;
  std::vector<bool> row_op_;
  std::vector<Candidate> out_;
  std::set<std::pair<std::string, std::vector<NodeId>>> seen_;
};

}  // namespace

std::vector<Candidate> enumerate_candidates(const FusionGraph& graph, const Backend& backend) {
  return CandidateFinder(graph, backend).run();
}

}  // namespace tokamak
