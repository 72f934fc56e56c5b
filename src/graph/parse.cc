#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "graph/scanner.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

constexpr size_t kMaxFunctions = 1024;
constexpr size_t kMaxInputs = 4096;  // of one node

class ModuleParser {
 public:
  explicit ModuleParser(std::string_view text) : in_(text), module_("") {}

  Module parse() {
    in_.skip_lines();
    in_.need_word("module");
    module_.name = in_.name();
    in_.need_word("format");
    if (const size_t at = in_.pos(); in_.integer() != 1) {
      in_.error_at(at, "this text form is newer than the program; format 1 is known");
    }
    in_.end_of_line();
    while (!in_.at_end()) declaration();
    return std::move(module_);
  }

 private:
  void declaration() {
    statement_ = in_.pos();
    std::string_view kind = in_.word();
    if (kind == "symbol") {
      symbol();
    } else if (kind == "group") {
      group();
    } else if (kind == "state") {
      state();
    } else if (kind == "weight") {
      weight();
    } else if (kind == "constant") {
      constant();
    } else if (kind == "func") {
      function();
    } else {
      in_.error_at(statement_, "expected symbol, group, state, weight, constant or func");
    }
    in_.end_of_line();
  }

  // Errors of the graph get the line of the statement, and the number of the node that it makes.
  template <class F>
  auto located(F&& f, std::optional<uint64_t> number = {}) {
    try {
      return f();
    } catch (const Error& e) {
      error_of(number, e.what());
    }
  }
  [[noreturn]] void error_of(std::optional<uint64_t> number, std::string_view what) const {
    in_.error_at(statement_, number ? fmt::format("%{}: {}", *number, what) : std::string(what));
  }

  std::string new_name(std::string_view kind) {
    std::string name = in_.name();
    if (!declared_.insert(fmt::format("{} {}", kind, name)).second) {
      in_.error_at(statement_, fmt::format("{} \"{}\" is declared twice", kind, name));
    }
    return name;
  }

  void symbol() {
    SymbolDecl s;
    s.name = new_name("symbol");
    located([&] { return SymExpr::symbol(s.name); });
    in_.need_word("in");
    s.lo = in_.integer();
    if (!in_.take_text("..")) in_.expected("'..'");
    s.hi = in_.integer();
    if (in_.at_name()) {
      in_.need_word("multiple");
      s.multiple = in_.integer();
    }
    module_.symbols.push_back(std::move(s));
  }

  void group() {
    GroupDecl g;
    g.name = new_name("group");
    in_.need_word("window");
    g.window = in_.integer();
    in_.need_word("block");
    g.block_size = in_.integer();
    module_.groups.push_back(std::move(g));
  }

  void state() {
    StateDecl s;
    s.name = new_name("state");
    in_.need_word("in");
    s.group = in_.name();
    if (std::string_view growth = in_.word(); growth == "per_sequence") {
      s.growth = StateDecl::Growth::kPerSequence;
    } else if (growth != "per_token") {
      in_.error_at(statement_, "expected per_token or per_sequence after the group");
    }
    in_.open('{');
    while (!in_.try_close('}')) {
      if (!s.planes.empty() && !in_.take(',')) in_.expected("',' or '}'");
      PlaneDecl p;
      p.name = in_.name();
      in_.need(':');
      p.type = in_.tensor_type();
      s.planes.push_back(std::move(p));
    }
    module_.states.push_back(std::move(s));
  }

  void weight() {
    WeightDecl w;
    w.name = in_.name();
    in_.need(':');
    w.type = in_.tensor_type();
    if (in_.at_name()) {
      in_.need_word("from");
      w.recipe = recipe();
    }
    located([&] { module_.add_weight(std::move(w)); });
  }

  Recipe recipe() {
    Recipe r;
    if (in_.at_name()) {
      do r.sources.push_back(in_.name());
      while (in_.take('+'));
    }
    while (in_.take('|')) r.steps.push_back(recipe_step());
    if (r.sources.empty() && r.steps.empty()) in_.expected("the name of a tensor");
    return r;
  }

