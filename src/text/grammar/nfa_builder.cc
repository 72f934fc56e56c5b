#include "text/grammar/nfa_builder.h"

#include <algorithm>

#include "base/error.h"
#include "text/grammar/token_shapes.h"
#include "text/unicode.h"

namespace tokamak::grammar {
namespace {

using ByteRanges = std::vector<std::pair<uint8_t, uint8_t>>;

// The UTF-8 sequences of a range, as products of byte ranges.
void append_utf8(CodeRange r, std::vector<ByteRanges>& out) {
  constexpr char32_t kLast[] = {0x7F, 0x7FF, 0xFFFF, kMaxCode};
  for (char32_t last : kLast)
    if (r.lo <= last && r.hi > last) {
      append_utf8({r.lo, last}, out);
      return append_utf8({last + 1, r.hi}, out);
    }
  // Split until the low bits of all trailing bytes are a full range or equal.
  for (int bits = 6; bits <= 18 && r.hi > 0x7F; bits += 6) {
    char32_t mask = (char32_t{1} << bits) - 1;
    if ((r.lo & ~mask) == (r.hi & ~mask)) continue;
    if ((r.lo & mask) != 0) {
      append_utf8({r.lo, r.lo | mask}, out);
      return append_utf8({(r.lo | mask) + 1, r.hi}, out);
    }
    if ((r.hi & mask) != mask) {
      append_utf8({r.lo, (r.hi & ~mask) - 1}, out);
      return append_utf8({r.hi & ~mask, r.hi}, out);
    }
  }
  std::string lo, hi;
  utf8_append(lo, r.lo);
  utf8_append(hi, r.hi);
  ByteRanges ranges;
  for (size_t i = 0; i < lo.size(); ++i)
    ranges.emplace_back(static_cast<uint8_t>(lo[i]), static_cast<uint8_t>(hi[i]));
  out.push_back(std::move(ranges));
}

}  // namespace

// Names the largest rule so far, where the author can save most.
void NfaBuilder::too_large(std::string_view what) const {
  std::vector<size_t> sizes(rules.size(), 0);
  for (RuleId rule : rule_of) ++sizes[rule];
  const auto largest = std::max_element(sizes.begin(), sizes.end());
  for (const auto& [of_ir, own] : reached_)
    if (own == static_cast<RuleId>(largest - sizes.begin())) {
      const Ir::Rule& rule = ir_.rules()[of_ir];
      fail(ErrorCode::kOutOfRange, "the grammar is too large: {}, {} of them in '{}'", what,
           *largest, rule.place.empty() ? rule.name : rule.place);
    }
  fail(ErrorCode::kOutOfRange, "the grammar is too large: {}", what);
}

Position NfaBuilder::position() {
  if (final.size() >= kMaxPositions)
    too_large(fmt::format("its automata have more than {} states", kMaxPositions));
  final.push_back(0);
  plain_to.push_back(kNoPosition);
  mixed.push_back(0);
  rule_of.push_back(current_);
  return static_cast<Position>(final.size() - 1);
}

RuleId NfaBuilder::reach(RuleId rule) {
  auto [it, fresh] = reached_.emplace(rule, static_cast<RuleId>(rules.size()));
  if (fresh) {
    rules.push_back({ir_.rules()[rule].name, 0, 0, false, ir_.rules()[rule].unique});
    waiting_.push_back(rule);
  }
  return it->second;
}

void NfaBuilder::build() {
  reach(ir_.root);
  for (size_t i = 0; i < waiting_.size(); ++i) {
    RuleId rule = waiting_[i];
    TK_CHECK(ir_.rules()[rule].body != kNoExpr, "rule {} is not defined", ir_.rules()[rule].name);
    current_ = static_cast<RuleId>(i);
    Position start = position();
    rules[i].start = start;
    final[add(ir_.rules()[rule].body, start)] = 1;
  }
}

Position NfaBuilder::add(ExprId id, Position from) {
  // Also bounds repetitions of parts that add no position.
  if (++work_ > 8 * kMaxPositions)
    too_large(fmt::format("its repetitions multiply to {} states so far", final.size()));
  return std::visit([&](const auto& e) { return add(e, from); }, ir_.expr(id));
}

void NfaBuilder::add_byte(Position from, Position to, uint8_t byte) {
  bytes.push_back({from, {to, byte, byte}});
  if (is_plain(byte)) mixed[from] |= kPlainCharacter;
}

Position NfaBuilder::add(const Bytes& e, Position from) {
  for (char c : e.text) {
    Position to = position();
    add_byte(from, to, static_cast<uint8_t>(c));
    from = to;
  }
  return from;
}

// A tree of common beginnings, so that few positions are live at a time.
Position NfaBuilder::add(const OneOf& e, Position from) {
  std::vector<std::string> sorted = e.texts;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  Position end = position();
  std::vector<Position> path{from};  // path[i]: after i bytes of the previous text
  std::string_view before;
  for (const std::string& text : sorted) {
    size_t common = 0;
    while (common < before.size() && common < text.size() && before[common] == text[common])
      ++common;
    path.resize(common + 1);
    for (size_t i = common; i < text.size(); ++i) {
      Position to = position();
      add_byte(path.back(), to, static_cast<uint8_t>(text[i]));
      path.push_back(to);
    }
    connect(path.back(), end);
    before = text;
  }
  return end;
}

void NfaBuilder::add_range(CodeRange range, Position from, Position to, Tails& tails) {
  std::vector<ByteRanges> sequences;
  append_utf8(range, sequences);
  for (const ByteRanges& sequence : sequences) {
    Position next = to;
    ByteRanges tail;
    for (size_t i = sequence.size(); i-- > 1;) {  // sequences with equal tails share them
      tail.insert(tail.begin(), sequence[i]);
      auto [it, fresh] = tails.emplace(tail, 0);
      if (fresh) {
        it->second = position();
        bytes.push_back({it->second, {next, sequence[i].first, sequence[i].second}});
      }
      next = it->second;
    }
    bytes.push_back({from, {next, sequence[0].first, sequence[0].second}});
  }
}

void NfaBuilder::add_set(const CodeSet& set, Position from, Position to) {
  static const CodeSet kScalars{{0, 0xD7FF}, {0xE000, kMaxCode}};
  static const CodeSet kPlain{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kMaxCode}};
  Tails tails;
  work_ += set.size();
  const CodeSet plain = intersect(set, kPlain);
  if (plain == kPlain)
    plain_to[from] = to;
  else if (!plain.empty())
    mixed[from] |= kPlainCharacter;
  for (CodeRange r : intersect(set, kScalars)) add_range(r, from, to, tails);
}

