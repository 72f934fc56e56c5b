#include "engine/sched/batch.h"

#include <algorithm>
#include <charconv>

namespace tokamak {
namespace {

// The id at a slot: committed, drafted, or the one the device is about to choose.
int32_t id_at(const Sequence& seq, int32_t slot) {
  if (slot < seq.length()) return seq.ids()[static_cast<size_t>(slot)];
  auto drafted = static_cast<size_t>(slot - seq.length());
  return drafted < seq.drafts.size() ? seq.drafts[drafted] : -1 - seq.row;
}

void add_tokens(const StepEntry& e, int32_t index, StepInputs& in) {
  const Sequence& seq = *e.sequence;
  for (int32_t i = 0; i < e.count; ++i) {
    in.ids.push_back(id_at(seq, e.start + i));
    in.pos.push_back(e.start + i);
    in.slot.push_back(e.start + i);
    in.seq.push_back(index);
  }
  in.kv_len.push_back(e.start + e.count);
  in.row.push_back(seq.row);
  in.q_start.push_back(static_cast<int32_t>(in.ids.size()));
}

void add_out_row(const StepEntry& e, int32_t slot, SampleRow::Mode mode, int32_t target,
                 StepInputs& in) {
  const Sequence& seq = *e.sequence;
  SampleRow& row = in.samples.emplace_back();
  row.mode = mode;
  row.target = target;
  row.choice = seq.choice;
  row.position = slot + 1;
  row.generated = std::max(0, slot + 1 - seq.prompt_length());
  row.spec = seq.request->spec.sample;
  in.out_rows.push_back(in.q_start[in.q_start.size() - 2] + slot - e.start);
}

// After add_tokens of the same entry.
void add_samples(StepEntry& e, StepInputs& in) {
  const Sequence& seq = *e.sequence;
  e.first_out = static_cast<int32_t>(in.out_rows.size());
  int32_t first = seq.first_score_row(e.start);
  for (int32_t s = first; s < first + e.scores; ++s)
    add_out_row(e, s, SampleRow::Mode::kScore, id_at(seq, s + 1), in);
  if (!e.chooses) return;
  int32_t end = e.start + e.count;
  for (int32_t s = end - 1 - e.drafts; s < end; ++s)
    add_out_row(e, s, SampleRow::Mode::kSample, s + 1 < end ? id_at(seq, s + 1) : -1, in);
}

void add_reset(Sequence& seq, StepInputs& in) {
  if (!seq.reset_row) return;
  seq.reset_row = false;
  if (!seq.sample().needs_history()) return;
  RowReset& r = in.resets.emplace_back();
  r.row = seq.row;
  r.prompt_tokens = seq.prompt_length();
  r.ids.assign(seq.ids().begin(), seq.ids().end());
}

void add_copies(SequenceBlocks& blocks, StepInputs& in) {
  if (blocks.copies_sent) return;
  blocks.copies_sent = true;
  for (const SequenceBlocks::Copy& c : blocks.copies) in.copies.push_back(c.blocks);
}

// Only blocks that the step's rows can see: what is dropped later is not referred to by it.
void fill_table(const Step& step, size_t g, const GroupEntry& group, StepInputs::Table& table) {
  int64_t stride = 0;
  for (const StepEntry& e : step.entries)
    stride = std::max(stride, (e.start + e.count + group.block_size - 1) / group.block_size);
  table.stride = static_cast<int32_t>(stride);
  table.blocks.assign(step.entries.size() * static_cast<size_t>(stride), -1);
  auto out = table.blocks.begin();
  for (const StepEntry& e : step.entries) {
    const auto& blocks = e.sequence->blocks.tables[g].blocks;
    int64_t from = first_visible(group, e.start) / group.block_size;
    int64_t to = (e.start + e.count + group.block_size - 1) / group.block_size;
    for (int64_t k = from; k < to; ++k) out[k] = blocks[static_cast<size_t>(k)].index;
    out += stride;
  }
}

void name_function(const EngineConfig& config, Step& step) {
  StepInputs& in = step.inputs;
  int64_t b = in.sequences();
  int32_t count = step.entries[0].count;
  bool uniform = in.out_rows.size() == in.ids.size();
  for (const StepEntry& e : step.entries)
    uniform = uniform && e.count == count && e.chooses && e.drafts == count - 1;
  if (!uniform) return;
  const auto& sizes = config.verify_sizes;
  if (count == 1 && b <= config.decode_batch) {
    in.function = "decode";
  } else if (std::find(sizes.begin(), sizes.end(), count - 1) != sizes.end()) {
    char name[24] = "verify";
    auto end = std::to_chars(name + 6, name + sizeof(name), count - 1);
    in.function.assign(name, end.ptr);
  }
}

}  // namespace

void prepare_inputs(const EngineConfig& config, StepInputs& inputs) {
  inputs.tables.resize(config.groups.size());
  for (size_t g = 0; g < config.groups.size(); ++g) {
    int64_t size = config.groups[g].block_size;
    int64_t stride = (config.max_model_len + size - 1) / size;
    inputs.tables[g].blocks.reserve(static_cast<size_t>(config.max_num_seqs * stride));
  }
}

void build_inputs(const EngineConfig& config, const KvCache& kv, Step& step) {
  StepInputs& in = step.inputs;
  in.clear();
  in.q_start.push_back(0);
  int32_t index = 0;
  for (StepEntry& e : step.entries) {
    add_tokens(e, index++, in);
    add_samples(e, in);
    add_reset(*e.sequence, in);
    add_copies(e.sequence->blocks, in);
  }
  if (in.samples.empty()) {
    // Plans ask for at least one row of logits.
    SampleRow& row = in.samples.emplace_back();
    row.mode = SampleRow::Mode::kHidden;
    row.position = in.pos.back() + 1;
    in.out_rows.push_back(static_cast<int32_t>(in.ids.size()) - 1);
  }
  for (size_t g = 0; g < kv.groups(); ++g) fill_table(step, g, kv.group(g), in.tables[g]);
  name_function(config, step);
}

}  // namespace tokamak
