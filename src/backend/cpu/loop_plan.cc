#include "backend/cpu/loop_plan.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace tokamak::cpu {
namespace {

using loop::Elem;
using loop::Form;
using loop::Instr;
using loop::OpKind;
using Kind = LoopStep::Kind;
using Where = LoopPlace::Kind;

bool is_word(DType dtype) { return dtype == DType::kF32 || dtype == DType::kI32; }

// Exponentials and functions that use them.
bool is_heavy(const LoopStep& s) {
  switch (s.op) {
    case loop::Op::kNeg:
    case loop::Op::kAbs:
    case loop::Op::kSquare:
    case loop::Op::kRelu:
      return false;
    default:
      return s.kind == Kind::kUnary;
  }
}

bool is_norm(const LoopStep& s) { return s.kind == Kind::kRmsNorm || s.kind == Kind::kLayerNorm; }

}  // namespace

LoopPlan::LoopPlan(loop::Program from, const KernelTable& kernels, const OpSite& site, bool by_rows,
                   std::span<const uint32_t> params)
    : program(std::move(from)) {
  loop::Phases order = loop::make_phases(program);
  for (const loop::Store& s : program.stores) scatters = scatters || s.to.by >= 0;
  for (uint32_t s = 0; s < program.stores.size(); ++s)  // one thread writes a number of a row
    whole_rows = whole_rows || is_row_store(s);
  whole_rows = whole_rows || by_rows || scatters || order.phases.size() > 1;
  int64_t columns = program.columns.upper(site.symbols);
  uncut_rows = whole_rows && columns <= kLoopCache;
  place_values(order, site, params);
  if (uncut_rows) {
    fill_uncut(kernels);
  } else {
    phases.resize(order.phases.size());
    for (size_t i = 0; i < phases.size(); ++i) fill_phase(order, i, kernels);
  }
  int64_t work = 0;
  for (Phase& phase : phases) {
    join_products(phase);
    assign_buffers(phase);
    for (const LoopStep& s : phase.tile)
      if (!s.one) work += is_heavy(s) ? 4 : s.kind == Kind::kSoftmax ? 7 : is_norm(s) ? 3 : 1;
  }
  cost = std::max<int64_t>(1, work);
  if (whole_rows) tile = std::max(kLoopTile, kLoopCache / (buffers + 1) / 32 * 32);
  if (uncut_rows) tile = kLoopCache;
  tile = std::min(tile, (std::max<int64_t>(columns, 1) + 31) / 32 * 32);
  if (kept > 0) row_bytes = loop_aligned((columns + 15) / 16 * 64);
  lay_out_scratch();
}

// Kernels read f32 from memory; a weight's values are f32 whatever its type.
bool LoopPlan::reads_in_place(const Instr& i, const OpSite& site,
                              std::span<const uint32_t> params) const {
  const Tensor& t = site.in[params.empty() ? i.access.param : params[i.access.param]];
  return loop::linear_parts(i.access.index, program.rows.size()).column == SymExpr(1) &&
         (t.weight || is_word(t.dtype));
}

void LoopPlan::place_values(const loop::Phases& order, const OpSite& site,
                            std::span<const uint32_t> params) {
  places.resize(program.code.size());
  std::vector<int> phases_of(places.size(), 0);
  for (const loop::Phases::Phase& phase : order.phases)
    for (uint32_t id : phase.tile) ++phases_of[id];
  for (uint32_t id = 0; id < program.code.size(); ++id) {
    const Instr& i = program.code[id];
    if (i.type.form == Form::kRow) continue;
    if (i.op == loop::Op::kLoad && reads_in_place(i, site, params)) {
      places[id].kind = Where::kInput;
      if (i.access.by < 0)
        inputs.push_back(id);
      else
        gathers = true;
    } else {
      bool later = order.kept[id] || phases_of[id] > 1;  // a load that has to be converted
      places[id].kind = later && !uncut_rows ? Where::kKept : Where::kBuffer;
    }
  }
  place_stores();
  for (LoopPlace& place : places)
    if (place.kind == Where::kKept) place.slot = kept++;
}

