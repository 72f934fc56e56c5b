// Counting by accessors: the arguments of one call are placed in memory that records every element
// read or written, and the call's ops are evaluated over it. Values are zeros, except for the
// step's own indices and for those that rows of experts are found by: nothing else affects which
// bytes an op touches.
#include <algorithm>
#include <deque>
#include <set>

#include "base/error.h"
#include "compile/explain/traffic.h"
#include "loop/evaluate.h"
#include "ops/traced.h"

namespace tokamak {
namespace {

// Lives for one call.
class Counter {
 public:
  Counter(const TrafficSite& site, const KernelCall& call)
      : site_(site), call_(call), body_(call_body(site.set, call)) {
    values_.resize(body_.types.size());
    watched_.resize(call.in.size());
    for (size_t i = 0; i < call.in.size(); ++i) {
      int first = first_same(call.in, i);
      if (first >= 0)
        share(i, static_cast<size_t>(first));
      else
        watched_[i] = make(call.in[i], body_.types[i], values_[i], i);
    }
    for (size_t o = 0; o < call.out.size(); ++o) add_output(o);
    for (size_t v = call.in.size(); v < values_.size(); ++v) {
      if (made_.contains(v)) continue;
      const Type& t = body_.types[v];
      if (t.kind == Type::Kind::kTensor)
        make_tensor(t, values_[v], nullptr, {});
      else
        values_[v] = values_[state_input()];
    }
  }

  bool run() {
    for (const CallStep& s : body_.steps) {
      std::vector<Operand<Traced>> in, out;
      for (uint32_t v : s.in) in.push_back(values_[v]);
      for (uint32_t v : s.out) out.push_back(values_[v]);
      if (s.program) {
        std::vector<TensorRef<Traced>> from, to;
        for (const Operand<Traced>& o : in) from.push_back(o.tensor);
        for (const Operand<Traced>& o : out) to.push_back(o.tensor);
        loop::evaluate_program<Traced>(*s.program, site_.symbols, from, to);
        continue;
      }
      if (!s.op->traced) return false;
      s.op->traced({in, out, *s.attrs});
    }
    return true;
  }

  CallTraffic traffic() const {
    CallTraffic t;
    for (const auto& ranges : watched_) t.in.push_back({bytes(ranges, false), 0});
    for (const auto& ranges : written_) t.out.push_back({0, bytes(ranges, true)});
    return t;
  }

 private:
  // A traced range and its ratio of bytes to elements.
  struct Range {
    size_t number;
    int64_t block_elements;
    double block_bytes;
  };

  double bytes(const std::vector<Range>& ranges, bool written) const {
    double n = 0;
    for (const Range& r : ranges)
      n += r.block_bytes * static_cast<double>(written ? trace_.written(r.number, r.block_elements)
                                                       : trace_.read(r.number, r.block_elements));
    return n;
  }

  // The same memory with the extents of another argument.
  void share(size_t i, size_t first) {
    values_[i] = values_[first];
    if (body_.types[i].kind == Type::Kind::kTensor)
      values_[i].tensor.dims = dims_of(body_.types[i]);
  }

  void add_output(size_t o) {
    uint32_t v = body_.results[o];
    const Type& t = body_.types[v];
    if (t.kind == Type::Kind::kState) {  // a new version in the same memory
      size_t input = state_input();
      values_[v] = values_[input];
      written_.push_back(watched_[input]);
    } else {
      written_.push_back(made_.contains(v) || v < call_.in.size()
                             ? std::vector<Range>{}
                             : make(call_.out[o], t, values_[v], std::nullopt));
    }
    made_.insert(v);
  }

  size_t state_input() const {
    for (size_t i = 0; i < call_.in.size(); ++i)
      if (call_.in[i].kind == CallArg::Kind::kState) return i;
    fail(ErrorCode::kCorrupt, "{}: writes a state that it does not take", call_.label);
  }

  std::span<const int64_t> dims_of(const Type& t) {
    std::vector<int64_t>& dims = dims_.emplace_back();
    for (const Dim& d : t.tensor.dims) dims.push_back(d.extent.eval(site_.symbols));
    return dims;
  }

