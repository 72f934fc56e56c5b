#include "api/speculative.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/draft/exit_drafter.h"
#include "engine/draft/mapped_drafter.h"
#include "engine/draft/model_drafter.h"
#include "plan/bundle_file.h"
#include "text/grammar/vocabulary.h"

namespace tokamak {
namespace {

using Method = SpeculativeOptions::Method;

constexpr std::pair<std::string_view, Method> kMethods[] = {{"off", Method::kOff},
                                                            {"ngram", Method::kNgram},
                                                            {"suffix", Method::kSuffix},
                                                            {"draft_model", Method::kDraftModel},
                                                            {"patterns", Method::kPatterns},
                                                            {"early_exit", Method::kEarlyExit},
                                                            {"lookahead", Method::kLookahead}};

Method method_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& [n, method] : kMethods) {
    if (n == name) return method;
    names.push_back(n);
  }
  fail(ErrorCode::kInvalidArgument, "speculation: the method \"{}\" is unknown; use {}, or JSON",
       name, fmt::join(names, ", "));
}

// The members of the JSON object, by name.
class Settings {
 public:
  explicit Settings(const Value& object) : object_(object) {}

  template <class T>
  void integer(std::string_view name, int64_t low, int64_t high, T& out) {
    const Value* v = find(name);
    if (v == nullptr) return;
    if (!v->is_int() || v->as_int() < low || v->as_int() > high)
      fail(ErrorCode::kInvalidArgument, "speculation: {} must be an integer from {} to {}", name,
           low, high);
    out = static_cast<T>(v->as_int());
  }
  void number(std::string_view name, double low, double high, double& out) {
    const Value* v = find(name);
    if (v == nullptr) return;
    if (!v->is_number() || !(v->as_double() >= low && v->as_double() <= high))
      fail(ErrorCode::kInvalidArgument, "speculation: {} must be a number from {} to {}", name, low,
           high);
    out = v->as_double();
  }
  void boolean(std::string_view name, bool& out) {
    const Value* v = find(name);
    if (v == nullptr) return;
    if (!v->is_bool())
      fail(ErrorCode::kInvalidArgument, "speculation: {} must be true or false", name);
    out = v->as_bool();
  }
  std::string text(std::string_view name) {
    const Value* v = find(name);
    if (v == nullptr) return {};
    if (!v->is_string()) fail(ErrorCode::kInvalidArgument, "speculation: {} must be text", name);
    return v->as_string();
  }
  void refuse_others() const {
    for (const auto& [name, value] : object_.as_object())
      if (std::find(known_.begin(), known_.end(), name) == known_.end())
        fail(ErrorCode::kInvalidArgument, "speculation: the setting \"{}\" is unknown; use {}",
             name, fmt::join(known_, ", "));
  }

 private:
  const Value* find(std::string_view name) {
    known_.push_back(name);
    const Value* v = object_.find(name);
    return v != nullptr && v->is_null() ? nullptr : v;
  }
  const Value& object_;
  std::vector<std::string_view> known_;
};

void read_ngram(Settings& s, NgramOptions& o) {
  // As in vLLM: if one of them is given, the other one is the same.
  int32_t longest = 0, shortest = 0;
  s.integer("prompt_lookup_max", 1, 64, longest);
  s.integer("prompt_lookup_min", 1, 64, shortest);
  if (longest > 0 || shortest > 0) {
    o.longest = longest > 0 ? longest : shortest;
    o.shortest = shortest > 0 ? shortest : longest;
  }
  if (o.shortest > o.longest)
    fail(ErrorCode::kInvalidArgument,
         "speculation: prompt_lookup_min {} is larger than prompt_lookup_max {}", o.shortest,
         o.longest);
  std::string match = s.text("prompt_lookup_match");
  if (!match.empty() && match != "latest" && match != "earliest")
    fail(ErrorCode::kInvalidArgument,
         "speculation: prompt_lookup_match must be \"latest\" or \"earliest\"");
  o.earliest = match == "earliest";
}

void read_suffix(Settings& s, SuffixOptions& o) {
  s.integer("suffix_decoding_max_tree_depth", 1, 1024, o.depth);
  s.integer("suffix_decoding_max_cached_requests", 0, int64_t{1} << 30, o.answers);
  s.number("suffix_decoding_max_spec_factor", 0.01, 1000, o.factor);
  s.number("suffix_decoding_min_token_prob", 0, 1, o.min_share);
}

// The names of TensorRT-LLM.
void read_lookahead(Settings& s, LookaheadOptions& o) {
  s.integer("max_window_size", 1, EngineStats::kDraftPositions, o.window);
  s.integer("max_ngram_size", 2, 16, o.ngram);
  s.integer("max_verification_set_size", 1, 64, o.candidates);
}

// Lookups cost nothing, so where only drafts that pay are verified, long ones may be proposed. The
// first drafts of a model cost a step each.
int32_t default_tokens(const SpeculativeOptions& o) {
  bool lookup =
      o.method == Method::kNgram || o.method == Method::kSuffix || o.method == Method::kPatterns;
  return lookup && o.adaptive ? 24 : 8;
}

