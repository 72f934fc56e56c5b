#pragma once
// The kernels of the backend: what each takes and costs (the plan names them), and what builds it.
#include <memory>
#include <span>

#include "backend/cpu/exec.h"
#include "plan/plan.h"

namespace tokamak::cpu {

struct CpuKernel {
  KernelDesc desc;
  std::unique_ptr<CpuOp> (*make)(const OpSite& site);
  bool region = false;  // takes regions; else single ops
};
std::span<const CpuKernel> cpu_kernels();

// The kernel that a plan asks for. Throws Error(kUnsupported) with both names when this program has
// none of that name and version.
const CpuKernel& planned_kernel(const KernelEntry& entry);

// Prepares a call; site.kernel is set by this. Throws Error(kUnsupported) when the kernel cannot do
// it or a weight is in another layout than it reads.
std::unique_ptr<CpuOp> make_op(const CpuKernel& kernel, OpSite site);

}  // namespace tokamak::cpu
