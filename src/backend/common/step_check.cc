#include "backend/common/step_check.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {
namespace {

template <class... Args>
[[noreturn]] void bad_step(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInternal,
              fmt::format("step: {}", fmt::format(format, std::forward<Args>(args)...)));
}

size_t at(int64_t i) { return static_cast<size_t>(i); }

// The row that sequence b guides, or its own.
int32_t choosing_row(const StepInputs& step, size_t b) {
  auto sequence = [&](size_t output) -> int64_t {  // outputs are checked later
    int64_t token = output < step.out_rows.size() ? step.out_rows[output] : -1;
    return token >= 0 && token < step.tokens() ? step.seq[at(token)] : -1;
  };
  for (size_t r = 0; r < step.samples.size(); ++r) {
    int32_t guide = step.samples[r].guide;
    int64_t guided = sequence(r);
    if (guide >= 0 && sequence(at(guide)) == static_cast<int64_t>(b) && guided >= 0 &&
        guided < std::ssize(step.row))
      return step.row[at(guided)];
  }
  return step.row[b];
}

}  // namespace

StepChecker::StepChecker(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows,
                         Level level, int64_t vocab)
    : groups_(plans.groups),
      blocks_(std::move(blocks)),
      max_rows_(max_rows),
      vocab_(vocab > 0 ? vocab : plans.vocab),
      level_(level) {
  if (blocks_.size() != groups_.size())
    fail(ErrorCode::kInvalidArgument, "block counts for {} KV groups, the model has {}",
         blocks_.size(), groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].block_size < 1)
      fail(ErrorCode::kCorrupt, "KV group {} has blocks of {} tokens", groups_[g].name,
           groups_[g].block_size);
    grows_.push_back(strict() ||
                     std::any_of(plans.states.begin(), plans.states.end(),
                                 [g](const StateEntry& state) { return state.group == g; }));
    if (strict()) writers_.emplace_back(at(blocks_[g]));
  }
  row_seen_.assign(at(max_rows), 0);
}

void StepChecker::check_step(const StepInputs& step) const {
  if (!step.phases.empty()) {
    int64_t tokens = 0, sequences = 0, outputs = 0;
    for (const StepPhase& p : step.phases) {
      if (p.tokens < 0 || p.sequences < 0 || p.outputs < 0)
        bad_step("phase {} has {} tokens, {} sequences and {} outputs", p.function, p.tokens,
                 p.sequences, p.outputs);
      tokens += p.tokens, sequences += p.sequences, outputs += p.outputs;
    }
    check_sizes(step, tokens, sequences, outputs);
  }
  for (const BlockCopy& copy : step.copies)
    if (copy.group >= blocks_.size() || copy.from < 0 || copy.to < 0 ||
        copy.from >= blocks_[copy.group] || copy.to >= blocks_[copy.group])
      bad_step("copy of block {} to {} in group {}", copy.from, copy.to, copy.group);
  for (const SlotMove& move : step.moves) {
    int64_t slots =
        move.group < blocks_.size() ? blocks_[move.group] * groups_[move.group].block_size : 0;
    if (move.from < 0 || move.to < 0 || move.from >= slots || move.to >= slots)
      bad_step("move of slot {} to {} in group {}, which has {}", move.from, move.to, move.group,
               slots);
  }
  for (const RowReset& reset : step.resets) {
    if (reset.row < 0 || reset.row >= max_rows_)
      bad_step("reset of row {} of {}", reset.row, max_rows_);
    if (reset.prompt_tokens < 0 || reset.prompt_tokens > std::ssize(reset.ids))
      bad_step("row {} is reset with {} prompt tokens of {}", reset.row, reset.prompt_tokens,
               reset.ids.size());
    for (int32_t id : reset.ids)
      if (id < 0 || (vocab_ > 0 && id >= vocab_))
        bad_step("row {} is reset with token {} of {}", reset.row, id, vocab_);
  }
}

