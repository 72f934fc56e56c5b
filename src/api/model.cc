#include <algorithm>

#include "api/model_impl.h"
#include "base/error.h"
#include "engine/sample_params.h"
#include "serve/grammar_mask.h"
#include "text/chat_guard.h"

namespace tokamak {
namespace {

// The options that are sampling parameters, by their names in engine/sample_params.h.
struct SamplingOption {
  std::string_view name;
  std::optional<float> GenerateOptions::*number = nullptr;  // one of the two is set
  std::optional<int32_t> GenerateOptions::*integer = nullptr;

  std::optional<double> of(const GenerateOptions& o) const {
    if (integer) return o.*integer;
    return o.*number;
  }
};
constexpr SamplingOption kSamplingOptions[] = {
    {"temperature", &GenerateOptions::temperature},
    {"top_k", nullptr, &GenerateOptions::top_k},
    {"top_p", &GenerateOptions::top_p},
    {"min_p", &GenerateOptions::min_p},
    {"typical_p", &GenerateOptions::typical_p},
    {"repetition_penalty", &GenerateOptions::repetition_penalty},
    {"presence_penalty", &GenerateOptions::presence_penalty},
    {"frequency_penalty", &GenerateOptions::frequency_penalty},
    {"repeat_last_n", nullptr, &GenerateOptions::repeat_last_n},
    {"top_n_sigma", &GenerateOptions::top_n_sigma},
    {"xtc_probability", &GenerateOptions::xtc_probability},
    {"xtc_threshold", &GenerateOptions::xtc_threshold},
    {"dynatemp_range", &GenerateOptions::dynatemp_range},
    {"dynatemp_exponent", &GenerateOptions::dynatemp_exponent},
    {"mirostat", nullptr, &GenerateOptions::mirostat},
    {"mirostat_tau", &GenerateOptions::mirostat_tau},
    {"mirostat_eta", &GenerateOptions::mirostat_eta},
    {"guidance_scale", &GenerateOptions::guidance_scale},
};

GenerateOptions options_of(const SampleSpec& spec) {
  GenerateOptions o;
  for (const SamplingOption& option : kSamplingOptions) {
    const SampleSetting& p = sample_param(option.name);
    if (option.integer)
      o.*option.integer = spec.*p.integer;
    else
      o.*option.number = spec.*p.number;
  }
  return o;
}

// Ids that end an answer.
std::vector<int32_t> stop_ids(const Tokenizer& tokenizer, const GenerateOptions& options) {
  std::vector<int32_t> ids = options.stop_ids;
  if (!options.ignore_eos) {
    const std::vector<int32_t>& ends = tokenizer.spec().eog_ids;
    ids.insert(ids.end(), ends.begin(), ends.end());
    if (int32_t eos = tokenizer.eos_id(); eos >= 0) ids.push_back(eos);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::shared_ptr<TokenMask> mask_of(const LoadedModel& model, const GenerateOptions& o,
                                   const std::vector<int32_t>& end_ids) {
  using grammar::Kind;
  std::vector<grammar::GrammarSource> asked;
  if (!o.json_schema.empty()) asked.push_back({Kind::kJsonSchema, o.json_schema, {}, "", ""});
  if (!o.regex.empty()) asked.push_back({Kind::kRegex, o.regex, {}, "", ""});
  if (!o.grammar.empty()) asked.push_back({Kind::kGrammar, o.grammar, {}, "", ""});
  if (!o.choices.empty()) asked.push_back({Kind::kChoice, "", o.choices, "", ""});
  if (asked.size() != 1)
    fail(ErrorCode::kInvalidArgument,
         "only one of json_schema, regex, grammar and choices may constrain an answer");
  GrammarMaskOptions options;
  options.grammar = model.grammars->get(asked[0]);
  options.tokenizer = model.tokenizer;
  options.end_ids = end_ids;
  options.min_tokens = o.ignore_eos ? INT32_MAX : o.min_tokens;
  return std::make_shared<GrammarMask>(std::move(options));
}

// "low", "high" or "8,10,12".
std::vector<int32_t> dola_layers(const LoadedModel& model, const std::string& text) {
  const EngineConfig& config = model.engine->config();
  if (config.layer_rows == 0)
    fail(ErrorCode::kInvalidArgument, "dola: {} was opened without ModelOptions::dola", model.name);
  if (text == "low" || text == "high")
    return dola_half(config.layers, shares_embedding(model.source->plans()), text == "high");
  std::vector<int32_t> out;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != part.npos)
      fail(ErrorCode::kInvalidArgument,
           "dola is '{}', but must be \"low\", \"high\" or numbers of layers with commas", text);
    out.push_back(std::stoi(part));
    begin = end + 1;
  }
  return out;
}

// The engine's contrastive search has a sequence for each candidate.
void set_contrastive(const GenerateOptions& o, RequestSpec& spec, SampleSpec& sample) {
  auto require = [](bool ok, std::string_view what) {
    if (!ok) fail(ErrorCode::kInvalidArgument, "penalty_alpha {}", what);
  };
  require(*o.penalty_alpha <= 1 && *o.penalty_alpha >= 0, "must be from 0 to 1");
  require(sample.top_k >= 2, "compares top_k candidates; set a top_k of 2 or more");
  require(o.stop.empty(), "cannot be combined with stop texts; use stop_ids");
  require(!spec.mask, "cannot be combined with a constrained answer");
  require(sample.guidance_scale == 1 && sample.dola_layers.empty(),
          "cannot be combined with guidance_scale or dola");
  require(!penalizes(sample) && sample.logit_bias.empty(),
          "cannot be combined with penalties and biases");
  spec.beams = sample.top_k;
  sample.penalty_alpha = *o.penalty_alpha;
}

bool is_constrained(const GenerateOptions& o) {
  return !o.json_schema.empty() || !o.regex.empty() || !o.grammar.empty() || !o.choices.empty();
}

}  // namespace

const char* version() { return TOKAMAK_VERSION; }

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

SampleSpec sample_spec(const SampleSpec& defaults, const GenerateOptions& o) {
  SampleSpec spec = defaults;
  for (const SamplingOption& option : kSamplingOptions)
    if (auto value = option.of(o)) set_sample_param(spec, option.name, *value);
  if (!o.samplers.empty()) spec.order = sample_order(o.samplers);
  set_sample_param(spec, "min_tokens", o.min_tokens);
  normalize_sampling(spec);
  spec.seed = o.seed;
  spec.logit_bias = o.logit_bias;
  if (o.logprobs) spec.top_logprobs = 0;
  return spec;
}

bool sets_sampling(const GenerateOptions& o) {
  return !o.samplers.empty() ||
         std::any_of(std::begin(kSamplingOptions), std::end(kSamplingOptions),
                     [&](const SamplingOption& option) { return option.of(o).has_value(); });
}

void check_generate_options(const GenerateOptions& options) { sample_spec({}, options); }

Model::Impl::Impl(const OpenOptions& options)
    : loaded(load_model(options)), defaults(options_of(loaded.defaults)) {
  info.name = loaded.name;
  info.backend = loaded.backend->name();
  info.context = loaded.engine->info().max_model_len;
  info.vocab = loaded.source->plans().vocab;
  info.has_chat_template = loaded.chat_template != nullptr;
  info.generates = loaded.embedding.generates();
  if (loaded.embedding.embeds()) info.embedding_size = loaded.engine->config().vector_width;
  info.labels = loaded.embedding.labels;
  info.load_seconds = loaded.load_seconds;
}

Model::Impl::Rendered Model::Impl::render(const Chat& chat, bool add_generation_prompt) const {
  if (!loaded.chat_template)
    fail(ErrorCode::kUnsupported, "{} has no chat template; pass plain text instead of messages",
         loaded.name);
  const Tokenizer& t = *loaded.tokenizer;
  Value messages = Value::array();
  for (const Message& m : chat)
    messages.push(Value::Object{{"role", m.role}, {"content", m.content}});
  Value context = Value::object();
  context.set("messages", std::move(messages));
  context.set("add_generation_prompt", add_generation_prompt);
  context.set("bos_token", t.bos_id() >= 0 ? std::string(t.piece(t.bos_id())) : std::string());
  context.set("eos_token", t.eos_id() >= 0 ? std::string(t.piece(t.eos_id())) : std::string());
  Rendered out;
  out.guard = guard_chat(context, t);
  out.text = loaded.chat_template->render(context);
  return out;
}

AdapterHost& Model::Impl::adapters() const {
  if (!loaded.adapters)
    fail(ErrorCode::kInvalidArgument,
         "{} was opened without adapters; set ModelOptions::enable_adapters", loaded.name);
  return *loaded.adapters;
}

std::vector<int32_t> Model::Impl::encode(const Prompt& prompt) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  std::vector<int32_t> ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    ids = loaded.tokenizer->encode(*text);
  } else {
    Rendered chat = render(std::get<Chat>(prompt), true);
    ids = encode_chat(*loaded.tokenizer, chat.text, chat.guard);
  }
  for (int32_t id : ids)
    if (id < 0 || id >= info.vocab)
      fail(ErrorCode::kCorrupt,
           "{}: the tokenizer gives token {}, but the model has {}: they do not belong together",
           loaded.name, id, info.vocab);
  return ids;
}

