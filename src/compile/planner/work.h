#pragma once
// What a node or a group of nodes has to do at a shape, for the cost functions of kernels.
#include <map>
#include <string>
#include <vector>

#include "compile/planner/kernels.h"

namespace tokamak {

using ShapeValues = std::map<std::string, int64_t, std::less<>>;

// Measures one function (or the body of a region) at a few shapes. Symbols are evaluated once: the
// planner asks often. Refers to the function.
class WorkMeter {
 public:
  // `weights`: which inputs of the function are weights (bodies); empty: none.
  // `all_weight_bytes`: of the model; 0: those that the function names.
  WorkMeter(const Function& fn, std::vector<ShapeValues> shapes, std::vector<bool> weights = {},
            double all_weight_bytes = 0);

  const std::vector<ShapeValues>& shapes() const { return shapes_; }
  double all_weight_bytes() const { return all_weight_bytes_; }
  double bytes(Ref r, size_t shape) const { return size_of(r, shape).bytes; }
  double elements(Ref r, size_t shape) const { return size_of(r, shape).elements; }
  // Nodes ascending; `parts` of the same length (empty: all are anchors). `in` and `out`: values
  // that enter and leave.
  KernelWork work(const std::vector<NodeId>& nodes, const std::vector<OpWork::Part>& parts,
                  const std::vector<Ref>& in, const std::vector<Ref>& out, size_t shape) const;

 private:
  struct ValueSize {
    double elements = 0, bytes = 0, last = 1;
  };
  const ValueSize& size_of(Ref r, size_t shape) const {
    return sizes_[r.node][r.output * shapes_.size() + shape];
  }
  bool weight(Ref r) const { return weight_[r.node]; }
  OpWork op_work(NodeId id, OpWork::Part part, size_t shape) const;
  double vector_ops(NodeId id, size_t shape) const;
  double read_bytes(const Node& node, size_t operand, double rows, size_t shape) const;

  const Function& fn_;
  std::vector<ShapeValues> shapes_;
  std::vector<bool> weight_;  // per node
  double all_weight_bytes_ = 0;
  std::vector<std::vector<ValueSize>> sizes_;  // per node: output, then shape
  std::vector<std::vector<double>> flops_;     // per node and shape; 0: element-wise
};

// Shapes at which a function's regions are judged: decode of one and of several sequences, a small
// and a full chunk of a step.
std::vector<ShapeValues> design_shapes(const Function& fn);

// m, n and k of a kernel's guard, over a range of shapes: all values between lo and hi.
bool guard_holds(const KernelDesc& kernel, const KernelWork& at_lo, const KernelWork& at_hi);
std::string guard_text(const KernelDesc& kernel);  // "m <= 16, k % 64 = 0"

}  // namespace tokamak
