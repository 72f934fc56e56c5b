// Statements.
#include "text/jinja/parser.h"

#include <algorithm>

namespace tokamak::jinja {

Parser::Parser(std::vector<Token> tokens, int& line) : tokens_(std::move(tokens)), line_(line) {
  for (const char* name : {"loop", "varargs", "kwargs", "caller", kBlockText}) symbol(name);
}

Parser::Nest::Nest(Parser& p) : parser(p) {
  if (++p.nesting_ > kMaxNesting) raise("nested too deeply");
}

Token Parser::take() {
  Token t = tokens_[pos_];
  line_ = t.line;
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return t;
}
bool Parser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  take();
  return true;
}
bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}
void Parser::unexpected(const char* wanted) const {
  line_ = cur().line;
  const std::string found = cur().type == Tok::kEnd    ? "the end of the template"
                            : cur().type == Tok::kData ? "text"
                                                       : "'" + cur().text + "'";
  raise(std::string("expected ") + wanted + ", found " + found);
}
void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(("'" + std::string(op) + "'").c_str());
}
void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) unexpected(("'" + std::string(name) + "'").c_str());
}
std::string Parser::expect_any_name(const char* what) {
  if (cur().type != Tok::kName) unexpected(what);
  return take().text;
}
void Parser::expect_block_end() {
  if (cur().type != Tok::kBlockEnd) unexpected("the end of the tag");
  take();
}

int Parser::symbol(const std::string& name) {
  const auto [it, fresh] = symbol_ids_.try_emplace(name, static_cast<int>(symbols_.size()));
  if (fresh) symbols_.push_back(name);
  return it->second;
}

Program Parser::run() {
  Program program;
  program.body = body({});
  if (cur().type != Tok::kEnd) unexpected("the end of the template");
  program.symbols = std::move(symbols_);
  return program;
}

StmtPtr Parser::make(Stmt::Type type) const {
  auto s = std::make_unique<Stmt>();
  s->type = type;
  s->line = cur().line;
  return s;
}

// Statements up to {% <one of ends>; consumes the opening of that tag, but not its name.
Body Parser::body(std::initializer_list<std::string_view> ends) {
  const Nest nest(*this);
  Body out;
  while (true) {
    line_ = cur().line;
    switch (cur().type) {
      case Tok::kEnd:
        if (ends.size() > 0)
          raise("the block is not closed: " + std::string(*(ends.end() - 1)) + " is missing");
        return out;
      case Tok::kData: {
        StmtPtr s = make(Stmt::Type::kData);
        s->text = take().text;
        out.push_back(std::move(s));
        break;
      }
      case Tok::kVarBegin: {
        take();
        StmtPtr s = make(Stmt::Type::kPrint);
        s->exprs.push_back(tuple(true, false));
        if (cur().type != Tok::kVarEnd) unexpected("'}}'");
        take();
        out.push_back(std::move(s));
        break;
      }
      case Tok::kBlockBegin: {
        const Token& next = look(1);
        if (next.type == Tok::kName &&
            std::find(ends.begin(), ends.end(), next.text) != ends.end()) {
          take();
          return out;
        }
        take();
        if (StmtPtr s = statement()) out.push_back(std::move(s));
        break;
      }
      default:
        unexpected("text or a tag");
    }
  }
}

StmtPtr Parser::statement() {
  if (cur().type != Tok::kName) unexpected("the name of a tag");
  const std::string& name = cur().text;
  if (name == "for") return for_statement();
  if (name == "if") return if_statement();
  if (name == "set") return set_statement();
  if (name == "macro") return macro_statement();
  if (name == "call") return call_statement();
  if (name == "filter") return filter_statement();
  if (name == "with") return with_statement();
  StmtPtr s = make(Stmt::Type::kBody);
  if (name == "generation" || name == "block" || name == "autoescape") {
    const std::string end = "end" + take().text;
    s->type = Stmt::Type::kScope;
    std::string block;
    if (end == "endblock") {
      block = expect_any_name("the block's name");
      while (cur().type == Tok::kName) take();
    } else if (end == "endautoescape") {
      s->exprs.push_back(expression());
    }
    expect_block_end();
    s->bodies.push_back(body({end}));
    expect_name(end);
    if (end == "endblock") skip_name(block);
    expect_block_end();
    return s;
  }
  if (name == "break" || name == "continue") {
    if (loops_ == 0) raise("'" + name + "' outside of a loop");
    s->type = name == "break" ? Stmt::Type::kBreak : Stmt::Type::kContinue;
    take();
    expect_block_end();
    return s;
  }
  if (name == "do" || name == "print") {
    s->type = name == "do" ? Stmt::Type::kDo : Stmt::Type::kPrint;
    take();
    s->exprs.push_back(tuple(true, false));
    expect_block_end();
    return s;
  }
  if (name == "include" || name == "import" || name == "from" || name == "extends")
    raise("'" + name + "' is not supported in a chat template");
  raise("unknown tag '" + name + "'");
}

