#pragma once
// The grammars of calls: tool_choice, and tools with `strict`.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/call_mask.h"
#include "serve/message_mask.h"
#include "serve/served_model.h"
#include "text/output/formats.h"

namespace tokamak::openai {

// The body with `tool_choice` as the rest reads it; nullopt: it is so already. "any" (Mistral) is
// "required", a function may be named without `function` (Responses), and of `allowed_tools` only
// these tools are left. Throws ApiError(400).
std::optional<Value> with_usual_tool_choice(const Value& body);

// The calls that tools allow.
struct CallGrammar {
  std::shared_ptr<const grammar::Grammar> grammar;  // nullptr: the answer is free
  // The answer is a call. Otherwise the grammar applies from where a call begins (strict tools with
  // tool_choice "auto").
  bool forced = false;
  CallBegin begin;                     // not forced: where that is
  const ToolFormat* format = nullptr;  // that the call is written in; nullptr: the template's
  std::vector<MessageForm> messages;   // in Harmony's format, instead of the grammar
  std::string warning = {};            // for the client
  bool constrains() const { return grammar != nullptr || !messages.empty(); }
};
// `calls`: the format of the template; nullptr: not known. Throws ApiError(400).
CallGrammar call_grammar(const Value& body, const ServedModel& model, const ToolFormat* calls);

// Harmony: headers of messages, and the token that ends the last one.
inline constexpr const char kThoughtsHeader[] = "<|channel|>analysis<|message|>",
                            kFinalHeader[] = "<|channel|>final<|message|>",
                            kFinalEnd[] = "<|return|>";

}  // namespace tokamak::openai