void read_settings(std::string_view text, SpeculativeOptions& out) {
  Value object = parse_json(text, "speculation", {.max_depth = 8, .unique_keys = true});
  if (!object.is_object()) fail(ErrorCode::kInvalidArgument, "speculation: not a JSON object");
  Settings s(object);
  std::string method = s.text("method");
  out.model = s.text("model");
  out.patterns = s.text("patterns");
  // As in vLLM, both may also be "ngram" or "[ngram]".
  const bool lookup = out.model == "ngram" || out.model == "[ngram]";
  if (lookup) out.model.clear();
  if (method == "[ngram]" || (method.empty() && lookup)) method = "ngram";
  if (method.empty() && !out.model.empty()) method = "draft_model";
  if (method.empty()) fail(ErrorCode::kInvalidArgument, "speculation: \"method\" is missing");
  out.method = method_of(method);
  s.integer("early_exit_layers", 1, 1 << 16, out.layers);
  s.integer("num_speculative_tokens", 1, EngineStats::kDraftPositions, out.tokens);
  read_ngram(s, out.ngram);
  read_suffix(s, out.suffix);
  read_lookahead(s, out.lookahead);
  std::string rule = s.text("rejection_sample_method");
  if (!rule.empty() && rule != "strict" && rule != "probabilistic" && rule != "standard")
    fail(ErrorCode::kInvalidArgument,
         "speculation: rejection_sample_method must be \"strict\", \"probabilistic\" or "
         "\"standard\", "
         "vLLM's newer name of the latter");
  out.rejection = rule == "probabilistic" || rule == "standard";
  s.integer("max_branches", 1, 8, out.branches);
  s.boolean("adaptive", out.adaptive);
  s.integer("disable_by_batch_size", 1, 1 << 20, out.disable_by_batch_size);
  s.refuse_others();
}

}  // namespace

SpeculativeOptions parse_speculative(std::string_view text, const std::string& draft_model) {
  SpeculativeOptions out;
  out.tokens = 0;
  bool json = text.find('{') != std::string_view::npos;
  if (json) read_settings(text, out);
  if (!json && !text.empty()) out.method = method_of(text);
  if (!draft_model.empty()) {
    if (!out.model.empty() || (!text.empty() && out.method != Method::kDraftModel))
      fail(ErrorCode::kInvalidArgument,
           "speculation: a draft model cannot be combined with another method or draft model");
    out.method = Method::kDraftModel;
    out.model = draft_model;
  }
  if ((out.method == Method::kPatterns) != !out.patterns.empty())
    fail(ErrorCode::kInvalidArgument,
         "speculation: the method \"patterns\" needs \"patterns\", the path of a file; no other "
         "method uses it");
  if ((out.method == Method::kDraftModel) != !out.model.empty())
    fail(ErrorCode::kInvalidArgument,
         "speculation: the method \"draft_model\" needs \"model\", the path of a model; no other "
         "method uses it");
  if (out.layers > 0 && out.method != Method::kEarlyExit)
    fail(ErrorCode::kInvalidArgument,
         "speculation: only the method \"early_exit\" uses early_exit_layers");
  if (out.branches > 1 && out.method == Method::kEarlyExit)
    fail(ErrorCode::kInvalidArgument,
         "speculation: the method \"early_exit\" drafts chains; max_branches must be 1");
  if (out.tokens == 0) out.tokens = default_tokens(out);
  return out;
}

