#pragma once
// One render of a template: evaluates the tree under limits.
#include "text/chat_template.h"
#include "text/jinja/ast.h"

namespace tokamak::jinja {

// Variables of one block; a macro keeps the scope it was defined in.
struct Scope {
  std::vector<std::pair<int, Val>> vars;
  std::shared_ptr<Scope> parent;
  Val* find(int symbol) {
    for (auto& [s, v] : vars)
      if (s == symbol) return &v;
    return nullptr;
  }
  void set(int symbol, Val value) {
    if (Val* v = find(symbol)) {
      *v = std::move(value);
    } else {
      vars.emplace_back(symbol, std::move(value));
    }
  }
};
using ScopePtr = std::shared_ptr<Scope>;

using MethodFn = Val (*)(Interp&, const Val& self, Args&);

// Lives for one render, on one thread.
class Interp {
 public:
  Interp(const Program& program, const RenderLimits& limits);
  std::string run(const Value& context);
  int line() const { return line_; }

  // For filters, tests and methods.
  Heap& heap() { return heap_; }
  const RenderLimits& limits() const { return limits_; }
  void spend(size_t steps);  // raises when the budget is used up
  void spend_bytes(size_t bytes) { spend(bytes / 64 + 1); }
  Val str(std::string text, bool markup = false);  // costs steps in proportion to its size
  Val list(std::vector<Val> values) { return heap_.list(std::move(values)); }
  Val generator(std::vector<Val> values) {
    return heap_.flavored(std::move(values), Flavor::kGenerator);
  }
  Val call(const Val& callee, Args& args);
  Val attribute(const Val& object, const TextPtr& name);
  Val item(const Val& object, const Val& key);
  Val slice(const Val& object, const Val& start, const Val& stop, const Val& step);
  Val binary(Op op, const Val& a, const Val& b);
  bool contains(const Val& container, const Val& item);
  // The elements that a loop iterates over; raises if the value is not iterable.
  std::vector<Val> iterate(const Val& v);
  Val make_macro(const MacroNode& node, ScopePtr scope);

  // Makes this render the one that spend_steps() counts for.
  struct Running {
    explicit Running(Interp* i);
    ~Running();
    Interp* before;
  };

  struct Deeper {
    explicit Deeper(Interp& i);
    ~Deeper() { --interp.depth_; }
    Interp& interp;
  };

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  static constexpr int kMaxEvalDepth = 2500;

  Val eval(const Expr& e);
  Val eval_list(const Expr& e);
  Val eval_dict(const Expr& e);
  Val eval_filter(const Expr& e);
  Val eval_test(const Expr& e);
  Val eval_sign(const Expr& e);
  Val eval_name(const Expr& e);
  Val eval_call(const Expr& e);
  Val eval_getitem(const Expr& e);
  Val eval_compare(const Expr& e);
  Val eval_concat(const Expr& e);
  Args eval_args(const CallArgs& args);
  bool compare_op(Op op, const Val& a, const Val& b);
  Val add(const Val& a, const Val& b);
  Val multiply(const Val& a, const Val& b);
  Val loop_attribute(LoopState& loop, std::string_view name);

  Flow exec(const Body& body);
  Flow exec(const Stmt& s);
  Flow exec_for(const Stmt& s);
  Flow run_loop(const Stmt& s, const Val& iterable, int depth0);
  void exec_captured(const Stmt& s);
  void exec_with(const Stmt& s);
  void exec_call_block(const Stmt& s);
  std::string capture(const Body& body, ScopePtr scope);
  void assign(const Expr& target, const Val& value);
  Val call_macro(const MacroNode& node, const ScopePtr& scope, Args& args);
  void write(std::string_view text);

  const Program& program_;
  const RenderLimits& limits_;
  Heap heap_;
  ScopePtr scope_;
  std::string out_;
  int64_t steps_ = 0;
  int depth_ = 0, calls_ = 0;
  int line_ = 1;
};

MethodFn find_method(const Val& object, std::string_view name);
void add_globals(Interp& interp, const std::function<void(std::string_view, Val)>& add);

// Shared by filters and methods.
bool is_py_space(char32_t c);
std::string_view py_strip(std::string_view text, const Val* chars, bool left, bool right);
std::vector<std::string> py_split(std::string_view text, const Val* separator, int64_t limit);
std::vector<std::string> py_rsplit(std::string_view text, const Val* separator, int64_t limit);
std::string py_replace(Interp& interp, std::string_view text, std::string_view from,
                       std::string_view to, int64_t count);
std::string html_escape(std::string_view text);
std::string py_title(std::string_view text);
std::vector<std::string> py_splitlines(std::string_view text, bool keep_ends);
std::string py_capitalize(std::string_view text);
// A format string marked `safe` escapes its arguments.
std::string percent_format(Interp& interp, const Text& format, const Val& values);
std::string brace_format(Interp& interp, const Text& format, const Args& args);
std::string strftime_text(const TemplateTime& now, std::string_view format);
int64_t int_arg(const Val& v, const char* what);
const std::string& str_arg(const Val& v, const char* what);

}  // namespace tokamak::jinja
