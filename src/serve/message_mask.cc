#include "serve/message_mask.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/jump_forward.h"

namespace tokamak {
namespace {

constexpr std::string_view kEndOfMessage = "<|end|>", kNextMessage = "<|start|>assistant";
// Control tokens that text does not have.
constexpr std::string_view kMarks[] = {"<|start|>",     "<|channel|>", "<|message|>",
                                       "<|constrain|>", "<|call|>",    "<|return|>"};

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool is_in(std::span<const uint32_t> mask, int32_t id) {
  return id >= 0 && static_cast<size_t>(id) / 32 < mask.size();
}

void forbid(std::span<uint32_t> mask, int32_t id) {
  if (is_in(mask, id)) grammar::clear_bit(mask, id);
}

void permit(std::span<uint32_t> mask, int32_t id) {
  if (is_in(mask, id)) grammar::set_bit(mask, id);
}

}  // namespace

MessageMask::MessageMask(MessageMaskOptions options) : options_(std::move(options)) {
  const Tokenizer& tokenizer = *options_.tokenizer;
  EncodeOptions encode;
  encode.add_special = false;
  again_ = tokenizer.encode(kNextMessage, encode);
  auto count = static_cast<int32_t>(tokenizer.vocab_size());
  text_.resize(static_cast<size_t>(count + 31) / 32);
  for (int32_t id = 0; id < count; ++id)
    if (!tokenizer.is_eog(id)) grammar::set_bit(text_, id);
  for (int32_t id : options_.end_ids) forbid(text_, id);
  for (std::string_view mark : kMarks) forbid(text_, tokenizer.find_piece(mark));
  end_of_message_ = tokenizer.find_piece(kEndOfMessage);
  for (const MessageForm& m : options_.messages) {
    Form form{.header = tokenizer.encode(m.header, encode), .end = {}, .last = !m.end.empty()};
    int32_t end = form.last ? tokenizer.find_piece(m.end) : -1;
    if (end >= 0)
      form.end = {end};
    else if (form.last)
      form.end = options_.end_ids;
    forms_.push_back(std::move(form));
  }
  choices_.resize(static_cast<size_t>(options_.choices));
}

// All headers of the first message, or of one after "<|end|>".
std::vector<int32_t> MessageMask::header_tokens(const Progress& p) const {
  std::span<const int32_t> written = std::span(p.ids).subspan(p.header);
  if (p.header > 0) {
    if (written.size() < again_.size()) return {again_[written.size()]};
    written = written.subspan(again_.size());
  }
  std::vector<int32_t> out;
  for (size_t i = 0; i < forms_.size(); ++i) {
    const std::vector<int32_t>& header = forms_[i].header;
    if (static_cast<int32_t>(i) != p.before && header.size() > written.size() &&
        std::equal(written.begin(), written.end(), header.begin()) &&
        !contains(out, header[written.size()]))
      out.push_back(header[written.size()]);
  }
  return out;
}

// A header is complete if the tokens since the last message are one; none begins another one, as
// all end with the same mark.
void MessageMask::read_header(Progress& p) const {
  size_t skip = p.header + (p.header > 0 ? again_.size() : 0);
  if (p.ids.size() <= skip) return;
  std::span<const int32_t> written = std::span(p.ids).subspan(skip);
  for (size_t i = 0; i < forms_.size(); ++i) {
    const std::vector<int32_t>& header = forms_[i].header;
    if (!std::equal(header.begin(), header.end(), written.begin(), written.end())) continue;
    p.form = static_cast<int32_t>(i);
    if (options_.messages[i].grammar) p.matcher.emplace(options_.messages[i].grammar);
  }
}

bool MessageMask::read(Progress& p, int32_t id) const {
  if (p.form < 0) {
    if (!contains(header_tokens(p), id)) return false;
    p.ids.push_back(id);
    read_header(p);
    return true;
  }
  const Form& form = forms_[static_cast<size_t>(p.form)];
  if (p.matcher) {
    if (!p.matcher->accept(id)) return false;
    p.ids.push_back(id);
    return true;
  }
  p.ids.push_back(id);
  if (form.last) return true;
  p.tail += options_.tokenizer->piece_bytes(id);
  if (p.tail.ends_with(kEndOfMessage)) {
    p.before = std::exchange(p.form, -1);
    p.header = p.ids.size();
    p.tail.clear();
  } else if (p.tail.size() >= kEndOfMessage.size()) {
    p.tail.erase(0, p.tail.size() - kEndOfMessage.size() + 1);
  }
  return true;
}

void MessageMask::fill(Progress& p, std::span<uint32_t> allowed) const {
  if (p.form < 0) {
    for (int32_t id : header_tokens(p)) permit(allowed, id);
    return;
  }
  const Form& form = forms_[static_cast<size_t>(p.form)];
  if (p.matcher)
    p.matcher->fill_mask(allowed);
  else
    std::copy_n(text_.begin(), std::min(text_.size(), allowed.size()), allowed.begin());
  // In a last message the end of a message would end nothing.
  if (form.last) forbid(allowed, end_of_message_);
  if (p.matcher && !p.matcher->accepting()) return;
  bool early = static_cast<int32_t>(p.ids.size()) < options_.min_tokens;
  if (early && std::any_of(allowed.begin(), allowed.end(), [](uint32_t w) { return w != 0; }))
    return;
  for (int32_t id : form.end) permit(allowed, id);
}

bool MessageMask::ends_answer(const Progress& p, int32_t id) const {
  return p.form >= 0 && contains(forms_[static_cast<size_t>(p.form)].end, id);
}

// Errors are reported by the next call of allow().
void MessageMask::force(int32_t choice, std::span<const int32_t> answer,
                        std::vector<int32_t>& forced) {
  try {
    Progress ahead = follow(choice, answer);
    while (ahead.form < 0) {
      std::vector<int32_t> next = header_tokens(ahead);
      if (next.size() != 1 || !read(ahead, next[0])) return;
      forced.push_back(next[0]);
    }
    if (!ahead.matcher) return;
    append_forced_tokens(*ahead.matcher, *options_.tokenizer, forced);
  } catch (const Error&) {
    forced.clear();
  }
}

}  // namespace tokamak
