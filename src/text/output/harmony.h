#pragma once
// OpenAI's Harmony format: an answer is a series of messages, each with a channel and perhaps a
// recipient:
// <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
#include "text/output/parser.h"
#include "text/output/tool_calls.h"

namespace tokamak {

class HarmonyParser final : public OutputParser {
 public:
  // tools: calls are expected; otherwise their text is part of the answer.
  HarmonyParser(bool tools, uint64_t seed) : tools_(tools), list_(CallIds::kOwn, seed) {}
  Result push(std::string_view text) override;
  Result finish() override;
  bool thinking() const override { return where_ == Where::kThoughts; }
  bool any_calls() const override { return list_.count() > 0; }

 private:
  enum class Where { kHeader, kThoughts, kText, kCall };

  bool step(Result& result);
  bool read_header(Result& result);
  void begin(std::string_view header, Result& result);
  void send(Result& result, std::string_view body);
  void end_message();

  const bool tools_;
  CallList list_;
  Where where_ = Where::kHeader;
  bool argued_ = false;                  // the call has arguments
  bool said_ = false, thought_ = false;  // the answer has text, thoughts
  std::string held_;
};

}  // namespace tokamak
