#include "text/grammar/matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tokamak::grammar {
namespace {

// Configs and states that one operation may create. The first is milliseconds of work.
constexpr size_t kTokenBudget = 20'000, kMaskBudget = 60'000;
constexpr size_t kMaxConfigMaskBytes = kMaxCacheBytes / 4;

void unite(std::span<uint32_t> mask, std::span<const uint32_t> other) {
  for (size_t i = 0; i < other.size(); ++i) mask[i] |= other[i];
}

// Reads a text from `config` on; false: an item is repeated.
bool reads_unique(Automaton& automaton, UniqueItems& items, ConfigId config,
                  std::string_view bytes) {
  for (char c : bytes) {
    config = automaton.step(config, static_cast<uint8_t>(c));
    if (!items.read(c, items.begins_item(c) && automaton.in_unique(config))) return false;
  }
  return true;
}

}  // namespace

Grammar::Grammar(const Ir& ir, std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)),
      nfa_(lower(ir)),
      has_unique_(std::any_of(nfa_.rules.begin(), nfa_.rules.end(),
                              [](const Nfa::Rule& rule) { return rule.unique; })),
      notes_(ir.notes) {
  std::lock_guard lock(mutex_);
  begin(kTokenBudget);
}

void Grammar::begin(size_t budget) const {
  size_t cached =
      automaton_ == nullptr ? 0 : automaton_->bytes() + mask_bytes_ + config_mask_bytes_;
  memory_.store(nfa_.memory_bytes() + cached, std::memory_order_relaxed);
  if (automaton_ == nullptr || cached > kMaxCacheBytes) {
    automaton_ = std::make_unique<Automaton>(nfa_);
    masks_.clear();
    visited_.clear();
    config_masks_.clear();
    mask_bytes_ = config_mask_bytes_ = 0;
    ++generation_;
    automaton_->set_budget(budget);
    start_ = automaton_->start_config();
  }
  automaton_->set_budget(budget);
}

size_t Grammar::cache_bytes() const {
  std::lock_guard lock(mutex_);
  return automaton_->bytes() + mask_bytes_ + config_mask_bytes_;
}

bool Grammar::matches(std::string_view text) const {
  std::lock_guard lock(mutex_);
  begin(kTokenBudget + text.size());
  ConfigId config = start_;
  for (char c : text) config = automaton_->step(config, static_cast<uint8_t>(c));
  UniqueItems items;
  if (has_unique_ && config != kDeadConfig && !reads_unique(*automaton_, items, start_, text))
    return false;
  return automaton_->config(config).accepting;
}

const StateMask* Grammar::mask_of(StateId state) const {
  if (masks_.size() <= state) {
    masks_.resize(automaton_->states());
    visited_.resize(automaton_->states(), 0);
  }
  if (std::exchange(visited_[state], uint8_t{1}) == 0) return nullptr;
  if (masks_[state] == nullptr) {
    masks_[state] = std::make_unique<StateMask>(state_mask(*automaton_, *vocabulary_, state));
    mask_bytes_ += masks_[state]->bytes();
  }
  return masks_[state].get();
}

void Grammar::allow(ConfigId config, std::span<uint32_t> mask) const {
  auto [it, fresh] = config_masks_.try_emplace(config);
  if (fresh) return fill(config, mask);
  if (it->second.empty()) {
    std::vector<uint32_t> all(vocabulary_->words(), 0);
    fill(config, all);
    it->second = std::move(all);
    config_mask_bytes_ += it->second.size() * sizeof(uint32_t);
  }
  unite(mask, it->second);
  if (config_mask_bytes_ < kMaxConfigMaskBytes) return;
  config_masks_.clear();
  config_mask_bytes_ = 0;
}

void Grammar::fill(ConfigId config, std::span<uint32_t> mask) const {
  auto view = automaton_->items(config);
  const std::vector<Automaton::Item> items(view.begin(), view.end());
  for (const Automaton::Item& item : items) {
    const StateMask* state = mask_of(item.state);
    if (state == nullptr) {
      allow_item(*automaton_, *vocabulary_, item, mask);
      continue;
    }
    state->allow(*vocabulary_, mask);
    if (state->parts.empty() && state->rests.size() == 0) continue;
    allow_returns(*automaton_, *vocabulary_, *state, automaton_->return_config(item.context), mask);
  }
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, std::string begun)
    : grammar_(std::move(grammar)), begun_(std::move(begun)) {}

// Replays the tokens if the grammar's caches were cleared.
void Matcher::sync() {
  if (generation_ == grammar_->generation_) return;
  generation_ = 0;
  Automaton& automaton = *grammar_->automaton_;
  automaton.set_budget(kTokenBudget + tokens_.size() * 256);
  size_t before = automaton.bytes();
  ConfigId first = grammar_->start_;
  for (char c : begun_) first = automaton.step(first, static_cast<uint8_t>(c));
  configs_.assign(1, first);
  unique_ = {};
  if (grammar_->has_unique_) reads_unique(automaton, unique_, grammar_->start_, begun_);
  for (int32_t token : tokens_) {
    if (grammar_->has_unique_)
      reads_unique(automaton, unique_, now(), grammar_->vocabulary().bytes(token));
    configs_.push_back(advance(now(), token));
  }
  if (automaton.bytes() - before > kMaxCacheBytes / 2)
    fail(ErrorCode::kOutOfRange, "the grammar needs too much memory for this text");
  generation_ = grammar_->generation_;
}

