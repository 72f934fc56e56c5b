// Calls: a branch waits until the client gives the result.
#include "serve/program/branch.h"
#include "serve/program/mailbox.h"
#include "serve/program/run.h"

namespace tokamak::program {

void Run::start_call(Branch& branch, const Statement& s) {
  std::string id = fmt::format("call-{}", next_call_++);
  Value arguments = value_of(branch, s.value, s.path);
  event(branch, "call", {{"id", id}, {"tool", s.tool}, {"arguments", arguments}});
  calls_.emplace(std::move(id), Call{&branch, &s, std::move(arguments)});
  branch.calling = true;
}

Value Run::calls() const {
  Value list = Value::array();
  for (const auto& [id, call] : calls_)
    list.push(Value::Object{{"id", id},
                            {"branch", call.branch->id},
                            {"tool", call.statement->tool},
                            {"arguments", call.arguments}});
  return list;
}

void Run::give_results(const Value& results) {
  if (!results.is_object() || results.size() == 0)
    wrong("results", "expected an object with a result for one or more calls");
  for (const auto& [id, result] : results.as_object())
    if (!calls_.contains(id)) wrong("results", "no call '{}' is open", id.substr(0, 64));
  for (const auto& [id, result] : results.as_object()) {
    Call call = std::move(calls_.extract(id).mapped());
    call.branch->calling = false;
    set(*call.branch, call.statement->path, call.statement->name, result);
    ready_.push_back(call.branch);
  }
}

void Run::set_wake(std::function<void()> wake) { mailbox_->set_wake(std::move(wake)); }

}  // namespace tokamak::program
