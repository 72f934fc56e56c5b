// Expressions.
#include <algorithm>

#include "text/jinja/filters.h"
#include "text/unicode.h"

namespace tokamak::jinja {

Interp::Deeper::Deeper(Interp& i) : interp(i) {
  if (++i.depth_ > kMaxEvalDepth) {
    --i.depth_;
    raise("the template is nested too deeply");
  }
}

namespace {
thread_local Interp* running = nullptr;  // the innermost render on this thread
}
Interp::Running::Running(Interp* i) : before(running) { running = i; }
Interp::Running::~Running() { running = before; }
void spend_steps(size_t steps) {
  if (running) running->spend(steps);
}

void Interp::spend(size_t steps) {
  steps_ += static_cast<int64_t>(std::min<size_t>(steps, INT32_MAX));
  if (steps_ > limits_.max_steps) raise("the template takes too many steps");
}

Val Interp::str(std::string text, bool markup) {
  spend_bytes(text.size());
  return heap_.string(std::move(text), markup);
}

Val Interp::eval(const Expr& e) {
  const Deeper deeper(*this);
  spend(1);
  line_ = e.line;
  switch (e.type) {
    case Expr::Type::kConst:
      return e.constant;
    case Expr::Type::kName:
      return eval_name(e);
    case Expr::Type::kList:
    case Expr::Type::kTuple:
      return eval_list(e);
    case Expr::Type::kDict:
      return eval_dict(e);
    case Expr::Type::kGetattr:
      return attribute(eval(*e.kids[0]), e.constant.text());
    case Expr::Type::kGetitem:
      return eval_getitem(e);
    case Expr::Type::kSlice:
      raise("a slice outside of a subscript");
    case Expr::Type::kCall:
      return eval_call(e);
    case Expr::Type::kFilter:
      return eval_filter(e);
    case Expr::Type::kTest:
      return eval_test(e);
    case Expr::Type::kNeg:
    case Expr::Type::kPos:
      return eval_sign(e);
    case Expr::Type::kNot:
      return Val::boolean(!truthy(eval(*e.kids[0])));
    case Expr::Type::kAnd: {
      Val left = eval(*e.kids[0]);
      return truthy(left) ? eval(*e.kids[1]) : left;
    }
    case Expr::Type::kOr: {
      Val left = eval(*e.kids[0]);
      return truthy(left) ? left : eval(*e.kids[1]);
    }
    case Expr::Type::kBinary: {
      const Val a = eval(*e.kids[0]);
      const Val b = eval(*e.kids[1]);
      line_ = e.line;
      return binary(e.ops[0], a, b);
    }
    case Expr::Type::kCompare:
      return eval_compare(e);
    case Expr::Type::kConcat:
      return eval_concat(e);
    case Expr::Type::kCond:
      if (truthy(eval(*e.kids[1]))) return eval(*e.kids[0]);
      return e.kids[2] ? eval(*e.kids[2]) : Val();
  }
  return Val();
}

Val Interp::eval_list(const Expr& e) {
  std::vector<Val> values;
  values.reserve(e.kids.size());
  for (const ExprPtr& kid : e.kids) values.push_back(eval(*kid));
  return heap_.list(std::move(values), e.type == Expr::Type::kTuple);
}

Val Interp::eval_dict(const Expr& e) {
  Dict* dict = heap_.dict();
  heap_.charge(e.kids.size() * sizeof(Val));
  for (size_t i = 0; i + 1 < e.kids.size(); i += 2) {
    const Val key = eval(*e.kids[i]);
    dict->set(key, eval(*e.kids[i + 1]));
  }
  return Val::dict(dict);
}

Val Interp::eval_filter(const Expr& e) {
  if (!e.filter) raise("no filter named '" + e.name + "'");
  const Val input = eval(*e.kids[0]);
  Args args = eval_args(e.args);
  line_ = e.line;
  if (!args.pos.empty() || !args.named.empty()) check_filter_args(e.name, args);
  return e.filter(*this, input, args);
}

Val Interp::eval_test(const Expr& e) {
  if (!e.test) raise("no test named '" + e.name + "'");
  const Val input = eval(*e.kids[0]);
  Args args = eval_args(e.args);
  line_ = e.line;
  return Val::boolean(e.test(*this, input, args));
}

Val Interp::eval_sign(const Expr& e) {
  const Val v = eval(*e.kids[0]);
  if (v.is_undefined()) raise_undefined(v);
  const bool negative = e.type == Expr::Type::kNeg;
  if (!v.is_number())
    raise(std::string("bad operand type for unary ") + (negative ? "-" : "+") + ": '" +
          type_name(v) + "'");
  if (v.is_float()) return Val::real(negative ? -v.as_double() : v.as_double());
  if (negative && v.as_int() == INT64_MIN) raise("integer overflow");
  return Val::integer(negative ? -v.as_int() : v.as_int());
}

Val Interp::eval_name(const Expr& e) {
  for (Scope* s = scope_.get(); s; s = s->parent.get())
    if (const Val* v = s->find(e.symbol)) return *v;
  return Val::undefined(e.constant.text());
}

Val Interp::eval_concat(const Expr& e) {
  std::string out;
  for (const ExprPtr& kid : e.kids) {
    append_str(out, eval(*kid));
    heap_.check_room(out.size());
  }
  return str(std::move(out));
}

Val Interp::eval_compare(const Expr& e) {
  Val left = eval(*e.kids[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Val right = eval(*e.kids[i + 1]);
    line_ = e.line;
    if (!compare_op(e.ops[i], left, right)) return Val::boolean(false);
    left = std::move(right);
  }
  return Val::boolean(true);
}

bool Interp::compare_op(Op op, const Val& a, const Val& b) {
  if (a.is_string() && b.is_string()) spend_bytes(std::min(a.str().size(), b.str().size()));
  switch (op) {
    case Op::kEq:
      return equal(a, b);
    case Op::kNe:
      return !equal(a, b);
    case Op::kLt:
      return compare(a, b) < 0;
    case Op::kLe:
      return compare(a, b) <= 0;
    case Op::kGt:
      return compare(a, b) > 0;
    case Op::kGe:
      return compare(a, b) >= 0;
    case Op::kIn:
      return contains(b, a);
    default:
      return !contains(b, a);
  }
}

Val Interp::eval_getitem(const Expr& e) {
  const Val object = eval(*e.kids[0]);
  const Expr& key = *e.kids[1];
  if (key.type == Expr::Type::kSlice) {
    const auto part = [&](size_t i) { return key.kids[i] ? eval(*key.kids[i]) : Val::none(); };
    const Val start = part(0), stop = part(1), step = part(2);
    line_ = e.line;
    return slice(object, start, stop, step);
  }
  const Val index = eval(key);
  line_ = e.line;
  return item(object, index);
}

Args Interp::eval_args(const CallArgs& in) {
  Args out;
  for (const ExprPtr& p : in.pos) out.pos.push_back(eval(*p));
  for (const auto& [name, p] : in.named) out.named.emplace_back(name, eval(*p));
  if (in.star)
    for (Val& v : iterate(eval(*in.star))) out.pos.push_back(std::move(v));
  if (in.star_star) {
    const Val more = eval(*in.star_star);
    if (!more.is_dict())
      raise(std::string("argument after ** must be a mapping, not ") + type_name(more));
    for (const auto& [key, v] : more.dict()->members) out.named.emplace_back(to_str(key), v);
  }
  return out;
}

Val Interp::eval_call(const Expr& e) {
  const Expr& callee = *e.kids[0];
  if (callee.type == Expr::Type::kGetattr) {
    const Val object = eval(*callee.kids[0]);
    if (const MethodFn method = find_method(object, callee.name)) {
      Args args = eval_args(e.args);
      line_ = e.line;
      return method(*this, object, args);
    }
    line_ = callee.line;
    const Val f = attribute(object, callee.constant.text());
    Args args = eval_args(e.args);
    line_ = e.line;
    return call(f, args);
  }
  const Val f = eval(callee);
  Args args = eval_args(e.args);
  line_ = e.line;
  return call(f, args);
}

Val Interp::call(const Val& callee, Args& args) {
  if (callee.is_undefined()) raise_undefined(callee);
  if (callee.kind() == Kind::kCallable) return callee.callable()->call(*this, args);
  if (callee.kind() == Kind::kLoop && callee.loop()->recurse)
    return callee.loop()->recurse(*this, args);
  raise(std::string("'") + type_name(callee) + "' object is not callable");
}

Val Interp::attribute(const Val& object, const TextPtr& name) {
  const std::string_view key = name->bytes;
  switch (object.kind()) {
    case Kind::kUndefined:
      raise_undefined(object);
    case Kind::kNamespace:
      if (const Val* v = object.space()->find(key)) return *v;
      break;
    case Kind::kLoop:
      return loop_attribute(*object.loop(), key);
    default:
      if (const MethodFn method = find_method(object, key))
        return heap_.callable(std::string(key), [method, object](Interp& i, Args& args) {
          return method(i, object, args);
        });
      if (object.is_dict())
        if (const Val* v = object.dict()->find(key)) return *v;
      if (object.is_tuple() && object.items()->flavor == Flavor::kGroup) {
        if (key == "grouper") return object.items()->values[0];
        if (key == "list") return object.items()->values[1];
      }
      if (object.kind() == Kind::kCallable && key == "name") return str(object.callable()->name);
  }
  return Val::undefined(name, object.kind());
}

Val Interp::loop_attribute(LoopState& loop, std::string_view name) {
  const size_t size = loop.values->size();
  const auto number = [](size_t n) { return Val::integer(static_cast<int64_t>(n)); };
  if (name == "index") return number(loop.index0 + 1);
  if (name == "index0") return number(loop.index0);
  if (name == "first") return Val::boolean(loop.index0 == 0);
  if (name == "last") return Val::boolean(loop.index0 + 1 == size);
  if (name == "length") return number(size);
  if (name == "revindex") return number(size - loop.index0);
  if (name == "revindex0") return number(size - loop.index0 - 1);
  if (name == "depth") return Val::integer(loop.depth0 + 1);
  if (name == "depth0") return Val::integer(loop.depth0);
  if (name == "previtem") return loop.index0 > 0 ? (*loop.values)[loop.index0 - 1] : Val();
  if (name == "nextitem") return loop.index0 + 1 < size ? (*loop.values)[loop.index0 + 1] : Val();
  LoopState* state = &loop;
  if (name == "cycle")
    return heap_.callable("cycle", [state](Interp&, Args& args) {
      if (args.pos.empty()) raise("no items for cycling given");
      return args.pos[state->index0 % args.pos.size()];
    });
  if (name == "changed")
    return heap_.callable("changed", [state](Interp&, Args& args) {
      const bool same = state->has_changed && state->last_changed.size() == args.pos.size() &&
                        std::equal(args.pos.begin(), args.pos.end(), state->last_changed.begin(),
                                   [](const Val& a, const Val& b) { return equal(a, b); });
      state->has_changed = true;
      state->last_changed = args.pos;
      return Val::boolean(!same);
    });
  return Val::undefined(nullptr);
}

Val Interp::item(const Val& object, const Val& key) {
  switch (object.kind()) {
    case Kind::kUndefined:
      raise_undefined(object);
    case Kind::kDict:
      if (!key.is_list() && !key.is_dict())
        if (const Val* v = object.dict()->find(key)) return *v;
      break;
    case Kind::kList:
    case Kind::kTuple:
      if (key.is_integral() && (object.is_plain_sequence() || object.is_generator() ||
                                object.items()->flavor == Flavor::kRange)) {
        const auto size = static_cast<int64_t>(object.items()->values.size());
        const int64_t i = key.as_int() < 0 ? key.as_int() + size : key.as_int();
        if (i >= 0 && i < size) return object.items()->values[static_cast<size_t>(i)];
        return Val::undefined(nullptr);
      }
      break;
    case Kind::kString:
      if (key.is_integral()) {
        const auto size = static_cast<int64_t>(object.text()->chars);
        const int64_t i = key.as_int() < 0 ? key.as_int() + size : key.as_int();
        if (i < 0 || i >= size) return Val::undefined(nullptr);
        return slice(object, Val::integer(i), Val::integer(i + 1), Val::none());
      }
      break;
    default:
      break;
  }
  if (key.is_string()) return attribute(object, key.text());
  return Val::undefined(nullptr);
}

std::vector<Val> Interp::iterate(const Val& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kList:
    case Kind::kTuple:
      spend(v.items()->values.size() / 8);
      if (v.is_generator() && std::exchange(v.items()->consumed, true)) return {};
      return v.items()->values;
    case Kind::kDict: {
      std::vector<Val> keys;
      for (const auto& [key, item] : v.dict()->members) keys.push_back(key);
      return keys;
    }
    case Kind::kString: {
      spend(v.text()->chars);
      heap_.check_room(v.text()->chars * (sizeof(Val) + sizeof(Text) + 32));
      std::vector<Val> chars;
      const std::string& text = v.str();
      for (size_t pos = 0; pos < text.size();) {
        const size_t length = utf8_decode(text, pos).length;
        chars.push_back(heap_.string(text.substr(pos, length)));
        pos += length;
      }
      return chars;
    }
    default:
      raise(std::string("'") + type_name(v) + "' object is not iterable");
  }
}

}  // namespace tokamak::jinja
