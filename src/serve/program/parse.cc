#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <set>

#include "base/json.h"
#include "serve/program/program.h"

namespace tokamak::program {
namespace {

constexpr int kMaxNesting = 16;
constexpr size_t kMaxStatements = 10'000, kMaxChoices = 256, kMaxStops = 16, kMaxModels = 8;
constexpr int32_t kMostRunOn = 1024;
constexpr std::string_view kOperations[] = {"text",   "system", "user",   "assistant", "gen",
                                            "select", "set",    "append", "vote",      "if",
                                            "for",    "while",  "fork",   "call",      "return"};

bool is_name(std::string_view text) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !text.empty() && text.size() <= 64 && letter(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

// The members of an object: every one must be read.
class Members {
 public:
  Members(const Value& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) wrong(path_, "expected an object, but got {}", object.type_name());
  }
  const std::string& path() const { return path_; }
  std::string path(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }
  const Value* find(std::string_view key) {
    known_.push_back(key);
    const Value* value = object_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  const Value* find_any(std::string_view key) {  // also null
    known_.push_back(key);
    return object_.find(key);
  }
  const Value& require(std::string_view key) {
    const Value* value = find(key);
    if (value == nullptr) wrong(path_, "'{}' is missing", key);
    return *value;
  }
  std::string name(std::string_view key) {
    const Value& value = require(key);
    if (!value.is_string() || !is_name(value.as_string()))
      wrong(path(key),
            "expected the name of a variable (letters, digits and _, at most 64 characters)");
    return value.as_string();
  }
  std::string optional_name(std::string_view key) { return find(key) ? name(key) : ""; }
  bool boolean(std::string_view key) {
    const Value* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_bool()) wrong(path(key), "expected true or false");
    return value->as_bool();
  }
  double number(std::string_view key, double low, double high, bool whole, double fallback) {
    const Value* value = find(key);
    if (value == nullptr) return fallback;
    if (!(whole ? value->is_int() : value->is_number()) || !(value->as_double() >= low) ||
        !(value->as_double() <= high))
      wrong(path(key), "expected {} from {} to {}", whole ? "an integer" : "a number", low, high);
    return value->as_double();
  }
  void end() const {
    for (const auto& [key, value] : object_.as_object())
      if (std::find(known_.begin(), known_.end(), key) == known_.end())
        wrong(path(key.substr(0, 64)), "'{}' is not known here", key.substr(0, 64));
  }

 private:
  const Value& object_;
  std::string path_;
  std::vector<std::string_view> known_;
};

class Parser {
 public:
  explicit Parser(Program& program) : program_(program) {}

  void run(const Value& request, std::span<const std::string_view> others) {
    Members members(request, "");
    read_limits(members);
    if (const Value* variables = members.find("variables")) {
      if (!variables->is_object()) wrong("variables", "expected an object");
      for (const auto& [name, value] : variables->as_object()) {
        if (!is_name(name)) wrong("variables", "'{}' is not a name", name.substr(0, 64));
        known_.insert(name);
      }
      program_.variables = *variables;
    }
    if (const Value* seed = members.find("seed")) {
      if (!seed->is_int()) wrong("seed", "expected an integer");
      program_.seed = static_cast<uint64_t>(seed->as_int());
    }
    if (const Value* sampling = members.find("sampling")) {
      Members fields(*sampling, "sampling");
      read_sampling(fields, defaults_);
      fields.end();
    }
    const Value& body = members.require("program");
    program_.chat = has_messages(body, 0);
    program_.body = block(body, "program", false, 0);
    for (std::string_view name : others) members.find(name);
    members.end();
  }

 private:
  void read_limits(Members& members) {
    const Value* value = members.find("limits");
    if (value == nullptr) return;
    Members limits(*value, "limits");
    auto read = [&](const char* name, int64_t& limit, int64_t most) {
      limit = static_cast<int64_t>(
          limits.number(name, 0, static_cast<double>(most), true, static_cast<double>(limit)));
    };
    read("steps", program_.limits.steps, kMostLimits.steps);
    read("forks", program_.limits.forks, kMostLimits.forks);
    read("tokens", program_.limits.tokens, kMostLimits.tokens);
    program_.limits.seconds =
        limits.number("seconds", 0, kMostLimits.seconds, false, program_.limits.seconds);
    limits.end();
  }

