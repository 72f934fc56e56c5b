#include "text/grammar/grammar_cache.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar/call_grammar.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/lark.h"
#include "text/grammar/regex_parser.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

Ir single_rule(ExprId (*body)(Ir&, const GrammarSource&), const GrammarSource& source) {
  Ir ir;
  RuleId root = ir.add_rule("root");
  ir.define(root, body(ir, source));
  return ir;
}

std::string key_of(const GrammarSource& source) {
  std::string key(1, static_cast<char>('0' + static_cast<int>(source.kind)));
  key += source.text;
  for (const std::string& part : source.choices) key += fmt::format("|{}:{}", part.size(), part);
  for (const std::string& part : {source.before, source.after, source.format})
    key += fmt::format("|{}:{}", part.size(), part);
  if (source.strict) key += "|strict";
  if (source.space) key += "|space:" + *source.space;
  return key;
}

void check_source(const GrammarSource& source) {
  size_t bytes = source.text.size() + source.space.value_or("").size();
  for (const std::string& choice : source.choices) bytes += choice.size();
  if (bytes > kMaxSourceBytes)
    fail(ErrorCode::kOutOfRange, "the grammar has {} bytes, at most {} are possible", bytes,
         kMaxSourceBytes);
  if (source.kind != Kind::kChoice) return;
  if (source.choices.empty()) fail(ErrorCode::kInvalidArgument, "the list of choices is empty");
  for (const std::string& choice : source.choices)
    if (choice.empty() || !utf8_is_valid(choice))
      fail(ErrorCode::kInvalidArgument, "a choice is empty or not valid UTF-8");
}

Ir parse_kind(const GrammarSource& source) {
  switch (source.kind) {
    case Kind::kJsonObject:
      return json_object_grammar(source.space);
    case Kind::kJsonSchema:
      return json_schema_grammar(parse_json(source.text, "the JSON schema"), source.space,
                                 source.strict);
    case Kind::kRegex:
      return single_rule(
          [](Ir& ir, const GrammarSource& s) {
            return expr_of(ir, parse_regex(s.text, RegexUse::kWhole));
          },
          source);
    case Kind::kChoice:
      return single_rule([](Ir& ir, const GrammarSource& s) { return ir.one_of(s.choices); },
                         source);
    case Kind::kGrammar:
      return is_lark(source.text) ? parse_lark(source.text) : parse_gbnf(source.text);
    case Kind::kCalls:
      return call_grammar(source.format, parse_json(source.text, "the tools"), source.choices,
                          source.strict);
  }
  TK_CHECK(false, "unknown kind of grammar");
}

}  // namespace

Ir parse_grammar(const GrammarSource& source) {
  check_source(source);
  Ir ir = parse_kind(source);
  if (source.before.empty() && source.after.empty()) return ir;
  RuleId root = ir.add_rule("root");
  ir.define(root, ir.seq({ir.bytes(source.before), ir.ref(ir.root), ir.bytes(source.after)}));
  ir.root = root;
  return ir;
}

std::shared_ptr<const Vocabulary> GrammarCache::vocabulary() {
  std::call_once(built_, [&] { vocabulary_ = std::make_shared<Vocabulary>(*tokenizer_); });
  return vocabulary_;
}

std::shared_ptr<const Grammar> GrammarCache::get(const GrammarSource& source) {
  std::string key = key_of(source);
  {
    std::lock_guard lock(mutex_);
    if (auto it = index_.find(key); it != index_.end()) {
      entries_.splice(entries_.begin(), entries_, it->second);
      ++stats_.hits;
      std::shared_ptr<const Grammar> found = it->second->second;
      drop_oldest();  // grammars grow while they are used
      return found;
    }
    ++stats_.misses;
  }
  auto grammar = std::make_shared<const Grammar>(parse_grammar(source), vocabulary());
  std::lock_guard lock(mutex_);
  if (auto it = index_.find(key); it != index_.end()) return it->second->second;
  entries_.emplace_front(std::move(key), grammar);
  index_.emplace(entries_.front().first, entries_.begin());
  drop_oldest();
  return grammar;
}

size_t GrammarCache::memory_bytes() const {
  size_t bytes = 0;
  for (const Entry& e : entries_) bytes += e.first.size() + e.second->memory_bytes();
  return bytes;
}

void GrammarCache::drop_oldest() {
  size_t bytes = memory_bytes();
  while (entries_.size() > 1 && (entries_.size() > capacity_ || bytes > most_bytes_)) {
    const Entry& last = entries_.back();
    bytes -= std::min(bytes, last.first.size() + last.second->memory_bytes());
    index_.erase(last.first);
    entries_.pop_back();
  }
}

GrammarCache::Stats GrammarCache::stats() const {
  std::lock_guard lock(mutex_);
  Stats out = stats_;
  out.entries = entries_.size();
  out.bytes = memory_bytes();
  return out;
}

}  // namespace tokamak::grammar
