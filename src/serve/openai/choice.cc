#include "serve/openai/choice.h"

#include <algorithm>

namespace tokamak::openai {
namespace {

std::vector<int32_t> kept_tokens(const Prepared& request) {
  std::vector<int32_t> ids;
  const Tokenizer& tokenizer = *request.model->tokenizer;
  for (std::string_view mark : output_marks(request.output))
    if (int32_t id = tokenizer.find_piece(mark); id >= 0 && tokenizer.is_special(id))
      ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

Choice::Choice(int index, const Prepared& request, const Prompt& prompt)
    : index_(index),
      params_(request.params),
      prompt_(prompt),
      tokenizer_(*request.model->tokenizer),
      kept_(kept_tokens(request)),
      detokenizer_(*request.model->tokenizer, {.skip_special = request.params.skip_special,
                                               .keep = kept_,
                                               .continues = prompt.continues}),
      stops_(request.params.stops, request.params.include_stop),
      parser_(make_output_parser(request.output, fresh_number())),
      include_reasoning_(request.include_reasoning) {}

void Choice::echo_prompt(const PromptScores& scores, Piece& piece) {
  piece.text = prompt_.text;
  if (params_.logprobs >= 0) {
    Detokenizer spelled(tokenizer_, {.skip_special = true});
    size_t offset = 0;
    for (size_t i = 0; i < prompt_.ids.size(); ++i) {
      ScoredToken token;
      token.id = prompt_.ids[i];
      token.text_offset = offset;
      if (i > 0 && i - 1 < scores.logprobs.size()) token.logprob = scores.logprobs[i - 1];
      if (i > 0 && i - 1 < scores.top.size()) token.top = scores.top[i - 1];
      offset += count_characters(spelled.push(token.id));
      piece.scored.push_back(std::move(token));
    }
  }
  characters_ = count_characters(prompt_.text);
}

// Log-probabilities are sent together with the text of their tokens.
void Choice::release(Piece& piece, bool all) {
  while (!waiting_.empty() && (all || waiting_.front().end <= sent_bytes_)) {
    bool cut = waiting_.front().begin >= sent_bytes_ && (stops_.stopped() || cut_);
    if (!cut) piece.scored.push_back(std::move(waiting_.front().token));
    waiting_.pop_front();
  }
}

void Choice::push_token(const Delta& delta, size_t i, Piece& piece) {
  std::string text = detokenizer_.push(delta.ids[i]);
  ++tokens_;
  if (i < delta.logprobs.size()) logprob_ += static_cast<double>(delta.logprobs[i]);
  piece.ids.push_back(delta.ids[i]);
  if (params_.logprobs >= 0) {
    ScoredToken token;
    token.id = delta.ids[i];
    token.logprob = i < delta.logprobs.size() ? delta.logprobs[i] : 0.0f;
    if (i < delta.top.size()) token.top = delta.top[i];
    token.text_offset = characters_;
    waiting_.push_back({std::move(token), raw_bytes_, raw_bytes_ + text.size()});
  }
  raw_bytes_ += text.size();
  characters_ += count_characters(text);
  std::string sendable;
  if (tokens_ <= params_.sample.min_tokens) {
    sendable = std::move(text);  // too early for a stop string
  } else {
    sendable = stops_.push(text).text;
  }
  limit_lines(sendable);
  sent_bytes_ += sendable.size();
  bool thinking = parser_->thinking();
  add(parser_->push(sendable), piece);
  reasoning_tokens_ += thinking || parser_->thinking();
  release(piece, false);
}

// As in llama.cpp: the answer ends before the first line, after a line end, that is indented too
// little, and with the first line end after the time.
void Choice::limit_lines(std::string& text) {
  const LineLimits& limits = params_.line_limits;
  if (limits.indent == 0 && limits.time_ms == 0) return;
  if (first_token_ == 0) first_token_ = SteadyClock().now();
  bool new_line = false;
  for (size_t i = 0; i < text.size() && !cut_; ++i) {
    const bool space = text[i] == ' ' || text[i] == '\t';
    if (in_indent_ && !space && indent_ < limits.indent) {
      text.resize(i);
      cut_ = true;
    } else if (text[i] == '\n') {
      new_line = in_indent_ = true;
      indent_ = 0;
    } else if (in_indent_) {
      in_indent_ = space;
      indent_ += space;
    }
  }
  const Nanos spent = SteadyClock().now() - first_token_;
  cut_ = cut_ || (new_line && limits.time_ms > 0 && spent > limits.time_ms * kMillisecond);
}

void Choice::add(OutputParser::Result&& part, Piece& piece) {
  if (include_reasoning_) piece.reasoning += part.thoughts;
  piece.text += part.text;
  append_calls(piece.calls, std::move(part.calls));
}

void Choice::finish(const char* reason, Piece& piece) {
  std::string last;
  if (!stops_.stopped() && !cut_) {
    last = stops_.push(detokenizer_.finish()).text;
    if (!stops_.stopped()) last += stops_.finish();
  }
  sent_bytes_ += last.size();
  add(parser_->push(last), piece);
  add(parser_->finish(), piece);
  release(piece, true);
  if (stops_.stopped()) {
    reason = "stop";
    piece.stop_reason = stops_.matched();
  }
  piece.finish = parser_->any_calls() && reason == std::string_view("stop") ? "tool_calls" : reason;
  done_ = true;
}

Piece Choice::push(const Delta& delta, const PromptScores& scores) {
  Piece piece;
  piece.index = index_;
  if (done_) return piece;
  if (first_) {
    first_ = false;
    if (params_.echo) echo_prompt(scores, piece);
    if (params_.return_token_ids) piece.prompt_ids = &prompt_.ids;
  }
  for (size_t i = 0; i < delta.ids.size(); ++i) {
    push_token(delta, i, piece);
    if (!stops_.stopped() && !cut_) continue;
    stopped_at_ = delta.position + static_cast<int32_t>(i) + 1;
    finish(cut_ ? "length" : "stop", piece);
    return piece;
  }
  if (delta.finish == Finish::kStop) {
    if (std::binary_search(params_.own_stop_ids.begin(), params_.own_stop_ids.end(), delta.stop_id))
      piece.stop_reason = delta.stop_id;
    finish("stop", piece);
  }
  if (delta.finish == Finish::kLength) finish("length", piece);
  return piece;
}

}  // namespace tokamak::openai
