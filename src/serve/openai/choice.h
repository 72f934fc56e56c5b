#pragma once
// Turns one choice of an answer from token ids into text: detokenising, stop strings,
// log-probabilities.
#include <deque>
#include <string>
#include <vector>

#include "engine/client.h"
#include "serve/openai/prepare.h"
#include "serve/openai/shape.h"
#include "text/detokenizer.h"
#include "text/output/parser.h"
#include "text/stop_strings.h"

namespace tokamak::openai {

// Owner: one generation, one thread at a time.
class Choice {
 public:
  Choice(int index, const Prepared& request, const Prompt& prompt);

  // Takes a delta from the engine and returns what may be sent to the client. When a stop string
  // ends the choice,
  // stopped_at() is the answer position it ends before. Ignored once done. scores:
  // log-probabilities of the prompt's tokens 1.., for echo; may be empty.
  Piece push(const Delta& delta, const PromptScores& scores);

  bool done() const { return done_; }
  int32_t stopped_at() const { return stopped_at_; }  // -1: not stopped by a stop string
  int64_t tokens() const { return tokens_; }          // sent tokens, as counted in usage
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  // Log-probability per token, if the engine reports it.
  double score() const { return tokens_ > 0 ? logprob_ / static_cast<double>(tokens_) : 0; }

 private:
  void echo_prompt(const PromptScores& scores, Piece& piece);
  void push_token(const Delta& delta, size_t i, Piece& piece);
  void release(Piece& piece, bool all);
  void add(OutputParser::Result&& part, Piece& piece);
  void finish(const char* reason, Piece& piece);
  void limit_lines(std::string& text);

  struct Waiting {  // a scored token whose text may still become part of a stop string
    ScoredToken token;
    size_t begin, end;  // bytes of raw text
  };

  const int index_;
  const GenerationParams& params_;
  const Prompt& prompt_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> kept_;  // control tokens that the parser reads
  Detokenizer detokenizer_;
  StopStrings stops_;
  std::unique_ptr<OutputParser> parser_;
  const bool include_reasoning_;
  std::deque<Waiting> waiting_;
  size_t raw_bytes_ = 0, sent_bytes_ = 0, characters_ = 0;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
  double logprob_ = 0;
  int32_t stopped_at_ = -1;
  bool first_ = true, done_ = false;
  bool cut_ = false;        // by a limit of lines
  bool in_indent_ = false;  // the text ends within the spaces at the beginning of a line
  int32_t indent_ = 0;      // number of these spaces
  Nanos first_token_ = 0;   // when it came
};

}  // namespace tokamak::openai
