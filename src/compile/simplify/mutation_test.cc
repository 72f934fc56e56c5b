// Every single change of every rule that ships is refused by the verifier, or stands in
// tests/golden/rules/valid_changes.txt with the reason why the changed rule holds too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "graph/rule_verify.h"

namespace tokamak {
namespace {

RuleExpr call(std::string name, std::vector<RuleExpr> args) {
  RuleExpr e;
  e.kind = RuleExpr::Kind::kCall;
  e.name = std::move(name);
  e.args = std::move(args);
  return e;
}
RuleExpr literal(Value v) {
  RuleExpr e;
  e.value = std::move(v);
  return e;
}

// What an operator is mistaken for.
const std::map<std::string_view, std::vector<std::string_view>> kOperators = {
    {"add", {"sub", "mul"}},
    {"sub", {"add", "div"}},
    {"mul", {"div", "add"}},
    {"div", {"mul", "sub"}},
    {"maximum", {"minimum", "add"}},
    {"minimum", {"maximum", "mul"}},
    {"neg", {"abs", "square"}},
    {"abs", {"neg", "relu"}},
    {"exp", {"square", "sigmoid"}},
    {"log", {"sqrt", "neg"}},
    {"sqrt", {"rsqrt", "square"}},
    {"rsqrt", {"sqrt", "exp"}},
    {"square", {"abs", "sqrt"}},
    {"sin", {"cos", "tanh"}},
    {"cos", {"sin", "abs"}},
    {"tanh", {"erf", "sigmoid"}},
    {"erf", {"tanh", "relu"}},
    {"sigmoid", {"tanh", "silu"}},
    {"relu", {"abs", "silu"}},
    {"silu", {"relu", "sigmoid"}},
    {"softmax", {"sigmoid", "silu"}},
    {"reduce_sum", {"reduce_mean", "reduce_max"}},
    {"reduce_mean", {"reduce_sum", "reduce_max"}},
    {"reduce_max", {"reduce_sum", "reduce_mean"}},
    {"rms_norm", {"layer_norm"}},
    {"layer_norm", {"rms_norm"}},
    {"matmul", {"linear"}},
    {"linear", {"matmul"}},
    {"broadcast", {"reshape"}},
};

// Ops that nothing resembles, and the inputs that may stand for their results.
const std::map<std::string_view, std::vector<size_t>> kAlone = {
    {"sdpa", {0, 2}},   {"attend", {0}},      {"rope", {0}},      {"select", {1, 2}},
    {"concat", {0, 1}}, {"head_linear", {0}}, {"gather", {0, 1}}, {"cast", {0}},
    {"scale", {0}},     {"transpose", {0}},   {"slice", {0}},
};

struct Mutant {
  std::string change;
  RewriteRule rule;
};

class Mutator {
 public:
  explicit Mutator(const RewriteRule& rule) : rule_(rule) {}

  std::vector<Mutant> run() {
    for (size_t i = 0; i < rule_.terms.size(); ++i) {
      const RuleTerm& t = rule_.terms[i];
      place_ = place(i);
      if (t.kind == RuleTerm::Kind::kNumber) number(i);
      if (t.kind == RuleTerm::Kind::kVar) continue;
      operators(i);
      without_op(i);
      order(i);
      for (size_t a = 0; a < t.attrs.size(); ++a) attribute(i, a);
    }
    return std::move(out_);
  }

 private:
  // "left add 2": the second add of the pattern.
  std::string place(size_t index) const {
    bool left = index <= rule_.pattern;
    auto name = [&](size_t i) -> std::string {
      const RuleTerm& t = rule_.terms[i];
      if (t.kind == RuleTerm::Kind::kNumber) return "number";
      return t.op ? std::string(t.op->name) : "constant";
    };
    int nth = 0;
    for (size_t i = left ? 0 : rule_.pattern + 1; i <= index; ++i) nth += name(i) == name(index);
    return fmt::format("{} {} {}", left ? "left" : "right", name(index), nth);
  }

  std::string text(const RuleExpr& e) const {
    std::string out = e.name + (e.kind == RuleExpr::Kind::kLiteral ? dump_json(e.value) : "");
    for (const RuleExpr& arg : e.args) out += "(" + text(arg) + ")";
    return out;
  }
  std::string text(size_t index) const {
    const RuleTerm& t = rule_.terms[index];
    std::string out = fmt::format("{} {} {} {}", static_cast<int>(t.kind), t.var, t.number,
                                  t.op ? t.op->name : "");
    for (size_t in : t.inputs) out += "(" + text(in) + ")";
    for (const auto& [key, e] : t.attrs) out += fmt::format("{{{}={}}}", key, text(e));
    return out;
  }

  template <class F>
  void add(const std::string& what, F&& change) {
    Mutant m{place_.empty() ? what : fmt::format("{}: {}", place_, what), rule_};
    change(m.rule);
    out_.push_back(std::move(m));
  }