// name, a.b (namespaces), a, b, (a, (b, c))
ExprPtr Parser::target_name(bool with_namespace) {
  const Nest nest(*this);
  if (skip_op("(")) {
    ExprPtr inner = assign_target(with_namespace);
    expect_op(")");
    return inner;
  }
  ExprPtr n = node(Expr::Type::kName);
  n->name = expect_any_name("a name to assign to");
  for (std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
    if (n->name == reserved) raise("cannot assign to '" + n->name + "'");
  n->symbol = symbol(n->name);
  if (with_namespace && skip_op(".")) {
    ExprPtr attribute = node(Expr::Type::kGetattr);
    attribute->name = expect_any_name("an attribute");
    adopt(*attribute, std::move(n));
    return attribute;
  }
  return n;
}

ExprPtr Parser::assign_target(bool with_namespace) {
  ExprPtr first = target_name(with_namespace);
  if (!is_op(",")) return first;
  ExprPtr all = node(Expr::Type::kTuple);
  adopt(*all, std::move(first));
  while (skip_op(",")) {
    if (is_op("=") || is_op(")") || is_name("in") || cur().type == Tok::kBlockEnd) break;
    adopt(*all, target_name(with_namespace));
  }
  return all;
}

void Parser::refuse_loop(const Expr& target) const {
  if (target.type == Expr::Type::kName && target.symbol == kSymLoop)
    raise("'loop' is reserved: use another name for the target");
  for (const ExprPtr& kid : target.kids) refuse_loop(*kid);
}

StmtPtr Parser::for_statement() {
  StmtPtr s = make(Stmt::Type::kFor);
  take();
  s->targets.push_back(assign_target(false));
  refuse_loop(*s->targets[0]);
  expect_name("in");
  s->exprs.push_back(tuple(false, false));
  s->exprs.push_back(skip_name("if") ? expression() : nullptr);
  s->recursive = skip_name("recursive");
  expect_block_end();
  ++loops_;
  s->bodies.push_back(body({"else", "endfor"}));
  --loops_;
  s->bodies.emplace_back();
  if (skip_name("else")) {
    expect_block_end();
    s->bodies[1] = body({"endfor"});
  }
  expect_name("endfor");
  expect_block_end();
  return s;
}

StmtPtr Parser::if_statement() {
  StmtPtr s = make(Stmt::Type::kIf);
  take();
  while (true) {
    s->exprs.push_back(tuple(false, false));
    expect_block_end();
    s->bodies.push_back(body({"elif", "else", "endif"}));
    if (skip_name("elif")) continue;
    if (skip_name("else")) {
      expect_block_end();
      s->bodies.push_back(body({"endif"}));
    }
    expect_name("endif");
    expect_block_end();
    return s;
  }
}

StmtPtr Parser::set_statement() {
  StmtPtr s = make(Stmt::Type::kSet);
  take();
  s->targets.push_back(assign_target(true));
  if (skip_op("=")) {
    s->exprs.push_back(tuple(true, false));
    expect_block_end();
    return s;
  }
  s->type = Stmt::Type::kSetBlock;
  ExprPtr text = node(Expr::Type::kName);
  text->name = kBlockText;
  text->symbol = kSymBlockText;
  s->exprs.push_back(filters(std::move(text)));
  expect_block_end();
  s->bodies.push_back(body({"endset"}));
  expect_name("endset");
  expect_block_end();
  return s;
}

void Parser::signature(MacroNode& macro) {
  expect_op("(");
  while (!is_op(")")) {
    const std::string name = expect_any_name("a parameter");
    macro.params.emplace_back(symbol(name), name);
    if (skip_op("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      raise("a parameter without default follows one with default");
    } else if (name == "caller") {
      raise("the parameter 'caller' needs a default");
    }
    if (!skip_op(",")) break;
  }
  expect_op(")");
}

StmtPtr Parser::macro_statement() {
  StmtPtr s = make(Stmt::Type::kMacro);
  take();
  s->macro = std::make_unique<MacroNode>();
  s->macro->name = expect_any_name("the macro's name");
  s->symbol = symbol(s->macro->name);
  macros_.push_back(s->macro.get());
  signature(*s->macro);
  expect_block_end();
  const int loops = std::exchange(loops_, 0);
  s->macro->body = body({"endmacro"});
  loops_ = loops;
  macros_.pop_back();
  expect_name("endmacro");
  if (cur().type == Tok::kName) take();
  expect_block_end();
  return s;
}

StmtPtr Parser::call_statement() {
  StmtPtr s = make(Stmt::Type::kCall);
  take();
  s->macro = std::make_unique<MacroNode>();
  s->macro->name = "caller";
  macros_.push_back(s->macro.get());
  if (is_op("(")) signature(*s->macro);
  macros_.pop_back();
  s->exprs.push_back(expression());
  if (s->exprs[0]->type != Expr::Type::kCall) raise("'call' needs a call");
  expect_block_end();
  macros_.push_back(s->macro.get());
  const int loops = std::exchange(loops_, 0);
  s->macro->body = body({"endcall"});
  loops_ = loops;
  macros_.pop_back();
  expect_name("endcall");
  expect_block_end();
  return s;
}

StmtPtr Parser::filter_statement() {
  StmtPtr s = make(Stmt::Type::kFilter);
  take();
  ExprPtr text = node(Expr::Type::kName);
  text->name = kBlockText;
  text->symbol = kSymBlockText;
  s->exprs.push_back(filters(filter(std::move(text))));
  expect_block_end();
  s->bodies.push_back(body({"endfilter"}));
  expect_name("endfilter");
  expect_block_end();
  return s;
}

StmtPtr Parser::with_statement() {
  StmtPtr s = make(Stmt::Type::kWith);
  take();
  while (cur().type != Tok::kBlockEnd) {
    s->targets.push_back(assign_target(false));
    expect_op("=");
    s->exprs.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_block_end();
  s->bodies.push_back(body({"endwith"}));
  expect_name("endwith");
  expect_block_end();
  return s;
}

Program parse_template(std::string_view source, int& line) {
  return Parser(lex(source, line), line).run();
}

}  // namespace tokamak::jinja