Position NfaBuilder::add(const Class& e, Position from) {
  Position to = position();
  add_set(e.set, from, to);
  return to;
}

Position NfaBuilder::add(const Seq& e, Position from) {
  for (ExprId part : e.parts) from = add(part, from);
  return from;
}

Position NfaBuilder::add(const Alt& e, Position from) {
  Position to = position();
  for (ExprId part : e.parts) {
    Position begin = position();
    connect(from, begin);
    connect(add(part, begin), to);
  }
  return to;
}

Position NfaBuilder::add(const Repeat& e, Position from) {
  for (uint32_t i = 0; i < e.min; ++i) from = add(e.part, from);
  if (e.max == kUnbounded) {
    Position loop = position();
    connect(from, loop);
    connect(add(e.part, loop), loop);
    Position to = position();
    connect(loop, to);
    return to;
  }
  Position to = position();
  for (uint32_t i = e.min; i < e.max; ++i) {
    connect(from, to);
    Position begin = position();
    connect(from, begin);
    from = add(e.part, begin);
  }
  connect(from, to);
  return to;
}

// Rules that are one character or one short text.
bool NfaBuilder::inlined(RuleId rule) const {
  ExprId body = ir_.rules()[rule].body;
  if (body == kNoExpr) return false;
  const Expr& e = ir_.expr(body);
  if (const auto* text = std::get_if<Bytes>(&e)) return text->text.size() <= 8;
  const auto* set = std::get_if<Class>(&e);
  return set != nullptr && set->set.size() <= 8;
}

Position NfaBuilder::add(const Ref& e, Position from) {
  if (inlined(e.rule)) return add(ir_.rules()[e.rule].body, from);
  Position to = position();
  calls.push_back({from, {to, reach(e.rule)}});
  return to;
}

Position NfaBuilder::add(const Graph& e, Position from) {
  std::vector<Position> states(e.states);
  for (Position& state : states) state = position();
  connect(from, states[0]);
  for (const Graph::Edge& edge : e.edges) {
    Position begin = states[edge.from];
    if (edge.expr == kNoExpr) {
      connect(begin, states[edge.to]);
      continue;
    }
    if (const auto* one = std::get_if<Class>(&ir_.expr(edge.expr))) {
      add_set(one->set, begin, states[edge.to]);
      continue;
    }
    Position own = position();
    connect(begin, own);
    connect(add(edge.expr, own), states[edge.to]);
  }
  Position to = position();
  for (uint32_t state : e.finals) connect(states[state], to);
  return to;
}

}  // namespace tokamak::grammar