RequestSpec Model::Impl::request(std::vector<int32_t> ids, const GenerateOptions& o) const {
  if (!info.generates)
    fail(ErrorCode::kUnsupported, "{} is an encoder: it embeds or classifies texts", loaded.name);
  if (ids.empty()) fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (o.max_tokens < -1)
    fail(ErrorCode::kInvalidArgument, "max_tokens is {}, but must be -1 or more", o.max_tokens);
  auto length = static_cast<int64_t>(ids.size());
  if (length > info.context || (length == info.context && o.max_tokens != 0))
    fail(ErrorCode::kOutOfRange, "the prompt has {} tokens, the context {}; {}", length,
         info.context, loaded.context_hint);
  RequestSpec spec;
  spec.prompt = std::move(ids);
  if (!o.adapter.empty()) spec.adapter = adapters().find(o.adapter);
  bool contrasts = o.penalty_alpha && *o.penalty_alpha != 0;
  int64_t room = info.context - length - (contrasts ? 1 : 0);  // it computes the last token too
  spec.max_tokens =
      static_cast<int32_t>(o.max_tokens < 0 ? room : std::min<int64_t>(o.max_tokens, room));
  spec.stop_ids = stop_ids(*loaded.tokenizer, o);
  if (o.draft_tokens) {
    if (*o.draft_tokens < 0)
      fail(ErrorCode::kInvalidArgument, "draft_tokens is {}, but must be 0 or more",
           *o.draft_tokens);
    if (*o.draft_tokens > 0 && !loaded.drafter)
      fail(ErrorCode::kInvalidArgument,
           "draft_tokens: the model was opened without speculation; set ModelOptions::speculative");
    spec.draft_tokens = *o.draft_tokens;
  }
  if (!o.negative_prompt.empty())
    spec.negative_prompt = loaded.tokenizer->encode(o.negative_prompt);
  SampleSpec sample = sample_spec(loaded.defaults, o);
  check_logit_bias(sample, info.vocab);
  if (!o.dola.empty()) sample.dola_layers = dola_layers(loaded, o.dola);
  if (is_constrained(o)) {
    std::vector<int32_t> ends = grammar_end_ids(*loaded.tokenizer, o.stop_ids);
    spec.mask = mask_of(loaded, o, ends);
    spec.jump_forward = o.jump_forward;
    spec.stop_ids.insert(spec.stop_ids.end(), ends.begin(), ends.end());
    sample.min_tokens = 0;  // up to the mask
  } else if (sample.min_tokens > 0) {
    sample.banned_until_min = spec.stop_ids;
  }
  if (contrasts) set_contrastive(o, spec, sample);
  spec.sample = std::make_shared<SampleSpec>(std::move(sample));
  return spec;
}

