#pragma once
// A generation program: statements over one sequence of tokens that grows, forks and joins
// (docs/programs.md). Parsed from JSON and checked before anything runs.
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/value.h"
#include "engine/sample_params.h"
#include "serve/program/expression.h"
#include "text/grammar/grammar_cache.h"

namespace tokamak::program {

// A mistake in a program, or a limit that it exceeds.
class ProgramError : public Error {
 public:
  // path: "program[2].do[0].gen".
  ProgramError(std::string path, const std::string& message, bool limit = false)
      : Error(ErrorCode::kInvalidArgument, path.empty() ? message : path + ": " + message),
        path_(std::move(path)),
        limit_(limit) {}
  const std::string& path() const { return path_; }
  bool is_limit() const { return limit_; }

 private:
  std::string path_;
  bool limit_;
};

template <class... Args>
[[noreturn]] void wrong(const std::string& path, fmt::format_string<Args...> format,
                        Args&&... args) {
  throw ProgramError(path, fmt::format(format, std::forward<Args>(args)...));
}

// They count all branches together. A program may set them up to kMostLimits.
struct Limits {
  int64_t steps = 10'000;   // statements that are executed
  int64_t forks = 64;       // branches that are created
  int64_t tokens = 16'384;  // tokens that are generated, and those that selects score
  double seconds = 120;
};
inline constexpr Limits kMostLimits{
    .steps = 1'000'000, .forks = 1024, .tokens = 1 << 20, .seconds = 3600};

struct GenOptions {
  int32_t max_tokens = 128;
  std::vector<std::string> stops;
  int32_t run_on = 0;  // tokens that are generated past the end, for the gens that follow
  bool ignore_eos = false;
  bool parse_json = false;  // the variable gets the value of the JSON text; null if it is not JSON
  std::vector<std::pair<const SampleSetting*, double>> sampling;
  std::optional<grammar::GrammarSource> grammar;
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind : uint8_t {
    kText,       // appends `value`
    kMessage,    // of `role`, with the content `value`
    kAssistant,  // a message that `body` writes
    kGen,
    kSelect,  // among `value`, a list, or among `choices`
    kSet,
    kAppend,  // `value` to the list `name`
    kVote,    // the most frequent element of `value`
    kIf,      // value ? body : other
    kFor,     // each element of `value` as `name`
    kWhile,
    kFork,  // value: a number of branches, or a list with an element for each
    kCall,  // of `tool` with the arguments `value`; the client gives the result
    kReturn,
  };
  Kind kind = Kind::kText;
  std::string path;
  std::string name;        // the variable it sets; empty: none
  std::string role;        // kMessage
  std::string tool;        // kCall
  std::string model;       // kGen, kSelect: one of Program::models; empty: the program's own
  std::string score_name;  // kGen: mean log-probability; kSelect: that of each choice
  std::string into;        // kFork: list of the variables of each branch
  Expression value, keep;  // keep: of kFork: the branch to go on with
  bool keeps = false;
  std::vector<Expression> choices;
  GenOptions gen;
  Block body, other;
};

// Immutable; its runs share it.
struct Program {
  Block body;
  Value variables = Value::object();
  Limits limits;
  std::optional<uint64_t> seed;
  std::set<std::string> models;  // besides its own
  bool chat = false;             // it has messages: the model's chat template writes the context
};

// `request`: {"program": [...], "variables": {...}, "limits": {...}, "sampling": {...}, "seed": N}.
// others: members that the caller reads. Throws ProgramError.
std::shared_ptr<const Program> parse_program(const Value& request,
                                             std::span<const std::string_view> others = {});

}  // namespace tokamak::program
