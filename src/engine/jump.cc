// Jump-forward: tokens that a mask forces are appended without steps of their own. The next step
// computes all of them, as a chunk, and chooses the token after them.
#include "engine/core.h"

namespace tokamak {
namespace {

// A single forced token is left to the model, which may write it in another way: it would save no
// step, as the next one is usually in flight. This must not depend on what is in flight, nor on
// drafts, or else the answer would.
constexpr std::ptrdiff_t kShortestJump = 2;

bool jumps(const Sequence& seq) {
  const RequestSpec& spec = seq.request->spec;
  return spec.jump_forward && spec.mask != nullptr && seq.sample().top_logprobs < 0;
}

}  // namespace

void EngineCore::find_forced(const Sequence& seq) {
  forced_.clear();
  if (!jumps(seq)) return;
  auto answer = seq.ids().subspan(static_cast<size_t>(seq.prompt_length()));
  seq.request->spec.mask->force(seq.choice, answer, forced_);
}

void EngineCore::note_jump(int64_t tokens) {
  if (tokens == 0) return;
  ++stats_.jumps;
  stats_.jump_tokens += tokens;
}

// Before the first step of a sequence. The tokens are sent with the first one that the model
// chooses.
void EngineCore::jump_at_start(Sequence& seq) {
  find_forced(seq);
  for (int32_t id : forced_) {
    if (seq.stops_at(id) || seq.generated() + 1 >= seq.limit) break;
    seq.extend(id);
    ++seq.unsent;
  }
  note_jump(seq.unsent);
}

// How many tokens of a path are kept: without drafts, what follows the others would have been
// forced.
size_t EngineCore::kept_before_jump(const Sequence& seq, std::span<const int32_t> path,
                                    const StepResult& result) {
  if (!jumps(seq)) return path.size();
  auto known = seq.ids().subspan(static_cast<size_t>(seq.prompt_length()));
  std::vector<int32_t> answer(known.begin(), known.end());
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    answer.push_back(result.ids[static_cast<size_t>(path[i])]);
    forced_.clear();
    seq.request->spec.mask->force(seq.choice, answer, forced_);
    if (std::ssize(forced_) >= kShortestJump) return i + 1;
  }
  return path.size();
}

// After the tokens of a step. Says whether the answer ends with them.
Finish EngineCore::jump(Sequence& seq, Delta& delta) {
  find_forced(seq);
  if (std::ssize(forced_) < kShortestJump) return Finish::kNone;
  Finish how = Finish::kNone;
  int64_t before = seq.length();
  for (int32_t id : forced_) {
    if (seq.stops_at(id)) {
      how = Finish::kStop;
      delta.stop_id = id;
      break;
    }
    seq.extend(id);
    delta.ids.push_back(id);
    ++delta.forced;
    if (seq.generated() < seq.limit) continue;
    how = seq.limit_is_stop ? Finish::kStop : Finish::kLength;
    break;
  }
  note_jump(seq.length() - before + (delta.stop_id >= 0 ? 1 : 0));
  if (how != Finish::kNone) return how;
  if (seq.in_flight > 0) seq.rewind();  // they chose a token for a place that is taken now
  seq.reset_row = true;
  return how;
}

}  // namespace tokamak
