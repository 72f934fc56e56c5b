// attend, attend_chunk, attend_latent: attention of the step's rows over a state. Defined row by
// row; docs/ops.md defines which keys are visible to a row.
#include <cmath>
#include <map>

#include "ops/attend.h"
#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {

std::vector<std::string> attend_key_planes(const Attrs& attrs) {
  const Value* names = attrs.find("key");
  if (!names) return {"k"};
  std::vector<std::string> out;
  for (const Value& name : names->as_array()) out.push_back(name.as_string());
  return out;
}

std::string attend_value_plane(const Attrs& attrs) { return attrs.get_string("value", "v"); }

namespace {

enum Input : size_t { kQuery, kState, kView, kPos, kSeq, kSlot, kQStart, kKvLen, kMask };

template <class S>
struct Attention {
  using Plane = typename StateRef<S>::Plane;
  const MeaningArgs<S>& args;
  std::vector<const Plane*> keys;
  const Plane* value = nullptr;
  const TensorRef<S>*sinks = nullptr, *slopes = nullptr;
  double scale, cap;
  int64_t window, chunk;
  bool masked;

  // `rest`: operands after the mask.
  Attention(const MeaningArgs<S>& a, const std::vector<std::string>& key, const std::string& of,
            size_t rest)
      : args(a) {
    const StateRef<S>& state = a.in[kState].state;
    auto plane = [&](const std::string& name) {
      const Plane* found = state.plane(name);
      TK_CHECK(found, "attend: the state has no plane {}", name);
      return found;
    };
    for (const std::string& name : key) keys.push_back(plane(name));
    value = plane(of);
    scale = a.attrs.at("scale").as_double();
    cap = a.attrs.get_double("softcap", 0);
    window = a.attrs.get_int("window", 0);
    chunk = a.attrs.get_int("chunk", 0);
    masked = a.in.size() > kMask + rest;
  }

  int32_t ints(Input input, int64_t i) const { return args.in[input].tensor.i[i]; }

  // Which of the step's own rows a key is; < 0: older.
  int64_t own_row(int64_t b, int64_t key) const {
    return key - (ints(kKvLen, b) - (ints(kQStart, b + 1) - ints(kQStart, b)));
  }
  int64_t position_of(int64_t b, int64_t key) const {
    int64_t own = own_row(b, key);
    return own < 0 ? key : ints(kPos, ints(kQStart, b) + own);
  }
  bool visible(int64_t row, int64_t b, int64_t key) const {
    int64_t first = ints(kQStart, b), own = own_row(b, key), position = position_of(b, key);
    if (window > 0 && ints(kPos, row) - position >= window) return false;
    if (chunk > 0 && ints(kPos, row) / chunk != position / chunk) return false;
    if (own < 0) return true;
    if (masked) {
      int64_t width = args.in[kMask].tensor.dims[1];
      return own < width && ints(kMask, row * width + own) != 0;
    }
    return ints(kSlot, first + own) <= ints(kSlot, row);
  }

  // A plane holds [kv heads, width] per token; a plane without a head axis is shared by all heads.
  static int64_t heads(const Plane& p) { return p.dims.size() < 2 ? 1 : p.dims[0]; }
  static int64_t head_width(const Plane& p) { return p.width / heads(p); }
  static const S* head(const Plane& p, int64_t slot, int64_t h, int64_t query_heads) {
    return p.data + slot * p.width + h / (query_heads / heads(p)) * head_width(p);
  }

  double score(const S* query, int64_t slot, int64_t h, int64_t query_heads) const {
    double sum = 0;
    for (const Plane* key : keys) {
      sum += dot(query, head(*key, slot, h, query_heads), head_width(*key));
      query += head_width(*key);
    }
    sum *= scale;
    return cap > 0 ? cap * std::tanh(sum / cap) : sum;
  }

