#include "engine/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "engine/kv/kv_cache.h"

namespace tokamak {
namespace {

int64_t symbol_limit(const PlanSet& plans, std::string_view name, int64_t fallback) {
  for (const SymbolDecl& s : plans.symbols)
    if (s.name == name) return s.hi;
  return fallback;
}

int64_t guard_limit(const Plan& plan, std::string_view symbol) {
  for (const GuardRange& g : plan.guard)
    if (g.symbol == symbol) return g.hi;
  return 0;
}

// The width of the result "hidden" of step(); 0: there is none.
int64_t vector_width(const PlanSet& plans) {
  for (const Plan& p : plans.plans)
    for (const PlanOutput& o : p.outputs)
      if (p.function == "step" && o.name == "hidden" && o.arg.dims.size() == 2)
        return o.arg.dims[1].constant().value_or(0);
  return 0;
}

int32_t verify_size(std::string_view function) {
  constexpr std::string_view kPrefix = "verify";
  if (!function.starts_with(kPrefix)) return 0;
  function.remove_prefix(kPrefix.size());
  int32_t k = 0;
  auto [end, error] = std::from_chars(function.data(), function.data() + function.size(), k);
  return error == std::errc() && end == function.data() + function.size() ? k : 0;
}

template <class T, size_t N>
T by_name(const char* what, std::string_view name, const std::pair<std::string_view, T> (&all)[N]) {
  std::string names;
  for (const auto& [n, value] : all) {
    if (n == name) return value;
    names += names.empty() ? n : fmt::format(", {}", n);
  }
  fail(ErrorCode::kInvalidArgument, "{} \"{}\" is not known: use one of {}", what, name, names);
}

}  // namespace

SchedPolicy parse_sched_policy(std::string_view name) {
  return by_name<SchedPolicy, 4>("scheduler", name,
                                 {{"fcfs", SchedPolicy::kFcfs},
                                  {"priority", SchedPolicy::kPriority},
                                  {"cache", SchedPolicy::kCache},
                                  {"fair", SchedPolicy::kFair}});
}

KvPolicy parse_kv_policy(std::string_view name) {
  return by_name<KvPolicy, 2>("KV policy", name,
                              {{"guaranteed-no-evict", KvPolicy::kGuaranteedNoEvict},
                               {"max-utilization", KvPolicy::kMaxUtilization}});
}

Batching parse_batching(std::string_view name) {
  return by_name<Batching, 3>("batching", name,
                              {{"continuous", Batching::kContinuous},
                               {"prefill-first", Batching::kPrefillFirst},
                               {"static", Batching::kStatic}});
}

// Tokens of KV for which a sequence's states are counted when memory is divided.
static constexpr int64_t kStateTokens = 512;

std::vector<int64_t> kv_blocks_for(const PlanSet& plans, int64_t tokens, int64_t max_num_seqs,
                                   int64_t max_batched_tokens) {
  std::vector<int64_t> out;
  for (const GroupEntry& g : plans.groups) {
    int64_t blocks = (tokens + g.block_size - 1) / g.block_size;
    if (g.per_sequence())  // the memory of a state is worth that of many tokens
      blocks = std::min(max_num_seqs > 0 ? max_num_seqs : INT64_MAX, tokens / kStateTokens);
    if (g.window > 0 && max_num_seqs > 0 && max_batched_tokens > 0)
      blocks = std::min(blocks, max_num_seqs * most_blocks(g, tokens, max_batched_tokens));
    out.push_back(std::max<int64_t>(1, blocks));
  }
  return out;
}

EngineConfig default_engine_config(const PlanSet& plans, int64_t max_model_len, int64_t kv_tokens) {
  EngineConfig c;
  c.model = plans.model;
  c.vocab = plans.vocab;
  c.groups = plans.groups;
  c.max_model_len = max_model_len > 0 ? max_model_len : plans.context;
  c.max_batched_tokens = symbol_limit(plans, "T", c.max_batched_tokens);
  c.max_num_seqs = std::min(symbol_limit(plans, "B", c.max_num_seqs), c.max_batched_tokens);
  c.max_out_rows = symbol_limit(plans, "R", c.max_out_rows);
  c.max_num_seqs = std::min(c.max_num_seqs, c.max_out_rows);
  for (const Plan& p : plans.plans) {
    if (p.function == "decode") c.decode_batch = std::max(c.decode_batch, guard_limit(p, "B"));
    c.exits = c.exits || p.function == kExitFunction;
    if (p.function == kLayersFunction) c.layers = plans.layers, c.layer_rows = guard_limit(p, "L");
    if (int32_t k = verify_size(p.function); k > 0) c.verify_sizes.push_back(k);
  }
  for (const InputEntry& in : plans.inputs) {
    c.tree_mask = c.tree_mask || in.name == "mask";
    c.segments = c.segments || in.name == kSegmentInput;
  }
  c.adapter_slots = adapter_slots(plans);
  c.vector_width = vector_width(plans);
  c.recurrent = has_recurrent_states(plans);
  c.encoder = plans.states.empty() && c.vector_width > 0;
  if (c.encoder) c.chunked_prefill = c.prefix_cache = false;
  std::sort(c.verify_sizes.begin(), c.verify_sizes.end());
  c.verify_sizes.erase(std::unique(c.verify_sizes.begin(), c.verify_sizes.end()),
                       c.verify_sizes.end());
  if (kv_tokens <= 0) kv_tokens = c.max_model_len * std::min<int64_t>(8, c.max_num_seqs);
  c.blocks = kv_blocks_for(plans, kv_tokens, c.max_num_seqs, c.max_batched_tokens);
  return c;
}

void check_engine_config(const EngineConfig& c) {
  auto require = [](bool ok, const char* what) {
    if (!ok) fail(ErrorCode::kInvalidArgument, "engine configuration: {}", what);
  };
  require(c.vocab > 0 && c.max_model_len > 0, "the model has no vocabulary or no context length");
  require(c.blocks.size() == c.groups.size(), "one block count per KV group is needed");
  require(c.max_num_seqs >= 1, "max_num_seqs must be at least 1");
  require(c.max_batched_tokens >= c.max_num_seqs,
          "max_batched_tokens must be at least max_num_seqs: every sequence decodes in every step");
  require(c.max_out_rows >= c.max_num_seqs, "max_out_rows must be at least max_num_seqs");
  require(
      !c.encoder || (c.max_batched_tokens >= c.max_model_len && !c.chunked_prefill),
      "an encoder computes a text in one step: max_batched_tokens must be at least the context");
  require(!c.recurrent || c.draft_tokens == 0,
          "speculation needs a model without recurrent layers: their state cannot be rolled back");
  require(c.max_queue >= 1 && c.max_in_flight >= 1,
          "max_queue and max_in_flight must be at least 1");
  require(c.max_step_failures >= 0 && c.draft_tokens >= 0 && c.draft_max_sequences >= 0 &&
              c.tpot_target >= 0 && c.starvation_bound >= 0,
          "limits must not be negative");
  require(c.stream_pace == 0 || (c.stream_pace > 1 && c.tpot_target > 0),
          "stream_pace must be above 1, and needs tpot_target");
}

namespace {

void check_beams(const EngineConfig& c, const RequestSpec& spec) {
  int64_t most = std::min(c.max_num_seqs, c.vocab / 2);
  if (spec.beams < 1 || spec.beams > most)
    fail(ErrorCode::kInvalidArgument, "beams is {}, but must be from 1 to {}", spec.beams, most);
  if (c.recurrent)
    fail(ErrorCode::kInvalidArgument,
         "beam search needs a model without recurrent layers: beams cannot share their state");
  if (spec.n > spec.beams)
    fail(ErrorCode::kInvalidArgument, "n is {}, but {} beams give at most {} answers", spec.n,
         spec.beams, spec.beams);
  if (spec.max_tokens < 1 || spec.score_prompt)
    fail(ErrorCode::kInvalidArgument, "beam search needs max_tokens, and does not score prompts");
  if (spec.mask)
    fail(ErrorCode::kInvalidArgument, "beam search cannot be combined with a token mask");
  if (!std::isfinite(spec.length_penalty))
    fail(ErrorCode::kInvalidArgument, "length_penalty is not a finite number");
}

void check_contrastive(const EngineConfig& c, const RequestSpec& spec) {
  if (!spec.contrasts_states()) return;
  auto require = [](bool ok, std::string_view what) {
    if (!ok) fail(ErrorCode::kInvalidArgument, "penalty_alpha {}", what);
  };
  const SampleSpec& s = *spec.sample;
  require(s.penalty_alpha <= 1, "must be from 0 to 1");
  require(spec.beams >= 2 && spec.n == 1, "needs 2 or more candidates (beams), and n 1");
  require(c.vector_width > 0, "needs hidden states, which the plans do not return");
  require(s.min_tokens == 0, "cannot be combined with min_tokens");
}

void check_ids(const EngineConfig& c, std::string_view what, std::span<const int32_t> ids) {
  for (int32_t id : ids)
    if (id < 0 || id >= c.vocab)
      fail(ErrorCode::kInvalidArgument, "{} id {} is not in the vocabulary of {}", what, id,
           c.vocab);
}

// The KV blocks of one answer.
int64_t blocks_for(const EngineConfig& c, size_t group, int64_t tokens) {
  return most_blocks(c.groups[group], tokens, std::min(tokens, c.max_batched_tokens));
}

void check_guidance(const EngineConfig& c, const RequestSpec& spec) {
  auto refuse = [](std::string_view what) {
    fail(ErrorCode::kInvalidArgument, "guidance_scale cannot be combined with {}", what);
  };
  if (!spec.guided()) {
    if (!spec.negative_prompt.empty() && spec.max_tokens > 0)
      fail(ErrorCode::kInvalidArgument, "negative_prompt has no effect without guidance_scale");
    return;
  }
  if (!std::isfinite(spec.sample->guidance_scale))
    fail(ErrorCode::kInvalidArgument, "guidance_scale is not a finite number");
  if (spec.beams > 0) refuse("beam search");
  if (spec.draft_tokens > 0) refuse("drafts");
  if (c.max_num_seqs < 2) refuse("max_num_seqs 1: it needs two sequences");
  check_ids(c, "negative prompt", spec.negative_prompt);
  int64_t total = std::ssize(spec.prompt) + spec.max_tokens;
  int64_t negative = std::max<int64_t>(1, std::ssize(spec.negative_prompt)) + spec.max_tokens;
  if (negative > c.max_model_len)
    fail(ErrorCode::kOutOfRange,
         "negative prompt of {} tokens and max_tokens {} exceed the model's limit of {} tokens",
         spec.negative_prompt.size(), spec.max_tokens, c.max_model_len);
  for (size_t g = 0; g < c.groups.size(); ++g)
    if (int64_t need = blocks_for(c, g, total) + blocks_for(c, g, negative); need > c.blocks[g])
      fail(ErrorCode::kOutOfRange,
           "prompt, negative prompt and max_tokens {} need {} KV blocks of group {}, there are {}",
           spec.max_tokens, need, c.groups[g].name, c.blocks[g]);
}

void check_dola(const EngineConfig& c, const RequestSpec& spec) {
  if (!spec.contrasts_layers()) return;
  auto refuse = [](std::string_view what) {
    fail(ErrorCode::kInvalidArgument, "dola_layers cannot be combined with {}", what);
  };
  const std::vector<int32_t>& layers = spec.sample->dola_layers;
  if (c.layer_rows == 0)
    fail(ErrorCode::kInvalidArgument, "dola_layers: {} was loaded without --dola", c.model);
  if (std::ssize(layers) > c.layer_rows)
    fail(ErrorCode::kInvalidArgument, "dola_layers has {} layers; a step computes at most {}",
         layers.size(), c.layer_rows);
  for (int32_t layer : layers)
    if (layer < 0 || layer >= c.layers)
      fail(ErrorCode::kInvalidArgument, "dola_layers: {} is not a layer from 0 to {}", layer,
           c.layers - 1);
  if (spec.beams > 0) refuse("beam search");
  if (spec.draft_tokens > 0) refuse("drafts");
  if (spec.guided()) refuse("guidance_scale");
}

void check_pooling(const EngineConfig& c, const RequestSpec& spec) {
  if (c.encoder && !spec.pool)
    fail(ErrorCode::kInvalidArgument, "{} is an encoder: it gives vectors and generates no text",
         c.model);
  if (!spec.pool) return;
  if (c.vector_width == 0) fail(ErrorCode::kInvalidArgument, "{} gives no vectors", c.model);
  if (spec.max_tokens != 0 || spec.n != 1 || spec.beams != 0 || spec.mask)
    fail(ErrorCode::kInvalidArgument, "a pooling request can have a prompt only");
  if (spec.second_text < 0 || spec.second_text > std::ssize(spec.prompt))
    fail(ErrorCode::kInvalidArgument, "second_text is {}, but must be from 0 to {}",
         spec.second_text, spec.prompt.size());
}

}  // namespace

void check_request(const EngineConfig& c, const RequestSpec& spec) {
  if (spec.prompt.empty()) fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (spec.max_tokens < 0)
    fail(ErrorCode::kInvalidArgument, "max_tokens is {}, but must be 0 or more", spec.max_tokens);
  if (spec.n < 1 || spec.n > c.max_queue)
    fail(ErrorCode::kInvalidArgument, "n is {}, but must be from 1 to {}", spec.n, c.max_queue);
  if (spec.beams != 0) check_beams(c, spec);
  check_contrastive(c, spec);
  if (spec.adapter && c.adapter_slots == 0)
    fail(ErrorCode::kInvalidArgument, "{} was loaded without slots for adapters", c.model);
  if (spec.draft_branches == 0 || spec.draft_branches < -1)
    fail(ErrorCode::kInvalidArgument, "draft_branches is {}, but must be -1 or at least 1",
         spec.draft_branches);
  if (spec.draft_tokens < -1)
    fail(ErrorCode::kInvalidArgument, "draft_tokens is {}, but must be -1 or more",
         spec.draft_tokens);
  if (spec.draft_tokens > 0 && spec.beams > 0)
    fail(ErrorCode::kInvalidArgument, "beam search cannot be combined with drafts");
  if (std::ssize(spec.prediction) > c.max_model_len)
    fail(ErrorCode::kOutOfRange, "the prediction has {} tokens; the model's limit is {}",
         spec.prediction.size(), c.max_model_len);
  check_pooling(c, spec);
  if (spec.score_prompt && spec.score_from < 1)
    fail(ErrorCode::kInvalidArgument,
         "score_from is {}, but must be 1 or more: the first token has no score", spec.score_from);
  check_ids(c, "prompt", spec.prompt);
  auto prompt = static_cast<int64_t>(spec.prompt.size());
  // Contrastive search computes the last token of an answer too.
  int64_t total = prompt + spec.max_tokens + (spec.contrasts_states() ? 1 : 0);
  if (total > c.max_model_len)
    fail(ErrorCode::kOutOfRange,
         "prompt of {} tokens and max_tokens {} exceed the model's limit of {} tokens", prompt,
         spec.max_tokens, c.max_model_len);
  // The last token of an answer needs no slot, but steps in flight reserve one for it.
  for (size_t g = 0; g < c.groups.size(); ++g) {
    int64_t need = blocks_for(c, g, total) *
                   std::max(spec.beams, 1);  // beams wait for each other, so all must fit
    if (need > c.blocks[g])
      fail(ErrorCode::kOutOfRange,
           "prompt of {} tokens and max_tokens {} need {} KV blocks of group {}, there are {}",
           prompt, spec.max_tokens, need, c.groups[g].name, c.blocks[g]);
  }
  check_guidance(c, spec);
  check_dola(c, spec);
}

}  // namespace tokamak