  // Whether the program talks in messages, which decides what a text outside of them means.
  static bool has_messages(const Value& value, int depth) {
    if (depth > 64) return false;
    if (value.is_array())
      return std::any_of(value.as_array().begin(), value.as_array().end(),
                         [&](const Value& v) { return has_messages(v, depth + 1); });
    if (!value.is_object()) return false;
    for (const char* role : {"system", "user", "assistant"})
      if (value.has(role)) return true;
    for (const char* body : {"do", "then", "else"})
      if (const Value* v = value.find(body); v != nullptr && has_messages(*v, depth + 1))
        return true;
    return false;
  }

  Block block(const Value& value, const std::string& path, bool assistant, int depth) {
    if (!value.is_array()) wrong(path, "expected an array of statements");
    if (depth > kMaxNesting) wrong(path, "statements are nested more than {} deep", kMaxNesting);
    Block out;
    for (size_t i = 0; i < value.size(); ++i) {
      if (++statements_ > kMaxStatements)
        wrong(path, "the program has more than {} statements", kMaxStatements);
      out.push_back(
          statement(value.as_array()[i], fmt::format("{}[{}]", path, i), assistant, depth));
    }
    return out;
  }

  Expression checked(Expression expression, const std::string& path) {
    for (const std::string& name : expression.names())
      if (!known_.contains(name)) wrong(path, "unknown variable '{}'", name);
    return expression;
  }
  template <class Make>
  Expression compile(const std::string& path, const Make& make) {
    try {
      return checked(make(), path);
    } catch (const ProgramError&) {
      throw;
    } catch (const Error& e) {
      wrong(path, "{}", e.what());
    }
  }
  Expression text(const Value& value, const std::string& path) {
    if (!value.is_string()) wrong(path, "expected a string, but got {}", value.type_name());
    return compile(path, [&] { return Expression::text(value.as_string()); });
  }
  // A string is an expression, anything else a value.
  Expression formula(const Value& value, const std::string& path) {
    if (!value.is_string()) return Expression::literal(value);
    return compile(path, [&] { return Expression::formula(value.as_string()); });
  }
  // One of: "value": any JSON value, "text": a text, "expr": an expression.
  Expression operand(Members& m) {
    const Value *words = m.find("text"), *expr = m.find("expr"), *value = m.find_any("value");
    if ((value != nullptr) + (words != nullptr) + (expr != nullptr) != 1)
      wrong(m.path(), "give one of 'expr', 'text' and 'value'");
    if (words != nullptr) return text(*words, m.path("text"));
    if (expr != nullptr && !expr->is_string()) wrong(m.path("expr"), "expected a string");
    return expr != nullptr ? formula(*expr, m.path("expr")) : Expression::literal(*value);
  }

  Statement statement(const Value& value, const std::string& path, bool assistant, int depth) {
    Members m(value, path);
    std::string_view operation;
    for (std::string_view name : kOperations) {
      if (!value.has(name) || name == "text") continue;
      if (!operation.empty())
        wrong(path, "'{}' and '{}' are both statements: use two objects", operation, name);
      operation = name;
    }
    if (operation.empty() && value.has("text")) operation = "text";  // else an option of "set"
    if (operation.empty()) wrong(path, "no statement: use one of {}", fmt::join(kOperations, ", "));
    Statement out;
    out.path = m.path(operation);
    read(m, operation, out, assistant, depth);
    m.end();
    for (const std::string& name : {out.name, out.score_name, out.into})
      if (!name.empty()) known_.insert(name);
    return out;
  }

