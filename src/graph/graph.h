#pragma once
// The graph: what is to be computed. A Module declares symbols, KV groups, states, weights and
// constants, and holds functions. A Function is a topologically ordered list of nodes in SSA form;
// pure nodes are hash-consed, so equal subexpressions are one node. No weight bytes, no device or
// kernel names here.
//
// Reads and writes of state are explicit. `append` consumes a version of a state and yields the
// next; a version is consumed at most once, and a write names (as trailing inputs) every read of
// the version it replaces. A function returns the last version of each state it was given, so
// dead-code elimination can never drop a write.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ops/op.h"
#include "tensor/recipe.h"

namespace tokamak {

using NodeId = uint32_t;

// One output of one node.
struct Ref {
  NodeId node = UINT32_MAX;
  uint32_t output = 0;
  bool valid() const { return node != UINT32_MAX; }
  auto operator<=>(const Ref&) const = default;
};

struct Node {
  const OpDef* op;
  Attrs attrs;  // keys sorted
  std::vector<Ref> inputs;
  std::vector<Type> outputs;
  std::string name;                     // for readers: "blk.0.attn_q"; not part of identity
  std::vector<std::string> provenance;  // "models/llama", "rule fold_scale @ 17"
};

// Structural ops: `input` {name}, `weight` {name}, `constant` {name} (no inputs).

struct GroupDecl {     // layers whose KV is kept and freed together: one block table
  std::string name;    // "full", "window", "latent"
  int64_t window = 0;  // tokens that must be kept; 0 = all
  int64_t block_size = 16;
  bool operator==(const GroupDecl&) const = default;
};

struct PlaneDecl {
  std::string name;  // "k", "v", "scale" ...
  TensorType type;   // extents per token
  bool operator==(const PlaneDecl&) const = default;
};

struct StateDecl {
  enum class Growth : uint8_t { kPerToken, kPerSequence };
  std::string name;  // "kv.0"
  std::string group;
  Growth growth = Growth::kPerToken;
  std::vector<PlaneDecl> planes;
  bool operator==(const StateDecl&) const = default;
};

struct WeightDecl {
  std::string name;
  TensorType type;
  Recipe recipe;
  bool operator==(const WeightDecl&) const = default;
};

struct ConstantDecl {  // small tensors the compiler knows: rope frequencies, folded scalars
  std::string name;
  TensorType type;  // f32 or i32, constant extents
  std::vector<double> values;
  bool operator==(const ConstantDecl&) const = default;
};

class Module;

// Something known about an input beyond its type: "q_start = iota*1" (added by specialize()), or
// "pos >= 0", which the caller of the function promises.
struct Fact {
  std::string input;
  enum class Kind : uint8_t { kIotaTimes, kNatural } kind = Kind::kIotaTimes;
  int64_t value = 1;  // kIotaTimes: input[i] == i * value
  bool operator==(const Fact&) const = default;
};

class Function {
 public:
  struct Result {
    std::string name;  // "logits", "hidden", or the state's name
    Ref ref;
  };

  Function(const Module* module, std::string name) : name_(std::move(name)), module_(module) {}

  // Adds a node, inferring its types; throws Error(kInvalidArgument) naming the op when inputs do
  // not fit. A pure node equal to an existing one is not added again; its ref is returned.
  Ref add(std::string_view op, std::vector<Ref> inputs, Attrs attrs = {}, std::string name = {});
  std::vector<Ref> add_multi(std::string_view op, std::vector<Ref> inputs, Attrs attrs = {},
                             std::string name = {});
  Ref add_input(std::string name, Type type);
  Ref weight(std::string_view name);  // of the module; the same node each time
  Ref constant(std::string_view name);
  void set_result(std::string name, Ref ref);   // replaces one of the same name
  Ref find_input(std::string_view name) const;  // not valid() when there is none

