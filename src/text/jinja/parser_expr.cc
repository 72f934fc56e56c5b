// Expressions.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/parser.h"

namespace tokamak::jinja {

ExprPtr Parser::node(Expr::Type type) const {
  auto e = std::make_unique<Expr>();
  e->type = type;
  e->line = cur().line;
  return e;
}
void Parser::deepen(Expr& parent, const Expr& kid) const {
  parent.depth = std::max(parent.depth, kid.depth + 1);
  if (parent.depth > kMaxDepth) raise("an expression is nested too deeply");
}
void Parser::adopt(Expr& parent, ExprPtr kid) const {
  if (kid) deepen(parent, *kid);
  parent.kids.push_back(std::move(kid));
}

ExprPtr Parser::expression(bool with_condition) {
  const Nest nest(*this);
  return with_condition ? condition() : or_expr();
}

bool Parser::tuple_ends() const {
  return cur().type == Tok::kVarEnd || cur().type == Tok::kBlockEnd || is_op(")") ||
         is_name("recursive");
}

ExprPtr Parser::tuple(bool with_condition, bool parenthesised) {
  ExprPtr all = node(Expr::Type::kTuple);
  bool is_tuple = false;
  while (!tuple_ends()) {
    adopt(*all, expression(with_condition));
    if (!is_op(",")) break;
    is_tuple = true;
    take();
  }
  if (is_tuple) return all;
  if (!all->kids.empty()) return std::move(all->kids[0]);
  if (!parenthesised) unexpected("an expression");
  return all;
}

ExprPtr Parser::condition() {
  ExprPtr then = or_expr();
  while (is_name("if")) {
    ExprPtr e = node(Expr::Type::kCond);
    take();
    adopt(*e, std::move(then));
    adopt(*e, or_expr());
    adopt(*e, skip_name("else") ? expression() : nullptr);
    then = std::move(e);
  }
  return then;
}

ExprPtr Parser::or_expr() {
  ExprPtr left = and_expr();
  while (is_name("or")) {
    ExprPtr e = node(Expr::Type::kOr);
    take();
    adopt(*e, std::move(left));
    adopt(*e, and_expr());
    left = std::move(e);
  }
  return left;
}

ExprPtr Parser::and_expr() {
  ExprPtr left = not_expr();
  while (is_name("and")) {
    ExprPtr e = node(Expr::Type::kAnd);
    take();
    adopt(*e, std::move(left));
    adopt(*e, not_expr());
    left = std::move(e);
  }
  return left;
}

ExprPtr Parser::not_expr() {
  if (!is_name("not")) return comparison();
  const Nest nest(*this);
  ExprPtr e = node(Expr::Type::kNot);
  take();
  adopt(*e, not_expr());
  return e;
}

ExprPtr Parser::comparison() {
  static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe},
                                                             {"<", Op::kLt},  {"<=", Op::kLe},
                                                             {">", Op::kGt},  {">=", Op::kGe}};
  ExprPtr first = sum();
  ExprPtr all;
  while (true) {
    Op op{};
    bool found = false;
    for (const auto& [text, o] : kOps)
      if (is_op(text)) {
        op = o;
        found = true;
      }
    if (found) {
      take();
    } else if (is_name("in")) {
      op = Op::kIn;
      take();
    } else if (is_name("not") && look(1).type == Tok::kName && look(1).text == "in") {
      op = Op::kNotIn;
      take();
      take();
    } else {
      break;
    }
    if (!all) {
      all = node(Expr::Type::kCompare);
      adopt(*all, std::move(first));
    }
    all->ops.push_back(op);
    adopt(*all, sum());
  }
  return all ? std::move(all) : std::move(first);
}

ExprPtr Parser::sum() {
  ExprPtr left = concat();
  while (is_op("+") || is_op("-")) {
    ExprPtr e = node(Expr::Type::kBinary);
    e->ops.push_back(is_op("+") ? Op::kAdd : Op::kSub);
    take();
    adopt(*e, std::move(left));
    adopt(*e, concat());
    left = std::move(e);
  }
  return left;
}

ExprPtr Parser::concat() {
  ExprPtr first = product();
  if (!is_op("~")) return first;
  ExprPtr all = node(Expr::Type::kConcat);
  adopt(*all, std::move(first));
  while (skip_op("~")) adopt(*all, product());
  return all;
}

