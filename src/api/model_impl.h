#pragma once
// What a Model handle refers to.
#include "api/open.h"

namespace tokamak {

// Owner: the handles and streams of the model, together. Immutable; any thread.
class Model::Impl {
 public:
  explicit Impl(const OpenOptions& options);

  std::vector<int32_t> encode(const Prompt& prompt) const;
  struct Rendered {
    std::string text, guard;  // with the marks of guard_chat()
  };
  Rendered render(const Chat& chat, bool add_generation_prompt) const;
  AdapterHost& adapters() const;  // throws Error(kInvalidArgument): opened without them
  // The engine's request for a prompt. Throws Error for options out of range and prompts that are
  // empty or too long.
  RequestSpec request(std::vector<int32_t> ids, const GenerateOptions& options) const;

  LoadedModel loaded;
  ModelInfo info;
  GenerateOptions defaults;
};

}  // namespace tokamak