  const std::string& name() const { return name_; }
  const Module& module() const { return *module_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  const Type& type(Ref r) const { return nodes_[r.node].outputs[r.output]; }
  const TensorType& tensor(Ref r) const { return type(r).tensor; }
  const std::vector<NodeId>& inputs() const { return inputs_; }
  const std::vector<Result>& results() const { return results_; }
  std::vector<Fact>& facts() { return facts_; }
  const std::vector<Fact>& facts() const { return facts_; }
  // The number that a node has in the text it was read from ("%12"), for messages; the printer
  // renumbers nodes. A node that the text defines twice has the first of its numbers.
  void set_text_number(NodeId id, uint64_t number) { text_numbers_.emplace(id, number); }
  std::optional<uint64_t> text_number(NodeId id) const;
  // Provenance of the nodes that are added after this call; an empty text means none.
  void set_provenance(std::string text);
  void set_provenance(std::vector<std::string> texts) { provenance_ = std::move(texts); }

 private:
  friend class Module;
  friend struct GraphTestAccess;  // verify_test.cc breaks the rules that add() upholds
  Ref structural(std::string_view op, std::string_view name, const TensorType& type);
  const StateDecl* find_state(std::string_view name);
  NodeId find_equal(uint64_t hash, const OpDef* op, const Attrs& attrs,
                    const std::vector<Ref>& inputs) const;

  std::string name_;
  const Module* module_;
  std::vector<Node> nodes_;
  std::vector<NodeId> inputs_;
  std::vector<Result> results_;
  std::vector<Fact> facts_;
  std::unordered_multimap<uint64_t, NodeId> pure_;  // structural hash -> node
  std::unordered_map<std::string, Ref> input_index_;
  std::unordered_map<std::string, size_t> result_index_;
  std::unordered_map<std::string, size_t> state_index_;  // of the module's states
  std::vector<std::string> provenance_;
  std::unordered_map<NodeId, uint64_t> text_numbers_;
};

// Whether no element of an i32 tensor is negative, as far as facts and ops tell.
bool is_natural(const Function& function, Ref r);

// Owns all declarations and functions of a model. Movable; a copy is made with clone() only.
class Module {
 public:
  explicit Module(std::string name) : name(std::move(name)) {}
  Module(const Module&) = delete;
  Module(Module&&) noexcept;
  Module& operator=(Module&&) noexcept;
  Module clone() const;

  std::string name;
  std::vector<SymbolDecl> symbols;
  std::vector<GroupDecl> groups;
  std::vector<StateDecl> states;
  std::vector<WeightDecl> weights;
  std::vector<ConstantDecl> constants;
  std::vector<std::unique_ptr<Function>> functions;

  Function& add_function(std::string name);
  Function* find_function(std::string_view name);
  const Function* find_function(std::string_view name) const;
  const SymbolDecl* find_symbol(std::string_view name) const;
  const GroupDecl* find_group(std::string_view name) const;
  const StateDecl* find_state(std::string_view name) const;
  const WeightDecl* find_weight(std::string_view name) const;  // O(1) on average
  const ConstantDecl* find_constant(std::string_view name) const;
  void add_weight(WeightDecl decl);  // duplicate names throw
  // Same name and content: kept once; same name and other content throws. Values of f32 constants
  // are rounded to f32.
  void add_constant(ConstantDecl decl);
  void keep_constants(const std::set<std::string>& names);  // drops all others

 private:
  std::unordered_map<std::string, size_t> weight_index_, constant_index_;
};

// --- State versions: versions.cc

// A node that writes a state has the inputs state, view, seq, slot and one tensor per plane of the
// state. The inputs after these are the reads of the version it replaces: they order the write
// after the reads, and no kernel uses their values. Returns the index of the first of them.
size_t first_ordering_input(const Function& function, const Node& write);
// Every node that reads the version and does not replace it, in order: a write that replaces
// `version` must name all of them.
std::vector<Ref> reads_of(const Function& function, Ref version);

// --- Text form: print.cc, parse.cc, docs/graph_text.md

std::string print_module(const Module& module);
std::string print_function(const Function& function);
Module parse_module(std::string_view text);  // throws Error(kInvalidArgument, "line N: ...")

// --- verify.cc

// Checks all rules of the graph; throws Error(kInvalidArgument, "function step, node %12 (linear):
// ...").
void verify_module(const Module& module);
void verify_function(const Function& function);

// --- specialize.cc

// Clones `from` under a new name with symbols replaced in every type and facts added; types are
// inferred again.
Function& specialize(Module& module, std::string_view from, std::string new_name,
                     const std::map<std::string, SymExpr, std::less<>>& with,
                     std::vector<Fact> facts);
Function& specialize_decode(Module& module);  // T=B, R=B, q_start = iota, out_rows = iota
Function& specialize_verify(
    Module& module, int k);  // k drafts: T=(k+1)*B, R=T, q_start = iota*(k+1), out_rows = iota

// --- stats.cc

struct GraphStats {
  size_t nodes = 0;
  std::map<std::string, size_t> per_op;
  double flops = 0, weight_bytes = 0, activation_bytes = 0;  // at given symbol values
};
GraphStats graph_stats(const Function& function,
                       const std::map<std::string, int64_t, std::less<>>& values);
uint64_t structural_hash(const Function& function);  // names, ids and provenance excluded

}  // namespace tokamak
