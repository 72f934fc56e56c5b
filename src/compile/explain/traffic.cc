#include "compile/explain/traffic.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "plan/region.h"

namespace tokamak {
namespace {

Type type_of(const PlanSet& set, const CallArg& arg) {
  switch (arg.kind) {
    case CallArg::Kind::kState:
      return Type::state(set.states.at(arg.index).name);
    case CallArg::Kind::kView:
      return Type::view(set.groups.at(arg.index).name);
    default: {
      TensorType t{arg.dtype, {}};
      for (const SymExpr& e : arg.dims) t.dims.push_back({"x", e, false});
      return Type::of(std::move(t));
    }
  }
}

const StateEntry& state_of(const PlanSet& set, std::string_view name) {
  for (const StateEntry& s : set.states)
    if (s.name == name) return s;
  fail(ErrorCode::kCorrupt, "the plan set has no state {}", name);
}

// Output types of a step from its input types.
std::vector<Type> infer_step(const PlanSet& set, const OpDef& op, const Value& attrs,
                             std::span<const Type> in) {
  std::vector<TensorType> planes;
  planes.reserve(16);
  auto plane = [&](std::string_view state, int index) -> std::optional<InferContext::Plane> {
    const StateEntry& s = state_of(set, state);
    if (static_cast<size_t>(index) >= s.planes.size()) return std::nullopt;
    const PlaneEntry& p = s.planes[static_cast<size_t>(index)];
    TensorType& t = planes.emplace_back();
    t.dtype = p.dtype;
    for (int64_t d : p.dims) t.dims.push_back({"x", d, false});
    return InferContext::Plane{p.name, &t};
  };
  return infer_types(op, {in, attrs, plane});
}

const OpDef& known_op(std::string_view name) {
  const OpDef* op = find_op(name);
  if (!op) fail(ErrorCode::kUnsupported, "explain: unknown op {}", name);
  return *op;
}

// The keys visible to attend in the step's sequences.
struct Visible {
  double tokens = 0;  // distinct ones, over all sequences
  double keys = 0;    // over all rows
};
Visible visible_tokens(const StepInputs& step, const Attrs& attrs) {
  int64_t window = attrs.get_int("window", 0), chunk = attrs.get_int("chunk", 0);
  // The first key that a row at a position sees.
  auto first = [&](int64_t pos) {
    if (chunk > 0) return pos / chunk * chunk;
    return window > 0 ? std::max<int64_t>(0, pos + 1 - window) : 0;
  };
  Visible v;
  for (size_t b = 0; b < step.kv_len.size(); ++b) {
    int64_t rows = step.q_start[b + 1] - step.q_start[b], length = step.kv_len[b];
    if (rows == 0) continue;
    int64_t start = std::max<int64_t>(0, length - rows);
    v.tokens += static_cast<double>(length - first(start));
    for (int64_t pos = start; pos < length; ++pos)
      v.keys += static_cast<double>(pos + 1 - first(pos));
  }
  return v;
}

// The formulas.
class Predictor {
 public:
  Predictor(const TrafficSite& site, const KernelCall& call)
      : site_(site), call_(call), body_(call_body(site.set, call)) {}

  CallTraffic traffic() const {
    CallTraffic out;
    out.in.resize(call_.in.size());
    out.out.resize(call_.out.size());
    for (const CallStep& s : body_.steps)
      for (size_t i = 0; i < s.in.size(); ++i) {
        if (s.in[i] >= call_.in.size()) continue;  // stays inside the call
        double& read = out.in[first_of(s.in[i])].read;
        read = std::max(read, s.program ? loaded_bytes(s, s.in[i]) : read_bytes(s, i));
      }
    for (size_t o = 0; o < call_.out.size(); ++o) {
      const Type& t = body_.types[body_.results[o]];
      out.out[o].written = t.kind == Type::Kind::kTensor ? bytes(t) : appended_bytes(t.name);
    }
    return out;
  }

  CallWork work() const {
    CallWork w;
    for (const CallStep& s : body_.steps) {
      if (!s.program) {
        unit_of(s, w) += step_flops(s);
        continue;
      }
      for (const loop::Instr& i : s.program->code)
        if (loop::op_info(i.op).kind != loop::OpKind::kSource) w.vector += points(*s.program, i);
    }
    return w;
  }

 private:
  double& unit_of(const CallStep& s, CallWork& w) const {
    if (!s.op->dots) return w.vector;
    const Type& x = in(s, 0);
    return x.kind == Type::Kind::kTensor && x.tensor.dtype == DType::kQ8A ? w.i8 : w.f32;
  }

  // Points of the iteration space at which an instruction is computed; a reduction visits all.
  double points(const loop::Program& p, const loop::Instr& i) const {
    double n = 1;
    for (const SymExpr& r : p.rows) n *= eval(r);
    bool reduces = loop::op_info(i.op).kind == loop::OpKind::kReduce;
    return i.type.form == loop::Form::kTile || reduces ? n * eval(p.columns) : n;
  }