  void number(size_t i) {
    double v = rule_.terms[i].number;
    if (!std::isfinite(v)) {
      add("finite", [&](RewriteRule& r) { r.terms[i].number = v > 0 ? 100.0 : -100.0; });
      return;
    }
    add("other number", [&](RewriteRule& r) { r.terms[i].number = v == 0 ? 0.001 : v * 1.001; });
    add("other sign", [&](RewriteRule& r) { r.terms[i].number = -v; });
  }

  void operators(size_t i) {
    const RuleTerm& t = rule_.terms[i];
    if (!t.op) return;
    auto found = kOperators.find(t.op->name);
    if (found == kOperators.end()) return;
    for (std::string_view other : found->second) {
      const OpDef* op = find_op(other);
      auto n = static_cast<int>(t.inputs.size());
      if (n < op->min_inputs || n > op->max_inputs) continue;
      add(fmt::format("{}", other), [&](RewriteRule& r) { r.terms[i].op = op; });
    }
  }

  // The op is left out, its result is negated, or it gets an attribute that it does not have.
  void without_op(size_t i) {
    const RuleTerm& t = rule_.terms[i];
    auto found = t.op ? kAlone.find(t.op->name) : kAlone.end();
    if (found == kAlone.end()) return;
    auto replace = [i](RewriteRule& r, size_t by) {
      for (size_t k = 0; k < r.terms.size(); ++k)
        for (size_t& in : r.terms[k].inputs)
          if (in == i && k != by) in = by;
      if (r.pattern == i) r.pattern = by;
      if (r.replacement == i) r.replacement = by;
    };
    for (size_t k : found->second)
      if (k < t.inputs.size() &&
          (i != rule_.pattern || rule_.terms[t.inputs[k]].kind == RuleTerm::Kind::kOp))
        add(fmt::format("only input {}", k + 1), [&](RewriteRule& r) { replace(r, t.inputs[k]); });
    add("result negated", [&](RewriteRule& r) {
      RuleTerm neg;
      neg.kind = RuleTerm::Kind::kOp;
      neg.op = find_op("neg");
      neg.inputs = {i};
      r.terms.push_back(neg);
      replace(r, r.terms.size() - 1);
    });
    static const std::pair<std::string_view, std::pair<const char*, Value>> kExtra[] = {
        {"sdpa", {"causal", Value(1)}},
        {"attend", {"window", Value(200)}},
        {"attend", {"softcap", Value(2.0)}},
        {"rope", {"scale", Value(0.5)}},
    };
    for (const auto& [op, attr] : kExtra)
      if (t.op->name == op && std::none_of(t.attrs.begin(), t.attrs.end(),
                                           [&](const auto& a) { return a.first == attr.first; }))
        add(fmt::format("{} added", attr.first), [&](RewriteRule& r) {
          r.terms[i].attrs.emplace_back(attr.first, literal(attr.second));
        });
  }

  void order(size_t i) {
    const RuleTerm& t = rule_.terms[i];
    if (!t.op || is_commutative(*t.op)) return;
    for (size_t k = 0; k + 1 < t.inputs.size(); ++k)
      if (text(t.inputs[k]) != text(t.inputs[k + 1]))
        add(fmt::format("inputs {} and {} exchanged", k + 1, k + 2),
            [&](RewriteRule& r) { std::swap(r.terms[i].inputs[k], r.terms[i].inputs[k + 1]); });
  }

  void attribute(size_t i, size_t a) {
    const auto& [key, expr] = rule_.terms[i].attrs[a];
    // A name in the pattern takes what is there; names of axes mean nothing.
    bool binds = i <= rule_.pattern && expr.kind == RuleExpr::Kind::kName &&
                 std::find(rule_.shape_names.begin(), rule_.shape_names.end(), expr.name) ==
                     rule_.shape_names.end();
    if (binds || key == "axes") return;
    auto with = [&](const char* what, RuleExpr e) {
      add(fmt::format("{} {}", key, what), [&](RewriteRule& r) { r.terms[i].attrs[a].second = e; });
    };
    static const std::set<std::string> kReal = {"value", "scale", "eps", "cap", "add"};
    static const std::map<std::string, std::string> kOther = {
        {"f32", "f16"},   {"f16", "bf16"},  {"bf16", "f16"}, {"i32", "f32"},
        {"tanh", "none"}, {"none", "tanh"}, {"lt", "le"},    {"le", "lt"},
        {"gt", "ge"},     {"ge", "gt"},     {"eq", "ne"},    {"ne", "eq"}};
    bool near = expr.kind == RuleExpr::Kind::kCall && expr.name == "~";
    RuleExpr inner = near ? expr.args[0] : expr;
    auto again = [&](RuleExpr e) { return near ? call("~", {std::move(e)}) : e; };
    if (kReal.contains(key)) {
      with("times 1.001", again(call("*", {inner, literal(1.001)})));
      with("plus 0.001", again(call("+", {inner, literal(0.001)})));
      if (key != "eps") with("negated", again(call("neg", {inner})));
    } else if (expr.kind == RuleExpr::Kind::kLiteral && expr.value.is_string()) {
      auto other = kOther.find(expr.value.as_string());
      if (other != kOther.end()) with("other", literal(Value(other->second)));
    } else if (key == "perm" || key == "dims" || key == "slice_rows" || key == "reshape") {
      // A reshape in a pattern keeps the order of elements: other extents fit fewer places.
      bool keeps = i <= rule_.pattern && rule_.terms[i].op->name == "reshape";
      if (expr.kind == RuleExpr::Kind::kList && expr.args.size() >= 2 && !keeps) {
        RuleExpr e = expr;
        std::swap(e.args[e.args.size() - 1], e.args[e.args.size() - 2]);
        with("exchanged", e);
      } else if (key == "perm") {
        with("twice", call("compose", {expr, expr}));
      }
    } else if (key == "keep" || key == "causal") {
      with("other", call("-", {literal(Value(1)), expr}));
    } else if (key == "axis" || key == "start" || key == "end" || key == "window" || key == "n") {
      with("plus 1", call("+", {expr, literal(Value(1))}));
      with("minus 1", call("-", {expr, literal(Value(1))}));
    }
  }

