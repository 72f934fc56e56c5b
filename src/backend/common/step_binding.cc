#include "backend/common/step_binding.h"

#include <algorithm>
#include <map>

#include "base/channels.h"
#include "base/error.h"

namespace tokamak {
namespace {

template <class... Args>
[[noreturn]] void bad_step(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInternal,
              fmt::format("step: {}", fmt::format(format, std::forward<Args>(args)...)));
}

size_t index(int64_t i) { return static_cast<size_t>(i); }

// How many rows per sequence a specialised function has: T bound to c * B gives c.
int64_t multiple_of_b(const std::string& text) {
  SymExpr expr = SymExpr::parse(text), b = SymExpr::symbol("B");
  int64_t c = expr.eval({{"B", 1}});
  return expr == b * SymExpr(c) ? c : 0;
}

}  // namespace

StepBinder::StepBinder(const PlanSet& plans, std::vector<int64_t> blocks, int64_t max_rows)
    : plans_(plans),
      blocks_(std::move(blocks)),
      max_rows_(max_rows),
      compiles_at_load_(compile_count()),
      log_guards_(log::channel_enabled("guards")) {
  for (const SymbolDecl& symbol : plans.symbols) {
    if (symbol.name != "T" && symbol.name != "B" && symbol.name != "R" && symbol.name != "M")
      fail(ErrorCode::kUnsupported, "no step input gives the symbol {} its value", symbol.name);
    symbol_kinds_.push_back(symbol.name[0]);
  }
  values_.resize(symbol_kinds_.size());
  if (blocks_.size() != plans.groups.size())
    fail(ErrorCode::kInvalidArgument, "block counts for {} KV groups, the model has {}",
         blocks_.size(), plans.groups.size());
  for (size_t g = 0; g < plans.groups.size(); ++g) {
    if (plans.groups[g].block_size < 1)
      fail(ErrorCode::kCorrupt, "KV group {} has blocks of {} tokens", plans.groups[g].name,
           plans.groups[g].block_size);
    grows_.push_back(std::any_of(
        plans.states.begin(), plans.states.end(),
        [g](const StateEntry& state) { return state.group == g && !state.per_sequence; }));
  }
  for (const Plan& plan : plans.plans) {
    Facts facts;
    for (const auto& [symbol, value] : plan.bound_symbols) {
      if (symbol == "T") facts.rows_per_sequence = multiple_of_b(value);
      if (symbol == "R") facts.all_rows_out = true;
    }
    for (const GuardRange& g : plan.guard) {
      if (g.pad == 0) continue;
      int64_t each = std::max<int64_t>(1, facts.rows_per_sequence);
      facts.pad = g.pad * each;
      if (g.multiple > 1) facts.multiple = g.multiple * each;
    }
    facts_.push_back(facts);
  }
  auto names = std::make_shared<std::vector<std::string>>();
  for (const Plan& plan : plans.plans) {
    names->push_back(plan_name(plan));
    if (log_guards_)
      log::channel("guards", fmt::format("plan {}: {}", names->size() - 1, names->back()));
  }
  stats_.names = std::move(names);
  row_seen_.assign(index(max_rows), 0);
}

void StepBinder::check_tokens(const StepInputs& step) const {
  int64_t tokens = step.tokens();
  auto same = [&](const std::vector<int32_t>& v, const char* what) {
    if (static_cast<int64_t>(v.size()) != tokens)
      bad_step("{} has {} entries for {} tokens", what, v.size(), tokens);
  };
  same(step.pos, "pos");
  same(step.seq, "seq");
  same(step.slot, "slot");
  if (!step.adapter.empty()) same(step.adapter, "adapter");
  if (step.mask_width < 0 || static_cast<int64_t>(step.mask.size()) != tokens * step.mask_width)
    bad_step("mask has {} entries for {} tokens of width {}", step.mask.size(), tokens,
             step.mask_width);
  for (size_t i = 0; i < index(tokens); ++i) {
    int64_t id = step.ids[i];
    if (id < 0 ? -1 - id >= max_rows_ : plans_.vocab > 0 && id >= plans_.vocab)
      bad_step("token {} has id {} of {}", i, id, plans_.vocab);
    if (step.pos[i] < 0) bad_step("token {} has position {}", i, step.pos[i]);
  }
}