// Values are computed where they are stored, when their elements are together there.
void LoopPlan::place_stores() {
  for (uint32_t s = 0; s < program.stores.size(); ++s) {
    const loop::Store& store = program.stores[s];
    LoopPlace& place = places[store.value];
    bool direct = store.to.by < 0 && is_word(program.out[s].dtype) &&
                  loop::linear_parts(store.to.index, program.rows.size()).column == SymExpr(1);
    bool computed = place.kind == Where::kBuffer || place.kind == Where::kKept;
    if (!direct || !computed || program.code[store.value].op == loop::Op::kLoad) continue;
    place = {Where::kOutput, s};
    direct_stores.push_back(s);
  }
}

LoopStep LoopPlan::make_step(uint32_t id, const KernelTable& kernels) {
  const Instr& i = program.code[id];
  const loop::OpInfo& info = loop::op_info(i.op);
  LoopStep s;
  s.op = i.op;
  s.to = id;
  s.number = static_cast<float>(i.number);
  s.one = i.type.form == Form::kRow && info.kind != OpKind::kReduce;
  for (size_t k = 0; k < i.in.size(); ++k) {
    s.in[k] = i.in[k];
    s.tile[k] = program.code[i.in[k]].type.form == Form::kTile;
  }
  if (!i.in.empty()) s.integer = program.code[i.in.back()].type.elem == Elem::kI32;
  if (i.op == loop::Op::kConst || i.op == loop::Op::kColumns) s.kind = Kind::kConst;
  if (i.op == loop::Op::kLoad) s.kind = Kind::kLoad;
  if (i.op == loop::Op::kIndex) s.kind = Kind::kIndex;
  if (i.op == loop::Op::kRoundF16 || i.op == loop::Op::kRoundBF16) {
    s.kind = Kind::kRound;
    s.rounding = i.op == loop::Op::kRoundF16 ? FType::kF16 : FType::kBF16;
  } else if (info.kind == OpKind::kUnary && info.graph_op != "cast") {
    s.kind = Kind::kUnary;
    Value attrs = Value::object();
    if (!info.key.empty())
      attrs.set(info.key, info.value.empty() ? Value(i.number) : Value(info.value));
    s.unary = find_unary(kernels, info.graph_op, attrs);
    TK_CHECK(s.unary.run, "{}", info.name);
  } else if (info.kind == OpKind::kBinary && !s.integer) {
    auto which = static_cast<size_t>(i.op) - static_cast<size_t>(loop::Op::kAdd);
    s.binary = kernels.binary[which];
    s.binary_scalar = kernels.binary_scalar[which];
    s.kind = s.tile[0] && s.tile[1] ? Kind::kBinary
             : s.tile[0]            ? Kind::kBinaryRight
             : s.tile[1]            ? Kind::kBinaryLeft
                                    : Kind::kBinaryRow;
  } else if (info.kind == OpKind::kReduce) {
    s.kind = uncut_rows ? Kind::kReduceRow : Kind::kReduce;
    if (!uncut_rows) s.reduce = reductions++;
    s.reduction = static_cast<Reduce>(static_cast<int>(i.op) - static_cast<int>(loop::Op::kSum));
  }
  return s;
}
static_assert(static_cast<int>(loop::Op::kMinimum) - static_cast<int>(loop::Op::kAdd) ==
              static_cast<int>(Binary::kMin));
static_assert(static_cast<int>(loop::Op::kMin) - static_cast<int>(loop::Op::kSum) ==
              static_cast<int>(Reduce::kMin));

