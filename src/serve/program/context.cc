#include "serve/program/context.h"

#include "base/error.h"
#include "text/chat_guard.h"

namespace tokamak::program {

// Control tokens come from the chat template only.
std::vector<int32_t> Context::encode(std::string_view text, bool first) const {
  return tokenizer_->encode(text, {.add_special = first, .parse_special = false});
}

void Context::follow(const Context& other) {
  bool new_answer = template_ != nullptr && messages_ != other.messages_;
  if (new_answer || !std::string_view(other.text_).starts_with(text_)) {
    messages_ = other.messages_;
    ids_.clear();
    pending_.clear();
    text_.clear();
  }
  if (template_ != nullptr && ids_.empty()) begin_answer();
  add_text(std::string_view(other.text_).substr(text_.size()));
}

void Context::add_text(std::string_view text) {
  pending_ += text;
  text_ += text;
}

const std::vector<int32_t>& Context::ids() {
  if (!pending_.empty() || ids_.empty()) {
    std::vector<int32_t> more = encode(pending_, ids_.empty());
    ids_.insert(ids_.end(), more.begin(), more.end());
    pending_.clear();
  }
  if (ids_.empty()) fail(ErrorCode::kInvalidArgument, "no text precedes it");
  return ids_;
}

Detokenizer Context::continuation() const {
  return Detokenizer(*tokenizer_, {.skip_special = true, .continues = !text_.empty()});
}

void Context::add_ids(const std::vector<int32_t>& ids, const std::string& text, bool cut) {
  size_t keep = ids.size(), covered = text.size();
  for (; cut && keep > 0; --keep) {  // the ids that are before the stop string
    Detokenizer decoder = continuation();
    std::string head;
    for (size_t i = 0; i < keep; ++i) head += decoder.push(ids[i]);
    head += decoder.finish();
    covered = head.size();
    if (text.starts_with(head)) break;
  }
  if (keep == 0) covered = 0;
  ids_.insert(ids_.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(keep));
  pending_ += std::string_view(text).substr(covered);
  text_ += text;
}

void Context::add_message(std::string_view role, std::string content) {
  if (template_ == nullptr)
    fail(ErrorCode::kUnsupported, "the model has no chat template: use 'text' and no messages");
  messages_.push(Value::Object{{"role", role}, {"content", std::move(content)}});
}

void Context::begin_answer() {
  if (template_ == nullptr)
    fail(ErrorCode::kUnsupported, "the model has no chat template: use 'text' and no messages");
  const Tokenizer& t = *tokenizer_;
  Value context = Value::object();
  context.set("messages", messages_);
  context.set("add_generation_prompt", true);
  context.set("bos_token", t.bos_id() >= 0 ? std::string(t.piece(t.bos_id())) : std::string());
  context.set("eos_token", t.eos_id() >= 0 ? std::string(t.piece(t.eos_id())) : std::string());
  std::string guard = guard_chat(context, t);
  ids_ = encode_chat(t, template_->render(context), guard);
  pending_.clear();
  text_.clear();
}

void Context::end_answer() {
  messages_.push(Value::Object{{"role", "assistant"}, {"content", text_}});
}

}  // namespace tokamak::program