  // What other ops computed, as the op that reads it assumes.
  std::vector<int32_t> typical_values(uint32_t input) {
    std::vector<int32_t> values;
    for (const CallStep& s : body_.steps)
      for (size_t i = 0; i < s.in.size(); ++i) {
        if (s.in[i] != input || s.program || !s.op->typical || !values.empty()) continue;
        int64_t n = 1, rows = dims_of(body_.types[s.in[0]])[0];
        for (int64_t d : dims_of(body_.types[input])) n *= d;
        for (int64_t e = 0; e < n; ++e) values.push_back(s.op->typical(i, e, n, rows));
      }
    return values;
  }

  // `input`: its number, if it is one of the call's inputs.
  std::vector<Range> make(const CallArg& arg, const Type& t, Operand<Traced>& out,
                          std::optional<size_t> input) {
    if (arg.kind == CallArg::Kind::kView) {
      const StepInputs::Table& table = site_.step.tables[arg.index];
      out.view = {table.blocks.data(), table.stride, site_.set.groups[arg.index].block_size};
      return {};
    }
    if (arg.kind == CallArg::Kind::kState) return make_state(site_.set.states[arg.index], out);
    std::vector<Range> ranges;
    if (input && arg.kind == CallArg::Kind::kInput)
      make_tensor(t, out, &ranges, step_values(site_.step, site_.set.inputs[arg.index].name));
    else if (input && t.tensor.dtype == DType::kI32)
      make_tensor(t, out, &ranges, typical_values(static_cast<uint32_t>(*input)));
    else
      make_tensor(t, out, &ranges, {});
    return ranges;
  }

  // `ranges` null: accesses are not counted.
  void make_tensor(const Type& t, Operand<Traced>& out, std::vector<Range>* ranges,
                   std::span<const int32_t> values) {
    out.tensor.dims = dims_of(t);
    int64_t n = out.tensor.elements();
    const void* at;
    if (t.tensor.dtype == DType::kI32) {
      out.tensor.i = indices_.emplace_back(n).data();
      at = out.tensor.i;
      for (size_t i = 0; i < values.size() && static_cast<int64_t>(i) < n; ++i)
        out.tensor.i[i] = values[i];  // not traced yet
    } else {
      out.tensor.f = numbers_.emplace_back(n).data();
      at = out.tensor.f;
    }
    const DTypeInfo& info = dtype_info(t.tensor.dtype);
    if (ranges)
      ranges->push_back({trace_.watch(at, n), info.block_elements, double(info.block_bytes)});
  }

  std::vector<Range> make_state(const StateEntry& state, Operand<Traced>& out) {
    int64_t blocks = 0;
    for (int32_t b : site_.step.tables[state.group].blocks)
      blocks = std::max<int64_t>(blocks, b + 1);
    int64_t slots = blocks * site_.set.groups[state.group].block_rows();
    auto& planes = planes_.emplace_back();
    std::vector<Range> ranges;
    for (const PlaneEntry& p : state.planes) {
      int64_t width = 1, row = p.dims.empty() ? 1 : p.dims.back();
      for (int64_t d : p.dims) width *= d;
      Traced* data = numbers_.emplace_back(slots * width).data();
      planes.push_back({p.name, data, width, p.dims});
      // An int8 row has its own scale, so it is touched as a whole.
      int64_t unit = p.dtype == DType::kI8 ? row : dtype_info(p.dtype).block_elements;
      ranges.push_back({trace_.watch(data, slots * width), unit,
                        double(p.bytes_per_token) * double(unit) / double(width)});
    }
    out.state = {planes, slots};
    return ranges;
  }

  const TrafficSite& site_;
  const KernelCall& call_;
  CallBody body_;
  Trace trace_;
  std::vector<Operand<Traced>> values_;
  std::set<size_t> made_;
  std::vector<std::vector<Range>> watched_, written_;  // per input, per output
  std::deque<std::vector<int64_t>> dims_;
  std::deque<TracedMemory<Traced>> numbers_;
  std::deque<TracedMemory<TracedIndex>> indices_;
  std::deque<std::vector<StateRef<Traced>::Plane>> planes_;
};

}  // namespace

std::optional<CallTraffic> count_traffic(const TrafficSite& site, const KernelCall& call) {
  Counter counter(site, call);
  if (!counter.run()) return std::nullopt;
  return counter.traffic();
}

}  // namespace tokamak