void LoopPlan::fill_phase(const loop::Phases& order, size_t phase, const KernelTable& kernels) {
  Phase& out = phases[phase];
  for (uint32_t id : order.phases[phase].row) {
    LoopStep s = make_step(id, kernels);
    (s.kind == Kind::kConst ? once : out.row).push_back(s);
  }
  auto done = [&](uint32_t id) {  // a load of an earlier phase that is kept
    for (size_t p = 0; p < phase; ++p)
      for (uint32_t before : order.phases[p].tile)
        if (before == id) return true;
    return false;
  };
  for (uint32_t id : order.phases[phase].tile) {
    if (places[id].kind == Where::kInput) {
      if (program.code[id].access.by >= 0) out.rows_by_index.push_back(id);
    } else if (!done(id)) {
      out.tile.push_back(make_step(id, kernels));
    }
  }
  for (uint32_t s = 0; s < program.stores.size(); ++s) {
    const loop::Store& store = program.stores[s];
    const Instr& value = program.code[store.value];
    bool row = is_row_store(s);
    if (row && phase == 0) row_stores.push_back(make_store(s));
    bool reduces = loop::op_info(value.op).kind == OpKind::kReduce;
    bool here = order.phase_of[store.value] + (reduces ? 1 : 0) == phase;
    const LoopPlace& place = places[store.value];
    if (!row && here && !(place.kind == Where::kOutput && place.slot == s))
      out.tile.push_back(make_store(s));
  }
}

LoopStep LoopPlan::make_store(uint32_t store) const {
  LoopStep step;
  step.kind = Kind::kStore;
  step.to = store;
  step.in[0] = program.stores[store].value;
  step.tile[0] = program.code[step.in[0]].type.form == Form::kTile;
  step.one = is_row_store(store);
  return step;
}

bool LoopPlan::is_row_store(uint32_t store) const {
  const loop::Store& s = program.stores[store];
  return program.code[s.value].type.form == Form::kRow &&
         loop::linear_parts(s.to.index, program.rows.size()).column == SymExpr(0);
}

// Every step takes a whole row, so the program's own order will do; norms and softmax run as the
// kernels of their ops, and what only they read is left out.
void LoopPlan::fill_uncut(const KernelTable& kernels) {
  std::vector<std::optional<RowKernel>> whole(program.code.size());
  std::vector<bool> needed(program.code.size(), false);
  for (const loop::Store& s : program.stores) {
    needed[s.value] = true;
    if (s.to.by >= 0) needed[static_cast<size_t>(s.to.by)] = true;
  }
  for (auto id = static_cast<uint32_t>(program.code.size()); id-- > 0;) {
    if (!needed[id]) continue;
    const Instr& i = program.code[id];
    whole[id] = find_row_kernel(id);
    for (uint32_t in : whole[id] ? whole[id]->in : i.in) needed[in] = true;
    if (i.access.by >= 0) needed[static_cast<size_t>(i.access.by)] = true;
  }
  unused_ = needed;
  unused_.flip();
  std::erase_if(inputs, [&](uint32_t id) { return unused_[id]; });
  Phase& out = phases.emplace_back();
  for (uint32_t id = 0; id < program.code.size(); ++id) {
    const Instr& i = program.code[id];
    if (!needed[id]) continue;
    if (places[id].kind == Where::kInput && i.type.form == Form::kTile) {
      LoopStep find;
      find.kind = Kind::kFindRow;
      find.to = id;
      if (i.access.by >= 0) out.tile.push_back(find);
      continue;
    }
    LoopStep s = make_step(id, kernels);
    if (whole[id]) {
      s.kind = whole[id]->kind;
      s.number = static_cast<float>(whole[id]->eps);
      for (size_t k = 0; k < 3; ++k) {
        s.tile[k] = k < whole[id]->in.size();
        s.in[k] = s.tile[k] ? whole[id]->in[k] : 0;
      }
    }
    (s.kind == Kind::kConst ? once : out.tile).push_back(s);
  }
  for (uint32_t s = 0; s < program.stores.size(); ++s) {
    const LoopPlace& place = places[program.stores[s].value];
    if (!(place.kind == Where::kOutput && place.slot == s)) out.tile.push_back(make_store(s));
  }
}