ExprPtr Parser::product() {
  ExprPtr left = power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    ExprPtr e = node(Expr::Type::kBinary);
    e->ops.push_back(is_op("*")    ? Op::kMul
                     : is_op("/")  ? Op::kDiv
                     : is_op("//") ? Op::kFloorDiv
                                   : Op::kMod);
    take();
    adopt(*e, std::move(left));
    adopt(*e, power());
    left = std::move(e);
  }
  return left;
}

ExprPtr Parser::power() {
  ExprPtr left = unary(true);
  while (is_op("**")) {
    ExprPtr e = node(Expr::Type::kBinary);
    take();
    e->ops.push_back(Op::kPow);
    adopt(*e, std::move(left));
    adopt(*e, unary(true));
    left = std::move(e);
  }
  return left;
}

ExprPtr Parser::unary(bool with_filters) {
  const Nest nest(*this);
  ExprPtr operand;
  if (is_op("-") || is_op("+")) {
    operand = node(is_op("-") ? Expr::Type::kNeg : Expr::Type::kPos);
    take();
    adopt(*operand, unary(false));
  } else {
    operand = primary();
  }
  operand = postfix(std::move(operand));
  return with_filters ? filters(std::move(operand)) : std::move(operand);
}

ExprPtr Parser::number(const Token& token) {
  ExprPtr e = node(Expr::Type::kConst);
  if (token.type == Tok::kFloat) {
    double d = 0;
    const auto result =
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), d);
    if (result.ec == std::errc::result_out_of_range) d = HUGE_VAL;
    e->constant = Val::real(d);
    return e;
  }
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && !(digits[1] >= '0' && digits[1] <= '9')) {
    base = (digits[1] | 32) == 'x' ? 16 : (digits[1] | 32) == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  int64_t i = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), i, base);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size())
    raise("the number " + token.text + " is not supported");
  e->constant = Val::integer(i);
  return e;
}

ExprPtr Parser::primary() {
  line_ = cur().line;
  ExprPtr e = node(Expr::Type::kConst);
  switch (cur().type) {
    case Tok::kName: {
      const std::string name = take().text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        e->constant = Val::boolean(name[0] == 't' || name[0] == 'T');
      } else if (name == "none" || name == "None") {
        e->constant = Val::none();
      } else {
        e->type = Expr::Type::kName;
        e->name = name;
        e->symbol = symbol(name);
        e->constant = Val::string(std::make_shared<const Text>(name, nullptr));
        if (!macros_.empty()) {
          if (name == "varargs") macros_.back()->uses_varargs = true;
          if (name == "kwargs") macros_.back()->uses_kwargs = true;
          if (name == "caller") macros_.back()->uses_caller = true;
        }
      }
      return e;
    }
    case Tok::kString: {
      std::string text;
      while (cur().type == Tok::kString) text += take().text;
      e->constant = Val::string(std::make_shared<const Text>(std::move(text), nullptr));
      return e;
    }
    case Tok::kInt:
    case Tok::kFloat:
      return number(take());
    case Tok::kOp:
      if (skip_op("(")) {
        ExprPtr inner = tuple(true, true);
        expect_op(")");
        return inner;
      }
      if (is_op("[")) return list_literal();
      if (is_op("{")) return dict_literal();
      [[fallthrough]];
    default:
      unexpected("an expression");
  }
}

ExprPtr Parser::list_literal() {
  ExprPtr e = node(Expr::Type::kList);
  expect_op("[");
  while (!is_op("]")) {
    adopt(*e, expression());
    if (!skip_op(",")) break;
  }
  expect_op("]");
  return e;
}

ExprPtr Parser::dict_literal() {
  ExprPtr e = node(Expr::Type::kDict);
  expect_op("{");
  while (!is_op("}")) {
    adopt(*e, expression());
    expect_op(":");
    adopt(*e, expression());
    if (!skip_op(",")) break;
  }
  expect_op("}");
  return e;
}