  void read(Members& m, std::string_view operation, Statement& out, bool assistant, int depth) {
    using Kind = Statement::Kind;
    if (operation == "text" || operation == "gen" || operation == "select") {
      if (program_.chat && !assistant)
        wrong(out.path, "a program with messages generates inside of {{\"assistant\": [...]}}");
    }
    if (operation == "text") {
      out.kind = Kind::kText;
      out.value = text(m.require("text"), out.path);
    } else if (operation == "gen") {
      read_gen(m, out);
    } else if (operation == "select") {
      read_select(m, out);
    } else if (operation == "system" || operation == "user" || operation == "assistant") {
      read_message(m, operation, out, assistant, depth);
    } else if (operation == "set" || operation == "append") {
      out.kind = operation == "set" ? Kind::kSet : Kind::kAppend;
      out.name = m.name(operation);
      out.value = operand(m);
      if (out.kind == Kind::kAppend && !known_.contains(out.name))
        wrong(out.path, "unknown variable '{}'", out.name);
    } else if (operation == "vote") {
      out.kind = Kind::kVote;
      out.name = m.name("vote");
      out.value = formula(m.require("of"), m.path("of"));
    } else if (operation == "call") {
      read_call(m, out);
    } else if (operation == "return") {
      out.kind = Kind::kReturn;
      out.value = formula(m.require("return"), out.path);
    } else {
      read_control(m, operation, out, assistant, depth);
    }
  }

  void read_call(Members& m, Statement& out) {
    out.kind = Statement::Kind::kCall;
    out.name = m.name("call");
    const Value& tool = m.require("tool");
    if (!tool.is_string() || tool.size() == 0 || tool.size() > 64)
      wrong(m.path("tool"), "expected the name of a tool (1 to 64 bytes)");
    out.tool = tool.as_string();
    const Value* arguments = m.find("arguments");
    out.value = arguments != nullptr ? formula(*arguments, m.path("arguments"))
                                     : Expression::literal(Value::object());
  }

  void read_model(Members& m, Statement& out) {
    const Value* name = m.find("model");
    if (name == nullptr) return;
    if (!name->is_string() || name->size() == 0 || name->size() > 256)
      wrong(m.path("model"), "expected the name of a model");
    out.model = name->as_string();
    program_.models.insert(out.model);
    if (program_.models.size() > kMaxModels)
      wrong(m.path("model"), "the program names more than {} models", kMaxModels);
  }

  void read_control(Members& m, std::string_view operation, Statement& out, bool assistant,
                    int depth) {
    using Kind = Statement::Kind;
    if (operation == "if") {
      out.kind = Kind::kIf;
      out.value = formula(m.require("if"), out.path);
      out.body = block(m.require("then"), m.path("then"), assistant, depth + 1);
      if (const Value* other = m.find("else"))
        out.other = block(*other, m.path("else"), assistant, depth + 1);
    } else if (operation == "while") {
      out.kind = Kind::kWhile;
      out.value = formula(m.require("while"), out.path);
      out.body = block(m.require("do"), m.path("do"), assistant, depth + 1);
    } else if (operation == "for") {
      out.kind = Kind::kFor;
      out.name = m.name("for");
      const Value& in = m.require("in");
      if (!in.is_string() && !in.is_array())
        wrong(m.path("in"), "expected an array or an expression");
      out.value = formula(in, m.path("in"));
      known_.insert(out.name);
      out.body = block(m.require("do"), m.path("do"), assistant, depth + 1);
    } else {
      read_fork(m, out, assistant, depth);
    }
  }

  void read_fork(Members& m, Statement& out, bool assistant, int depth) {
    out.kind = Statement::Kind::kFork;
    const Value& count = m.require("fork");
    if (!count.is_int() && !count.is_string() && !count.is_array())
      wrong(out.path, "expected a number of branches, an array or an expression");
    int64_t branches = count.is_int()     ? count.as_int()
                       : count.is_array() ? static_cast<int64_t>(count.size())
                                          : 1;
    if (branches < 1) wrong(out.path, "a fork has at least one branch");
    if (branches > program_.limits.forks)
      throw ProgramError(out.path,
                         fmt::format("{} branches are more than the limit of {} (limits.forks)",
                                     branches, program_.limits.forks),
                         true);
    out.value = formula(count, out.path);
    out.name = m.optional_name("as");
    if (!out.name.empty()) known_.insert(out.name);
    out.body = block(m.require("do"), m.path("do"), assistant, depth + 1);
    out.into = m.optional_name("into");
    if (!out.into.empty()) known_.insert(out.into);
    if (const Value* keep = m.find("keep")) {
      out.keep = formula(*keep, m.path("keep"));
      out.keeps = true;
    }
  }