  // Physical slots of the keys that are visible to the row, in order; with `distances`, how far
  // they are before the row.
  void find_keys(int64_t row, std::vector<int64_t>& slots,
                 std::vector<int64_t>* distances = nullptr) const {
    const StateRef<S>& state = args.in[kState].state;
    int64_t b = ints(kSeq, row);
    check_index("attend", "sequence", b, args.in[kKvLen].tensor.dims[0]);
    const ViewRef& view = args.in[kView].view;
    check_index("attend", "length", ints(kKvLen, b), view.stride * view.block_size + 1);
    slots.clear();
    if (distances) distances->clear();
    if (ints(kKvLen, b) == 0) return;
    check_index("attend", "sequence", b + 1, args.in[kQStart].tensor.dims[0]);
    for (int64_t i : {b, b + 1})
      check_index("attend", "start", ints(kQStart, i), args.in[kQuery].tensor.dims[0] + 1);
    for (int64_t key = 0; key < ints(kKvLen, b); ++key) {
      if (!visible(row, b, key)) continue;
      int64_t slot = view.physical(b, key);
      TK_CHECK(slot >= 0 && slot < state.slots, "attend: visible key {} has no block", key);
      slots.push_back(slot);
      if (distances) distances->push_back(ints(kPos, row) - position_of(b, key));
    }
  }
};

template <class S>
void attend(const MeaningArgs<S>& args) {
  const TensorRef<S>&q = args.in[kQuery].tensor, &y = args.out[0].tensor;
  int64_t heads = q.dims[1], d = q.dims[2], dv = y.dims[2];
  bool sinks = args.attrs.get_int("sinks", 0) != 0, slopes = args.attrs.get_int("slopes", 0) != 0;
  size_t rest = (sinks ? 1 : 0) + (slopes ? 1 : 0);
  Attention<S> attention(args, attend_key_planes(args.attrs), attend_value_plane(args.attrs), rest);
  if (sinks) attention.sinks = &args.in[args.in.size() - rest].tensor;
  if (slopes) attention.slopes = &args.in.back().tensor;
  std::vector<int64_t> slots, distances;
  std::vector<double> power, sum(static_cast<size_t>(dv));
  for (int64_t row = 0; row < q.dims[0]; ++row) {
    attention.find_keys(row, slots, &distances);
    power.resize(slots.size());
    for (int64_t h = 0; h < heads; ++h) {
      double sink = attention.sinks ? double(attention.sinks->f[h]) : -INFINITY;
      double peak = sink, total = 0;
      for (size_t i = 0; i < slots.size(); ++i) {
        power[i] = attention.score(q.f + (row * heads + h) * d, slots[i], h, heads);
        if (slopes) power[i] -= double(attention.slopes->f[h]) * static_cast<double>(distances[i]);
        peak = std::max(peak, power[i]);
      }
      if (attention.sinks) total = std::exp(sink - peak);
      std::fill(sum.begin(), sum.end(), 0.0);
      for (size_t i = 0; i < slots.size(); ++i) {
        double p = std::exp(power[i] - peak);
        const S* v = attention.head(*attention.value, slots[i], h, heads);
        for (int64_t j = 0; j < dv; ++j) sum[static_cast<size_t>(j)] += p * double(v[j]);
        total += p;
      }
      for (int64_t j = 0; j < dv; ++j)
        store(y, (row * heads + h) * dv + j,
              slots.empty() ? 0.0 : sum[static_cast<size_t>(j)] / total);
    }
  }
}

// Keys and values of one head: matrices times the vectors of plane c, each computed when it is
// first asked for.
template <class S>
class ExpandedHead {
 public:
  ExpandedHead(const MeaningArgs<S>& args, const Attention<S>& attention, int64_t head)
      : up_key_(args.in[args.in.size() - 2].tensor),
        up_value_(args.in.back().tensor),
        plane_(*attention.value),
        head_(head) {}
  int64_t key_width() const { return up_key_.dims[2]; }

  const double* key(int64_t slot) {  // followed by the value
    auto [it, fresh] = at_.try_emplace(slot);
    if (fresh) expand(plane_.data + slot * plane_.width, it->second);
    return it->second.data();
  }

 private:
  void expand(const S* x, std::vector<double>& out) const {
    int64_t c = up_key_.dims[1], n = up_key_.dims[2], dv = up_value_.dims[1];
    out.assign(static_cast<size_t>(n + dv), 0.0);
    for (int64_t j = 0; j < c; ++j)
      for (int64_t k = 0; k < n; ++k)
        out[static_cast<size_t>(k)] += double(x[j]) * double(up_key_.f[(head_ * c + j) * n + k]);
    for (int64_t k = 0; k < dv; ++k)
      out[static_cast<size_t>(n + k)] = dot(x, up_value_.f + (head_ * dv + k) * c, c);
  }

