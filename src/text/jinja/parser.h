#pragma once
#include <algorithm>
#include <unordered_map>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace tokamak::jinja {

// Recursive descent over the tokens; the grammar and precedences are jinja2's.
class Parser {
 public:
  Parser(std::vector<Token> tokens, int& line);
  Program run();

 private:
  static constexpr int kMaxNesting = 150;  // of statements and brackets
  static constexpr int kMaxDepth = 1000;   // of an expression tree

  // Tokens.
  const Token& cur() const { return tokens_[pos_]; }
  const Token& look(size_t ahead) const {
    return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
  }
  Token take();
  bool is_op(std::string_view op) const { return cur().type == Tok::kOp && cur().text == op; }
  bool is_name(std::string_view name) const {
    return cur().type == Tok::kName && cur().text == name;
  }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_any_name(const char* what);
  void expect_block_end();
  [[noreturn]] void unexpected(const char* wanted) const;
  int symbol(const std::string& name);

  // Statements.
  Body body(std::initializer_list<std::string_view> ends);
  StmtPtr statement();
  StmtPtr make(Stmt::Type type) const;
  StmtPtr for_statement();
  void refuse_loop(const Expr& target) const;
  StmtPtr if_statement();
  StmtPtr set_statement();
  StmtPtr macro_statement();
  StmtPtr call_statement();
  StmtPtr filter_statement();
  StmtPtr with_statement();
  void signature(MacroNode& macro);
  ExprPtr assign_target(bool with_namespace);
  ExprPtr target_name(bool with_namespace);

  // Expressions.
  ExprPtr node(Expr::Type type) const;
  void adopt(Expr& parent, ExprPtr kid) const;
  void deepen(Expr& parent, const Expr& kid) const;
  ExprPtr expression(bool with_condition = true);
  ExprPtr tuple(bool with_condition, bool parenthesised);
  bool tuple_ends() const;
  ExprPtr condition();
  ExprPtr or_expr();
  ExprPtr and_expr();
  ExprPtr not_expr();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr postfix(ExprPtr operand);
  ExprPtr filters(ExprPtr operand);
  ExprPtr filter(ExprPtr operand);
  ExprPtr test(ExprPtr operand);
  ExprPtr subscript(ExprPtr operand);
  ExprPtr slice_or_index();
  ExprPtr call(ExprPtr callee);
  void call_args(CallArgs& args, Expr& owner);
  ExprPtr list_literal();
  ExprPtr dict_literal();
  ExprPtr number(const Token& token);

  struct Nest {
    explicit Nest(Parser& p);
    ~Nest() { --parser.nesting_; }
    Parser& parser;
  };

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int& line_;
  int nesting_ = 0, loops_ = 0;
  std::vector<MacroNode*> macros_;
  std::vector<std::string> symbols_;
  std::unordered_map<std::string, int> symbol_ids_;
};

}  // namespace tokamak::jinja