  // Elements touched by one access of a program: the index is linear, so an axis counts if the
  // index depends on it.
  double touched(const loop::Program& p, const loop::Access& access) const {
    auto depends = [&](const std::string& v) {
      std::map<std::string, SymExpr, std::less<>> zero{{v, 0}}, one{{v, 1}};
      return access.index.substitute(zero) != access.index.substitute(one);
    };
    double n = depends("c") ? eval(p.columns) : 1;
    for (size_t r = 0; r < p.rows.size(); ++r)
      if (access.by >= 0 || depends(fmt::format("r{}", r))) n *= eval(p.rows[r]);
    return n;
  }

  double loaded_bytes(const CallStep& s, uint32_t input) const {
    std::map<std::string, double> accesses;
    for (const loop::Instr& i : s.program->code)
      if (i.op == loop::Op::kLoad && first_of(s.in[i.access.param]) == first_of(input))
        accesses[fmt::format("{} {}", i.access.index.text(), i.access.by)] =
            touched(*s.program, i.access);
    double n = 0;
    for (const auto& [index, elements] : accesses) n += elements;
    const Type& t = body_.types[input];
    return bytes(t) * std::min(1.0, n / std::max(1.0, elements(t)));
  }
  size_t first_of(size_t input) const {
    if (input >= call_.in.size()) return input;  // a value inside the region
    int first = first_same(call_.in, input);
    return first < 0 ? input : static_cast<size_t>(first);
  }

  double eval(const SymExpr& e) const { return static_cast<double>(e.eval(site_.symbols)); }
  double bytes(const Type& t) const { return eval(t.tensor.bytes()); }
  double elements(const Type& t) const { return eval(t.tensor.elements()); }
  const Type& in(const CallStep& s, size_t i) const { return body_.types[s.in[i]]; }
  const Type& out(const CallStep& s) const { return body_.types[s.out[0]]; }

  double appended_bytes(std::string_view state) const {
    if (state_of(site_.set, state).per_sequence) return sequence_bytes(state);
    double per_token = 0;
    for (const PlaneEntry& p : state_of(site_.set, state).planes)
      per_token += static_cast<double>(p.bytes_per_token);
    return per_token *
           static_cast<double>(std::count_if(site_.step.slot.begin(), site_.step.slot.end(),
                                             [](int32_t slot) { return slot >= 0; }));
  }

  // Distinct rows that an index selects from a table: known for a step input; for a computed index
  // all may
  // differ.
  double picked(const Type& table, uint32_t index) const {
    double all = eval(table.tensor.extent(0)), rows = elements(body_.types[index]);
    if (index < call_.in.size() && call_.in[index].kind == CallArg::Kind::kInput) {
      const std::vector<int32_t>& values =
          step_values(site_.step, site_.set.inputs[call_.in[index].index].name);
      std::set<int32_t> different(values.begin(), values.end());
      different.erase(different.begin(), different.lower_bound(0));
      rows = static_cast<double>(different.size());
    }
    return all > 0 ? bytes(table) / all * std::min(all, rows) : 0;
  }

  double attended_bytes(const CallStep& s) const {
    const StateEntry& state = state_of(site_.set, in(s, 1).name);
    std::vector<std::string> names = s.op->planes(*s.attrs);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    double per_token = 0;
    for (const PlaneEntry& p : state.planes)
      if (std::find(names.begin(), names.end(), p.name) != names.end())
        per_token += static_cast<double>(p.bytes_per_token);
    return per_token * visible_tokens(site_.step, *s.attrs).tokens;
  }

  // The states of the step's sequences.
  double sequence_bytes(std::string_view name) const {
    const std::vector<int32_t>& lengths = site_.step.kv_len;
    auto sequences = static_cast<double>(
        std::count_if(lengths.begin(), lengths.end(), [](int32_t length) { return length > 0; }));
    double bytes = 0;
    for (const PlaneEntry& p : state_of(site_.set, name).planes)
      bytes += static_cast<double>(p.bytes_per_token);
    return sequences * bytes;
  }

  // What is read of a value with one part per row of the step: nothing for padding.
  double token_rows(double all) const {
    const std::vector<int32_t>& slot = site_.step.slot;
    auto real = std::count_if(slot.begin(), slot.end(), [](int32_t at) { return at >= 0; });
    return slot.empty() ? all : all / static_cast<double>(slot.size()) * static_cast<double>(real);
  }
  double sequence_ends(double all) const {
    const StepInputs& step = site_.step;
    if (std::none_of(step.slot.begin(), step.slot.end(), [](int32_t at) { return at < 0; }))
      return all;
    auto sequences = std::count_if(step.kv_len.begin(), step.kv_len.end(),
                                   [](int32_t length) { return length > 0; });
    return static_cast<double>(4 * (sequences + 1));
  }