  void read_message(Members& m, std::string_view role, Statement& out, bool assistant, int depth) {
    if (assistant) wrong(out.path, "messages do not contain messages");
    const Value& content = m.require(role);
    out.role = role;
    if (role == "assistant" && content.is_array()) {
      out.kind = Statement::Kind::kAssistant;
      out.body = block(content, out.path, true, depth + 1);
    } else {
      out.kind = Statement::Kind::kMessage;
      out.value = text(content, out.path);
    }
  }

  void read_gen(Members& m, Statement& out) {
    out.kind = Statement::Kind::kGen;
    out.name = m.name("gen");
    out.gen.max_tokens =
        static_cast<int32_t>(m.number("max_tokens", 1, INT32_MAX, true, out.gen.max_tokens));
    out.gen.sampling = defaults_;
    read_sampling(m, out.gen.sampling);
    if (const Value* stop = m.find("stop")) {
      Value::Array list = stop->is_array() ? stop->as_array() : Value::Array{*stop};
      if (list.size() > kMaxStops) wrong(m.path("stop"), "at most {} strings", kMaxStops);
      for (const Value& item : list) {
        if (!item.is_string() || item.size() == 0 || item.size() > 1024)
          wrong(m.path("stop"), "expected strings of 1 to 1024 bytes");
        out.gen.stops.push_back(item.as_string());
      }
    }
    read_model(m, out);
    out.gen.run_on = static_cast<int32_t>(m.number("run_on", 0, kMostRunOn, true, 0));
    out.gen.ignore_eos = m.boolean("ignore_eos");
    out.gen.parse_json = m.boolean("parse_json");
    out.score_name = m.optional_name("score");
    read_grammar(m, out);
  }

  static void read_grammar(Members& m, Statement& out) {
    using grammar::Kind;
    for (auto [key, kind] : {std::pair<const char*, Kind>{"json_schema", Kind::kJsonSchema},
                             {"regex", Kind::kRegex},
                             {"grammar", Kind::kGrammar}}) {
      const Value* value = m.find(key);
      if (value == nullptr) continue;
      if (out.gen.grammar) wrong(m.path(key), "only one grammar may constrain a text");
      bool schema = kind == Kind::kJsonSchema;
      if (!value->is_string() && !(schema && (value->is_object() || value->is_bool())))
        wrong(m.path(key), "expected a {}", schema ? "JSON schema" : "string");
      out.gen.grammar = grammar::GrammarSource{
          kind, value->is_string() ? value->as_string() : dump_json(*value), {}, "", ""};
      try {
        grammar::parse_grammar(*out.gen.grammar);
      } catch (const Error& e) {
        if (e.code() == ErrorCode::kInternal) throw;
        wrong(m.path(key), "{}", e.what());
      }
    }
  }

  static void read_sampling(Members& m, std::vector<std::pair<const SampleSetting*, double>>& out) {
    for (const SampleSetting& p : sample_params()) {
      if (m.find(p.name) == nullptr) continue;
      double value = m.number(p.name, p.low, p.high, p.integer != nullptr, 0);
      out.emplace_back(&p, value);
    }
  }

  void read_select(Members& m, Statement& out) {
    out.kind = Statement::Kind::kSelect;
    out.name = m.name("select");
    read_model(m, out);
    const Value& choices = m.require("choices");
    if (choices.is_string()) {
      out.value = formula(choices, m.path("choices"));
    } else if (choices.is_array() && choices.size() > 0 && choices.size() <= kMaxChoices) {
      for (size_t i = 0; i < choices.size(); ++i)
        out.choices.push_back(
            text(choices.as_array()[i], fmt::format("{}[{}]", m.path("choices"), i)));
    } else {
      wrong(m.path("choices"), "expected 1 to {} texts, or an expression", kMaxChoices);
    }
    out.score_name = m.optional_name("score");
  }

  Program& program_;
  std::set<std::string> known_;  // variables that may have a value here
  std::vector<std::pair<const SampleSetting*, double>> defaults_;
  size_t statements_ = 0;
};

}  // namespace

std::shared_ptr<const Program> parse_program(const Value& request,
                                             std::span<const std::string_view> others) {
  auto program = std::make_shared<Program>();
  Parser(*program).run(request, others);
  return program;
}

}  // namespace tokamak::program