  RecipeStep recipe_step() {
    using Kind = RecipeStep::Kind;
    RecipeStep s{};
    const size_t at = in_.pos();
    const std::string_view name = in_.word();
    constexpr int last = static_cast<int>(RecipeStep::kLastKind);
    int kind = 0;
    while (kind <= last && name != recipe_step_name(static_cast<Kind>(kind))) ++kind;
    if (kind > last) {
      in_.error_at(at, fmt::format("there is no recipe step {}", quote_text(name)));
    }
    s.kind = static_cast<Kind>(kind);
    if (s.kind == Kind::kTranspose || s.kind == Kind::kConcatRows || s.kind == Kind::kUnitRows ||
        s.kind == Kind::kTernary)
      return s;
    in_.open('(');
    if (s.kind == Kind::kSliceRows || s.kind == Kind::kPermuteRows || s.kind == Kind::kSortGroups)
      s.a = in_.integer();
    if (s.kind == Kind::kSliceRows) {
      in_.need(',');
      s.b = in_.integer();
      if (in_.take(',')) s.dims = {in_.integer()};
    }
    if (s.kind == Kind::kPermuteRows && in_.take(',')) s.b = in_.integer();
    if (s.kind == Kind::kAddScalar || s.kind == Kind::kScale) s.value = in_.number<double>();
    if (s.kind == Kind::kJoinMxfp4) s.tensor = in_.name();
    if (s.kind == Kind::kScaleColumns) {
      s.tensor = in_.name();
      if (in_.take(',')) s.value = in_.number<double>();
    }
    if (s.kind == Kind::kCast || s.kind == Kind::kJoinGroups) {
      auto dtype = dtype_from_name(in_.word());
      if (!dtype) in_.error_at(at, fmt::format("{} to an unknown element type", name));
      s.dtype = *dtype;
    }
    if (s.kind == Kind::kJoinGroups) {
      in_.need(',');
      s.a = in_.integer();
      in_.need(',');
      s.b = in_.integer();
      in_.need(',');
      s.value = in_.number<double>();
      while (in_.take(',')) s.dims.push_back(in_.integer());
    }
    if (s.kind == Kind::kReshape && !in_.peek(')')) {
      do s.dims.push_back(in_.integer());
      while (in_.take(','));
    }
    in_.close(')');
    return s;
  }

  void constant() {
    ConstantDecl c;
    c.name = new_name("constant");
    in_.need(':');
    c.type = in_.tensor_type();
    in_.need('=');
    in_.open('[');
    while (!in_.try_close(']')) {
      if (!c.values.empty() && !in_.take(',')) in_.expected("',' or ']'");
      // Read as f32 directly: through a double some decimals would be rounded twice.
      c.values.push_back(c.type.dtype == DType::kF32 ? in_.number<float>() : in_.number<double>());
    }
    located([&] { module_.add_constant(std::move(c)); });
  }

  void function();
  void node(Function& fn);
  Ref operand(Function& fn);
  std::vector<std::string> strings(char end);

  Scanner in_;
  Module module_;
  size_t statement_ = 0;  // where the current statement begins
  std::unordered_set<std::string> declared_;
  std::unordered_map<uint64_t, NodeId> numbers_;  // %N of the text -> node
  std::vector<std::string> common_;               // provenance of nodes that give none
};

void ModuleParser::function() {
  if (module_.functions.size() == kMaxFunctions) {
    in_.error_at(statement_, fmt::format("more than {} functions", kMaxFunctions));
  }
  Function& fn = module_.add_function(new_name("func"));
  numbers_.clear();
  common_.clear();
  in_.need('{');
  in_.end_of_line();
  std::unordered_set<std::string> results;
  for (;;) {
    in_.skip_lines();
    statement_ = in_.pos();
    if (in_.take('}')) return;
    if (in_.peek('%')) {
      if (!results.empty()) in_.error_at(statement_, "a node after return");
      node(fn);
    } else if (std::string_view word = in_.word(); word == "return") {
      std::string name = in_.name();
      if (!results.insert(name).second) {
        in_.error_at(statement_, fmt::format("result \"{}\" is returned twice", name));
      }
      in_.need('=');
      const Ref ref = operand(fn);
      fn.set_result(std::move(name), ref);
    } else if (word == "fact") {
      Fact f;
      f.input = in_.name();
      if (in_.take_text(">=")) {
        f.kind = Fact::Kind::kNatural;
        if (in_.integer() != 0) in_.error_at(statement_, "expected 0 after >=");
      } else {
        in_.need('=');
        in_.need_word("iota");
        in_.need('*');
        f.value = in_.integer();
      }
      fn.facts().push_back(std::move(f));
    } else if (word == "provenance") {
      common_ = strings('\n');
    } else {
      in_.error_at(statement_, "expected a node (%1 = ...), return, fact, provenance or '}'");
    }
    in_.end_of_line();
  }
}

