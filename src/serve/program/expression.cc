#include "serve/program/expression.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "text/jinja/interp.h"

namespace tokamak::program {
namespace {

// A program evaluates many expressions, so each one is small.
const RenderLimits kLimits{
    .max_steps = 200'000, .max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20, .now = {}};

// The names that a template reads and does not define itself. What it defines anywhere counts as
// defined everywhere: a name that is missed here is reported when it is evaluated.
class FreeNames {
 public:
  explicit FreeNames(const jinja::Program& program) : program_(program) { visit(program.body); }

  std::set<std::string> read, optional, defined;

 private:
  using Expr = jinja::Expr;

  void visit(const jinja::Body& body) {
    for (const jinja::StmtPtr& stmt : body) visit(*stmt);
  }

  void visit(const jinja::Stmt& stmt) {
    for (const jinja::ExprPtr& target : stmt.targets) define(target.get());
    for (const jinja::ExprPtr& expr : stmt.exprs) visit(expr.get());
    for (const jinja::Body& body : stmt.bodies) visit(body);
    if (stmt.symbol >= 0) defined.insert(name_of(stmt.symbol));
    if (stmt.macro == nullptr) return;
    for (const auto& [symbol, name] : stmt.macro->params) defined.insert(name);
    for (const jinja::ExprPtr& expr : stmt.macro->defaults) visit(expr.get());
    visit(stmt.macro->body);
  }

  void define(const Expr* target) {
    if (target == nullptr) return;
    if (target->type == Expr::Type::kName) defined.insert(name_of(target->symbol));
    for (const jinja::ExprPtr& kid : target->kids) define(kid.get());
  }

  void visit(const Expr* e) {
    if (e == nullptr) return;
    bool guarded = (e->type == Expr::Type::kTest && e->name.ends_with("defined")) ||
                   (e->type == Expr::Type::kFilter && (e->name == "default" || e->name == "d"));
    if (e->type == Expr::Type::kName && e->symbol >= jinja::kFixedSymbols)
      read.insert(name_of(e->symbol));
    for (const jinja::ExprPtr& kid : e->kids) {
      if (guarded && kid != nullptr && kid->type == Expr::Type::kName)
        optional.insert(name_of(kid->symbol));
      else
        visit(kid.get());
    }
    for (const jinja::ExprPtr& arg : e->args.pos) visit(arg.get());
    for (const auto& [name, arg] : e->args.named) visit(arg.get());
    visit(e->args.star.get());
    visit(e->args.star_star.get());
  }

  const std::string& name_of(int symbol) const {
    return program_.symbols[static_cast<size_t>(symbol)];
  }

  const jinja::Program& program_;
};

std::set<std::string> global_names() {
  jinja::Program empty;
  RenderLimits limits;
  jinja::Interp interp(empty, limits);
  std::set<std::string> names;
  jinja::add_globals(
      interp, [&](std::string_view name, const jinja::Val&) { names.insert(std::string(name)); });
  return names;
}

}  // namespace

struct Expression::Parsed {
  jinja::Program program;
};

Expression Expression::parse(std::string source, bool formula) {
  static const std::set<std::string> globals = global_names();
  auto parsed = std::make_shared<Parsed>();
  int line = 1;
  try {
    parsed->program = jinja::parse_template(source, line);
  } catch (const jinja::TemplateError& e) {
    throw Error(ErrorCode::kInvalidArgument, e.message);
  }
  Expression out;
  FreeNames names(parsed->program);
  for (const std::string& name : names.read)
    if (!names.defined.contains(name) && !globals.contains(name)) out.names_.push_back(name);
  out.optional_.assign(names.optional.begin(), names.optional.end());
  out.parsed_ = std::move(parsed);
  out.formula_ = formula;
  return out;
}

Expression Expression::text(std::string_view source) {
  if (source.find('{') == std::string_view::npos) return literal(Value(source));
  std::string padded(source);
  if (source.ends_with('\n')) padded += '\n';  // Jinja removes the last line break
  return parse(std::move(padded), false);
}

Expression Expression::formula(std::string_view source) {
  // Parsed alone first, so that an error is one of the expression and it cannot close the brackets.
  parse("{% set x = " + std::string(source) + " %}", true);
  return parse("{{ (" + std::string(source) + ") | tojson }}", true);
}

Expression Expression::literal(Value value) {
  Expression out;
  out.literal_ = std::move(value);
  return out;
}

Value Expression::evaluate(const Value& variables) const {
  if (parsed_ == nullptr) return literal_;
  Value context = Value::object();
  for (const std::string& name : names_) {
    const Value* value = variables.find(name);
    if (value == nullptr) fail(ErrorCode::kInvalidArgument, "the variable '{}' has no value", name);
    context.set(name, *value);
  }
  for (const std::string& name : optional_)
    if (const Value* value = variables.find(name)) context.set(name, *value);
  jinja::Interp interp(parsed_->program, kLimits);
  std::string out;
  try {
    out = interp.run(context);
  } catch (const jinja::TemplateError& e) {
    throw Error(ErrorCode::kInvalidArgument, e.message);
  }
  return formula_ ? parse_json(out, "the value of the expression") : Value(std::move(out));
}

bool is_true(const Value& value) {
  if (value.is_null()) return false;
  if (value.is_bool()) return value.as_bool();
  if (value.is_number()) return value.as_double() != 0;
  return value.size() > 0;
}

}  // namespace tokamak::program
