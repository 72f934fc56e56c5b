#pragma once
// The token mask of a request with strict tools: the model writes freely, and calls a function or
// not, but once a call has begun, its arguments follow the schema.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/grammar_mask.h"
#include "text/grammar/call_grammar.h"

namespace tokamak {

// What begins a call.
struct CallBegin {
  grammar::CallStart start = grammar::CallStart::kMark;
  std::string mark;  // kMark: a text such as "<tool_call>"; the grammar begins with it
  std::vector<std::string> names;  // kName, kList: of the functions
  // Other marks that the reader of calls knows. They begin a call too; without kMark they may stand
  // before one.
  std::vector<std::string> others;
};

struct CallMaskOptions {
  // A call from its first byte, that of the mark, to its end; then the model writes freely again.
  std::shared_ptr<const grammar::Grammar> grammar;
  CallBegin begin;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> end_ids;  // end the answer; not allowed inside of a call
  int32_t choices = 1;
  Thinking thinking = Thinking::kNone;  // marks in thoughts begin nothing
  std::string open_tag = "<think>", close_tag = "</think>";
};

struct CallProgress {
  // kBegin: whether the answer begins with a call is not known yet.
  enum class Phase : uint8_t { kBegin, kThinking, kFree, kCall, kText };
  Phase phase;
  std::string tail = {};  // bytes that may be the beginning of a call or tag
  std::vector<int32_t> ids = {};
  grammar::Matcher matcher;
  bool matches = true;  // kBegin: the matcher accepted all of the tail
  bool again = false;   // kBegin: after a call
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
  // Text at the start of an answer: is it a call, may it become one, or neither?
  enum class Beginning : uint8_t { kCall, kMaybe, kText };

  Progress start() const override;
  bool read(Progress& p, int32_t id) const override;
  bool read_free(Progress& p, int32_t id, const std::string& bytes) const;
  bool read_beginning(Progress& p, int32_t id, const std::string& bytes) const;
  bool read_call(Progress& p, int32_t id) const;
  void fill(Progress& p, std::span<uint32_t> allowed) const override;
  void fill_call(grammar::Matcher& matcher, const std::vector<int32_t>& ids,
                 std::span<uint32_t> allowed) const;
  bool ends_answer(const Progress& p, int32_t id) const override;

  bool has_mark() const { return options_.begin.start == grammar::CallStart::kMark; }
  Beginning beginning_of(const Progress& p, const std::string& bytes) const;
  Beginning named_beginning(std::string_view text) const;
  Beginning listed_beginning(std::string_view text) const;
  bool may_be_name(std::string_view text) const;

  // Tokens that contain the rest of a mark and more. The grammar decides about those that begin
  // with the rest, if it begins with this mark; it cannot check the others.
  struct Crossing {
    std::vector<int32_t> checked, forbidden;
  };
  struct Mark {
    std::string text;
    std::vector<Crossing> crossing;  // by the number of its bytes that the text ends with
  };
  void add_crossing(Mark& mark, const std::string& bytes, int32_t id) const;

  const CallMaskOptions options_;
  const int32_t open_id_;    // of the thoughts, or -1
  std::vector<Mark> marks_;  // the grammar's, if it has one, and the others
  // Without a mark: tokens that may complete the beginning of a call.
  std::vector<std::pair<int32_t, std::string>> starters_;
};

}  // namespace tokamak