ExprPtr Parser::postfix(ExprPtr operand) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      operand = subscript(std::move(operand));
    } else if (is_op("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExprPtr Parser::filters(ExprPtr operand) {
  while (true) {
    if (skip_op("|")) {
      operand = filter(std::move(operand));
    } else if (skip_name("is")) {
      operand = test(std::move(operand));
    } else if (is_op("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExprPtr Parser::filter(ExprPtr operand) {
  ExprPtr e = node(Expr::Type::kFilter);
  e->name = expect_any_name("a filter");
  while (skip_op(".")) e->name.append(1, '.').append(expect_any_name("a filter"));
  e->filter = find_filter(e->name);
  adopt(*e, std::move(operand));
  if (is_op("(")) call_args(e->args, *e);
  return e;
}

ExprPtr Parser::test(ExprPtr operand) {
  const bool negated = skip_name("not");
  ExprPtr e = node(Expr::Type::kTest);
  e->name = expect_any_name("a test");
  while (skip_op(".")) e->name.append(1, '.').append(expect_any_name("a test"));
  e->test = find_test(e->name);
  adopt(*e, std::move(operand));
  if (is_op("(")) {
    call_args(e->args, *e);
  } else {
    const Tok t = cur().type;
    const bool starts = t == Tok::kName || t == Tok::kString || t == Tok::kInt ||
                        t == Tok::kFloat || is_op("[") || is_op("{");
    const bool keyword = is_name("else") || is_name("or") || is_name("and") || is_name("if") ||
                         (is_name("not") && look(1).text == "in");
    if (starts && !keyword) {
      if (is_name("is")) raise("tests cannot be chained with 'is'");
      ExprPtr argument = postfix(primary());
      deepen(*e, *argument);
      e->args.pos.push_back(std::move(argument));
    }
  }
  if (!negated) return e;
  ExprPtr inverse = node(Expr::Type::kNot);
  adopt(*inverse, std::move(e));
  return inverse;
}

ExprPtr Parser::subscript(ExprPtr operand) {
  if (skip_op(".")) {
    if (cur().type == Tok::kInt) {
      ExprPtr e = node(Expr::Type::kGetitem);
      ExprPtr index = number(take());
      adopt(*e, std::move(operand));
      adopt(*e, std::move(index));
      return e;
    }
    ExprPtr e = node(Expr::Type::kGetattr);
    e->name = expect_any_name("an attribute");
    e->constant = Val::string(std::make_shared<const Text>(e->name, nullptr));
    adopt(*e, std::move(operand));
    return e;
  }
  ExprPtr e = node(Expr::Type::kGetitem);
  expect_op("[");
  adopt(*e, std::move(operand));
  ExprPtr first = is_op("]") ? node(Expr::Type::kTuple) : slice_or_index();
  if (is_op(",")) {
    ExprPtr all = node(Expr::Type::kTuple);
    adopt(*all, std::move(first));
    while (skip_op(","))
      if (!is_op("]")) adopt(*all, slice_or_index());
    first = std::move(all);
  }
  expect_op("]");
  adopt(*e, std::move(first));
  return e;
}

ExprPtr Parser::slice_or_index() {
  const Nest nest(*this);
  ExprPtr parts[3];
  bool is_slice = false;
  size_t at = 0;
  if (!is_op(":")) parts[0] = expression();
  while (at < 2 && is_op(":")) {
    take();
    is_slice = true;
    ++at;
    if (!is_op(":") && !is_op("]") && !is_op(",")) parts[at] = expression();
  }
  if (!is_slice) return std::move(parts[0]);
  ExprPtr e = node(Expr::Type::kSlice);
  for (ExprPtr& part : parts) adopt(*e, std::move(part));
  return e;
}

ExprPtr Parser::call(ExprPtr callee) {
  ExprPtr e = node(Expr::Type::kCall);
  adopt(*e, std::move(callee));
  call_args(e->args, *e);
  return e;
}

void Parser::call_args(CallArgs& args, Expr& owner) {
  const Nest nest(*this);
  expect_op("(");
  while (!is_op(")")) {
    ExprPtr* slot = nullptr;
    if (skip_op("**")) {
      slot = &args.star_star;
    } else if (skip_op("*")) {
      slot = &args.star;
    } else if (cur().type == Tok::kName && look(1).type == Tok::kOp && look(1).text == "=") {
      std::string name = take().text;
      take();
      args.named.emplace_back(std::move(name), nullptr);
      slot = &args.named.back().second;
    } else {
      if (!args.named.empty() || args.star_star) raise("a positional argument follows a named one");
      slot = &args.pos.emplace_back();
    }
    *slot = expression();
    deepen(owner, **slot);
    if (!skip_op(",")) break;
  }
  expect_op(")");
}

}  // namespace tokamak::jinja