ConfigId Matcher::advance(ConfigId config, int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= grammar_->vocabulary().size()) return kDeadConfig;
  std::string_view bytes = grammar_->vocabulary().bytes(token);
  if (bytes.empty()) return kDeadConfig;
  for (char c : bytes) config = grammar_->automaton_->step(config, static_cast<uint8_t>(c));
  return config;
}

bool Matcher::accept(int32_t token) {
  std::lock_guard lock(grammar_->mutex_);
  grammar_->begin(kTokenBudget);
  sync();
  grammar_->automaton_->set_budget(kTokenBudget);
  ConfigId next = advance(now(), token);
  if (next == kDeadConfig) return false;
  if (grammar_->has_unique_) {
    UniqueItems items = unique_;
    if (!reads_unique(*grammar_->automaton_, items, now(), grammar_->vocabulary().bytes(token)))
      return false;
    unique_ = std::move(items);
  }
  tokens_.push_back(token);
  configs_.push_back(next);
  return true;
}

void Matcher::rollback(size_t tokens) {
  TK_CHECK(tokens <= tokens_.size(), "rollback of {} tokens of {}", tokens, tokens_.size());
  tokens_.resize(tokens_.size() - tokens);
  if (!configs_.empty()) configs_.resize(tokens_.size() + 1);
  if (grammar_->has_unique_) generation_ = 0;  // sync() reads the text again
}

void Matcher::fill_mask(std::span<uint32_t> mask) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (mask.size() < vocabulary.words()) {
    std::vector<uint32_t> all(vocabulary.words(), 0);
    fill_mask(all);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= all[i];
    return;
  }
  std::lock_guard lock(grammar_->mutex_);
  grammar_->begin(kMaskBudget);
  sync();
  grammar_->automaton_->set_budget(kMaskBudget);
  if (!grammar_->has_unique_) return grammar_->allow(now(), mask);
  std::vector<uint32_t> all(vocabulary.words(), 0);
  grammar_->allow(now(), all);
  forbid_repeated(all);
  unite(mask, all);
}

// Most tokens with one quote begin a string, or end one that is not repeated.
void Matcher::forbid_repeated(std::span<uint32_t> mask) const {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  auto ids = unique_.may_repeat() ? vocabulary.quotes() : vocabulary.several_quotes();
  for (int32_t id : ids) {
    if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
    UniqueItems items = unique_;
    if (!reads_unique(*grammar_->automaton_, items, now(), vocabulary.bytes(id)))
      clear_bit(mask, id);
  }
}

bool Matcher::accepting() {
  std::lock_guard lock(grammar_->mutex_);
  grammar_->begin(kTokenBudget);
  sync();
  return grammar_->automaton_->config(now()).accepting;
}

bool Matcher::finished() {
  std::lock_guard lock(grammar_->mutex_);
  grammar_->begin(kTokenBudget);
  sync();
  const Automaton::Config& config = grammar_->automaton_->config(now());
  return config.accepting && config.count == 0;
}

std::string Matcher::forced(size_t most) {
  std::lock_guard lock(grammar_->mutex_);
  grammar_->begin(kTokenBudget);
  sync();
  Automaton& automaton = *grammar_->automaton_;
  automaton.set_budget(kTokenBudget);
  std::string out;
  ConfigId config = now();
  while (out.size() < most) {
    int byte = automaton.forced_byte(config);
    if (byte < 0 || static_cast<char>(byte) == kControlByte) break;
    out += static_cast<char>(byte);
    config = automaton.step(config, static_cast<uint8_t>(byte));
  }
  return out;
}

// A token begins with `rest` and may go on in `end`. Tokens are examined by the byte after `rest`.
bool Matcher::crosses(ConfigId end, std::string_view rest) const {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  Automaton& automaton = *grammar_->automaton_;
  auto before = [&](int32_t id, std::string_view text) {
    return vocabulary.bytes(id).substr(0, text.size()) < text;
  };
  std::string text(rest);
  auto ids = vocabulary.sorted();
  auto at = std::lower_bound(ids.begin(), ids.end(), rest, before);
  while (at != ids.end() && vocabulary.bytes(*at).starts_with(rest)) {
    std::string_view bytes = vocabulary.bytes(*at);
    ConfigId config = end;
    size_t i = rest.size();
    while (i < bytes.size() && config != kDeadConfig)
      config = automaton.step(config, static_cast<uint8_t>(bytes[i++]));
    if (config != kDeadConfig && bytes.size() > rest.size()) return true;
    if (config != kDeadConfig || i > rest.size() + 1) {  // the rest itself, or a later byte
      ++at;
      continue;
    }
    auto next = static_cast<uint8_t>(bytes[rest.size()]);
    if (next == 255) break;
    text.resize(rest.size());
    text += static_cast<char>(next + 1);
    at = std::lower_bound(at, ids.end(), std::string_view(text), before);
  }
  return false;
}

size_t Matcher::first_crossing(std::string_view forced) {
  std::lock_guard lock(grammar_->mutex_);
  grammar_->begin(kMaskBudget);
  sync();
  Automaton& automaton = *grammar_->automaton_;
  automaton.set_budget(kMaskBudget);
  ConfigId end = now();
  for (char c : forced) end = automaton.step(end, static_cast<uint8_t>(c));
  for (size_t i = 0; i < forced.size(); ++i)
    if (crosses(end, forced.substr(i))) return i;
  return forced.size();
}

}  // namespace tokamak::grammar