// ((x * rsqrt(sum of squares / columns + eps)) * weight), as compile/lower writes rms_norm; of a
// layer_norm x is what is left after the mean is taken away.
std::optional<LoopPlan::RowKernel> LoopPlan::find_norm(uint32_t scaled) const {
  auto is = [&](uint32_t id, loop::Op op) { return program.code[id].op == op; };
  auto in = [&](uint32_t id, size_t k) { return program.code[id].in[k]; };
  auto is_tile = [&](uint32_t id) { return program.code[id].type.form == Form::kTile; };
  if (!is(scaled, loop::Op::kMul) || !is_tile(in(scaled, 1))) return std::nullopt;
  uint32_t y = in(scaled, 0), weight = in(scaled, 1);
  if (!is(y, loop::Op::kMul) || !is(in(y, 1), loop::Op::kRsqrt)) return std::nullopt;
  uint32_t x = in(y, 0), sum = in(in(y, 1), 0);
  if (!is(sum, loop::Op::kAdd) || !is(in(sum, 0), loop::Op::kDiv) ||
      !is(in(sum, 1), loop::Op::kConst))
    return std::nullopt;
  uint32_t mean = in(sum, 0);
  if (!is(in(mean, 0), loop::Op::kSumSquares) || !is(in(mean, 1), loop::Op::kColumns) ||
      in(in(mean, 0), 0) != x)
    return std::nullopt;
  RowKernel out{Kind::kRmsNorm, {x, weight}, program.code[in(sum, 1)].number};
  if (!is(x, loop::Op::kSub) || program.code[x].type.elem != Elem::kWide) return out;
  uint32_t source = in(x, 0), middle = in(x, 1);
  if (is(middle, loop::Op::kDiv) && is(in(middle, 0), loop::Op::kSum) &&
      is(in(middle, 1), loop::Op::kColumns) && in(in(middle, 0), 0) == source) {
    out.kind = Kind::kLayerNorm;
    out.in[0] = source;
  }
  return out;
}

std::optional<LoopPlan::RowKernel> LoopPlan::find_row_kernel(uint32_t id) const {
  auto is = [&](uint32_t v, loop::Op op) { return program.code[v].op == op; };
  auto in = [&](uint32_t v, size_t k) { return program.code[v].in[k]; };
  if (program.code[id].type != loop::ValueType{Elem::kF32, Form::kTile}) return std::nullopt;
  if (is(id, loop::Op::kAdd)) {
    uint32_t scaled = in(id, 0), bias = in(id, 1);
    bool tiles = program.code[scaled].type == loop::ValueType{Elem::kWide, Form::kTile} &&
                 program.code[bias].type.form == Form::kTile;
    std::optional<RowKernel> norm = tiles ? find_norm(scaled) : std::nullopt;
    if (!norm || norm->kind != Kind::kLayerNorm) return std::nullopt;
    norm->in.push_back(bias);
    return norm;
  }
  if (auto norm = find_norm(id)) return norm;
  // exp(x - max) * (1 / sum)
  if (!is(id, loop::Op::kMul) || !is(in(id, 0), loop::Op::kExp) || !is(in(id, 1), loop::Op::kDiv))
    return std::nullopt;
  uint32_t power = in(id, 0), inverse = in(id, 1), shifted = in(power, 0);
  if (!is(in(inverse, 0), loop::Op::kConst) || program.code[in(inverse, 0)].number != 1.0 ||
      !is(in(inverse, 1), loop::Op::kSum) || in(in(inverse, 1), 0) != power ||
      !is(shifted, loop::Op::kSub) || !is(in(shifted, 1), loop::Op::kMax) ||
      in(in(shifted, 1), 0) != in(shifted, 0) || program.code[power].type.elem != Elem::kWide)
    return std::nullopt;
  return RowKernel{Kind::kSoftmax, {in(shifted, 0)}};
}

