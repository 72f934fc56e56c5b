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

constexpr size_t kLoopAlign = 64;
int64_t loop_aligned(int64_t bytes) {
  auto align = static_cast<int64_t>(kLoopAlign);
  return (bytes + align - 1) / align * align;
}

bool is_word(DType dtype) { return dtype == DType::kF32 || dtype == DType::kI32; }

// Exponentials and what is made of them.
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

// Kernels know f32 in memory; what a weight holds is f32 whatever its type.
bool reads_in_place(const Instr& i, const loop::Program& p, const OpSite& site) {
  const Tensor& t = site.in[i.access.param];
  return loop::linear_parts(i.access.index, p.rows.size()).column == SymExpr(1) &&
         (t.weight || is_word(t.dtype));
}

}  // namespace

LoopPlan::LoopPlan(loop::Program from, const KernelTable& kernels, const OpSite& site)
    : program(std::move(from)) {
  loop::Schedule schedule = loop::make_schedule(program);
  for (const loop::Store& s : program.stores) scatters = scatters || s.to.by >= 0;
  whole_rows = scatters || schedule.phases.size() > 1;
  int64_t columns = program.columns.upper(site.symbols);
  place_values(schedule, site);
  phases.resize(schedule.phases.size());
  for (size_t i = 0; i < phases.size(); ++i) fill_phase(schedule, i, kernels);
  whole_rows = whole_rows || !row_stores.empty();  // a number of a row is one thread's to write
  int64_t work = 0;
  for (Phase& phase : phases) {
    join_products(phase);
    assign_buffers(phase);
    for (const LoopStep& s : phase.tile) work += is_heavy(s) ? 4 : 1;
  }
  cost = std::max<int64_t>(1, work);
  if (whole_rows) tile = std::max(kLoopTile, kLoopCache / (buffers + 1) / 32 * 32);
  tile = std::min(tile, (std::max<int64_t>(columns, 1) + 31) / 32 * 32);
  if (kept > 0) row_bytes = loop_aligned((columns + 15) / 16 * 64);
}

void LoopPlan::place_values(const loop::Schedule& schedule, const OpSite& site) {
  places.resize(program.code.size());
  std::vector<int> phases_of(places.size(), 0);
  for (const loop::Schedule::Phase& phase : schedule.phases)
    for (uint32_t id : phase.tile) ++phases_of[id];
  for (uint32_t id = 0; id < program.code.size(); ++id) {
    const Instr& i = program.code[id];
    if (i.type.form == Form::kRow) continue;
    if (i.op == loop::Op::kLoad && reads_in_place(i, program, site)) {
      places[id].kind = Where::kInput;
      if (i.access.by < 0)
        inputs.push_back(id);
      else
        gathers = true;
    } else {
      bool later = schedule.kept[id] || phases_of[id] > 1;  // a load that has to be converted
      places[id].kind = later ? Where::kKept : Where::kBuffer;
    }
  }
  for (uint32_t s = 0; s < program.stores.size(); ++s) {  // computed where it is stored
    const loop::Store& store = program.stores[s];
    LoopPlace& place = places[store.value];
    bool direct = store.to.by < 0 && is_word(site.out[s].dtype) &&
                  loop::linear_parts(store.to.index, program.rows.size()).column == SymExpr(1);
    bool computed = place.kind == Where::kBuffer || place.kind == Where::kKept;
    if (direct && computed && program.code[store.value].op != loop::Op::kLoad)
      place = {Where::kOutput, s};
  }
  for (LoopPlace& place : places)
    if (place.kind == Where::kKept) place.slot = kept++;
}

LoopStep LoopPlan::make_step(uint32_t id, const KernelTable& kernels) {
  const Instr& i = program.code[id];
  const loop::OpInfo& info = loop::op_info(i.op);
  LoopStep s;
  s.op = i.op;
  s.to = id;
  s.number = static_cast<float>(i.number);
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
    s.kind = Kind::kReduce;
    s.reduce = reductions++;
    s.reduction = static_cast<Reduce>(static_cast<int>(i.op) - static_cast<int>(loop::Op::kSum));
  }
  return s;
}
static_assert(static_cast<int>(loop::Op::kMinimum) - static_cast<int>(loop::Op::kAdd) ==
              static_cast<int>(Binary::kMin));
