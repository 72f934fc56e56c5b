// Jump-forward: tokens that a mask forces are appended without steps of their own. The next step
// computes all of them, as a chunk, and chooses the token after them.
#include "engine/core.h"

namespace tokamak {
namespace {

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

// After the tokens of a step. Says whether the answer ends with them.
Finish EngineCore::jump(Sequence& seq, Delta& delta) {
  find_forced(seq);
  // Steps in flight choose as many tokens themselves, and would be wasted.
  if (std::ssize(forced_) <= seq.in_flight) return Finish::kNone;
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
