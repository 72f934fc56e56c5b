#pragma once
// Which kernel runs each call of each plan: the cheapest one whose pattern and guard admit it,
// within the numeric class of the op and the layout of its weights. Both are fixed once for all
// plans: a sequence gets the same bits whatever it is batched with, and no weight is held twice.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compile/fuse/report.h"
#include "compile/planner/planner.h"
#include "compile/planner/work.h"

namespace tokamak {

class KernelChooser {
 public:
  // Refers to everything it is given.
  KernelChooser(const KernelSet& kernels, const Machine& machine,
                const std::vector<PlanRequest>& requests);
  ~KernelChooser();

  // The function of a request, with regions replaced by their nodes where that is faster or where
  // no kernel takes them.
  const Function& function(size_t request) const;
  struct Choice {
    const KernelDesc* kernel = nullptr;
    uint64_t scratch = 0;  // KernelDesc::scratch at the plan's largest shape
    double seconds = 0;    // predicted there
  };
  // What runs a call of that function. Throws Error(kUnsupported) naming op and types when
  // there is none.
  const Choice& choice(size_t request, const Node& node) const;
  const std::vector<KernelChoice>& report() const { return report_; }
  // "linear q8a weight q4_0: i32 dot ...", of every op in every plan: what bits depend on.
  std::set<std::string> numeric_classes() const;

 private:
  struct Bucket;
  struct Matrix {  // a weight of rank 2 or more
    std::string name;
    size_t operand;
  };
  struct Site;
  struct Option {
    const KernelDesc* kernel = nullptr;
    double seconds = 0;
    uint64_t scratch = 0;
    std::string refused;  // why it cannot be taken; empty: it can
  };
  using Options = std::vector<Option>;

  using LayoutSeconds = std::map<std::string, double>;

  void fix_classes();
  void fix_layouts();
  void decide(Bucket& bucket);
  Site site(const Bucket& bucket, const Function& fn, NodeId id) const;
  Site inner_site(const Bucket& bucket, const Function& fn, const Node& region,
                  const Function& body, NodeId id) const;
  // Calls see(site) for every call of every request, and for every op inside a region.
  template <class See>
  void each_site(See&& see) const;
  Options options(const Site& site) const;
  std::string layout_for(const KernelDesc& kernel, const Site& site, size_t operand) const;
  LayoutSeconds layout_seconds(const Site& site, const Options& options,
                               const Matrix& matrix) const;
  std::map<std::string, LayoutSeconds> region_layouts(const Bucket& bucket, const Function& fn,
                                                      NodeId id) const;
  static const Option* best(const Options& options);
  // The option that the request forces for the calls of the group, else the best one.
  static const Option* taken(const Bucket& bucket, const std::string& group,
                             const Options& options);
  void note(const Bucket& bucket, const Node& node, const std::string& group,
            const Options& options, const Option* chosen, double apart);

  const KernelSet& kernels_;
  const Machine& machine_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::map<std::string, std::string> class_of_;   // by signature of the node
  std::map<std::string, std::string> layout_of_;  // by name of the weight; absent: any
  std::vector<KernelChoice> report_;
};

}  // namespace tokamak
