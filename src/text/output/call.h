#pragma once
// Function calls as they are found in a model's output, and the types of their parameters.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tokamak {

// A call, or more of the arguments of the call with this index.
struct ToolCall {
  int index = 0;
  std::string id, name;   // empty: this continues a call
  std::string arguments;  // JSON text, as far as known
};

// Joins the parts of calls.
void append_calls(std::vector<ToolCall>& calls, std::vector<ToolCall>&& more);

// The tools that a request offers. Owner: the request; immutable.
class ToolTypes {
 public:
  ToolTypes() = default;
  explicit ToolTypes(const Value& tools);  // a list as in the OpenAI API; other values are ignored

  bool has(std::string_view function) const { return functions_.contains(function); }
  // What the parameter may be (grammar/value_types.h). If it is kString alone, `1` means "1".
  // Otherwise an argument is JSON if it can be.
  uint32_t types(std::string_view function, std::string_view parameter) const;

 private:
  using Parameters = std::map<std::string, uint32_t, std::less<>>;
  std::map<std::string, Parameters, std::less<>> functions_;
};

// Receives what a machine has read.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void begin(std::string name, std::string id = "") = 0;
  virtual void add(std::string_view arguments) = 0;  // of the call that began last
};

// A machine reads calls of one syntax while their text arrives. Owner: one ToolCalls.
class CallMachine {
 public:
  enum class State { kReading, kDone, kBad };
  virtual ~CallMachine() = default;

  // Ignored unless kReading. How the text is cut does not matter.
  void push(std::string_view text, CallSink& sink);
  State state() const { return state_; }
  const std::string& rest() const { return held_; }  // what follows the calls, once kDone
  bool closed() const { return closed_; }            // the closing mark was read as well

 protected:
  // Reads from the beginning of held_ and erases it; false: more text is needed.
  virtual bool step(CallSink& sink) = 0;
  bool done() { return end(State::kDone); }
  bool bad() { return end(State::kBad); }
  // Skips white space; false: nothing else is held.
  bool skip_space();
  // held_ begins with the mark; bad() if it cannot. False with kReading: not known yet.
  bool expect(std::string_view mark);

  std::string held_;
  State state_ = State::kReading;
  bool closed_ = false;

 private:
  bool end(State state) {
    state_ = state;
    return false;
  }
};

// Text as a JSON string without its quotes. Byte by byte, so that text can be cut anywhere.
std::string json_escaped(std::string_view text);

}  // namespace tokamak