static_assert(static_cast<int>(loop::Op::kMin) - static_cast<int>(loop::Op::kSum) ==
              static_cast<int>(Reduce::kMin));

void LoopPlan::fill_phase(const loop::Schedule& schedule, size_t phase,
                          const KernelTable& kernels) {
  Phase& out = phases[phase];
  for (uint32_t id : schedule.phases[phase].row) {
    LoopStep s = make_step(id, kernels);
    (s.kind == Kind::kConst ? once : out.row).push_back(s);
  }
  auto done = [&](uint32_t id) {  // a load of an earlier phase that is kept
    for (size_t p = 0; p < phase; ++p)
      for (uint32_t before : schedule.phases[p].tile)
        if (before == id) return true;
    return false;
  };
  for (uint32_t id : schedule.phases[phase].tile) {
    if (places[id].kind == Where::kInput) {
      if (program.code[id].access.by >= 0) out.rows_by_index.push_back(id);
    } else if (!done(id)) {
      out.tile.push_back(make_step(id, kernels));
    }
  }
  for (uint32_t s = 0; s < program.stores.size(); ++s) {
    const loop::Store& store = program.stores[s];
    const Instr& value = program.code[store.value];
    LoopStep step;
    step.kind = Kind::kStore;
    step.to = s;
    step.in[0] = store.value;
    step.tile[0] = value.type.form == Form::kTile;
    bool row = !step.tile[0] &&
               loop::linear_parts(store.to.index, program.rows.size()).column == SymExpr(0);
    if (row && phase == 0) row_stores.push_back(step);
    bool reduces = loop::op_info(value.op).kind == OpKind::kReduce;
    bool here = schedule.phase_of[store.value] + (reduces ? 1 : 0) == phase;
    const LoopPlace& place = places[store.value];
    if (!row && here && !(place.kind == Where::kOutput && place.slot == s))
      out.tile.push_back(step);
  }
}

// Two products in one pass where nobody else reads the first.
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
                    s.kind == Kind::kBinaryRight || s.kind == Kind::kScaleMul;
    if (in_place) release();
    bool writes = s.kind != Kind::kStore && s.kind != Kind::kReduce;
    if (writes && places[s.to].kind == Where::kBuffer) places[s.to].slot = take();
    if (!in_place) release();
  }
  buffers = std::max(buffers, used);
}

int64_t LoopPlan::scratch_bytes() const {
  auto values = static_cast<int64_t>(places.size());
  return static_cast<int64_t>(kLoopAlign) + loop_aligned(values * 16) + loop_aligned(values * 4) +
         reductions * 64 + (buffers + (gathers ? 1 : 0)) * loop_aligned(tile * 4) +
         kept * row_bytes;
}

LoopRunner::LoopRunner(const LoopPlan& plan, const loop::Bounds& bounds, const KernelTable& kernels,
                       const Tensor* in, const Tensor* out, uint8_t* scratch)
    : plan_(plan), bounds_(bounds), kernels_(kernels), in_(in), out_(out) {
  auto address = reinterpret_cast<uintptr_t>(scratch);
  scratch += (kLoopAlign - address % kLoopAlign) % kLoopAlign;
  auto values = static_cast<int64_t>(plan.places.size());
  places_ = reinterpret_cast<Place*>(scratch);
  uint8_t* numbers = scratch + loop_aligned(values * 16);
  uint8_t* lanes = numbers + loop_aligned(values * 4);
  lanes_ = reinterpret_cast<float*>(lanes);
  uint8_t* buffers = lanes + plan.reductions * 64;
  zeros_ = buffers + plan.buffers * loop_aligned(plan.tile * 4);
  uint8_t* kept = zeros_ + (plan.gathers ? loop_aligned(plan.tile * 4) : 0);
  if (plan.gathers) std::memset(zeros_, 0, static_cast<size_t>(plan.tile) * 4);
  for (int64_t v = 0; v < values; ++v) {
    const LoopPlace& p = plan.places[static_cast<size_t>(v)];
    Place& to = places_[v];
    to = {numbers + v * 4, 0};
    if (p.kind == Where::kBuffer) to.base = buffers + p.slot * loop_aligned(plan.tile * 4);
    if (p.kind == Where::kKept) to = {kept + p.slot * plan.row_bytes, 4};
  }
  static_assert(sizeof(Place) == 16);
}

}  // namespace tokamak::cpu
