// Statements, macros, and the render as a whole.
#include <algorithm>

#include "text/jinja/interp.h"

namespace tokamak::jinja {
namespace {

// Installs a scope for the lifetime of a C++ block.
class Enter {
 public:
  Enter(ScopePtr& current, ScopePtr scope) : current_(current), saved_(std::move(current)) {
    current_ = std::move(scope);
  }
  ~Enter() { current_ = std::move(saved_); }

 private:
  ScopePtr& current_;
  ScopePtr saved_;
};

ScopePtr inner(const ScopePtr& parent) {
  auto s = std::make_shared<Scope>();
  s->parent = parent;
  return s;
}

}  // namespace

Interp::Interp(const Program& program, const RenderLimits& limits)
    : program_(program),
      limits_(limits),
      heap_(limits.max_memory_bytes),
      scope_(std::make_shared<Scope>()) {}

std::string Interp::run(const Value& context) {
  const Running mark(this);
  std::unordered_map<std::string_view, int> ids;
  for (size_t i = 0; i < program_.symbols.size(); ++i)
    ids.emplace(program_.symbols[i], static_cast<int>(i));
  const auto define = [&](std::string_view name, Val v) {
    if (const auto found = ids.find(name); found != ids.end())
      scope_->set(found->second, std::move(v));
  };
  add_globals(*this, define);
  if (!context.is_object() && !context.is_null()) raise("the context is not an object");
  if (context.is_object())
    for (const auto& [name, value] : context.as_object())
      if (ids.contains(name)) define(name, from_value(heap_, value));
  scope_ = inner(scope_);
  exec(program_.body);
  return std::move(out_);
}

void Interp::write(std::string_view text) {
  if (text.size() > limits_.max_output_bytes ||
      out_.size() > limits_.max_output_bytes - text.size())
    raise("the output is longer than " + std::to_string(limits_.max_output_bytes) + " bytes");
  spend_bytes(text.size());
  out_ += text;
}

Interp::Flow Interp::exec(const Body& body) {
  for (const StmtPtr& s : body)
    if (const Flow flow = exec(*s); flow != Flow::kNormal) return flow;
  return Flow::kNormal;
}

Interp::Flow Interp::exec(const Stmt& s) {
  const Deeper deeper(*this);
  spend(1);
  line_ = s.line;
  switch (s.type) {
    case Stmt::Type::kData:
      write(s.text);
      break;
    case Stmt::Type::kPrint: {
      const Val v = eval(*s.exprs[0]);
      if (v.is_string()) {
        write(v.str());
      } else {
        write(to_str(v));
      }
      break;
    }
    case Stmt::Type::kIf:
      for (size_t i = 0; i < s.exprs.size(); ++i)
        if (truthy(eval(*s.exprs[i]))) return exec(s.bodies[i]);
      if (s.bodies.size() > s.exprs.size()) return exec(s.bodies.back());
      break;
    case Stmt::Type::kFor:
      return exec_for(s);
    case Stmt::Type::kSet:
      assign(*s.targets[0], eval(*s.exprs[0]));
      break;
    case Stmt::Type::kSetBlock:
    case Stmt::Type::kFilter:
      exec_captured(s);
      break;
    case Stmt::Type::kMacro:
      scope_->set(s.symbol, make_macro(*s.macro, scope_));
      break;
    case Stmt::Type::kCall:
      exec_call_block(s);
      break;
    case Stmt::Type::kWith:
      exec_with(s);
      break;
    case Stmt::Type::kScope: {
      if (!s.exprs.empty() && truthy(eval(*s.exprs[0]))) raise("autoescape is not supported here");
      const Enter enter(scope_, inner(scope_));
      return exec(s.bodies[0]);
    }
    case Stmt::Type::kBody:
      return exec(s.bodies[0]);
    case Stmt::Type::kBreak:
      return Flow::kBreak;
    case Stmt::Type::kContinue:
      return Flow::kContinue;
    case Stmt::Type::kDo:
      eval(*s.exprs[0]);
      break;
  }
  return Flow::kNormal;
}

// {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}.
void Interp::exec_captured(const Stmt& s) {
  const Val text = str(capture(s.bodies[0], inner(scope_)));
  ScopePtr scope = inner(scope_);
  scope->set(kSymBlockText, text);
  Val result;
  {
    const Enter enter(scope_, std::move(scope));
    result = eval(*s.exprs[0]);
  }
  if (s.type == Stmt::Type::kFilter) {
    write(to_str(result));
  } else {
    assign(*s.targets[0], result);
  }
}

void Interp::exec_with(const Stmt& s) {
  ScopePtr scope = inner(scope_);
  std::vector<Val> values;
  for (const ExprPtr& e : s.exprs) values.push_back(eval(*e));
  const Enter enter(scope_, scope);
  for (size_t i = 0; i < values.size(); ++i) assign(*s.targets[i], values[i]);
  exec(s.bodies[0]);
}

void Interp::exec_call_block(const Stmt& s) {
  const Expr& call_expr = *s.exprs[0];
  const Val callee = eval(*call_expr.kids[0]);
  Args args = eval_args(call_expr.args);
  args.named.emplace_back("caller", make_macro(*s.macro, scope_));
  line_ = s.line;
  write(to_str(call(callee, args)));
}

Interp::Flow Interp::exec_for(const Stmt& s) { return run_loop(s, eval(*s.exprs[0]), 0); }

Interp::Flow Interp::run_loop(const Stmt& s, const Val& iterable, int depth0) {
  if (calls_ + depth0 > limits_.max_depth) raise("loops are nested too deeply");
  std::vector<Val> values = iterate(iterable);
  if (s.exprs[1]) {  // the filter sees the target, not the loop
    std::vector<Val> kept;
    for (Val& v : values) {
      const Enter enter(scope_, inner(scope_));
      assign(*s.targets[0], v);
      if (truthy(eval(*s.exprs[1]))) kept.push_back(std::move(v));
    }
    values.swap(kept);
  }
  LoopState* loop = heap_.loop();
  // The loop variable may outlive the loop (in a namespace): what it refers to lives on the heap.
  loop->values = &heap_.list(std::move(values)).items()->values;
  loop->depth0 = depth0;
  const ScopePtr outer = scope_;
  if (s.recursive)
    loop->recurse = [&s, outer, depth0](Interp& i, Args& args) {
      if (args.pos.size() != 1) raise("loop() takes one argument");
      const Deeper deeper(i);
      std::string saved = std::move(i.out_);
      i.out_.clear();
      {
        const Enter enter(i.scope_, outer);
        i.run_loop(s, args.pos[0], depth0 + 1);
      }
      std::string text = std::move(i.out_);
      i.out_ = std::move(saved);
      return i.str(std::move(text));
    };
  ScopePtr scope;
  bool ended =
      false;  // jinja2 runs `else` if no iteration reached its end, even with break or continue
  for (size_t i = 0; i < loop->values->size(); ++i) {
    spend(1);
    loop->index0 = i;
    if (scope && scope.use_count() == 1) {
      scope->vars.clear();  // the scope of the last iteration is not referenced
    } else {
      scope = inner(outer);
    }
    const Enter enter(scope_, scope);
    scope->set(kSymLoop, Val::loop(loop));
    assign(*s.targets[0], (*loop->values)[i]);
    const Flow flow = exec(s.bodies[0]);
    ended = ended || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  if (ended) return Flow::kNormal;
  const Enter enter(scope_, inner(scope_));
  return exec(s.bodies[1]);
}

void Interp::assign(const Expr& target, const Val& value) {
  switch (target.type) {
    case Expr::Type::kName:
      scope_->set(target.symbol, value);
      return;
    case Expr::Type::kGetattr: {
      const Val object = eval_name(*target.kids[0]);
      if (object.kind() != Kind::kNamespace)
        raise("cannot assign attribute on non-namespace object");
      heap_.charge(sizeof(Val));
      object.space()->set(target.name, value);
      return;
    }
    default: {
      if (value.is_undefined()) raise_undefined(value);
      const std::vector<Val> values = iterate(value);
      if (values.size() != target.kids.size())
        raise("cannot unpack " + std::to_string(values.size()) + " values into " +
              std::to_string(target.kids.size()) + " names");
      for (size_t i = 0; i < values.size(); ++i) assign(*target.kids[i], values[i]);
    }
  }
}

std::string Interp::capture(const Body& body, ScopePtr scope) {
  std::string saved = std::move(out_);
  out_.clear();
  {
    const Enter enter(scope_, std::move(scope));
    exec(body);
  }
  std::string text = std::move(out_);
  out_ = std::move(saved);
  return text;
}

Val Interp::make_macro(const MacroNode& node, ScopePtr scope) {
  const MacroNode* macro = &node;
  return heap_.callable(node.name, [macro, scope = std::move(scope)](Interp& i, Args& args) {
    return i.call_macro(*macro, scope, args);
  });
}

Val Interp::call_macro(const MacroNode& node, const ScopePtr& defined, Args& args) {
  const Deeper deeper(*this);
  if (calls_ >= limits_.max_depth) raise("macros are nested too deeply");
  ScopePtr scope = inner(defined);
  const size_t count = node.params.size(), first_default = count - node.defaults.size();
  std::vector<bool> given(count, false);
  for (size_t i = 0; i < std::min(count, args.pos.size()); ++i) {
    scope->set(node.params[i].first, args.pos[i]);
    given[i] = true;
  }
  Dict* extra = nullptr;
  Val caller = Val::undefined(nullptr);
  for (auto& [name, value] : args.named) {
    const auto param = std::find_if(node.params.begin(), node.params.end(),
                                    [&name = name](const auto& p) { return p.second == name; });
    if (param != node.params.end()) {
      const auto i = static_cast<size_t>(param - node.params.begin());
      if (given[i]) raise("macro '" + node.name + "' got two values for '" + name + "'");
      scope->set(param->first, value);
      given[i] = true;
    } else if (name == "caller") {
      caller = value;
    } else if (node.uses_kwargs) {
      if (!extra) extra = heap_.dict();
      extra->set(heap_.string(name), value);
    } else {
      raise("macro '" + node.name + "' takes no keyword argument '" + name + "'");
    }
  }
  if (args.pos.size() > count && !node.uses_varargs)
    raise("macro '" + node.name + "' takes not more than " + std::to_string(count) +
          " argument(s)");
  std::string saved = std::move(out_);
  out_.clear();
  {
    const Enter enter(scope_, scope);
    for (size_t i = 0; i < count; ++i) {
      if (given[i]) continue;
      Val v = Val::undefined(std::make_shared<const Text>(node.params[i].second, nullptr));
      if (i >= first_default) v = eval(*node.defaults[i - first_default]);
      scope->set(node.params[i].first, std::move(v));
    }
    const bool named = std::any_of(node.params.begin(), node.params.end(),
                                   [](const auto& p) { return p.first == kSymCaller; });
    if (node.uses_caller && !named) scope->set(kSymCaller, caller);
    if (node.uses_kwargs) scope->set(kSymKwargs, Val::dict(extra ? extra : heap_.dict()));
    if (node.uses_varargs) {
      std::vector<Val> rest;
      if (args.pos.size() > count)
        rest.assign(args.pos.begin() + static_cast<ptrdiff_t>(count), args.pos.end());
      scope->set(kSymVarargs, heap_.list(std::move(rest), true));
    }
    ++calls_;
    exec(node.body);
    --calls_;
  }
  std::string text = std::move(out_);
  out_ = std::move(saved);
  return str(std::move(text));
}

}  // namespace tokamak::jinja
