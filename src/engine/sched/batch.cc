#include "engine/sched/batch.h"

#include <algorithm>
#include <charconv>

namespace tokamak {
namespace {

// The row of an entry that a drafted row continues; rows are counted from the entry's first.
int32_t parent_row(const StepEntry& e, int32_t row) {
  int32_t first_draft = e.count - e.drafts;
  return first_draft + e.sequence->drafts[static_cast<size_t>(row - first_draft)].parent;
}

bool is_draft(const StepEntry& e, int32_t row) { return row >= e.count - e.drafts; }

// The id of a row: committed, drafted, or the one the device is about to choose.
int32_t id_of(const StepEntry& e, int32_t row) {
  const Sequence& seq = *e.sequence;
  if (is_draft(e, row)) return seq.drafts[static_cast<size_t>(row - (e.count - e.drafts))].id;
  int32_t slot = e.start + row;
  return slot < seq.length() ? seq.ids()[static_cast<size_t>(slot)]
                             : last_id_of_row(seq.owner().row);
}

void add_sequence(const StepEntry& e, int32_t length, StepInputs& in) {
  in.kv_len.push_back(length);
  in.row.push_back(e.sequence->row);
  in.q_start.push_back(static_cast<int32_t>(in.ids.size()));
}

// Slots are consecutive. Positions are too, except in a tree, where siblings have the same one.
void add_tokens(const StepEntry& e, StepInputs& in) {
  auto first = in.pos.size();
  auto index = static_cast<int32_t>(in.kv_len.size());
  for (int32_t i = 0; i < e.count; ++i) {
    int32_t parent = is_draft(e, i) ? parent_row(e, i) : i - 1;
    in.ids.push_back(id_of(e, i));
    in.pos.push_back(i == 0 ? e.start : in.pos[first + static_cast<size_t>(parent)] + 1);
    in.slot.push_back(e.start + i);
    in.seq.push_back(index);
  }
  add_sequence(e, e.start + e.count, in);
}

SampleRow& add_out_row(const StepEntry& e, int32_t row, SampleRow::Mode mode, StepInputs& in) {
  const Sequence& seq = *e.sequence;
  int32_t token = in.q_start[in.q_start.size() - 2] + row;
  SampleRow& out = in.samples.emplace_back();
  out.mode = mode;
  out.choice = seq.choice;
  out.position = in.pos[static_cast<size_t>(token)] + 1;
  out.generated = std::max(0, out.position - seq.prompt_length());
  out.spec = seq.request->spec.sample;
  in.out_rows.push_back(token);
  return out;
}

// After add_tokens of the same entry.
void add_samples(StepEntry& e, bool pool_first, StepInputs& in) {
  const Sequence& seq = *e.sequence;
  e.first_out = static_cast<int32_t>(in.out_rows.size());
  int32_t first = seq.first_score_row(e.start);
  auto mode = seq.request->spec.pool ? SampleRow::Mode::kHidden : SampleRow::Mode::kScore;
  for (int32_t s = first; s < first + e.scores; ++s)
    add_out_row(e, s - e.start, mode, in).target = seq.ids()[static_cast<size_t>(s + 1)];
  if (e.pools) add_out_row(e, pool_first ? 0 : e.count - 1, SampleRow::Mode::kHidden, in);
  if (e.guides) add_out_row(e, e.count - 1, SampleRow::Mode::kHidden, in);
  if (!e.chooses) return;
  int32_t root = e.count - 1 - e.drafts;
  for (int32_t row = root; row < e.count; ++row) {
    SampleRow& out = add_out_row(e, row, SampleRow::Mode::kSample, in);
    if (row > root) {
      out.parent = e.first_choice() + parent_row(e, row) - root;
      out.draft_probabilities = seq.drafts[static_cast<size_t>(row - root - 1)].probabilities;
    }
    out.masked = seq.request->spec.mask != nullptr;
    if (seq.shadow != nullptr) out.guide = e.first_choice() - 1;  // the shadow's entry precedes
  }
}

// Draft `j` of an entry is chosen from the token before it: the last committed one or draft j - 1.
// The KV of that token goes into the slot where the last phase computes it again.
void add_draft(StepEntry& e, int32_t j, StepInputs& in) {
  Sequence& seq = *e.sequence;
  in.ids.push_back(id_of(e, j));
  in.pos.push_back(e.start + j);
  in.slot.push_back(e.start + j);
  in.seq.push_back(static_cast<int32_t>(in.kv_len.size()));
  add_sequence(e, e.start + j + 1, in);
  seq.drafts[static_cast<size_t>(j)].id = id_of_output(static_cast<int32_t>(in.out_rows.size()));
  add_out_row(e, 0, SampleRow::Mode::kDraft, in).keep_probabilities = seq.sample().rejection;
}

// Phase j chooses draft j of each entry whose drafts the step chooses.
void add_draft_phases(PendingStep& step) {
  StepInputs& in = step.inputs;
  for (int32_t j = 0;; ++j) {
    StepPhase phase{std::string(kExitFunction)};
    for (size_t i = 0; i < step.entries.size(); ++i) {
      StepEntry& e = step.entries[i];
      if (j >= e.drafts || e.sequence->drafts[static_cast<size_t>(j)].id != kDraftedByStep)
        continue;
      add_draft(e, j, in);
      step.owners.push_back(i);
      ++phase.tokens;
    }
    if (phase.tokens == 0) break;
    phase.sequences = phase.outputs = phase.tokens;
    in.phases.push_back(std::move(phase));
  }
  step.draft_sequences = static_cast<int32_t>(in.sequences());
  step.draft_outputs = static_cast<int32_t>(in.out_rows.size());
}

// Which of its entry's rows each row sees: those it continues, and itself.
void fill_mask(const PendingStep& step, StepInputs& in) {
  for (const StepEntry& e : step.entries) in.mask_width = std::max(in.mask_width, e.count);
  auto width = static_cast<size_t>(in.mask_width);
  in.mask.assign(in.ids.size() * width, 0);
  auto first = in.mask.begin() + step.draft_sequences * in.mask_width;  // a row per sequence
  for (const StepEntry& e : step.entries) {
    for (int32_t i = 0; i < e.count; ++i) {
      auto row = first + i * in.mask_width;
      int32_t parent = is_draft(e, i) ? parent_row(e, i) : i - 1;
      if (parent >= 0) std::copy_n(first + parent * in.mask_width, i, row);
      row[i] = 1;
    }
    first += e.count * in.mask_width;
  }
}

// Which text of a pair each token belongs to.
void fill_segments(const PendingStep& step, StepInputs& in) {
  std::vector<int32_t> segments;
  segments.reserve(in.ids.size());
  for (const StepEntry& e : step.entries) {
    int32_t second = e.sequence->request->spec.second_text;
    for (int32_t i = e.start; i < e.start + e.count; ++i)
      segments.push_back(second > 0 && i >= second ? 1 : 0);
  }
  in.set_input(kSegmentInput, segments);
}

void fill_adapters(const PendingStep& step, StepInputs& in) {
  std::vector<int32_t> slots;
  slots.reserve(in.ids.size());
  for (size_t b = 0; b < static_cast<size_t>(step.draft_sequences); ++b)
    slots.push_back(step.entries[step.owners[b]].sequence->adapter_slot);
  for (const StepEntry& e : step.entries)
    slots.insert(slots.end(), static_cast<size_t>(e.count), e.sequence->adapter_slot);
  in.set_input(kAdapterInput, slots);
}

// kLayersFunction instead of "step", if an output needs the logits of layers.
bool fill_layers(const EngineConfig& config, StepInputs& in) {
  std::vector<int32_t> rows;
  for (size_t r = 0; r < in.samples.size(); ++r)
    for (size_t i = 0; i < layer_rows(in.samples[r]); ++i)
      rows.push_back(static_cast<int32_t>(r) * static_cast<int32_t>(config.layers) +
                     in.samples[r].spec->dola_layers[i]);
  if (rows.empty()) return false;
  in.set_input(kLayerRows, rows);
  in.function = kLayersFunction;
  return true;
}

void add_reset(Sequence& seq, StepInputs& in) {
  if (!seq.reset_row || seq.leader != nullptr) return;
  seq.reset_row = false;
  if (!seq.sample().needs_history() && seq.sample().mirostat == 0) return;
  RowReset& r = in.resets.emplace_back();
  r.row = seq.row;
  r.prompt_tokens = seq.prompt_length();
  r.mirostat_mu = seq.mirostat_mu;
  r.ids.assign(seq.ids().begin(), seq.ids().end());
}

void add_copies(SequenceBlocks& blocks, StepInputs& in) {
  if (blocks.copies_sent) return;
  blocks.copies_sent = true;
  for (const SequenceBlocks::Copy& c : blocks.copies) in.copies.push_back(c.blocks);
}

// The kept branch of the last step's tree. Sent once: if the step fails, the tokens are computed
// again.
void add_moves(Sequence& seq, const KvCache& kv, StepInputs& in) {
  for (size_t g = 0; g < kv.groups(); ++g) {
    int64_t size = kv.group(g).block_size;
    auto physical = [&](int32_t slot) {
      BlockHandle block = seq.blocks.tables[g].blocks[static_cast<size_t>(slot / size)];
      return static_cast<int32_t>(block.index * size + slot % size);
    };
    for (auto [from, to] : seq.moves)
      in.moves.push_back({static_cast<uint32_t>(g), physical(from), physical(to)});
  }
  seq.moves.clear();
}

// Only blocks that the step's rows can see: a block that is dropped later is not used by this step.
void fill_table(const PendingStep& step, size_t g, const GroupEntry& group,
                StepInputs::Table& table) {
  int64_t stride = 0;
  for (const StepEntry& e : step.entries)
    stride = std::max(stride, (e.start + e.count + group.block_size - 1) / group.block_size);
  table.stride = static_cast<int32_t>(stride);
  table.blocks.assign(step.owners.size() * static_cast<size_t>(stride), -1);
  auto out = table.blocks.begin();
  for (size_t owner : step.owners) {
    const StepEntry& e = step.entries[owner];
    const auto& blocks = e.sequence->blocks.tables[g].blocks;
    int64_t from = first_visible(group, e.start) / group.block_size;
    int64_t to = (e.start + e.count + group.block_size - 1) / group.block_size;
    for (int64_t k = from; k < to; ++k) out[k] = blocks[static_cast<size_t>(k)].index;
    out += stride;
  }
}

void name_function(const EngineConfig& config, PendingStep& step) {
  StepInputs& in = step.inputs;
  int64_t b = std::ssize(step.entries);
  int32_t count = step.entries[0].count;
  bool uniform = in.out_rows.size() == in.ids.size();
  for (const StepEntry& e : step.entries)
    uniform = uniform && e.count == count && (e.chooses || e.guides) && e.drafts == count - 1;
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

void build_inputs(const EngineConfig& config, const KvCache& kv, PendingStep& step) {
  StepInputs& in = step.inputs;
  in.clear();
  in.q_start.push_back(0);
  step.owners.clear();
  add_draft_phases(step);
  for (StepEntry& e : step.entries) {
    step.owners.push_back(static_cast<size_t>(&e - step.entries.data()));
    add_tokens(e, in);
    add_samples(e, config.pool_first, in);
    add_reset(*e.sequence, in);
    add_copies(e.sequence->blocks, in);
    add_moves(*e.sequence, kv, in);
  }
  if (config.tree_mask) fill_mask(step, in);
  if (config.segments) fill_segments(step, in);
  if (config.adapter_slots > 0) fill_adapters(step, in);
  if (in.samples.empty()) {
    // Plans need at least one row of logits.
    SampleRow& row = in.samples.emplace_back();
    row.mode = SampleRow::Mode::kHidden;
    row.position = in.pos.back() + 1;
    in.out_rows.push_back(static_cast<int32_t>(in.ids.size()) - 1);
  }
  for (size_t g = 0; g < kv.groups(); ++g) fill_table(step, g, kv.group(g), in.tables[g]);
  if (!(config.layer_rows > 0 && fill_layers(config, in))) name_function(config, step);
  if (!in.phases.empty())
    in.phases.push_back({in.function, static_cast<int32_t>(in.tokens()) - step.draft_sequences,
                         static_cast<int32_t>(step.entries.size()),
                         static_cast<int32_t>(in.out_rows.size()) - step.draft_outputs});
}

}  // namespace tokamak
