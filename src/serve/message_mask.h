#pragma once
// The token mask of an answer in Harmony's format: messages with a header each, of which some have
// a grammar.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/grammar_mask.h"

namespace tokamak {

// A message that an answer may have.
struct MessageForm {
  std::string header;  // up to and including <|message|>
  // The text that follows it; nullptr: any text.
  std::shared_ptr<const grammar::Grammar> grammar = nullptr;
  // The token that ends both the message and the answer, such as "<|call|>". Empty: <|end|> ends
  // the message, and another one follows.
  std::string end = {};
};

struct MessageMaskOptions {
  std::vector<MessageForm> messages;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t>
      end_ids;  // end the answer; used where the vocabulary has no MessageForm::end
  int32_t choices = 1;
  int32_t min_tokens = 0;  // as of GrammarMaskOptions
};

struct MessageProgress {
  int32_t form = -1;      // whose text is being written; -1: a header is
  int32_t before = -1;    // the form of the message before; -1: there is none
  size_t header = 0;      // tokens of ids before the header
  std::string tail = {};  // bytes that may be the beginning of <|end|>
  std::vector<int32_t> ids = {};
  std::optional<grammar::Matcher> matcher = {};
};

// Owner: one request; one thread at a time. The prompt ends with "<|start|>assistant". Headers are
// written with the tokens that the tokenizer makes of them. No form follows itself, so that
// thoughts come to an end.
class MessageMask final : public AnswerMask<MessageProgress> {
 public:
  explicit MessageMask(MessageMaskOptions options);
  void force(int32_t choice, std::span<const int32_t> answer,
             std::vector<int32_t>& forced) override;

 private:
  using Progress = MessageProgress;
  struct Form {
    std::vector<int32_t> header, end;  // of tokens; end: any of them
    bool last = false;                 // its end ends the answer
  };
  Progress start() const override { return {}; }
  bool read(Progress& p, int32_t id) const override;
  void read_header(Progress& p) const;
  void fill(Progress& p, std::span<uint32_t> allowed) const override;
  std::vector<int32_t> header_tokens(const Progress& p) const;  // that may follow
  bool ends_answer(const Progress& p, int32_t id) const override;

  const MessageMaskOptions options_;
  std::vector<int32_t> again_;   // what follows <|end|>, before a header
  std::vector<uint32_t> text_;   // the tokens of free text
  std::vector<Form> forms_;      // parallel to the messages
  int32_t end_of_message_ = -1;  // the token <|end|>, if there is one
};

}  // namespace tokamak