Model::Model(const std::string& path, const ModelOptions& options) {
  OpenOptions open;
  static_cast<ModelOptions&>(open) = options;
  open.model = path;
  impl_ = std::make_shared<const Impl>(open);
}

void Model::load_adapter(const std::string& name, const std::string& path) const {
  AdapterHost& host = impl_->adapters();
  host.add(host.open(name, path));
}

void Model::unload_adapter(const std::string& name) const { impl_->adapters().remove(name); }

std::vector<std::string> Model::adapters() const {
  std::vector<std::string> out;
  if (impl_->loaded.adapters)
    for (const auto& adapter : impl_->loaded.adapters->list()) out.push_back(adapter->name);
  return out;
}

Model::Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Model open_model_handle(const OpenOptions& options) {
  return Model(std::make_shared<const Model::Impl>(options));
}

const ModelInfo& Model::info() const { return impl_->info; }
const GenerateOptions& Model::defaults() const { return impl_->defaults; }

std::vector<int32_t> Model::tokenize(std::string_view text, bool add_special,
                                     bool parse_special) const {
  return impl_->loaded.tokenizer->encode(text, {add_special, parse_special});
}

std::string Model::detokenize(const std::vector<int32_t>& ids, bool skip_special) const {
  return impl_->loaded.tokenizer->decode(ids, {.skip_special = skip_special});
}

std::vector<int32_t> Model::prompt_ids(const Prompt& prompt) const { return impl_->encode(prompt); }

std::string Model::render_chat(const Chat& chat, bool add_generation_prompt) const {
  Impl::Rendered rendered = impl_->render(chat, add_generation_prompt);
  return without_guard(rendered.text, rendered.guard);
}

}  // namespace tokamak
