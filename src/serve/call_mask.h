#pragma once
// The token mask of a request with strict tools: the model writes freely, and calls a function or
// not, but once a call has begun, its arguments follow the schema.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/grammar_mask.h"

namespace tokamak {

// The arguments of a function.
struct NamedCall {
  std::string name;
  std::shared_ptr<const grammar::Grammar> grammar;
};

struct CallMaskOptions {
  // What follows `mark`, up to the end of the call; then the model writes freely again.
  std::shared_ptr<const grammar::Grammar> grammar;
  // The text that begins a call, such as "<tool_call>". Empty: an answer that begins with a brace
  // is a call.
  std::string mark;
  // Instead of the grammar: after the mark come a name, up to the separator, and the arguments of
  // that function. With a second separator, the name may also be what is between "function", the
  // first one, and the second. What follows other names is free.
  std::vector<NamedCall> named = {};
  std::vector<std::string> separators = {};
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> end_ids;  // end the answer; not allowed inside of a call
  int32_t choices = 1;
  Thinking thinking = Thinking::kNone;  // marks in thoughts begin nothing
  std::string open_tag = "<think>", close_tag = "</think>";
};

struct CallProgress {
  enum class Phase : uint8_t { kBegin, kThinking, kFree, kName, kCall, kText };
  Phase phase;
  std::string tail = {};  // bytes that may be the beginning of a mark or tag; a name so far
  std::vector<int32_t> ids = {};
  grammar::Matcher matcher;
};

// Owner: one request; one thread at a time. Made on a front-end thread: it reads the vocabulary.
class CallMask final : public AnswerMask<CallProgress> {
 public:
  explicit CallMask(CallMaskOptions options);
  void force(int32_t choice, std::span<const int32_t> answer,
             std::vector<int32_t>& forced) override;

 private:
  using Progress = CallProgress;
  using Phase = Progress::Phase;
  Progress start() const override;
  bool read(Progress& p, int32_t id) const override;
  void read_free(Progress& p, int32_t id) const;
  void read_name(Progress& p) const;
  void fill(Progress& p, std::span<uint32_t> allowed) const override;
  bool ends_answer(const Progress& p, int32_t id) const override;
  void remove(const std::vector<int32_t>& ids, std::span<uint32_t> allowed) const;

  const CallMaskOptions options_;
  const int32_t open_id_;  // of the thoughts, or -1
  // By the number of bytes of a mark that the text ends with: tokens that contain its rest and
  // more, which the grammar could not check.
  using Crossing = std::vector<std::vector<int32_t>>;
  static void add_crossing(Crossing& to, const std::string& mark, const std::string& bytes,
                           int32_t id);
  Crossing crossing_;
  std::vector<Crossing> crossing_separators_;
  std::vector<int32_t> braces_;  // tokens that begin a call, without a mark
};

}  // namespace tokamak