// Phases are cut out of vectors of these sizes.
void StepChecker::check_sizes(const StepInputs& step, int64_t tokens, int64_t sequences,
                              int64_t outputs) const {
  auto need = [](const char* what, size_t have, int64_t wanted) {
    if (static_cast<int64_t>(have) != wanted)
      bad_step("its phases need {} entries of {}, it has {}", wanted, what, have);
  };
  need("ids", step.ids.size(), tokens);
  need("pos", step.pos.size(), tokens);
  need("seq", step.seq.size(), tokens);
  need("slot", step.slot.size(), tokens);
  need("mask", step.mask.size(), tokens * std::max(0, step.mask_width));
  need("q_start", step.q_start.size(), sequences + 1);
  need("kv_len", step.kv_len.size(), sequences);
  need("row", step.row.size(), sequences);
  need("out_rows", step.out_rows.size(), outputs);
  need("samples", step.samples.size(), outputs);
  for (const StepInputs::Table& t : step.tables)
    need("a block table", t.blocks.size(), sequences * std::max(0, t.stride));
  int64_t end = 0;  // parents and guides are outputs of the same phase
  for (const StepPhase& p : step.phases) {
    for (int64_t r = end; r < end + p.outputs; ++r)
      for (int32_t other : {step.samples[at(r)].parent, step.samples[at(r)].guide})
        if (other != -1 && other < end)
          bad_step("output {} cannot continue output {} of an earlier phase", r, other);
    end += p.outputs;
  }
}

void StepChecker::check_phase(const StepInputs& phase, int64_t earlier_outputs) {
  ++stamp_;
  if (phase.ids.empty()) {
    if (!phase.pos.empty() || phase.sequences() > 0 || !phase.out_rows.empty())
      bad_step("it has no tokens, but positions, sequences or outputs");
    return;
  }
  check_tokens(phase, earlier_outputs);
  check_sequences(phase);
  check_outputs(phase);
  if (phase.tables.size() != groups_.size())
    bad_step("{} block tables for {} KV groups", phase.tables.size(), groups_.size());
  for (size_t group = 0; group < groups_.size(); ++group) {
    check_table(phase, group);
    if (strict()) check_writers(phase, group);
  }
}

void StepChecker::check_blocks(uint32_t group, std::span<const int32_t> blocks, uint64_t bytes,
                               uint64_t block_bytes) const {
  if (group >= groups_.size())
    bad_step("transfer of blocks of group {}, there are {} groups", group, groups_.size());
  for (int32_t block : blocks)
    if (block < 0 || block >= blocks_[group])
      bad_step("transfer of block {} of group {}, which has {}", block, groups_[group].name,
               blocks_[group]);
  if (bytes != blocks.size() * block_bytes)
    bad_step("transfer of {} blocks of {} bytes with {} bytes", blocks.size(), block_bytes, bytes);
}

void StepChecker::check_tokens(const StepInputs& step, int64_t earlier_outputs) const {
  int64_t tokens = step.tokens();
  auto same = [&](const std::vector<int32_t>& v, const char* what) {
    if (static_cast<int64_t>(v.size()) != tokens)
      bad_step("{} has {} entries for {} tokens", what, v.size(), tokens);
  };
  same(step.pos, "pos");
  same(step.seq, "seq");
  same(step.slot, "slot");
  if (step.mask_width < 0 || static_cast<int64_t>(step.mask.size()) != tokens * step.mask_width)
    bad_step("mask has {} entries for {} tokens of width {}", step.mask.size(), tokens,
             step.mask_width);
  for (size_t i = 0; i < at(tokens); ++i) {
    int32_t id = step.ids[i];
    bool known = id >= 0            ? vocab_ == 0 || id < vocab_
                 : is_output_id(id) ? output_of_id(id) < earlier_outputs
                                    : row_of_id(id) < max_rows_;
    if (!known) bad_step("token {} has id {} of {}", i, id, vocab_);
    if (step.pos[i] < 0) bad_step("token {} has position {}", i, step.pos[i]);
  }
}

