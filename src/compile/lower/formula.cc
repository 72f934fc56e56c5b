#include "compile/lower/formula.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text_cursor.h"

namespace tokamak {
namespace {

std::optional<loop::Op> loop_op(std::string_view name) {
  for (size_t i = 0; i < static_cast<size_t>(loop::Op::kCount); ++i)
    if (auto op = static_cast<loop::Op>(i);
        loop::op_info(op).name == name && loop::op_info(op).inputs() > 0)
      return op;
  return std::nullopt;
}

class FormulaParser : private TextCursor {
 public:
  FormulaParser(std::string_view text, size_t inputs) : TextCursor(text), inputs_(inputs) {}

  Formula run() {
    std::optional<size_t> value;
    do {
      size_t start = pos_;
      std::string name = token();
      if (take('=')) {
        auto bound = term();
        if (!bound) bad("a name for an absent operand");
        names_[name] = *bound;
        if (!take(';')) bad("expected ';'");
        continue;
      }
      pos_ = start;
      value = term();
    } while (!value);
    if (!at_end()) bad("unexpected text");
    out_.root = *value;
    if (out_.terms[out_.root].kind != Formula::Term::Kind::kCall) bad("it computes nothing");
    return std::move(out_);
  }

 private:
  using Kind = Formula::Term::Kind;

  std::string token() {
    std::string_view found = word();
    if (found.empty()) bad("expected a name or a number");
    return std::string(found);
  }

  size_t add(Formula::Term term) {
    out_.terms.push_back(std::move(term));
    return out_.terms.size() - 1;
  }

  std::optional<size_t> term() {
    std::string name = token();
    if (take('(')) return call(name);
    if (auto it = names_.find(name); it != names_.end()) return it->second;
    if (name.size() == 1 && name[0] >= 'a' && name[0] <= 'c') {
      auto operand = static_cast<size_t>(name[0] - 'a');
      if (operand >= inputs_) return std::nullopt;
      return names_[name] = add({.kind = Kind::kOperand, .operand = operand});
    }
    if (name == "columns") return names_[name] = add({.kind = Kind::kColumns});
    if (std::isdigit(static_cast<unsigned char>(name[0])) != 0)
      return add({.kind = Kind::kNumber, .number = std::strtod(name.c_str(), nullptr)});
    return add({.kind = Kind::kAttribute, .attribute = name});
  }

  std::optional<size_t> call(const std::string& name) {
    auto op = loop_op(name);
    if (!op) bad("Loop IR has no " + name);
    Formula::Term made{.op = *op};
    size_t count = 0;
    do {
      ++count;
      if (auto arg = term()) made.args.push_back(*arg);
    } while (take(','));
    if (!take(')')) bad("expected ')'");
    if (static_cast<int>(count) != loop::op_info(*op).inputs()) bad(name + " with other operands");
    if (made.args.size() == count) return add(std::move(made));
    bool drops = (*op == loop::Op::kAdd || *op == loop::Op::kMul) && made.args.size() == 1;
    if (!drops) bad(name + " of an absent operand");
    return made.args[0];
  }

  [[noreturn]] void bad(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument, "formula \"{}\", at {}: {}", text_, pos_, what);
  }

  size_t inputs_;
  Formula out_;
  std::map<std::string, size_t> names_;
};

}  // namespace

Formula parse_formula(std::string_view text, size_t inputs) {
  return FormulaParser(text, inputs).run();
}

}  // namespace tokamak