  const TensorRef<S>&up_key_, &up_value_;  // [h, c, n], [h, dv, c]
  const typename StateRef<S>::Plane& plane_;
  int64_t head_;
  std::map<int64_t, std::vector<double>> at_;
};

template <class S>
void attend_latent(const MeaningArgs<S>& args) {
  const TensorRef<S>&q = args.in[kQuery].tensor, &y = args.out[0].tensor;
  int64_t heads = q.dims[1], d = q.dims[2], dv = y.dims[2];
  Attention<S> attention(args, {"kr"}, "c", 2);
  std::vector<int64_t> slots;
  std::vector<double> power, sum(static_cast<size_t>(dv));
  for (int64_t h = 0; h < heads; ++h) {
    ExpandedHead<S> head(args, attention, h);
    int64_t n = head.key_width();
    for (int64_t row = 0; row < q.dims[0]; ++row) {
      attention.find_keys(row, slots);
      power.resize(slots.size());
      const S* query = q.f + (row * heads + h) * d;
      double peak = -INFINITY, total = 0;
      for (size_t i = 0; i < slots.size(); ++i) {
        power[i] = attention.score(query + n, slots[i], h, heads);  // the rotated part
        const double* key = head.key(slots[i]);
        for (int64_t k = 0; k < n; ++k) power[i] += attention.scale * double(query[k]) * key[k];
        peak = std::max(peak, power[i]);
      }
      std::fill(sum.begin(), sum.end(), 0.0);
      for (size_t i = 0; i < slots.size(); ++i) {
        double p = std::exp(power[i] - peak);
        const double* value = head.key(slots[i]) + n;
        for (size_t j = 0; j < sum.size(); ++j) sum[j] += p * value[j];
        total += p;
      }
      for (int64_t j = 0; j < dv; ++j)
        store(y, (row * heads + h) * dv + j,
              slots.empty() ? 0.0 : sum[static_cast<size_t>(j)] / total);
    }
  }
}

// The number of kv heads must divide the number of query heads. Returns the width of one head.
SymExpr check_plane(const Rule& rule, const InferContext::Plane& plane, const SymExpr& heads) {
  const TensorType& type = *plane.type;
  if (type.rank() != 1 && type.rank() != 2)
    rule.fail("plane {} must be [kv heads, width] or [width]", plane.name);
  auto kv = type.rank() == 2 ? type.extent(0).constant() : 1, h = heads.constant();
  if (!kv || !h || *kv < 1 || *h % *kv != 0)
    rule.fail("{} query heads are not a multiple of the kv heads of {} {}", heads.text(),
              plane.name, type.text());
  return type.extent(-1);
}

// Checks the planes named by the attributes. Returns the value's last axis.
Dim value_axis(const Rule& rule, const std::string& state, const TensorType& q) {
  if (!rule.knows_planes()) return q.dims[2];
  auto find = [&](std::string_view name) {
    for (int p = 0;; ++p) {
      auto plane = rule.plane(state, p);
      if (!plane) rule.fail("state {} has no plane \"{}\"", state, name);
      if (plane->name == name) return *plane;
    }
  };
  SymExpr key_width = 0;
  for (const std::string& name : attend_key_planes(rule.attrs()))
    key_width = key_width + check_plane(rule, find(name), q.extent(1));
  rule.same(q.extent(2), "the width of a query head", key_width, "the width of its key");
  auto value = find(attend_value_plane(rule.attrs()));
  check_plane(rule, value, q.extent(1));
  return value.type->dims.back();
}

// The operands that say which rows belong to which sequence. Returns the queries.
const TensorType& check_rows(const Rule& rule) {
  const TensorType& q = rule.values(kQuery, "q", 3);
  rule.view(kView);
  for (auto [input, name] : {std::pair{kPos, "pos"}, {kSeq, "seq"}, {kSlot, "slot"}})
    rule.same(q.extent(0), "the rows of q", rule.integers(input, name, 1).extent(0), name);
  const TensorType &q_start = rule.integers(kQStart, "q_start", 1),
                   &kv_len = rule.integers(kKvLen, "kv_len", 1);
  rule.same(q_start.extent(0), "q_start", kv_len.extent(0) + 1, "sequences + 1");
  return q;
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("attend", context);
  const std::string& state = rule.state(kState);
  const TensorType& q = check_rows(rule);
  size_t slopes = rule.attrs().get_int("slopes", 0) != 0 ? 1 : 0,
         rest = slopes + (rule.attrs().get_int("sinks", 0) != 0 ? 1 : 0);
  if (rule.inputs() < kMask + rest) rule.fail("sinks or slopes are missing");
  for (size_t i = 1; i <= rest; ++i)
    rule.same(rule.values(rule.inputs() - i, i <= slopes ? "slopes" : "sinks", 1).extent(0),
              i <= slopes ? "the slopes" : "the sinks", q.extent(1), "the heads of q");
  if (rule.inputs() > kMask + rest)
    rule.same(q.extent(0), "the rows of q", rule.integers(kMask, "mask", 2).extent(0), "the mask");
  if (rule.attrs().get_int("window", 0) < 0) rule.fail("window must not be negative");
  if (rule.attrs().get_string(kAttendProducts, "bf16") != "bf16")
    rule.fail("products must be \"bf16\"");
  double softcap = rule.attrs().get_double("softcap", 0);
  if (!std::isfinite(softcap) || softcap < 0)
    rule.fail("softcap must be a finite number that is not negative, got {}", softcap);
  return one(DType::kF32, {q.dims[0], q.dims[1], value_axis(rule, state, q)});
}

std::vector<Type> infer_chunk(const InferContext& context) {
  Rule rule("attend_chunk", context);
  if (rule.attrs().get_int("chunk", 0) < 1) rule.fail("chunk must be positive");
  return infer(context);
}

std::vector<Type> infer_latent(const InferContext& context) {
  Rule rule("attend_latent", context);
  const std::string& state = rule.state(kState);
  const TensorType& q = check_rows(rule);
  size_t key = rule.inputs() - 2, value = rule.inputs() - 1;
  if (key > kMask)
    rule.same(q.extent(0), "the rows of q", rule.integers(kMask, "mask", 2).extent(0), "the mask");
  const TensorType &up_key = rule.values(key, "the key matrices", 3),
                   &up_value = rule.values(value, "the value matrices", 3);
  rule.same(up_key.extent(0), "the key matrices", q.extent(1), "the heads of q");
  rule.same(up_value.extent(0), "the value matrices", q.extent(1), "the heads of q");
  rule.same(up_key.extent(1), "c of the key matrices", up_value.extent(2), "c of the others");
  for (int p = 0; p < 2 && rule.knows_planes(); ++p) {
    auto plane = rule.plane(state, p);
    if (!plane || plane->name != (p == 0 ? "c" : "kr") || plane->type->rank() != 1)
      rule.fail("state {} must have the planes c and kr", state);
    if (p == 0)
      rule.same(plane->type->extent(0), "plane c", up_key.extent(1), "c of the key matrices");
    else
      rule.same(q.extent(2), "the width of a query head", up_key.extent(2) + plane->type->extent(0),
                "the width of its key");
  }
  return one(DType::kF32, {q.dims[0], q.dims[1], up_value.dims[1]});
}

// Per visible key: their number is known only when the step runs.
SymExpr flops(std::span<const Type> in, std::span<const Type> out) {
  return (in[kQuery].tensor.elements() + out[0].tensor.elements()) * 2;
}

// Padding rows and sequences have no tokens in the cache, so nothing is read for them.
OperandRead reads(size_t operand, const Attrs&) {
  if (operand == kQuery || operand == kPos || operand == kSlot)
    return {OperandRead::Kind::kTokenRows};
  return {operand == kQStart ? OperandRead::Kind::kSequenceEnds : OperandRead::Kind::kAll};
}

std::vector<std::string> read_planes(const Attrs& attrs) {
  std::vector<std::string> out = attend_key_planes(attrs);
  out.push_back(attend_value_plane(attrs));
  return out;
}

std::vector<std::string> latent_planes(const Attrs&) { return {"c", "kr"}; }

}  // namespace

