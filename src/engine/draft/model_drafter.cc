#include "engine/draft/model_drafter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/config.h"

namespace tokamak {
namespace {

constexpr float kLeastBranch = -2.3f;  // a token with a tenth of the probability is a branch
constexpr int kMostFailures = 3;       // then the draft model is disabled

int64_t blocks_of(int64_t slots, int64_t size) { return (slots + size - 1) / size; }

}  // namespace

ModelDrafter::ModelDrafter(const PlanSet& plans, std::unique_ptr<Executable> executable,
                           std::vector<int64_t> blocks, int64_t rows)
    : plans_(plans), executable_(std::move(executable)), blocks_(std::move(blocks)) {
  TK_CHECK(blocks_.size() == plans.groups.size(), "{} block counts for {} groups", blocks_.size(),
           plans.groups.size());
  EngineConfig limits = default_engine_config(plans);
  most_tokens_ = limits.max_batched_tokens;
  most_rows_ = std::min(rows, limits.max_num_seqs);
  decode_batch_ = limits.decode_batch;
  for (int64_t r = rows; r-- > 0;) free_rows_.push_back(static_cast<int32_t>(r));
  for (int64_t count : blocks_) {
    auto& list = free_.emplace_back();
    for (int64_t b = count; b-- > 0;) list.push_back(static_cast<int32_t>(b));
  }
  step_.tables.resize(plans.groups.size());
}

bool ModelDrafter::all_free() const {
  for (size_t g = 0; g < free_.size(); ++g)
    if (std::ssize(free_[g]) != blocks_[g]) return false;
  return true;
}

void ModelDrafter::finish(uint64_t sequence, std::string_view, std::span<const int32_t>, int32_t) {
  auto it = texts_.find(sequence);
  if (it == texts_.end()) return;
  release(it->second);
  texts_.erase(it);
}

void ModelDrafter::release(Text& text) {
  for (size_t g = 0; g < text.blocks.size(); ++g)
    free_[g].insert(free_[g].end(), text.blocks[g].begin(), text.blocks[g].end());
  if (text.row >= 0) free_rows_.push_back(text.row);
  text.blocks.clear();
  text.row = -1;
  text.ids.clear();
}

bool ModelDrafter::evict() {
  auto oldest = texts_.end();
  for (auto it = texts_.begin(); it != texts_.end(); ++it)
    if (it->second.used < round_ &&
        (oldest == texts_.end() ||
         std::pair(it->second.used, it->first) < std::pair(oldest->second.used, oldest->first)))
      oldest = it;
  if (oldest == texts_.end()) return false;
  release(oldest->second);
  texts_.erase(oldest);
  return true;
}

bool ModelDrafter::make_room(Text& text, int64_t slots) {
  while (text.row < 0) {
    if (!free_rows_.empty()) {
      text.row = free_rows_.back();
      free_rows_.pop_back();
    } else if (!evict()) {
      return false;
    }
  }
  text.blocks.resize(plans_.groups.size());
  for (size_t g = 0; g < free_.size(); ++g) {
    auto want = static_cast<size_t>(blocks_of(slots, plans_.groups[g].block_size));
    while (text.blocks[g].size() < want) {
      while (free_[g].empty())
        if (!evict()) return false;
      text.blocks[g].push_back(free_[g].back());
      free_[g].pop_back();
    }
  }
  return true;
}

// nullptr: no proposal for it now.
ModelDrafter::Text* ModelDrafter::prepare(DraftRequest& r) {
  auto length = std::ssize(r.ids);
  r.most = static_cast<int32_t>(std::min<int64_t>(r.most, plans_.context - length));
  auto outside = [&](int32_t id) { return id >= plans_.vocab; };
  if (r.most <= 0 || std::any_of(r.ids.begin(), r.ids.end(), outside)) return nullptr;
  Text& text = texts_[r.sequence];
  text.used = round_;
  if (!make_room(text, length + r.most)) {
    release(text);
    return nullptr;
  }
  // What was accepted is kept; the last committed token is computed again, its output is needed.
  auto most = std::min<std::ptrdiff_t>(std::ssize(text.ids), length - 1);
  auto [end, other] = std::mismatch(text.ids.begin(), text.ids.begin() + most, r.ids.begin());
  text.ids.erase(end, text.ids.end());
  return &text;
}

void ModelDrafter::add(Active& a, std::span<const int32_t> ids, bool chooses) {
  Text& text = *a.text;
  auto index = static_cast<int32_t>(step_.kv_len.size());
  if (step_.q_start.empty()) step_.q_start.push_back(0);
  for (int32_t id : ids) {
    auto at = static_cast<int32_t>(text.ids.size());
    step_.ids.push_back(id);
    step_.pos.push_back(at);
    step_.slot.push_back(at);
    step_.seq.push_back(index);
    text.ids.push_back(id);
  }
  step_.q_start.push_back(static_cast<int32_t>(step_.ids.size()));
  step_.kv_len.push_back(static_cast<int32_t>(text.ids.size()));
  step_.row.push_back(text.row);
  if (!chooses) return;
  a.output = static_cast<int32_t>(step_.out_rows.size());
  ++a.drafted;
  owners_.push_back(static_cast<int32_t>(&a - active_.data()));
  step_.out_rows.push_back(static_cast<int32_t>(step_.ids.size()) - 1);
  SampleRow& sample = step_.samples.emplace_back();
  sample.choice = a.request->choice;
  sample.position = static_cast<int32_t>(text.ids.size());
  sample.generated = std::max(0, sample.position - a.request->prompt_length);
  sample.spec = sample_of(a);
  sample.keep_probabilities = sample.spec->rejection;
}

const std::shared_ptr<const SampleSpec>& ModelDrafter::sample_of(Active& a) {
  const std::shared_ptr<const SampleSpec>& asked = *a.request->sample;
  if (a.request->branches <= 1) return asked;
  if (a.text->asked != asked) {
    SampleSpec spec = *asked;
    spec.top_logprobs = a.request->branches;
    a.text->with_top = std::make_shared<const SampleSpec>(std::move(spec));
    a.text->asked = asked;
  }
  return a.text->with_top;
}

// Likely tokens that were not drawn for the last one of the proposal.
void ModelDrafter::add_branches(int32_t output, DraftRequest& request) {
  if (request.branches <= 1) return;
  auto top = std::lower_bound(result_.top.begin(), result_.top.end(), output,
                              [](const auto& t, int32_t row) { return t.first < row; });
  for (int32_t count = 1; top != result_.top.end() && top->first == output; ++top) {
    if (top->second.id == request.tokens.back().id || count >= request.branches) continue;
    if (top->second.logprob < kLeastBranch) break;
    branches_.emplace_back(&request, DraftToken{top->second.id, request.tokens.back().parent});
    ++count;
  }
}

// Ends a phase with the rows added since the last one. False: there are none.
bool ModelDrafter::end_phase() {
  StepPhase phase{"step", static_cast<int32_t>(step_.tokens()),
                  static_cast<int32_t>(step_.sequences()),
                  static_cast<int32_t>(step_.out_rows.size())};
  for (const StepPhase& earlier : step_.phases) {
    phase.tokens -= earlier.tokens;
    phase.sequences -= earlier.sequences;
    phase.outputs -= earlier.outputs;
  }
  if (phase.tokens == 0) return false;
  if (phase.outputs == 0) {  // plans need at least one row of logits
    SampleRow& row = step_.samples.emplace_back();
    row.mode = SampleRow::Mode::kHidden;
    row.position = step_.pos.back() + 1;
    step_.out_rows.push_back(static_cast<int32_t>(step_.ids.size()) - 1);
    owners_.push_back(-1);
    phase.outputs = 1;
  }
  bool decode = phase.tokens == phase.sequences && phase.outputs == phase.tokens;
  if (decode && phase.sequences <= decode_batch_) phase.function = "decode";
  step_.phases.push_back(phase);
  return true;
}

void ModelDrafter::set_tables() {
  for (size_t g = 0; g < plans_.groups.size(); ++g) {
    StepInputs::Table& table = step_.tables[g];
    int64_t size = plans_.groups[g].block_size, stride = 0;
    for (int32_t length : step_.kv_len) stride = std::max(stride, blocks_of(length, size));
    table.stride = static_cast<int32_t>(stride);
    table.blocks.assign(static_cast<size_t>(step_.sequences() * stride), -1);
    auto out = table.blocks.begin();
    for (int32_t row : step_.row) {
      auto a = std::find_if(active_.begin(), active_.end(),
                            [&](const Active& x) { return x.text->row == row; });
      auto count = std::min<std::ptrdiff_t>(stride, std::ssize(a->text->blocks[g]));
      std::copy_n(a->text->blocks[g].begin(), count, out);
      out += stride;
    }
  }
}

// Runs the step and appends the chosen tokens to the proposals.
void ModelDrafter::run() {
  set_tables();
  ++steps_;
  executable_->collect(executable_->submit(step_), result_);
  step_.clear();
  branches_.clear();
  auto kept = result_.probabilities.begin();
  for (size_t r = 0; r < owners_.size(); ++r) {
    std::shared_ptr<const std::vector<float>> probabilities;
    if (kept != result_.probabilities.end() && kept->first == static_cast<int32_t>(r))
      probabilities = std::make_shared<const std::vector<float>>(std::move((kept++)->second));
    if (owners_[r] < 0) continue;
    DraftRequest& request = *active_[static_cast<size_t>(owners_[r])].request;
    if (result_.ids[r] < 0) request.most = 0;  // its logits are not finite
    auto parent = static_cast<int32_t>(request.tokens.size()) - 1;
    if (request.most <= 0) continue;
    request.tokens.push_back({result_.ids[r], parent, std::move(probabilities)});
    add_branches(static_cast<int32_t>(r), request);
  }
  for (auto& [request, token] : branches_) request->tokens.push_back(std::move(token));
  for (Active& a : active_) {
    std::vector<int32_t>& ids = a.text->ids;
    for (auto id = ids.end() - std::max(0, a.drafted - 1); id != ids.end(); ++id)
      *id = result_.ids[static_cast<size_t>(output_of_id(*id))];
  }
}

bool ModelDrafter::catch_up() {
  int64_t room = most_tokens_;
  for (Active& a : active_) {
    auto rest = a.request->ids.subspan(a.text->ids.size());
    auto count = std::min<std::ptrdiff_t>(std::ssize(rest), room);
    if (count == 0) continue;
    room -= count;
    if ((*a.request->sample)->needs_history())
      step_.resets.push_back(
          {a.text->row, a.request->prompt_length, {a.request->ids.begin(), a.request->ids.end()}});
    add(a, rest.first(static_cast<size_t>(count)), count == std::ssize(rest));
  }
  return end_phase();
}

bool ModelDrafter::draft_next() {
  for (Active& a : active_) {
    if (a.output < 0 || a.drafted >= a.request->most) continue;
    int32_t id = id_of_output(a.output);
    add(a, std::span(&id, 1), true);
  }
  return end_phase();
}

void ModelDrafter::propose_group(std::span<DraftRequest> requests) {
  ++round_;
  active_.clear();
  owners_.clear();
  for (DraftRequest& r : requests)
    if (Text* text = prepare(r)) active_.push_back({&r, text});
  // A text that was prepared later may not have evicted an earlier one: all have this round.
  if (!catch_up()) return;
  while (draft_next()) {
  }
  run();
}

void ModelDrafter::propose(std::span<DraftRequest> requests) {
  if (failures_ >= kMostFailures) return;
  try {
    for (size_t at = 0; at < requests.size(); at += static_cast<size_t>(most_rows_))
      propose_group(
          requests.subspan(at, std::min(static_cast<size_t>(most_rows_), requests.size() - at)));
  } catch (const std::exception& e) {
    give_up(e.what());
    for (DraftRequest& r : requests) r.tokens.clear();
  }
}

// The state of its KV is not known after a failure.
void ModelDrafter::give_up(const char* why) {
  ++failures_;
  log::error("the draft model failed{}: {}", failures_ >= kMostFailures ? " and is disabled" : "",
             why);
  step_.clear();
  for (auto& [sequence, text] : texts_) release(text);
  texts_.clear();
}

}  // namespace tokamak