namespace {

bool same_vocabulary(const Tokenizer& a, const Tokenizer& b) {
  if (a.vocab_size() != b.vocab_size()) return false;
  for (int32_t id = 0; id < static_cast<int32_t>(a.vocab_size()); ++id)
    if (a.piece(id) != b.piece(id)) return false;
  return true;
}

// Tokens with the same text; control tokens by their names, and those that begin and end texts.
VocabularyMap map_vocabulary(const Tokenizer& target, const Tokenizer& draft,
                             const std::string& path) {
  const grammar::Vocabulary ours(target), theirs(draft);
  std::unordered_map<std::string_view, int32_t> by_text;
  for (int32_t id = static_cast<int32_t>(ours.size()); id-- > 0;)
    if (!ours.bytes(id).empty()) by_text[ours.bytes(id)] = id;
  VocabularyMap map;
  map.to_target.assign(theirs.size(), -1);
  map.to_draft.resize(ours.size());
  size_t common = 0, all = 0;
  for (int32_t id = 0; id < static_cast<int32_t>(theirs.size()); ++id) {
    if (draft.piece(id).empty()) continue;
    ++all;
    int32_t same = -1;
    if (auto it = by_text.find(theirs.bytes(id)); it != by_text.end()) same = it->second;
    if (same < 0 && draft.is_special(id)) same = target.find_piece(draft.piece(id));
    if (same < 0 && id == draft.eos_id()) same = target.eos_id();
    if (same < 0 && id == draft.bos_id()) same = target.bos_id();
    if (same < 0) continue;
    map.to_target[static_cast<size_t>(id)] = same;
    if (auto& list = map.to_draft[static_cast<size_t>(same)]; list.empty()) list = {id};
    ++common;
  }
  for (int32_t id = 0; id < static_cast<int32_t>(ours.size()); ++id)
    if (auto& list = map.to_draft[static_cast<size_t>(id)]; list.empty() && !ours.bytes(id).empty())
      list = draft.encode(ours.bytes(id), {.add_special = false, .parse_special = false});
  if (common < all / 4)
    fail(ErrorCode::kInvalidArgument,
         "{}: only {} of its {} tokens are tokens of the model too; a draft model needs the same "
         "tokenizer or a similar one",
         path, common, all);
  log::info("{}: another tokenizer; {} of its {} tokens are tokens of the model too", path, common,
            all);
  return map;
}

void open_draft_model(const OpenOptions& target, const std::string& path,
                      const EngineConfig& config, LoadedModel& model) {
  OpenOptions o = target;
  o.model = path;
  o.context = 0;
  o.tree_mask = false;  // it drafts chains; branches are tokens that it did not choose
  o.dump_after.clear();
  o.dump_dir.clear();
  o.merge_adapters.clear();  // adapters belong to the target
  o.adapters.clear();
  o.enable_adapters = false;
  o.max_adapters = o.max_adapter_rank = 0;
  o.max_context = config.max_model_len;
  model.draft = compile_for(o, model.backend.get());  // it shares the threads of the target
  const PlanSet& plans = model.draft.source->plans();
  if (has_recurrent_states(plans))
    fail(ErrorCode::kUnsupported,
         "{}: a draft model must not have recurrent layers: their state cannot be rolled back",
         path);
  const Tokenizer tokenizer(model.draft.source->tokenizer());
  std::optional<VocabularyMap> map;
  if (!same_vocabulary(*model.tokenizer, tokenizer))
    map = map_vocabulary(*model.tokenizer, tokenizer, path);
  int64_t tokens = 0;
  for (size_t g = 0; g < config.groups.size(); ++g)
    tokens = std::max(tokens, config.blocks[g] * config.groups[g].block_size);
  LoadOptions load;
  load.blocks = kv_blocks_for(plans, tokens);
  load.max_rows = config.max_num_seqs;
  load.eager = model.draft.eager;
  load.progress = o.on_progress;
  Backend& backend = model.draft.backend ? *model.draft.backend : *model.backend;
  auto executable = backend.load(plans, model.draft.source->weights(), load);
  model.drafter = std::make_unique<ModelDrafter>(plans, std::move(executable), load.blocks,
                                                 config.max_num_seqs);
  if (map) model.drafter = std::make_unique<MappedDrafter>(std::move(model.drafter), *map);
}

void open_patterns(const SpeculativeOptions& s, LoadedModel& model) {
  auto file = PatternFile::open(s.patterns);
  if (file->fingerprint() != tokenizer_fingerprint(*model.tokenizer))
    fail(ErrorCode::kInvalidArgument,
         "{} was built with another tokenizer; build it with tokamak draft build --model {}",
         s.patterns, model.name);
  model.drafter = std::make_unique<PatternDrafter>(std::move(file), s.pattern,
                                                   std::make_unique<SuffixDrafter>(s.suffix));
}

}  // namespace

int64_t exit_layers(const SpeculativeOptions& s, const OpenOptions& o) {
  if (s.method != Method::kEarlyExit) return 0;
  if (is_bundle(o.model))
    fail(ErrorCode::kUnsupported,
         "speculation: early_exit needs a function that a bundle does not have; open the model "
         "file");
  return s.layers > 0 ? s.layers : -1;
}

void open_drafter(const SpeculativeOptions& s, const OpenOptions& o, const EngineConfig& config,
                  LoadedModel& model) {
  switch (s.method) {
    case Method::kNgram:
      model.drafter = std::make_unique<NgramDrafter>(s.ngram);
      break;
    case Method::kSuffix:
      model.drafter = std::make_unique<SuffixDrafter>(s.suffix);
      break;
    case Method::kLookahead:
      model.drafter = std::make_unique<LookaheadDrafter>(s.lookahead);
      break;
    case Method::kDraftModel:
      open_draft_model(o, s.model, config, model);
      break;
    case Method::kEarlyExit:
      model.drafter = std::make_unique<ExitDrafter>();
      break;
    case Method::kPatterns:
      open_patterns(s, model);
      break;
    case Method::kOff:
      break;
  }
}

uint64_t tokenizer_fingerprint(const Tokenizer& tokenizer) {
  Hash128 hash;
  auto count = static_cast<int32_t>(tokenizer.vocab_size());
  for (int32_t id = 0; id < count; ++id) hash.add(tokenizer.piece(id));
  return hash.low();
}

void set_draft_limits(const SpeculativeOptions& o, EngineConfig& config) {
  config.draft_tokens = o.method == Method::kOff ? 0 : o.tokens;
  config.draft_branches = o.branches;
  config.adaptive_drafts = o.adaptive;
  if (o.branches > 1 && !config.tree_mask)
    fail(ErrorCode::kUnsupported,
         "speculation: max_branches needs plans with a tree mask, which this bundle was compiled "
         "without; open the model file");
  config.draft_max_sequences = o.disable_by_batch_size;
}

}  // namespace tokamak