void StepBinder::check_sequences(const StepInputs& step) {
  int64_t sequences = step.sequences();
  if (static_cast<int64_t>(step.q_start.size()) != sequences + 1 || step.q_start[0] != 0 ||
      step.q_start.back() != step.tokens())
    bad_step("q_start does not split {} tokens into {} sequences", step.tokens(), sequences);
  if (static_cast<int64_t>(step.row.size()) != sequences)
    bad_step("{} rows for {} sequences", step.row.size(), sequences);
  ++step_number_;
  for (size_t b = 0; b < index(sequences); ++b) {
    int64_t first = step.q_start[b], end = step.q_start[b + 1];
    if (end <= first || end > step.tokens())
      bad_step("sequence {} has the tokens [{}, {})", b, first, end);
    if (step.kv_len[b] < end - first)
      bad_step("sequence {} has {} tokens but length {}", b, end - first, step.kv_len[b]);
    if (step.mask_width > 0 && end - first > step.mask_width)
      bad_step("sequence {} has {} tokens, the mask is {} wide", b, end - first, step.mask_width);
    for (int64_t i = first; i < end; ++i)
      if (step.seq[index(i)] != static_cast<int32_t>(b) || step.slot[index(i)] < 0 ||
          step.slot[index(i)] >= step.kv_len[b])
        bad_step("token {} of sequence {}: seq {}, slot {} of {}", i, b, step.seq[index(i)],
                 step.slot[index(i)], step.kv_len[b]);
    int64_t row = step.row[b];
    if (row < 0 || row >= max_rows_) bad_step("sequence {} has row {} of {}", b, row, max_rows_);
    if (row_seen_[index(row)] == step_number_) bad_step("row {} is used twice", row);
    row_seen_[index(row)] = step_number_;
  }
}

void StepBinder::check_outputs(const StepInputs& step) const {
  if (step.samples.size() != step.out_rows.size())
    bad_step("{} samples for {} output rows", step.samples.size(), step.out_rows.size());
  for (size_t r = 0; r < step.out_rows.size(); ++r) {
    const SampleRow& sample = step.samples[r];
    if (step.out_rows[r] < 0 || step.out_rows[r] >= step.tokens())
      bad_step("output row {} of {} tokens", step.out_rows[r], step.tokens());
    if (sample.mode == SampleRow::Mode::kSample && !sample.spec)
      bad_step("output {} has no sampling parameters", r);
    if (sample.mode == SampleRow::Mode::kScore &&
        (sample.target < 0 || (plans_.vocab > 0 && sample.target >= plans_.vocab)))
      bad_step("output {} scores token {} of {}", r, sample.target, plans_.vocab);
  }
}

// Every block that the step writes or may read has to be there.
void StepBinder::check_table(const StepInputs& step, size_t group) const {
  const StepInputs::Table& table = step.tables[group];
  const GroupEntry& entry = plans_.groups[group];
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
    auto rows = [&](const std::vector<int32_t>& v) {
      return std::min_element(v.begin() + step.q_start[b], v.begin() + step.q_start[b + 1]);
    };
    int64_t oldest = entry.window > 0 ? *rows(step.pos) - entry.window + 1 : 0;
    oldest = std::clamp<int64_t>(oldest, 0, *rows(step.slot));
    for (int64_t block = oldest / size; block <= last; ++block)
      if (table.blocks[b * index(stride) + index(block)] < 0)
        bad_step("sequence {} needs block {} of group {}, which is not there", b, block,
                 entry.name);
  }
}

void StepBinder::check_side_data(const StepInputs& step) const {
  for (const BlockCopy& copy : step.copies)
    if (copy.group >= blocks_.size() || copy.from < 0 || copy.to < 0 ||
        copy.from >= blocks_[copy.group] || copy.to >= blocks_[copy.group])
      bad_step("copy of block {} to {} in group {}", copy.from, copy.to, copy.group);
  for (const RowReset& reset : step.resets) {
    if (reset.row < 0 || reset.row >= max_rows_)
      bad_step("reset of row {} of {}", reset.row, max_rows_);
    if (reset.prompt_tokens < 0)
      bad_step("row {} is reset with {} prompt tokens", reset.row, reset.prompt_tokens);
    for (int32_t id : reset.ids)
      if (id < 0 || (plans_.vocab > 0 && id >= plans_.vocab))
        bad_step("row {} is reset with token {} of {}", reset.row, id, plans_.vocab);
  }
}

// A specialised plan may rely on its rows being laid out as its facts say.
bool StepBinder::admits(size_t plan, const StepInputs& step) const {
  const Facts& facts = facts_[plan];
  if (facts.rows_per_sequence > 0)
    for (size_t b = 0; b < step.q_start.size(); ++b)
      if (step.q_start[b] != static_cast<int64_t>(b) * facts.rows_per_sequence) return false;
  // The rows of padding of a general function are one sequence more.
  if (facts.rows(step.tokens()) > step.tokens() && facts.rows_per_sequence == 0)
    for (const GuardRange& g : plans_.plans[plan].guard)
      if (g.symbol == "B" && step.sequences() + 1 > g.hi) return false;
  if (facts.all_rows_out) {
    if (static_cast<int64_t>(step.out_rows.size()) != step.tokens()) return false;
    for (size_t r = 0; r < step.out_rows.size(); ++r)
      if (step.out_rows[r] != static_cast<int64_t>(r)) return false;
  }
  return true;
}