void StepChecker::check_sequences(const StepInputs& step) {
  int64_t sequences = step.sequences();
  if (static_cast<int64_t>(step.q_start.size()) != sequences + 1 || step.q_start[0] != 0 ||
      step.q_start.back() != step.tokens())
    bad_step("q_start does not split {} tokens into {} sequences", step.tokens(), sequences);
  if (static_cast<int64_t>(step.row.size()) != sequences)
    bad_step("{} rows for {} sequences", step.row.size(), sequences);
  for (size_t b = 0; b < at(sequences); ++b) {
    int64_t first = step.q_start[b], end = step.q_start[b + 1];
    if (end <= first || end > step.tokens())
      bad_step("sequence {} has the tokens [{}, {})", b, first, end);
    if (step.kv_len[b] < end - first)
      bad_step("sequence {} has {} tokens but length {}", b, end - first, step.kv_len[b]);
    if (step.mask_width > 0 && end - first > step.mask_width)
      bad_step("sequence {} has {} tokens, the mask is {} wide", b, end - first, step.mask_width);
    for (int64_t i = first; i < end; ++i)
      if (step.seq[at(i)] != static_cast<int32_t>(b) || step.slot[at(i)] < 0 ||
          step.slot[at(i)] >= step.kv_len[b])
        bad_step("token {} of sequence {}: seq {}, slot {} of {}", i, b, step.seq[at(i)],
                 step.slot[at(i)], step.kv_len[b]);
    int64_t row = step.row[b];
    if (row < 0 || row >= max_rows_) bad_step("sequence {} has row {} of {}", b, row, max_rows_);
    if (row_seen_[at(row)] == stamp_) bad_step("row {} is used twice", row);
    row_seen_[at(row)] = stamp_;
    if (strict()) check_order(step, b);
  }
  if (strict() && step.function == "decode" &&
      (step.tokens() != sequences || static_cast<int64_t>(step.out_rows.size()) != sequences))
    bad_step("{} tokens and {} outputs of {} sequences: a decode step has one of each per sequence",
             step.tokens(), step.out_rows.size(), sequences);
}

// Slots are consecutive up to kv_len. Positions increase, except between the branches of a tree.
void StepChecker::check_order(const StepInputs& step, size_t b) const {
  auto first = at(step.q_start[b]), end = at(step.q_start[b + 1]);
  for (size_t i = first; i < end; ++i) {
    int32_t id = step.ids[i];
    if (id < 0 && !is_output_id(id) && row_of_id(id) != step.row[b] &&
        row_of_id(id) != choosing_row(step, b))
      bad_step("token {} is the last one of another row ({})", i, id);
    if (i > first && step.slot[i] != step.slot[i - 1] + 1) bad_step("slots of sequence {}", b);
    if (i > first && step.pos[i] <= (step.mask_width > 0 ? step.pos[first] : step.pos[i - 1]))
      bad_step("positions of sequence {}", b);
  }
  if (step.kv_len[b] != step.slot[end - 1] + 1)
    bad_step("sequence {} ends at slot {}, kv_len is {}", b, step.slot[end - 1], step.kv_len[b]);
}

void StepChecker::check_outputs(const StepInputs& step) const {
  if (step.samples.size() != step.out_rows.size())
    bad_step("{} samples for {} output rows", step.samples.size(), step.out_rows.size());
  if (strict() && step.samples.empty()) bad_step("no outputs");
  for (size_t r = 0; r < step.out_rows.size(); ++r) {
    const SampleRow& sample = step.samples[r];
    using Mode = SampleRow::Mode;
    int32_t t = step.out_rows[r];
    if (t < 0 || t >= step.tokens()) bad_step("output row {} of {} tokens", t, step.tokens());
    bool chooses = sample.mode == Mode::kSample || sample.mode == Mode::kDraft;
    if (chooses && !sample.spec) bad_step("output {} has no sampling parameters", r);
    if (sample.mode == Mode::kScore &&
        (sample.target < 0 || (vocab_ > 0 && sample.target >= vocab_)))
      bad_step("output {} scores token {} of {}", r, sample.target, vocab_);
    if (sample.masked && sample.mode != Mode::kSample)
      bad_step("output {} is masked and does not sample", r);
    check_parent(step, r);
    check_guide(step, r);
    if (!strict()) continue;
    if (r > 0 && step.out_rows[r - 1] >= t) bad_step("output rows are not in order");
    if (sample.mode != Mode::kHidden && sample.position != step.pos[at(t)] + 1)
      bad_step("the token after position {} is not {}", step.pos[at(t)], sample.position);
  }
}

