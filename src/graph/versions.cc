#include <algorithm>

#include "base/error.h"
#include "graph/region.h"

namespace tokamak {

size_t first_ordering_input(const Function& function, const Node& write) {
  TK_CHECK(write.op->writes_state && !write.inputs.empty());
  return std::min(
      written_inputs(function.module(), write.op, write.attrs, function.type(write.inputs[0])),
      write.inputs.size());
}

std::vector<Ref> reads_of(const Function& function, Ref version) {
  std::vector<Ref> reads;
  for (NodeId id = version.node + 1; id < function.nodes().size(); ++id) {
    const Node& node = function.node(id);
    if (node.op->writes_state) continue;
    if (std::find(node.inputs.begin(), node.inputs.end(), version) != node.inputs.end()) {
      reads.push_back({id, 0});
    }
  }
  return reads;
}

}  // namespace tokamak
