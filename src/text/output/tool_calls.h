#pragma once
// Finds the function calls in the text of an answer.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/output/formats.h"

namespace tokamak {

// Numbers and names the calls of an answer. Owner: one parser.
class CallList final : public CallSink {
 public:
  CallList(CallIds ids, uint64_t seed) : ids_(ids), seed_(seed) {}
  void begin(std::string name, std::string id = "") override;
  void add(std::string_view arguments) override;
  std::vector<ToolCall> take();  // what was added since the last call
  int count() const { return count_; }

 private:
  CallIds ids_;
  uint64_t seed_;
  int count_ = 0;
  std::vector<ToolCall> parts_;
};

// Owner: one parser. Arguments are returned as they arrive; text that does not begin like a call
// stays text.
class ToolCalls {
 public:
  ToolCalls(const ToolFormat* format, const ToolTypes& types, uint64_t seed);

  struct Result {
    std::string text;
    std::vector<ToolCall> calls;
  };
  Result push(std::string_view text);
  Result finish();
  bool any() const { return list_.count() > 0; }

 private:
  // kStart: whether the answer consists of calls is not known yet. kClose: after a call, before its
  // closing mark. kAgain: after a call without marks; another may follow.
  enum class Where { kStart, kText, kCall, kClose, kAgain };

  bool step(Result& result);  // false: more text is needed
  bool start(Result& result);
  bool find_call(Result& result);
  bool read_call(Result& result);
  bool find_close();
  bool read_again();
  void begin_call(size_t before, size_t size);
  void send(Result& result, size_t size);

  const ToolFormat* format_;
  const ToolTypes& types_;
  CallList list_;
  std::unique_ptr<CallMachine> machine_;
  std::vector<std::string_view> marks_;  // what find_call() looks for
  Where where_ = Where::kText;
  std::string held_;
  std::string before_, raw_;  // text again if the call is not valid: up to the mark, after it
  int first_ = 0;             // the number of calls before this machine
};

}  // namespace tokamak
