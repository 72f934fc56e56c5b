#include "engine/draft/mapped_drafter.h"

#include <algorithm>

namespace tokamak {
namespace {

std::shared_ptr<const SampleSpec> likeliest() {
  SampleSpec spec;
  spec.temperature = 0;
  return std::make_shared<const SampleSpec>(std::move(spec));
}

}  // namespace

MappedDrafter::MappedDrafter(std::unique_ptr<Drafter> inner, VocabularyMap map)
    : inner_(std::move(inner)), map_(std::move(map)), greedy_(likeliest()) {}

void MappedDrafter::follow(Text& text, std::span<const int32_t> ids) const {
  auto known = std::min(text.ids.size(), ids.size());
  auto same = static_cast<size_t>(
      std::mismatch(text.ids.begin(), text.ids.begin() + static_cast<std::ptrdiff_t>(known),
                    ids.begin())
          .first -
      text.ids.begin());
  text.ids.resize(same);
  text.ends.resize(same);
  text.mapped.resize(same == 0 ? 0 : text.ends.back());
  for (int32_t id : ids.subspan(same)) {
    auto i = static_cast<size_t>(id);
    if (i < map_.to_draft.size())
      text.mapped.insert(text.mapped.end(), map_.to_draft[i].begin(), map_.to_draft[i].end());
    text.ids.push_back(id);
    text.ends.push_back(text.mapped.size());
  }
}

void MappedDrafter::propose(std::span<DraftRequest> requests) {
  asked_.clear();
  for (DraftRequest& r : requests) {
    Text& text = texts_[r.sequence];
    follow(text, r.ids);
    DraftRequest& own = asked_.emplace_back();
    own.sequence = r.sequence;
    own.ids = text.mapped;
    own.prompt_length =
        r.prompt_length > 0
            ? static_cast<int32_t>(text.ends[static_cast<size_t>(r.prompt_length) - 1])
            : 0;
    own.choice = r.choice;
    own.sample = &greedy_;
    own.salt = r.salt;
    own.most = text.mapped.empty() ? 0 : r.most;
  }
  inner_->propose(asked_);
  for (size_t i = 0; i < asked_.size(); ++i) {
    requests[i].strength = asked_[i].strength;
    requests[i].founded = asked_[i].founded;
    for (const DraftToken& token : asked_[i].tokens) {
      auto id = static_cast<size_t>(token.id);
      if (token.id < 0 || id >= map_.to_target.size() || map_.to_target[id] < 0) break;
      requests[i].tokens.push_back({map_.to_target[id], token.parent});
    }
  }
}

void MappedDrafter::finish(uint64_t sequence, std::string_view salt, std::span<const int32_t>,
                           int32_t) {
  auto it = texts_.find(sequence);
  if (it == texts_.end()) return;
  inner_->finish(sequence, salt, it->second.mapped, 0);
  texts_.erase(it);
}

}  // namespace tokamak