// Quoted strings with commas between them, up to `end` (a bracket, or the line's end).
std::vector<std::string> ModuleParser::strings(char end) {
  std::vector<std::string> out;
  if (in_.peek(end)) return out;
  do out.push_back(in_.string());
  while (in_.take(','));
  return out;
}

Ref ModuleParser::operand(Function& fn) {
  Ref ref;
  const size_t at = in_.pos();
  if (in_.take('@')) {
    std::string name = in_.name();
    return located([&] { return fn.weight(name); });
  }
  if (in_.take('$')) {
    std::string name = in_.name();
    return located([&] { return fn.constant(name); });
  }
  if (!in_.take('%')) in_.expected("an operand (%1, @weight or $constant)");
  const uint64_t number = in_.index();
  auto found = numbers_.find(number);
  if (found == numbers_.end())
    in_.error_at(at, fmt::format("%{} is not defined before its use", number));
  ref.node = found->second;
  if (in_.take_text(".")) ref.output = static_cast<uint32_t>(in_.index());
  if (ref.output >= fn.node(ref.node).outputs.size()) {
    in_.error_at(at, fmt::format("%{} has no output {}", number, ref.output));
  }
  return ref;
}

void ModuleParser::node(Function& fn) {
  in_.need('%');
  const uint64_t number = in_.index();
  if (numbers_.contains(number))
    in_.error_at(statement_, fmt::format("%{} is defined twice", number));
  in_.need('=');
  const std::string op(in_.word());
  if (op.empty()) in_.expected("an op");
  if (op == "input") {
    std::string name = in_.name();
    in_.need(':');
    Type type = in_.type();
    auto add = [&] { return fn.add_input(std::move(name), std::move(type)); };
    numbers_[number] = located(add, number).node;
    fn.set_text_number(numbers_[number], number);
    return;
  }
  if (!find_op(op))
    error_of(number, fmt::format("there is no op \"{}\"; docs/ops.md lists the ops", op));
  std::vector<Ref> inputs;
  in_.open('(');
  while (!in_.try_close(')')) {
    if (!inputs.empty() && !in_.take(',')) in_.expected("',' or ')'");
    if (inputs.size() == kMaxInputs) error_of(number, "too many inputs");
    inputs.push_back(operand(fn));
  }
  Value attrs = in_.peek('{') ? in_.object() : Value::object();
  std::vector<Type> types;
  if (in_.take(':')) {
    do types.push_back(in_.type());
    while (in_.take(','));
  }
  std::string name;
  fn.set_provenance(common_);
  if (in_.take('#')) {
    const bool named = in_.at_name();
    if (named) name = in_.name();
    if (in_.peek('[')) {
      in_.open('[');
      fn.set_provenance(strings(']'));
      in_.close(']');
    } else if (!named) {
      in_.expected("the node's name or [its provenance]");
    }
  }
  auto add = [&] { return fn.add_multi(op, std::move(inputs), std::move(attrs), std::move(name)); };
  const std::vector<Ref> refs = located(add, number);
  const Node& made = fn.node(refs[0].node);
  if (!types.empty() && types != made.outputs) {
    error_of(number, fmt::format("{} gives {}, the text says {}", op, types_text(made.outputs),
                                 types_text(types)));
  }
  numbers_[number] = refs[0].node;
  fn.set_text_number(refs[0].node, number);
}

}  // namespace

Module parse_module(std::string_view text) { return ModuleParser(text).parse(); }

}  // namespace tokamak
