// Generation past the end of a gen: it runs on over its stop string or its last token, and what it
// has guessed is kept. If the text that follows is what was guessed, token by token, the next gen
// has its first tokens already. Only greedy gens: their tokens are the same with and without.
#include <algorithm>

#include "serve/program/branch.h"
#include "serve/program/run.h"

namespace tokamak::program {
namespace {

// The largest logit, after penalties that see prompt and answer alike: a token depends on the ids
// before it, and not on where the answer begins.
bool depends_on_ids_only(const SampleSpec& s) {
  return s.temperature <= 0 && s.presence_penalty == 0 && s.frequency_penalty == 0 &&
         s.min_tokens == 0 && s.guidance_scale == 1 && s.mirostat == 0;
}

bool same_choice(const SampleSpec& a, const SampleSpec& b) {
  return a.repetition_penalty == b.repetition_penalty && a.penalty_last_n == b.penalty_last_n &&
         a.dry_multiplier == b.dry_multiplier && a.dry_base == b.dry_base &&
         a.dry_allowed_length == b.dry_allowed_length && a.dry_last_n == b.dry_last_n &&
         a.dola_layers == b.dola_layers && a.order == b.order;
}

}  // namespace

// The tokens that the pending gen begins with.
std::vector<int32_t> Run::take_run_on(Branch& branch) {
  Pending& p = *branch.pending;
  const Statement& s = *p.statement;
  const std::vector<int32_t>& known = branch.run_on.ids;
  bool fits = known.size() > p.prompt.size() && !s.gen.grammar && s.score_name.empty() &&
              branch.run_on.model == s.model && branch.run_on.ignore_eos == s.gen.ignore_eos &&
              depends_on_ids_only(*p.sample) && same_choice(branch.run_on.sample, *p.sample) &&
              std::equal(p.prompt.begin(), p.prompt.end(), known.begin());
  if (!fits) {
    branch.run_on = {};
    return {};
  }
  auto rest = std::span(known).subspan(p.prompt.size());
  rest = rest.first(std::min(rest.size(), static_cast<size_t>(p.limit + s.gen.run_on)));
  p.given = static_cast<int32_t>(rest.size());
  return {rest.begin(), rest.end()};
}

// After the gen: what is known beyond its own tokens.
void Run::keep_run_on(Branch& branch, const Pending& p) {
  const Statement& s = *p.statement;
  usage_.run_on_used += std::min<int64_t>(p.given, std::ssize(p.ids));
  if (p.given > 0 && p.open == 0) ++usage_.requests_saved;
  int64_t given = std::max<int64_t>(0, p.given - std::ssize(p.ids));
  usage_.run_on_tokens += std::max<int64_t>(0, std::ssize(p.run_on) - given);
  std::vector<int32_t> all = p.prompt;
  all.insert(all.end(), p.ids.begin(), p.ids.end());
  all.insert(all.end(), p.run_on.begin(), p.run_on.end());
  const std::vector<int32_t>& known = branch.run_on.ids;
  if (known.size() >= all.size() && std::equal(all.begin(), all.end(), known.begin())) return;
  branch.run_on = {};
  if (s.gen.run_on > 0 && !s.gen.grammar && depends_on_ids_only(*p.sample))
    branch.run_on = {std::move(all), s.model, *p.sample, s.gen.ignore_eos};
}

}  // namespace tokamak::program
