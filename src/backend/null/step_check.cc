#include "backend/null/step_check.h"

#include <algorithm>

#include "base/error.h"

namespace tokamak {

StepChecker::StepChecker(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows,
                         int64_t vocab)
    : groups_(plans.groups), blocks_(std::move(blocks)), max_rows_(max_rows), vocab_(vocab) {
  TK_CHECK(blocks_.size() == groups_.size(), "{} block counts for {} groups", blocks_.size(),
           groups_.size());
  row_seen_.resize(static_cast<size_t>(max_rows_));
  for (int64_t n : blocks_) block_written_.emplace_back(static_cast<size_t>(n));
}

void StepChecker::check(const StepInputs& step) {
  ++stamp_;
  check_tokens(step);
  check_rows(step);
  check_samples(step);
  check_tables(step);
}

void StepChecker::check_tokens(const StepInputs& step) const {
  size_t t = step.ids.size(), b = step.kv_len.size();
  TK_CHECK(t > 0 && b > 0, "step: {} tokens of {} sequences", t, b);
  TK_CHECK(step.pos.size() == t && step.seq.size() == t && step.slot.size() == t,
           "step: {} ids, {} pos, {} seq, {} slot", t, step.pos.size(), step.seq.size(),
           step.slot.size());
  TK_CHECK(step.q_start.size() == b + 1 && step.row.size() == b,
           "step: {} sequences, {} q_start, {} rows", b, step.q_start.size(), step.row.size());
  TK_CHECK(step.q_start[0] == 0 && step.q_start[b] == static_cast<int32_t>(t),
           "step: q_start does not cover the tokens");
  for (size_t i = 0; i < b; ++i) {
    int32_t from = step.q_start[i], to = step.q_start[i + 1];
    TK_CHECK(from < to, "step: sequence {} has no tokens", i);
    for (auto j = static_cast<size_t>(from); j < static_cast<size_t>(to); ++j) {
      TK_CHECK(step.seq[j] == static_cast<int32_t>(i), "step: token {} is not of sequence {}", j,
               i);
      TK_CHECK(step.ids[j] < vocab_, "step: id {} is not in the vocabulary", step.ids[j]);
      TK_CHECK(step.ids[j] >= 0 || step.ids[j] == -1 - step.row[i],
               "step: token {} takes the last id of another row ({})", j, step.ids[j]);
      TK_CHECK(step.pos[j] >= 0 && step.slot[j] >= 0, "step: token {} before the start", j);
      bool first = j == static_cast<size_t>(from);
      TK_CHECK(first || step.slot[j] == step.slot[j - 1] + 1, "step: slots of sequence {}", i);
      TK_CHECK(first || step.pos[j] > step.pos[j - 1], "step: positions of sequence {}", i);
    }
    TK_CHECK(step.kv_len[i] == step.slot[static_cast<size_t>(to) - 1] + 1,
             "step: sequence {} ends at slot {}, kv_len is {}", i,
             step.slot[static_cast<size_t>(to) - 1], step.kv_len[i]);
  }
  if (step.function == "decode")
    TK_CHECK(t == b && step.out_rows.size() == b, "step: not a decode");
}

void StepChecker::check_rows(const StepInputs& step) {
  for (int32_t row : step.row) {
    TK_CHECK(row >= 0 && row < max_rows_, "step: row {} of {}", row, max_rows_);
    TK_CHECK(row_seen_[static_cast<size_t>(row)] != stamp_, "step: row {} is there twice", row);
    row_seen_[static_cast<size_t>(row)] = stamp_;
  }
  for (const RowReset& r : step.resets) {
    TK_CHECK(r.row >= 0 && r.row < max_rows_, "step: reset of row {} of {}", r.row, max_rows_);
    TK_CHECK(r.prompt_tokens >= 0 && r.prompt_tokens <= static_cast<int32_t>(r.ids.size()),
             "step: reset of row {}: {} prompt tokens of {}", r.row, r.prompt_tokens, r.ids.size());
  }
}

void StepChecker::check_samples(const StepInputs& step) const {
  TK_CHECK(step.samples.size() == step.out_rows.size() && !step.samples.empty(),
           "step: {} samples for {} rows", step.samples.size(), step.out_rows.size());
  for (size_t r = 0; r < step.samples.size(); ++r) {
    int32_t t = step.out_rows[r];
    TK_CHECK(t >= 0 && t < step.tokens(), "step: out_row {} of {} tokens", t, step.tokens());
    TK_CHECK(r == 0 || step.out_rows[r - 1] < t, "step: out_rows are not in order");
    const SampleRow& s = step.samples[r];
    TK_CHECK(s.target >= -1 && s.target < vocab_, "step: target {}", s.target);
    TK_CHECK(s.mode != SampleRow::Mode::kScore || s.target >= 0, "step: nothing to score");
    TK_CHECK(
        s.mode == SampleRow::Mode::kHidden || s.position == step.pos[static_cast<size_t>(t)] + 1,
        "step: the token after position {} is not {}", step.pos[static_cast<size_t>(t)],
        s.position);
  }
}

void StepChecker::check_tables(const StepInputs& step) {
  TK_CHECK(step.tables.size() == groups_.size(), "step: {} tables for {} groups",
           step.tables.size(), groups_.size());
  int64_t b = step.sequences();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const StepInputs::Table& table = step.tables[g];
    TK_CHECK(static_cast<int64_t>(table.blocks.size()) == b * table.stride,
             "step: table of group {} has {} entries", g, table.blocks.size());
    for (int32_t block : table.blocks)
      TK_CHECK(block >= -1 && block < blocks_[g], "step: block {} of {}", block, blocks_[g]);
    int64_t size = groups_[g].block_size;
    for (int64_t i = 0; i < b; ++i) {
      auto at = static_cast<size_t>(i);
      auto first = static_cast<size_t>(step.q_start[at]);
      TK_CHECK((step.kv_len[at] - 1) / size < table.stride, "step: table of group {} is too short",
               g);
      for (int64_t k = step.slot[first] / size; k <= (step.kv_len[at] - 1) / size; ++k) {
        int32_t block = table.blocks[static_cast<size_t>(i * table.stride + k)];
        TK_CHECK(block >= 0, "step: sequence {} writes where it has no block (group {})", i, g);
        // A block has one writer; the stamp of a step leaves room for its sequences.
        uint64_t& writer = block_written_[g][static_cast<size_t>(block)];
        uint64_t me = stamp_ << 24 | static_cast<uint64_t>(i);
        TK_CHECK(writer >> 24 != stamp_ || writer == me,
                 "step: two sequences write block {} of group {}", block, g);
        writer = me;
      }
    }
  }
  for (const BlockCopy& c : step.copies)
    TK_CHECK(c.group < groups_.size() && c.from >= 0 && c.from < blocks_[c.group] && c.to >= 0 &&
                 c.to < blocks_[c.group],
             "step: copy of block {} to {}", c.from, c.to);
}

}  // namespace tokamak
