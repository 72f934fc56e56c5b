#pragma once
// Runs a program on an engine: its branches are sequences that share the KV blocks of what they
// have in common.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/client.h"
#include "serve/program/program.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tokamak::program {

// What a program runs on.
struct Host {
  std::shared_ptr<Client> client;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // nullptr: no messages
  std::shared_ptr<grammar::GrammarCache> grammars;
  SampleSpec defaults;
  int64_t max_model_len = 0;
  std::map<std::string, std::shared_ptr<const Host>> models = {};  // Program::models
  std::string cache_salt, tenant;
  uint64_t seed = 0;           // for a program without one
  double timeout_seconds = 0;  // besides the program's own limit; 0: none
};

struct Usage {
  int64_t requests = 0, steps = 0, branches = 1;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  // run_on: tokens generated past the end of a gen, those that a later gen has used, and gens that
  // needed no request.
  int64_t run_on_tokens = 0, run_on_used = 0, requests_saved = 0;
};

class Context;
struct Branch;
struct Frame;
struct Pending;

// Owner: the caller; one thread at a time, except for the engine's sinks. Destroying it cancels its
// requests.
class Run {
 public:
  // wake: called on the engine's thread when advance() has something to do. It must not block, and
  // may be called once more while the run is being destroyed.
  Run(std::shared_ptr<const Program> program, Host host, std::function<void()> wake);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // kPaused: it goes on when the results of calls are given.
  enum class State : uint8_t { kWaiting, kBusy, kPaused, kDone };
  // Handles what the engine has sent and executes statements, at most a few dozen: kBusy means
  // "call again". Throws ProgramError, or the Error of the engine; the run is over then.
  State advance();
  void cancel();  // ends its requests

  // The calls that branches wait for: [{"id", "branch", "tool", "arguments"}].
  Value calls() const;
  // {id of a call: its result}. Throws ProgramError for an id that is not open; then none is taken.
  void give_results(const Value& results);
  void set_wake(std::function<void()> wake);  // while it is paused
  Nanos deadline() const { return deadline_; }

  // Pieces of text and results since the last call, as JSON objects.
  std::vector<Value> take_events();
  const Usage& usage() const { return usage_; }
  // After kDone: {"output", "variables", and "text" or "messages"}.
  Value result() const;

 private:
  struct Mailbox;
  struct Sent {
    Branch* branch;
    size_t part;  // of a select: the choice
    RequestId id;
    Client* client;
  };
  struct Call {
    Branch* branch;
    const Statement* statement;
    Value arguments;
  };

  // run.cc
  void execute(Branch& branch);
  void end_block(Branch& branch);
  void step(Branch& branch, const Statement& s);
  void start_loop(Branch& branch, const Statement& s);
  void end_branch(Branch& branch);
  void start_fork(Branch& branch, const Statement& s);
  void add_child(Branch& parent, const Statement& s, size_t index, const Value& item);
  void join(Branch& parent);
  void keep_child(Branch& parent, size_t index);
  void count_step(const std::string& path);
  void set(Branch& branch, const std::string& path, const std::string& name, Value value);
  Value value_of(const Branch& branch, const Expression& e, const std::string& path) const;
  void event(const Branch& branch, const char* type, Value::Object fields);

  // calls.cc
  void start_call(Branch& branch, const Statement& s);

  // requests.cc
  void start_gen(Branch& branch, const Statement& s);
  void start_select(Branch& branch, const Statement& s);
  const Host& host_of(const Statement& s) const;
  Context& context_of(Branch& branch, const Statement& s) const;
  RequestSpec spec_for(const std::vector<int32_t>& ids) const;
  SampleSpec sampling_of(Branch& branch, const Statement& s) const;
  void constrain(const Statement& s, RequestSpec& spec) const;
  void submit(Branch& branch, RequestSpec spec, size_t part);
  void reserve(Branch& branch, int64_t tokens);
  void take(size_t request, Delta&& delta);
  void take_generated(Branch& branch, const Sent& sent, Delta&& delta);
  void end_gen(Branch& branch);
  void end_select(Branch& branch);
  void write(Branch& branch, const Statement& s, const std::vector<int32_t>& ids,
             const std::string& text, bool cut = false);

  // run_on.cc
  std::vector<int32_t> take_run_on(Branch& branch);
  void keep_run_on(Branch& branch, const Pending& p);

  const std::shared_ptr<const Program> program_;
  const Host host_;
  const uint64_t seed_;
  const double seconds_;  // limit
  const Nanos deadline_;
  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<Branch> main_;
  std::deque<Branch*> ready_;
  std::map<size_t, Sent> sent_;  // requests that run
  size_t next_request_ = 0;
  std::map<std::string, Call> calls_;  // open ones
  size_t next_call_ = 0;
  int64_t tokens_ = 0;  // generated, scored or reserved
  size_t bytes_ = 0;    // of variables
  int budget_ = 0;      // statements before advance() returns
  Usage usage_;
  Value output_;
  std::vector<Value> events_;
  bool done_ = false;
};

// Runs a program on this thread. on_event may be empty; if it returns false, the program is
// cancelled (Error(kCancelled)). on_call gives the result of a call; without it, calls are an
// error. Throws what Run::advance throws. Returns Run::result() with "usage".
Value run_program(std::shared_ptr<const Program> program, Host host,
                  const std::function<bool(const Value& event)>& on_event = {},
                  const std::function<Value(const Value& call)>& on_call = {});
Value usage_value(const Usage& usage);

}  // namespace tokamak::program