void StepChecker::check_parent(const StepInputs& step, size_t r) const {
  int32_t parent = step.samples[r].parent;
  if (parent == -1) return;
  auto sequence = [&](size_t output) { return step.seq[at(step.out_rows[output])]; };
  auto samples = [&](size_t output) {
    return step.samples[output].mode == SampleRow::Mode::kSample;
  };
  bool right = parent >= 0 && at(parent) < r && samples(r) && samples(at(parent)) &&
               sequence(r) == sequence(at(parent));
  if (!right) bad_step("output {} cannot continue output {}", r, parent);
}

void StepChecker::check_guide(const StepInputs& step, size_t r) {
  int32_t guide = step.samples[r].guide;
  if (guide == -1) return;
  bool right = guide >= 0 && at(guide) < r && step.samples[r].mode == SampleRow::Mode::kSample &&
               step.samples[at(guide)].mode == SampleRow::Mode::kHidden;
  if (!right) bad_step("output {} cannot guide output {}", guide, r);
}

// Every block that the step writes or may read has to be there.
void StepChecker::check_table(const StepInputs& step, size_t group) {
  const StepInputs::Table& table = step.tables[group];
  const GroupEntry& entry = groups_[group];
  int64_t stride = table.stride, size = entry.block_size;
  if (stride < 0 || static_cast<int64_t>(table.blocks.size()) != step.sequences() * stride)
    bad_step("the table of group {} has {} entries for {} sequences of stride {}", entry.name,
             table.blocks.size(), step.sequences(), stride);
  for (int32_t block : table.blocks)
    if (block < -1 || block >= blocks_[group])
      bad_step("block {} of group {}, which has {}", block, entry.name, blocks_[group]);
  if (!grows_[group]) return;
  for (size_t b = 0; b < step.kv_len.size(); ++b) {
    int64_t last = (step.kv_len[b] - 1) / size;
    if (last >= stride)
      bad_step("sequence {} of length {} does not fit a table of {} blocks of group {}", b,
               step.kv_len[b], stride, entry.name);
    auto smallest = [&](const std::vector<int32_t>& v) {
      return *std::min_element(v.begin() + step.q_start[b], v.begin() + step.q_start[b + 1]);
    };
    int64_t oldest = entry.window > 0 ? smallest(step.pos) - entry.window + 1 : 0;
    oldest = std::clamp<int64_t>(oldest, 0, smallest(step.slot));
    for (int64_t block = oldest / size; block <= last; ++block)
      if (table.blocks[b * at(stride) + at(block)] < 0)
        bad_step("sequence {} needs block {} of group {}, which its table does not have", b, block,
                 entry.name);
  }
}

// A block has one writer.
void StepChecker::check_writers(const StepInputs& step, size_t group) {
  const StepInputs::Table& table = step.tables[group];
  int64_t size = groups_[group].block_size;
  for (size_t b = 0; b < step.kv_len.size(); ++b) {
    int64_t first = step.slot[at(step.q_start[b])] / size, last = (step.kv_len[b] - 1) / size;
    for (int64_t k = first; k <= last; ++k) {
      int32_t block = table.blocks[b * at(table.stride) + at(k)];
      uint64_t& writer = writers_[group][at(block)];
      uint64_t me = stamp_ << 24 | b;  // room for the sequences of a step
      if (writer >> 24 == stamp_ && writer != me)
        bad_step("two sequences write block {} of group {}", block, groups_[group].name);
      writer = me;
    }
  }
}

}  // namespace tokamak
