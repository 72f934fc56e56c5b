#pragma once
// A model as the server offers it: apps/ builds it from a loaded model, tests from a fake
// engine.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/client.h"
#include "engine/model_facts.h"
#include "text/chat_template.h"
#include "text/embedding.h"
#include "text/grammar/grammar_cache.h"
#include "text/output/formats.h"
#include "text/tokenizer.h"

namespace tokamak {

struct ServedModel {
  std::shared_ptr<const void> owner;  // of what the engine stands on; null: outlives the server
  std::string name;
  std::vector<std::string> aliases;
  std::string parent;  // of an adapter: the model that it changes
  std::shared_ptr<Client> client;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: no chat route for it
  // For requests with tools if the model has a separate template for them; set by the API.
  std::shared_ptr<const ChatTemplate> tool_template;
  std::shared_ptr<grammar::GrammarCache> grammars;  // null: the API creates it
  int64_t max_model_len = 0;
  int64_t max_sequences = 1;                // that run at once
  int32_t draft_tokens = 0;                 // most drafted tokens per step; 0: no speculation
  int64_t dola_layers = 0;                  // layers that DoLa may choose from; 0: not available
  bool shares_embedding = false;            // the embeddings are also the output matrix
  bool jump_forward = false;                // for requests that do not say
  bool context_shift = false;               // `client` continues answers that outgrow the context
  int32_t shift_keep = 0;                   // RequestSpec::keep of requests that do not say
  int64_t created = 0;                      // unix seconds
  SampleSpec defaults;                      // defaults for fields missing in a request
  bool has_defaults = false;                // flags or the model's files set any of them
  const ToolFormat* tool_format = nullptr;  // nullptr: detected from the template
  // For chats that do not say: whether the model thinks, at most how many tokens (-1: any number),
  // and whether thoughts are told apart from the answer.
  std::optional<bool> thinks;
  int32_t thought_budget = -1;
  bool split_thoughts = true;
  // The report of `tokamak explain` for decode or step, with the server's options; empty: not
  // available.
  std::function<Value(const std::string& function)> plan;
  // Reads an adapter of the model; empty: adapters are not enabled. Throws Error.
  std::function<std::shared_ptr<const Adapter>(const std::string& name, const std::string& path)>
      open_adapter;
  std::vector<std::shared_ptr<const Adapter>> adapters;  // that the server starts with
  int64_t adapter_rank = 0;                              // the largest that one may have
  std::shared_ptr<const Adapter> adapter;                // of an adapter: itself
  EmbeddingSpec embedding;
  std::shared_ptr<const EmbeddingEncoder> embedder;  // null: the API creates it
  int64_t vector_width = 0;                          // numbers of an embedding
  ModelFacts facts;
  std::string fingerprint;  // of weights and numerics; "" = none known
};

}  // namespace tokamak