// Two products in one pass where nothing else reads the first.
void LoopPlan::join_products(Phase& phase) {
  std::vector<int> uses(places.size(), 0);
  for (const Instr& i : program.code)
    for (uint32_t in : i.in) ++uses[in];
  for (const loop::Store& s : program.stores) ++uses[s.value];
  auto first_of = [&](uint32_t value) {
    return std::find_if(phase.tile.begin(), phase.tile.end(), [&](const LoopStep& s) {
      return s.kind == Kind::kBinaryRight && s.op == loop::Op::kMul && s.to == value;
    });
  };
  for (size_t i = 0; i < phase.tile.size(); ++i) {
    LoopStep& s = phase.tile[i];
    if (s.kind != Kind::kBinary || s.op != loop::Op::kMul) continue;
    auto first = first_of(s.in[0]);
    if (first == phase.tile.end() || uses[s.in[0]] != 1) continue;
    s.kind = Kind::kScaleMul;
    s.in[2] = s.in[1];
    s.in[0] = first->in[0];
    s.in[1] = first->in[1];
    s.tile[1] = false;
    s.tile[2] = true;
    phase.tile.erase(first);
    --i;
  }
}

// A buffer is taken by the step that writes it and free after the last one that reads it.
void LoopPlan::assign_buffers(Phase& phase) {
  std::vector<size_t> last(places.size(), 0);
  auto in_buffer = [&](const LoopStep& s, uint32_t k) {
    return s.tile[k] && places[s.in[k]].kind == Where::kBuffer;
  };
  for (size_t i = 0; i < phase.tile.size(); ++i)
    for (uint32_t k = 0; k < 3; ++k)
      if (in_buffer(phase.tile[i], k)) last[phase.tile[i].in[k]] = i;
  std::vector<uint32_t> idle;
  uint32_t used = 0;
  auto take = [&] {
    if (idle.empty()) return used++;
    uint32_t b = idle.back();
    idle.pop_back();
    return b;
  };
  for (size_t i = 0; i < phase.tile.size(); ++i) {
    const LoopStep& s = phase.tile[i];
    auto release = [&] {
      for (uint32_t k = 0; k < 3; ++k) {
        bool again = (k > 0 && s.in[k] == s.in[0] && s.tile[0]) ||
                     (k > 1 && s.in[k] == s.in[1] && s.tile[1]);
        if (in_buffer(s, k) && last[s.in[k]] == i && !again) idle.push_back(places[s.in[k]].slot);
      }
    };
    // These read an element before they write it, so the result may take an operand's place.
    bool in_place = s.kind == Kind::kUnary || s.kind == Kind::kBinary ||
                    s.kind == Kind::kBinaryRight || s.kind == Kind::kScaleMul || is_norm(s) ||
                    s.kind == Kind::kSoftmax;
    if (in_place) release();
    bool writes = s.kind != Kind::kStore && s.kind != Kind::kReduce && s.kind != Kind::kFindRow;
    if (writes && places[s.to].kind == Where::kBuffer) places[s.to].slot = take();
    if (!in_place) release();
  }
  buffers = std::max(buffers, used);
}

// A thread's scratch: the runner's places | numbers of a row | lanes of reductions | buffers | a
// row of zeros | kept rows.
void LoopPlan::lay_out_scratch() {
  auto values = static_cast<int64_t>(places.size());
  int64_t buffer = loop_aligned(tile * 4), numbers_at = loop_aligned(values * 16);
  lanes_at = numbers_at + loop_aligned(values * 4);
  int64_t buffers_at = lanes_at + reductions * 64;
  zeros_at = buffers_at + buffers * buffer;
  int64_t kept_at = zeros_at + (gathers ? buffer : 0);
  for (uint32_t v = 0; v < places.size(); ++v) {
    const LoopPlace& p = places[v];
    if (!unused_.empty() && unused_[v]) continue;
    if (p.kind == Where::kRow) starts.push_back({v, numbers_at + v * 4, 0});
    if (p.kind == Where::kBuffer) starts.push_back({v, buffers_at + p.slot * buffer, 0});
    if (p.kind == Where::kKept) starts.push_back({v, kept_at + p.slot * row_bytes, 4});
  }
  scratch_ = kLoopAlign + kept_at + kept * row_bytes;
}

}  // namespace tokamak::cpu
