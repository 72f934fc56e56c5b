#pragma once
// Patterns of a corpus: a file with the tokens of many texts and their suffix array. Proposes what
// most often followed the last tokens there.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "engine/draft/drafter.h"

namespace tokamak {

// The file, mapped. Immutable; any thread.
//   "TKDRAFT1", u64 tokens, u64 vocabulary, u64 fingerprint of the tokenizer,
//   i32 ids[tokens] (-1 between texts), u32 starts[tokens], sorted by the texts that begin there
class PatternFile {
 public:
  static constexpr int32_t kSortedDepth = 32;  // starts are sorted by this many tokens

  // Throws Error(kCorrupt) for a file that is damaged or not of this kind.
  static std::shared_ptr<const PatternFile> open(const std::filesystem::path& path);
  // `ids` has -1 after every text.
  static void write(const std::filesystem::path& path, std::span<const int32_t> ids, uint64_t vocab,
                    uint64_t fingerprint);

  uint64_t fingerprint() const { return fingerprint_; }

  // Starts [first, end) of the sorted list whose next tokens are `prefix`.
  struct Range {
    size_t first = 0, end = 0;
    size_t size() const { return end - first; }
  };
  Range find(std::span<const int32_t> prefix) const;
  // The part of the range whose token at `depth` is the most frequent one, and that token; -1:
  // none.
  std::pair<int32_t, Range> likeliest(Range range, int32_t depth) const;

 private:
  int32_t at(size_t start, int32_t depth) const;
  std::shared_ptr<const MappedFile> file_;
  std::span<const int32_t> ids_;
  std::span<const uint32_t> starts_;
  uint64_t fingerprint_ = 0;
};

struct PatternOptions {
  int32_t longest = 16, shortest = 2;  // tokens that must occur in the corpus
  double min_share = 0.2;              // a proposal ends when its estimated probability is less
};

// A repetition in the sequence itself (`own`) takes precedence.
class PatternDrafter final : public Drafter {
 public:
  PatternDrafter(std::shared_ptr<const PatternFile> file, const PatternOptions& options,
                 std::unique_ptr<Drafter> own)
      : file_(std::move(file)), options_(options), own_(std::move(own)) {}
  void propose(std::span<DraftRequest> requests) override;
  void finish(uint64_t sequence, std::string_view salt, std::span<const int32_t> ids,
              int32_t prompt_length) override {
    own_->finish(sequence, salt, ids, prompt_length);
  }
  int32_t strengths() const override { return kMostDraftStrengths; }

 private:
  std::shared_ptr<const PatternFile> file_;
  PatternOptions options_;
  std::unique_ptr<Drafter> own_;
};

}  // namespace tokamak