  const RewriteRule& rule_;
  std::string place_;
  std::vector<Mutant> out_;
};

// "rule, change | reason" per line.
std::set<std::string> valid_changes() {
  std::set<std::string> out;
  std::string text = read_text_file(TK_RULES_GOLDEN "/valid_changes.txt");
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty() || line.starts_with("//")) continue;
    size_t bar = line.find(" | ");
    EXPECT_TRUE(bar != std::string::npos && bar + 3 < line.size()) << line;
    EXPECT_TRUE(out.insert(line.substr(0, bar)).second) << "twice: " << line;
  }
  return out;
}

// Sanitizers make the search eight times slower: they see every twelfth change, release builds all.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kStride = 12;
#else
constexpr int kStride = 1;
#endif

// Factor on the number of instances. Above 1 only the listed changes are tried: whether they hold,
// or were only not refuted.
int effort_factor() {
  const char* text = std::getenv("TK_MUTATION_EFFORT");
  return text ? std::max(1, std::atoi(text)) : 1;
}

void expect_refused(const std::string& group, int instances) {
  int mutants = 0, accepted = 0;
  std::set<std::string> rules, holds;
  const std::set<std::string> valid = valid_changes();
  for (const RewriteRule& rule :
       parse_rules(read_text_file(fmt::format("{}/{}.rules", TK_SIMPLIFY_DIR, group)))) {
    if (const char* only = std::getenv("TK_MUTATION_RULE"); only && rule.name != only) continue;
    rules.insert(rule.name);
    for (const Mutant& m : Mutator(rule).run()) {
      std::string name = fmt::format("{}, {}", rule.name, m.change);
      if (++mutants % kStride != 0 || (effort_factor() > 1 && !valid.contains(name))) continue;
      VerifyEffort effort;
      effort.rounds = 1;
      effort.instances = instances * effort_factor();
      effort.tries = effort.instances * 25 / 2;
      RuleVerdict verdict = verify_rule(m.rule, effort);
      const bool listed = valid.contains(name);
      // Few random shapes fit some changes, and few instances may miss what is wrong with others.
      effort.instances *= 3;
      effort.tries *= listed ? 20 : 3;
      if (verdict.accepted && !listed) effort.rounds = 3;
      if (listed ? verdict.message.starts_with("never applies") : verdict.accepted)
        verdict = verify_rule(m.rule, effort);
      if (!verdict.accepted) continue;
      ++accepted;
      EXPECT_TRUE(valid.contains(name)) << "accepted: " << name;
      holds.insert(name);
    }
  }
  for (const std::string& line : valid)
    if (kStride == 1 && rules.contains(line.substr(0, line.find(',')))) {
      EXPECT_TRUE(holds.contains(line)) << "listed, but refused or gone: " << line;
    }
  fmt::print("{}: {} changes of {} rules, {} refused, {} hold\n", group, mutants, rules.size(),
             mutants - accepted, accepted);
  EXPECT_GE(mutants, static_cast<int>(rules.size()));
}

// Rules that move data have counterexamples in few shapes; they are small, so more are tried.
TEST(Mutation, Algebra) { expect_refused("algebra", 40); }
TEST(Mutation, Canonical) { expect_refused("canonical", 160); }
TEST(Mutation, Fold) { expect_refused("fold", 40); }
TEST(Mutation, Latent) { expect_refused("latent", 40); }
TEST(Mutation, Recognize) { expect_refused("recognize", 40); }

}  // namespace
}  // namespace tokamak
