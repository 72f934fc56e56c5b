#pragma once
// A branch of a running program: a sequence of statements with its own context and variables.
// Private to the folder.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "serve/program/context.h"
#include "serve/program/program.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace tokamak::program {

struct Frame {
  const Block* block;
  const Statement* owner = nullptr;  // a loop or an assistant message
  size_t next = 0;                   // statement of the block
  std::vector<Value> items = {};     // of a for loop
  size_t item = 0;
};

// A gen or a select that the engine works on.
struct Pending {
  const Statement* statement;
  size_t open = 0;       // requests without an end
  int64_t reserved = 0;  // tokens
  // gen
  std::unique_ptr<Detokenizer> detokenizer = nullptr;
  StopStrings stops = StopStrings();
  std::vector<int32_t> ids = {};
  int32_t limit = 0;                 // of ids
  std::vector<int32_t> run_on = {};  // after them
  int32_t given = 0;                 // of both: taken from what an earlier gen has run on
  std::vector<int32_t> prompt = {};
  std::shared_ptr<const SampleSpec> sample = nullptr;
  bool flushed = false;
  std::string text = {};
  double logprob = 0;
  bool complete() const { return stops.stopped() || std::ssize(ids) == limit; }
  // select
  std::vector<std::string> choices = {};
  std::vector<std::vector<int32_t>> choice_ids = {};
  std::vector<double> scores = {};
};

// The tokens that a gen has generated past its end, all that precede them, and how they were
// chosen. A later gen whose context is a part of them can take the rest (run_on.cc).
struct RunOn {
  std::vector<int32_t> ids = {};
  std::string model = {};
  SampleSpec sample = {};
  bool ignore_eos = false;
};

// Owner: its parent, or the run. Its place in the tree gives the key of its random numbers, so that
// they do not depend on the order in which branches run.
struct Branch {
  Branch(std::string name, uint64_t seed, Context c)
      : id(std::move(name)), key(seed), context(std::move(c)) {}

  const std::string id;  // "0", "0.2": the third branch of the first fork
  const uint64_t key;
  Context context;
  std::map<std::string, Context> others = {};  // the same for other models, where they were used
  RunOn run_on = {};
  Value variables = Value::object();
  std::set<std::string> assigned = {};  // here, not before the fork
  std::vector<Frame> frames = {};
  uint64_t events = 0;  // gens and forks so far
  std::unique_ptr<Pending> pending = nullptr;

  Branch* parent = nullptr;
  const Statement* fork = nullptr;  // that its children belong to
  std::vector<std::unique_ptr<Branch>> children = {};
  size_t open_children = 0;

  bool calling = false;  // waits for the result of a call

  bool waits() const { return pending != nullptr || open_children > 0 || calling; }
};

size_t size_of(const Value& value);  // bytes, roughly

}  // namespace tokamak::program
