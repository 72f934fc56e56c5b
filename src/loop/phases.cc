#include "loop/phases.h"

#include <algorithm>

namespace tokamak::loop {
namespace {

bool is_reduce(const Instr& i) { return op_info(i.op).kind == OpKind::kReduce; }
bool is_tile_load(const Instr& i) { return i.op == Op::kLoad && i.type.form == Form::kTile; }

// The phase in which the result of an instruction can be read.
uint32_t ready(const Program& p, const std::vector<uint32_t>& phase, uint32_t id) {
  return phase[id] + (is_reduce(p.code[id]) ? 1 : 0);
}

uint32_t earliest(const Program& p, const std::vector<uint32_t>& phase, const Instr& i) {
  uint32_t at = 0;
  for (uint32_t in : i.in) at = std::max(at, ready(p, phase, in));
  if (i.access.by >= 0) at = std::max(at, ready(p, phase, static_cast<uint32_t>(i.access.by)));
  return at;
}

// Moves a tile to the phase that first reads it, if that is later and keeps no other tile alive:
// its operands are loads or have no other reader.
void sink(const Program& p, std::vector<uint32_t>& phase) {
  std::vector<uint32_t> uses(p.code.size(), 0), first(p.code.size(), UINT32_MAX);
  for (const Store& s : p.stores) {  // outputs are written where they are computed
    uses[s.value] += 2;
    first[s.value] = 0;
  }
  for (const Instr& i : p.code)
    for (uint32_t in : i.in) ++uses[in];
  for (size_t id = p.code.size(); id-- > 0;) {
    const Instr& i = p.code[id];
    bool free = std::all_of(i.in.begin(), i.in.end(), [&](uint32_t in) {
      return p.code[in].type.form == Form::kRow || is_tile_load(p.code[in]) || uses[in] == 1;
    });
    if (i.type.form == Form::kTile && free && first[id] != UINT32_MAX)
      phase[id] = std::max(phase[id], first[id]);
    for (uint32_t in : i.in) first[in] = std::min(first[in], phase[id]);
  }
}

}  // namespace

Phases make_phases(const Program& p) {
  Phases out;
  std::vector<uint32_t>& phase = out.phase_of;
  phase.resize(p.code.size());
  for (size_t id = 0; id < p.code.size(); ++id) phase[id] = earliest(p, phase, p.code[id]);
  sink(p, phase);
  uint32_t last = 0;
  for (uint32_t id = 0; id < p.code.size(); ++id) last = std::max(last, ready(p, phase, id));
  out.phases.resize(last + 1);
  out.kept.resize(p.code.size(), false);
  // Loads run in every phase that reads them.
  std::vector<std::vector<bool>> loaded(p.code.size());
  auto read = [&](uint32_t id, uint32_t at) {
    if (p.code[id].type.form != Form::kTile) return;
    if (is_tile_load(p.code[id])) {
      loaded[id].resize(last + 1);
      loaded[id][at] = true;
    } else if (phase[id] < at) {
      out.kept[id] = true;
    }
  };
  for (uint32_t id = 0; id < p.code.size(); ++id)
    for (uint32_t in : p.code[id].in) read(in, phase[id]);
  for (const Store& s : p.stores) read(s.value, ready(p, phase, s.value));
  for (uint32_t id = 0; id < p.code.size(); ++id) {
    const Instr& i = p.code[id];
    if (is_tile_load(i)) {
      for (uint32_t at = 0; at < loaded[id].size(); ++at)
        if (loaded[id][at]) out.phases[at].tile.push_back(id);
    } else {
      bool tile = i.type.form == Form::kTile || is_reduce(i);
      (tile ? out.phases[phase[id]].tile : out.phases[phase[id]].row).push_back(id);
    }
  }
  return out;
}

Program merge_rows(const Program& program) {
  Program p = program;
  for (const Instr& i : p.code)
    if (is_reduce(i)) return p;
  while (!p.rows.empty()) {
    size_t axis = p.rows.size() - 1;
    std::vector<Linear> parts;
    bool ok = true;
    auto look = [&](const Access& a) {
      Linear l = linear_parts(a.index, p.rows.size());
      ok = ok && a.by < 0 && l.rows[axis] == l.column * p.columns;
      parts.push_back(std::move(l));
    };
    for (const Instr& i : p.code) {
      if (i.op == Op::kLoad || i.op == Op::kIndex) look(i.access);
      ok = ok && i.op != Op::kColumns;
    }
    for (const Store& s : p.stores) look(s.to);
    if (!ok) return p;
    p.columns = p.columns * p.rows.back();
    p.rows.pop_back();
    size_t at = 0;
    auto change = [&](Access& a) {
      Linear l = std::move(parts[at++]);
      l.rows.pop_back();
      a.index = linear_index(l);
    };
    for (Instr& i : p.code)
      if (i.op == Op::kLoad || i.op == Op::kIndex) change(i.access);
    for (Store& s : p.stores) change(s.to);
  }
  return p;
}

}  // namespace tokamak::loop
