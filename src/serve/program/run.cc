#include "serve/program/run.h"

#include <algorithm>
#include <condition_variable>

#include "base/rng.h"
#include "serve/program/branch.h"
#include "serve/program/mailbox.h"

namespace tokamak::program {
namespace {

constexpr int kStepsPerTurn = 64;
constexpr size_t kMostBytes = size_t{64} << 20;  // of variables and texts

[[noreturn]] void limit_error(const std::string& path, const std::string& what) {
  throw ProgramError(path, what, true);
}

// Runs f; an Error gets the path of the statement.
template <class F>
auto at(const std::string& path, const F& f) {
  try {
    return f();
  } catch (const ProgramError&) {
    throw;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInvalidArgument && e.code() != ErrorCode::kUnsupported) throw;
    throw ProgramError(path, e.what());
  }
}

uint64_t mix(uint64_t key, uint64_t a, uint64_t b) {
  auto bits = philox(key, a, b);
  return uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace

size_t size_of(const Value& value) {
  size_t bytes = 16;
  if (value.is_string()) bytes += value.size();
  if (value.is_array())
    for (const Value& item : value.as_array()) bytes += size_of(item);
  if (value.is_object())
    for (const auto& [key, item] : value.as_object()) bytes += key.size() + size_of(item);
  return bytes;
}

Run::Run(std::shared_ptr<const Program> program, Host host, std::function<void()> wake)
    : program_(std::move(program)),
      host_(std::move(host)),
      seed_(program_->seed.value_or(host_.seed)),
      seconds_(host_.timeout_seconds > 0 ? std::min(host_.timeout_seconds, program_->limits.seconds)
                                         : program_->limits.seconds),
      deadline_(SteadyClock().now() + static_cast<Nanos>(seconds_ * 1e9)),
      mailbox_(std::make_shared<Mailbox>(std::move(wake))),
      main_(std::make_unique<Branch>("0", seed_, Context(host_.tokenizer, host_.chat_template))) {
  main_->variables = program_->variables;
  bytes_ = size_of(main_->variables);
  main_->frames.push_back({&program_->body});
  ready_.push_back(main_.get());
}

Run::~Run() { cancel(); }

void Run::cancel() {
  mailbox_->close();
  for (const auto& [request, sent] : sent_) sent.client->cancel(sent.id);
  sent_.clear();
  ready_.clear();
}

Run::State Run::advance() {
  try {
    for (auto& [request, delta] : mailbox_->take()) take(request, std::move(delta));
    budget_ = kStepsPerTurn;
    while (!ready_.empty() && budget_ > 0) {
      Branch& branch = *ready_.front();
      ready_.pop_front();
      execute(branch);
    }
  } catch (...) {
    cancel();
    throw;
  }
  if (done_) return State::kDone;
  if (!ready_.empty()) return State::kBusy;
  return sent_.empty() && !calls_.empty() ? State::kPaused : State::kWaiting;
}

void Run::count_step(const std::string& path) {
  --budget_;
  if (++usage_.steps > program_->limits.steps)
    limit_error(path, fmt::format("the program executed more than {} statements (limits.steps)",
                                  program_->limits.steps));
  if (usage_.steps % 16 == 0 && SteadyClock().now() > deadline_)
    limit_error(path, fmt::format("the program ran for more than {} s (limits.seconds)", seconds_));
}

void Run::execute(Branch& branch) {
  while (!branch.waits()) {
    if (branch.frames.empty()) return end_branch(branch);
    if (budget_ <= 0) return ready_.push_back(&branch);
    Frame& frame = branch.frames.back();
    if (frame.next == frame.block->size()) {
      end_block(branch);
      continue;
    }
    const Statement& s = (*frame.block)[frame.next++];
    count_step(s.path);
    at(s.path, [&] { step(branch, s); });
  }
}

// Repeats a loop, or leaves the block.
void Run::end_block(Branch& branch) {
  Frame& frame = branch.frames.back();
  const Statement* owner = frame.owner;
  if (owner != nullptr && owner->kind == Statement::Kind::kAssistant) branch.context.end_answer();
  bool again = false;
  if (owner != nullptr && owner->kind == Statement::Kind::kFor && frame.item < frame.items.size()) {
    count_step(owner->path);
    set(branch, owner->path, owner->name, frame.items[frame.item++]);
    again = true;
  } else if (owner != nullptr && owner->kind == Statement::Kind::kWhile) {
    count_step(owner->path);
    again = is_true(value_of(branch, owner->value, owner->path));
  }
  if (again)
    frame.next = 0;
  else
    branch.frames.pop_back();
}

void Run::step(Branch& branch, const Statement& s) {
  using Kind = Statement::Kind;
  switch (s.kind) {
    case Kind::kText:
      branch.context.add_text(value_of(branch, s.value, s.path).as_string());
      if (branch.context.bytes() > kMostBytes) limit_error(s.path, "the text is too long");
      return;
    case Kind::kMessage:
      return branch.context.add_message(s.role, value_of(branch, s.value, s.path).as_string());
    case Kind::kAssistant:
      branch.context.begin_answer();
      return branch.frames.push_back({&s.body, &s});
    case Kind::kGen:
      return start_gen(branch, s);
    case Kind::kSelect:
      return start_select(branch, s);
    case Kind::kSet:
      return set(branch, s.path, s.name, value_of(branch, s.value, s.path));
    case Kind::kAppend: {
      const Value* list = branch.variables.find(s.name);
      if (list == nullptr || !list->is_array()) wrong(s.path, "'{}' is not a list", s.name);
      Value longer = *list;
      longer.push(value_of(branch, s.value, s.path));
      return set(branch, s.path, s.name, std::move(longer));
    }
    case Kind::kVote: {
      Value list = value_of(branch, s.value, s.path);
      if (!list.is_array() || list.size() == 0) wrong(s.path, "'of' is not a list with elements");
      const auto& items = list.as_array();
      auto votes = [&](const Value& v) { return std::count(items.begin(), items.end(), v); };
      const Value* best = &items[0];
      for (const Value& item : items)
        if (votes(item) > votes(*best)) best = &item;
      return set(branch, s.path, s.name, *best);
    }
    case Kind::kIf: {
      bool yes = is_true(value_of(branch, s.value, s.path));
      return branch.frames.push_back({yes ? &s.body : &s.other});
    }
    case Kind::kFor:
    case Kind::kWhile:
      return start_loop(branch, s);
    case Kind::kFork:
      return start_fork(branch, s);
    case Kind::kCall:
      return start_call(branch, s);
    case Kind::kReturn:
      set(branch, s.path, "output", value_of(branch, s.value, s.path));
      for (; !branch.frames.empty(); branch.frames.pop_back())
        if (const Statement* owner = branch.frames.back().owner;
            owner != nullptr && owner->kind == Kind::kAssistant)
          branch.context.end_answer();
      return;
  }
}

// The block's first turn begins as the next ones do.
void Run::start_loop(Branch& branch, const Statement& s) {
  Frame frame{&s.body, &s, s.body.size()};
  if (s.kind == Statement::Kind::kFor) {
    Value list = value_of(branch, s.value, s.path);
    if (!list.is_array()) wrong(s.path, "'in' is not a list, but {}", list.type_name());
    frame.items = std::move(list.as_array());
  }
  branch.frames.push_back(std::move(frame));
}

void Run::start_fork(Branch& branch, const Statement& s) {
  Value count = value_of(branch, s.value, s.path);
  if (!count.is_array() && !count.is_int())
    wrong(s.path, "expected a number of branches or a list, but got {}", count.type_name());
  int64_t n = count.is_array() ? static_cast<int64_t>(count.size()) : count.as_int();
  if (n < 1) wrong(s.path, "a fork has at least one branch");
  if (n > program_->limits.forks - (usage_.branches - 1))
    limit_error(s.path, fmt::format("{} branches exceed the limit of {} for the program "
                                    "(limits.forks)",
                                    n, program_->limits.forks));
  // What comes before the fork is tokenised once, and shared.
  if (!branch.context.text().empty()) branch.context.ids();
  branch.fork = &s;
  branch.open_children = static_cast<size_t>(n);
  for (size_t i = 0; i < static_cast<size_t>(n); ++i)
    add_child(branch, s, i,
              count.is_array() ? count.as_array()[i] : Value(static_cast<int64_t>(i)));
  ++branch.events;
}

void Run::add_child(Branch& parent, const Statement& s, size_t index, const Value& item) {
  auto child = std::make_unique<Branch>(fmt::format("{}.{}", parent.id, index),
                                        mix(parent.key, parent.events, index + 1), parent.context);
  child->parent = &parent;
  child->others = parent.others;
  child->run_on = parent.run_on;
  child->variables = parent.variables;
  bytes_ += size_of(child->variables) + child->context.bytes();
  if (bytes_ > kMostBytes) limit_error(s.path, "the variables are too large");
  if (!s.name.empty()) set(*child, s.path, s.name, item);
  child->assigned.clear();
  child->frames.push_back({&s.body});
  ready_.push_back(child.get());
  parent.children.push_back(std::move(child));
  ++usage_.branches;
}

void Run::end_branch(Branch& branch) {
  if (branch.parent == nullptr) {
    done_ = true;
    if (const Value* output = branch.variables.find("output")) output_ = *output;
    return;
  }
  Branch& parent = *branch.parent;
  if (--parent.open_children > 0) return;
  at(parent.fork->path, [&] { join(parent); });
  ready_.push_back(&parent);
}

void Run::join(Branch& parent) {
  const Statement& s = *parent.fork;
  Value all = Value::array();
  for (const auto& child : parent.children) {
    Value one = Value::object();
    for (const std::string& name : child->assigned) one.set(name, *child->variables.find(name));
    all.push(std::move(one));
  }
  if (!s.into.empty()) set(parent, s.path, s.into, std::move(all));
  if (s.keeps) {
    Value index = value_of(parent, s.keep, s.path);
    if (!index.is_int() || index.as_int() < 0 ||
        index.as_int() >= static_cast<int64_t>(parent.children.size()))
      wrong(s.path, "'keep' is not the index of a branch");
    keep_child(parent, static_cast<size_t>(index.as_int()));
  }
  for (const auto& child : parent.children)
    bytes_ -= std::min(bytes_, size_of(child->variables) + child->context.bytes());
  parent.children.clear();
  parent.fork = nullptr;
}

void Run::keep_child(Branch& parent, size_t index) {
  Branch& child = *parent.children[index];
  parent.context = child.context;
  parent.others = child.others;
  parent.run_on = child.run_on;
  for (const std::string& name : child.assigned)
    set(parent, parent.fork->path, name, *child.variables.find(name));
}

void Run::set(Branch& branch, const std::string& path, const std::string& name, Value value) {
  if (name.empty()) return;
  if (const Value* old = branch.variables.find(name)) bytes_ -= std::min(bytes_, size_of(*old));
  bytes_ += size_of(value);
  if (bytes_ > kMostBytes) limit_error(path, "the variables are too large");
  branch.assigned.insert(name);
  branch.variables.set(name, std::move(value));
}

Value Run::value_of(const Branch& branch, const Expression& e, const std::string& path) const {
  return at(path, [&] { return e.evaluate(branch.variables); });
}

void Run::event(const Branch& branch, const char* type, Value::Object fields) {
  Value out = Value::Object{{"type", type}, {"branch", branch.id}};
  for (auto& [key, value] : fields) out.set(key, std::move(value));
  events_.push_back(std::move(out));
}

std::vector<Value> Run::take_events() { return std::exchange(events_, {}); }

Value Run::result() const {
  Value out = Value::Object{{"output", output_}, {"variables", main_->variables}};
  if (program_->chat)
    out.set("messages", main_->context.messages());
  else
    out.set("text", main_->context.text());
  return out;
}

Value usage_value(const Usage& usage) {
  Value out = Value::Object{
      {"requests", usage.requests},
      {"steps", usage.steps},
      {"branches", usage.branches},
      {"prompt_tokens", usage.prompt_tokens},
      {"completion_tokens", usage.completion_tokens},
      {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
      {"prompt_tokens_details", Value::Object{{"cached_tokens", usage.cached_tokens}}}};
  if (usage.run_on_tokens > 0)
    out.set("run_on", Value::Object{{"tokens", usage.run_on_tokens},
                                    {"used_tokens", usage.run_on_used},
                                    {"saved_requests", usage.requests_saved}});
  return out;
}

Value run_program(std::shared_ptr<const Program> program, Host host,
                  const std::function<bool(const Value& event)>& on_event,
                  const std::function<Value(const Value& call)>& on_call) {
  struct Bell {
    std::mutex mutex;
    std::condition_variable ready;
    bool rung = false;
  };
  auto bell = std::make_shared<Bell>();
  Run run(std::move(program), std::move(host), [bell] {
    std::lock_guard lock(bell->mutex);
    bell->rung = true;
    bell->ready.notify_one();
  });
  while (true) {
    Run::State state = run.advance();
    for (const Value& event : run.take_events())
      if (on_event && !on_event(event)) fail(ErrorCode::kCancelled, "the program was cancelled");
    if (state == Run::State::kDone) break;
    if (state == Run::State::kBusy) continue;
    if (state == Run::State::kPaused) {
      Value results = Value::object();
      Value calls = run.calls();
      for (const Value& call : calls.as_array()) {
        const std::string& tool = call.at("tool").as_string();
        if (!on_call)
          fail(ErrorCode::kUnsupported, "the program calls '{}', and no calls can be made here",
               tool);
        results.set(call.at("id").as_string(), on_call(call));
      }
      run.give_results(results);
      continue;
    }
    std::unique_lock lock(bell->mutex);
    bell->ready.wait(lock, [&] { return bell->rung; });
    bell->rung = false;
  }
  Value result = run.result();
  result.set("usage", usage_value(run.usage()));
  return result;
}

}  // namespace tokamak::program
