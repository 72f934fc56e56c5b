#include "backend/cpu/eager.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/error.h"

namespace tokamak::cpu {
namespace {

bool in_arena(const CallArg& arg) { return arg.kind == CallArg::Kind::kArena; }

}  // namespace

void EagerValues::Free::operator()(void* p) const { std::free(p); }

EagerValues::EagerValues(const Plan& plan) : plan_(plan), last_read_(plan.calls.size()) {
  std::vector<size_t> last;  // call, by value
  auto note = [&](const CallArg& arg, size_t call) {
    if (!in_arena(arg)) return;
    if (arg.index >= last.size()) last.resize(arg.index + 1, 0);
    last[arg.index] = call;
  };
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    for (const CallArg& arg : plan.calls[i].in) note(arg, i);
    for (const CallArg& arg : plan.calls[i].out) note(arg, i);
  }
  for (const PlanOutput& o : plan.outputs) note(o.arg, plan.calls.size());
  for (uint32_t v = 0; v < last.size(); ++v)
    if (last[v] < plan.calls.size()) last_read_[last[v]].push_back(v);
  values_.resize(last.size());
}

void* EagerValues::at(uint32_t value) const {
  TK_CHECK(value < values_.size() && values_[value], "eager: value {} has no buffer", value);
  return values_[value].get();
}

void EagerValues::before(size_t call, std::vector<Tensor>& in, std::vector<Tensor>& out) {
  const KernelCall& k = plan_.calls[call];
  for (size_t i = 0; i < k.in.size(); ++i)
    if (in_arena(k.in[i])) in[i].data = at(k.in[i].index);
  for (size_t i = 0; i < k.out.size(); ++i) {
    if (!in_arena(k.out[i])) continue;
    size_t bytes = dtype_bytes(k.out[i].dtype, out[i].elements());
    void* p = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) throw std::bad_alloc();
    values_[k.out[i].index].reset(p);
    out[i].data = p;
  }
}

void EagerValues::after(size_t call) {
  for (uint32_t v : last_read_[call]) values_[v].reset();
}

void EagerValues::outputs(std::vector<Tensor>& tensors) {
  for (size_t o = 0; o < tensors.size(); ++o)
    if (in_arena(plan_.outputs[o].arg)) tensors[o].data = at(plan_.outputs[o].arg.index);
}

void EagerValues::clear() {
  for (auto& v : values_) v.reset();
}

}  // namespace tokamak::cpu