  double read_bytes(const CallStep& s, size_t i) const {
    const Type& t = in(s, i);
    if (t.kind == Type::Kind::kView) return 0;
    if (t.kind == Type::Kind::kState && s.op->recurrent) return sequence_bytes(t.name);
    if (t.kind == Type::Kind::kState) return s.op->reads_state ? attended_bytes(s) : 0;
    if (s.op->writes_state && !s.op->recurrent &&
        i >= static_cast<size_t>(s.op->first_plane) +
                 state_of(site_.set, in(s, 0).name).planes.size())
      return 0;  // orders the write
    OperandRead read = s.op->reads ? s.op->reads(i, *s.attrs) : OperandRead{};
    switch (read.kind) {
      case OperandRead::Kind::kAll:
        break;
      case OperandRead::Kind::kSelectedRows:
        return picked(t, s.in[read.by]);
      case OperandRead::Kind::kRowPerRow: {
        double slices = std::max(1.0, eval(t.tensor.extent(0)));
        return bytes(t) * std::min(1.0, eval(in(s, read.by).tensor.extent(0)) / slices);
      }
      case OperandRead::Kind::kAsOutput:
        return bytes(t) * elements(out(s)) / std::max(1.0, elements(t));
      case OperandRead::Kind::kTokenRows:
        return token_rows(bytes(t));
      case OperandRead::Kind::kSequenceEnds:
        return sequence_ends(bytes(t));
      case OperandRead::Kind::kOneElement:
        return bytes(t) / std::max(1.0, elements(t));
    }
    return bytes(t);
  }

  double step_flops(const CallStep& s) const {
    std::vector<Type> ins;
    for (uint32_t v : s.in) ins.push_back(body_.types[v]);
    if (!s.op->flops) return elements(out(s));
    std::span<const Type> outs(&out(s), 1);
    double n = eval(s.op->flops(ins, outs));
    if (!s.op->key_flops) return n;
    double rows = std::max(1.0, eval(ins[0].tensor.extent(0)));
    return n / rows * visible_tokens(site_.step, *s.attrs).keys;
  }

  const TrafficSite& site_;
  const KernelCall& call_;
  CallBody body_;
};

}  // namespace

double CallTraffic::bytes() const {
  double n = 0;
  for (const auto* list : {&in, &out})
    for (const ArgTraffic& a : *list) n += a.read + a.written;
  return n;
}

int first_same(const std::vector<CallArg>& args, size_t index) {
  for (size_t i = 0; i < index; ++i)
    if (args[i].kind == args[index].kind && args[i].index == args[index].index)
      return static_cast<int>(i);
  return -1;
}

CallBody call_body(const PlanSet& set, const KernelCall& call) {
  static const Value kNoAttrs = Value::object();
  CallBody body;
  for (const CallArg& arg : call.in) body.types.push_back(type_of(set, arg));
  if (call.region < 0) {
    CallStep step{&known_op(call.op), call.attrs.is_null() ? &kNoAttrs : &call.attrs, {}, {}, {}};
    for (uint32_t i = 0; i < call.in.size(); ++i) step.in.push_back(i);
    for (Type& t : infer_step(set, *step.op, *step.attrs, body.types)) {
      step.out.push_back(static_cast<uint32_t>(body.types.size()));
      body.types.push_back(std::move(t));
    }
    body.results = step.out;
    body.results.resize(call.out.size());
    body.steps.push_back(std::move(step));
    return body;
  }
  const Region& region = set.regions.at(static_cast<size_t>(call.region));
  check_region(region, call.in.size(), call.out.size());
  // After the region's inputs the call may have ordering inputs.
  auto extra = static_cast<uint32_t>(call.in.size()) - region.inputs;
  auto moved = [&](const std::vector<uint32_t>& values) {
    std::vector<uint32_t> out;
    for (uint32_t v : values) out.push_back(v < region.inputs ? v : v + extra);
    return out;
  };
  for (size_t v = region.inputs; v < region.values.size(); ++v)
    body.types.push_back(region.values[v]);
  for (const RegionPiece& piece : region.pieces) {
    const OpDef* op = piece.is_anchor() ? &known_op(piece.op) : nullptr;
    const Value* attrs = piece.attrs.is_null() ? &kNoAttrs : &piece.attrs;
    CallStep step{op, attrs, piece.program, moved(piece.in), moved(piece.out)};
    if (op && op->writes_state) body.types[step.out[0]] = body.types[step.in[0]];
    body.steps.push_back(std::move(step));
  }
  body.results = moved(region.results);
  return body;
}

CallTraffic predict_traffic(const TrafficSite& site, const KernelCall& call) {
  return Predictor(site, call).traffic();
}
CallWork predict_work(const TrafficSite& site, const KernelCall& call) {
  return Predictor(site, call).work();
}

}  // namespace tokamak