void StepBinder::set_symbols(const StepInputs& step) {
  for (size_t i = 0; i < symbol_kinds_.size(); ++i) {
    char kind = symbol_kinds_[i];
    values_[i] = kind == 'T'   ? static_cast<int64_t>(step.pos.size())
                 : kind == 'B' ? step.sequences()
                 : kind == 'R' ? static_cast<int64_t>(step.out_rows.size())
                               : step.mask_width;
  }
}

// The function's own plan, the most specific first; then the general function's.
int StepBinder::choose(const StepInputs& step) const {
  for (std::string_view function : {std::string_view(step.function), std::string_view("step")})
    for (bool buckets : {true, false}) {
      int plan = select_plan(plans_, function, values_, buckets);
      if (plan >= 0 && admits(static_cast<size_t>(plan), step)) return plan;
    }
  return -1;
}

// Only what plans read; vectors keep their capacity. Tables stay as they are: nothing looks up a
// block of a sequence of length 0.
void StepBinder::pad(const StepInputs& step, const Facts& facts) {
  padded_.pos = step.pos;
  padded_.seq = step.seq;
  padded_.slot = step.slot;
  padded_.q_start = step.q_start;
  padded_.kv_len = step.kv_len;
  padded_.adapter = step.adapter;
  padded_.mask = step.mask;
  padded_.mask_width = step.mask_width;
  padded_.out_rows = step.out_rows;
  padded_.tables = step.tables;
  const int64_t whole = facts.rows(step.tokens());
  auto rows = index(whole);
  padded_.pos.resize(rows, 0);
  padded_.slot.resize(rows, -1);
  if (!padded_.adapter.empty()) padded_.adapter.resize(rows, -1);
  padded_.mask.resize(rows * index(step.mask_width), 0);
  int64_t each = facts.rows_per_sequence > 0 ? facts.rows_per_sequence : whole - step.tokens();
  for (int64_t at = step.tokens(); at < whole; at += each) {
    padded_.seq.resize(index(at + each), static_cast<int32_t>(padded_.kv_len.size()));
    padded_.q_start.push_back(static_cast<int32_t>(at + each));
    padded_.kv_len.push_back(0);
  }
  if (facts.all_rows_out)
    for (int64_t r = step.tokens(); r < whole; ++r)
      padded_.out_rows.push_back(static_cast<int32_t>(r));
}

void StepBinder::count(const StepInputs& step, size_t plan) {
  auto same_function = [&](const Plan& p) { return p.function == plans_.plans[plan].function; };
  bool bucketed = false;
  for (size_t i = 0; i < facts_.size(); ++i)
    bucketed = bucketed || (facts_[i].pad > 0 && same_function(plans_.plans[i]));
  if (plan < stats_.steps.size()) ++stats_.steps[plan];
  if (plans_.plans[plan].function != step.function || (bucketed && facts_[plan].pad == 0))
    ++stats_.fallbacks;
  stats_.rows += step.tokens();
  stats_.padded_rows += facts_[plan].rows(step.tokens()) - step.tokens();
  stats_.compiles = compile_count() - compiles_at_load_;
  if (!log_guards_ || logged_plan_ == static_cast<int>(plan)) return;
  logged_plan_ = static_cast<int>(plan);
  log::channel("guards",
               fmt::format("{} with T={} B={} R={}: plan {}, {}", step.function, step.tokens(),
                           step.sequences(), step.out_rows.size(), plan, (*stats_.names)[plan]));
}

int StepBinder::bind(const StepInputs& step) {
  if (step.ids.empty()) bad_step("it has no tokens");
  check_tokens(step);
  check_sequences(step);
  check_outputs(step);
  if (step.tables.size() != plans_.groups.size())
    bad_step("{} block tables for {} KV groups", step.tables.size(), plans_.groups.size());
  for (size_t group = 0; group < step.tables.size(); ++group) check_table(step, group);
  check_side_data(step);

  set_symbols(step);
  inputs_ = &step;
  int plan = choose(step);
  if (plan < 0)
    fail(ErrorCode::kOutOfRange, "no plan for {} tokens of {} sequences with {} outputs ({})",
         step.tokens(), step.sequences(), step.out_rows.size(), step.function);
  count(step, static_cast<size_t>(plan));
  if (const Facts& facts = facts_[static_cast<size_t>(plan)];
      facts.rows(step.tokens()) > step.tokens()) {
    pad(step, facts);
    set_symbols(padded_);
    inputs_ = &padded_;
  }
  return plan;
}

}  // namespace tokamak