std::vector<OpDef> attend_ops() {
  return {{.name = "attend",
           .tier = Tier::kComposite,
           .min_inputs = 8,
           .max_inputs = 11,
           .infer = infer,
           .f32 = attend<float>,
           .f64 = attend<double>,
           .traced = attend<Traced>,
           .attr_names = {"scale", "key", "sinks", "slopes", "softcap", "value", "window",
                          kAttendProducts},
           .required_attrs = 1,
           .reads_state = true,
           .storage = true,
           .flops = flops,
           .doc = "attention of the step's rows over a state",
           .dots = true,
           .key_flops = true,
           .reads = reads,
           .planes = read_planes},
          {.name = "attend_chunk",
           .tier = Tier::kComposite,
           .min_inputs = 8,
           .max_inputs = 9,
           .infer = infer_chunk,
           .f32 = attend<float>,
           .f64 = attend<double>,
           .traced = attend<Traced>,
           .attr_names = {"scale", "chunk"},
           .required_attrs = 2,
           .reads_state = true,
           .storage = true,
           .flops = flops,
           .doc = "attention over the keys in the row's chunk of positions",
           .dots = true,
           .key_flops = true,
           .reads = reads,
           .planes = read_planes},
          {.name = "attend_latent",
           .tier = Tier::kComposite,
           .min_inputs = 10,
           .max_inputs = 11,
           .infer = infer_latent,
           .f32 = attend_latent<float>,
           .f64 = attend_latent<double>,
           .traced = attend_latent<Traced>,
           .attr_names = {"scale"},
           .required_attrs = 1,
           .reads_state = true,
           .storage = true,
           .flops = flops,
           .doc = "attention with keys and values that are matrices times what the state holds",
           .dots = true,
           .key_flops = true,
           .reads = reads,
           .planes = latent_planes}};
}

}  // namespace tokamak
