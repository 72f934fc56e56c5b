#pragma once
// Reads one function call, {"name": "f", "arguments": {...}}, while its text arrives, so that the
// arguments can be passed on before they are complete.
#include <string>
#include <string_view>

namespace tokamak {

// Owner: one JsonCalls. "tool_name" is the same as "name", and "parameters" as
// "arguments"; other members are skipped. The
// arguments are passed on as the model wrote them; arguments in a JSON string are unpacked.
class CallScanner {
 public:
  enum class State { kReading, kDone, kBad };

  // Returns how many bytes were read: all of them, unless the call ends before or is not valid.
  size_t push(std::string_view text);
  State state() const;
  // The name is known and the arguments have begun, or there are none.
  bool begun() const { return named_ && (streams_ || argued_ || where_ == Where::kDone); }
  const std::string& name() const { return name_; }
  std::string take_arguments();  // those that were read since the last call

 private:
  enum class Where {
    kBegin,
    kFirstKey,
    kKey,
    kInKey,
    kColon,
    kValue,
    kInValue,
    kAfter,
    kDone,
    kBad
  };
  enum class Kind { kString, kNested, kScalar };

  void put(char c);
  void begin_value(char c);
  void put_value(char c);
  void end_value();
  bool ends_string(char c);
  bool unquote(std::string& out) const;  // of token_
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }

  Where where_ = Where::kBegin;
  Kind kind_ = Kind::kScalar;
  std::string key_, token_, name_, arguments_;
  bool named_ = false, argued_ = false, streams_ = false, sent_ = false;
  bool in_string_ = false, escaped_ = false;
  int depth_ = 0;
};

}  // namespace tokamak
