#include "graph/random_lists.h"

#include <algorithm>
#include <array>

#include "ops/sampling.h"

namespace tokamak {
namespace {

// Operands of an op: a list (or the rows of the first operand) and the starts in it.
struct ListOperands {
  std::string_view op;
  size_t list, start;
  bool tokens;  // the list holds ids of the first operand's columns
};
constexpr std::array kLists = {
    ListOperands{"penalize_tokens", 3, 4, true},  ListOperands{"penalize_repeats", 3, 4, true},
    ListOperands{"penalize_repeats", 5, 6, true}, ListOperands{"run_stages", 3, 4, true},
    ListOperands{"run_stages", 5, 6, true},       ListOperands{"bias_tokens", 1, 3, true},
    ListOperands{"grouped_linear", 0, 2, false},
};

class ListMaker {
 public:
  ListMaker(const Function& fn, Rng& rng, EvalInputs<double>& inputs)
      : fn_(fn), rng_(rng), inputs_(inputs) {}

  void make(const Node& node) {
    for (const ListOperands& l : kLists) {
      if (node.op->name != l.op) continue;
      const int64_t length = extent(node.inputs[l.list], 0);
      if (EvalTensor<double>* list = l.tokens ? input(node.inputs[l.list]) : nullptr)
        fill(*list, 0,
             std::min<int64_t>(extent(node.inputs[0], -1), rng_.below(2) ? 2 : INT32_MAX));
      if (EvalTensor<double>* start = input(node.inputs[l.start])) {
        fill(*start, 0, length + 1);
        std::sort(start->i.begin(), start->i.end());
        if (!start->i.empty() && rng_.below(2))  // every entry belongs to a list
          start->i.front() = 0, start->i.back() = static_cast<int32_t>(length);
      }
    }
    if (node.op->name == "run_stages")
      if (EvalTensor<double>* order = input(node.inputs[7])) fill(*order, -1, kSampleStages);
  }

 private:
  int64_t extent(Ref r, int axis) const { return fn_.tensor(r).extent(axis).eval(inputs_.symbols); }
  // Null: another node computes it.
  EvalTensor<double>* input(Ref r) {
    const Node& node = fn_.node(r.node);
    if (node.op->role != OpDef::Role::kInput) return nullptr;
    auto it = inputs_.tensors.find(node.attrs.at("name").as_string());
    return it == inputs_.tensors.end() ? nullptr : &it->second;
  }
  void fill(EvalTensor<double>& t, int64_t from, int64_t to) {
    for (int32_t& v : t.i)
      v = static_cast<int32_t>(from + static_cast<int64_t>(rng_.below(
                                          static_cast<uint64_t>(std::max(to - from, int64_t{1})))));
  }

  const Function& fn_;
  Rng& rng_;
  EvalInputs<double>& inputs_;
};

}  // namespace

void make_lists(const Function& fn, size_t nodes, Rng& rng, EvalInputs<double>& inputs) {
  ListMaker maker(fn, rng, inputs);
  for (size_t n = 0; n < std::min(fn.nodes().size(), nodes); ++n) maker.make(fn.nodes()[n]);
}

}  // namespace tokamak
