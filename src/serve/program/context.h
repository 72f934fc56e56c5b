#pragma once
// What a branch of a program has written so far: token ids, which never change once they have been
// sent to the engine, so that everything that follows shares their KV blocks.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tokamak::program {

// Owner: one branch; copied when it forks.
class Context {
 public:
  explicit Context(std::shared_ptr<const Tokenizer> tokenizer,
                   std::shared_ptr<const ChatTemplate> chat_template = nullptr)
      : tokenizer_(std::move(tokenizer)), template_(std::move(chat_template)) {}

  // The same text or messages for another model. Before its ids are used: follow(), which adds what
  // has been written since.
  void follow(const Context& other);

  void add_text(std::string_view text);
  // The ids so far. Texts since the last call are tokenised together; a later text does not change
  // these ids. Throws Error(kInvalidArgument) if there are none.
  const std::vector<int32_t>& ids();
  // Ids with their text. cut: a stop string ended it, and `text` is shorter than that of the ids.
  void add_ids(const std::vector<int32_t>& ids, const std::string& text, bool cut = false);

  // For the text of ids that follow ids(). Some tokenizers drop a space at the start of a text;
  // here it is kept unless an answer begins.
  Detokenizer continuation() const;

  // Messages. Throw Error(kUnsupported) if the model has no chat template, and
  // Error(kInvalidArgument) if it refuses the messages.
  void add_message(std::string_view role, std::string content);
  void begin_answer();
  void end_answer();

  const std::string& text() const { return text_; }  // of the answer, or of everything
  const Value& messages() const { return messages_; }
  std::vector<int32_t> encode(std::string_view text, bool first = false) const;
  size_t bytes() const { return text_.size() + pending_.size() + ids_.size() * 4; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  std::vector<int32_t> ids_;
  std::string pending_;  // not tokenised yet
  std::string text_;
  Value messages_ = Value::array();
};

}  // namespace tokamak::program
