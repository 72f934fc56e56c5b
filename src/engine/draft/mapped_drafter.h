#pragma once
// A drafter whose vocabulary is not that of the model it drafts for.
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/draft/drafter.h"

namespace tokamak {

// Tokens with the same text. Immutable.
struct VocabularyMap {
  std::vector<std::vector<int32_t>> to_draft;  // by token of the model: the text in draft tokens
  std::vector<int32_t> to_target;              // by draft token: the same text; -1: none
};

// Gives the inner drafter the tokens of its own vocabulary. A proposal ends at the first token that
// the model does not have. The inner drafter always takes its likeliest token: it could not share
// the noise of a request, which is keyed by token. Owner: as that of every drafter.
class MappedDrafter final : public Drafter {
 public:
  MappedDrafter(std::unique_ptr<Drafter> inner, VocabularyMap map);
  void propose(std::span<DraftRequest> requests) override;
  void finish(uint64_t sequence, std::string_view salt, std::span<const int32_t> ids,
              int32_t prompt_length) override;
  bool expensive() const override { return inner_->expensive(); }
  uint64_t memory_bytes() const override { return inner_->memory_bytes(); }

 private:
  struct Text {
    std::vector<int32_t> ids, mapped;  // committed tokens, and the same text in draft tokens
    std::vector<size_t> ends;          // in mapped, by token
  };
  void follow(Text& text, std::span<const int32_t> ids) const;

  std::unique_ptr<Drafter> inner_;
  const VocabularyMap map_;
  const std::shared_ptr<const SampleSpec> greedy_;
  std::unordered_map<uint64_t, Text> texts_;
  std::vector<DraftRequest> asked_;
};

}  // namespace tokamak
