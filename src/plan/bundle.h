#pragma once
// A compiled model in one file (model.tkm): plans, packed weights, tokenizer and the graph it came
// from. Opening maps it; nothing is compiled, packed or copied. docs/bundle.md has the layout.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/bundle_file.h"
#include "plan/model_source.h"

namespace tokamak {

// Sections of a bundle.
constexpr std::string_view kBundleMeta = "meta", kBundleGraph = "graph", kBundlePlans = "plans",
                           kBundleTokenizer = "tokenizer", kBundleIndex = "index",
                           kBundleWeights = "weights";

// The part of `meta` that says where the plans can run; the rest is for people and for recompiling.
struct BundleTarget {
  std::string backend, isa, packing;
};

// A mapped bundle. Immutable except for replace_plans(); readable by any thread.
class BundleModel final : public ModelSource, public WeightSource {
 public:
  // Throws Error(kCorrupt / kUnsupported) with one line that says what to do. Does not
  // check the weights; verify_weights() does.
  explicit BundleModel(std::shared_ptr<const BundleFile> file);

  // Plans of a version that this program cannot read are empty; `graph` can be compiled again.
  const PlanSet& plans() const override { return plans_; }
  bool plans_readable() const { return why_unreadable_.empty(); }
  const std::string& why_unreadable() const { return why_unreadable_; }
  const WeightSource& weights() const override { return *this; }
  const TokenizerSpec& tokenizer() const override { return tokenizer_; }
  const Value& metadata() const override { return meta_.at("metadata"); }
  const EmbeddingSpec& embedding() const override { return embedding_; }
  const Value& meta() const { return meta_; }
  const BundleTarget& target() const { return target_; }
  std::string_view graph() const { return file_->text(kBundleGraph); }
  const BundleFile& file() const { return *file_; }

  // Other plans for the same weights. Throws Error(kUnsupported) when one of them is missing or
  // was packed differently.
  void replace_plans(PlanSet plans);
  // The longest sequence; no longer than what was compiled for.
  int64_t compiled_context() const { return compiled_context_; }
  void lower_context(int64_t context) { plans_.context = std::min(context, compiled_context_); }

  // Compares the checksum of every weight, with as many threads as there are cores. Throws
  // Error(kCorrupt) naming the first that differs. Reads the file once.
  void verify_weights() const;

  const TensorView* find(std::string_view) const override { return nullptr; }
  std::vector<std::string> names() const override;
  const PackedWeight* packed(std::string_view name, std::string_view layout) const override;
  std::string_view packing() const override { return target_.packing; }

 private:
  struct Part {
    std::span<const std::byte> bytes;
    Checksum sum;
  };
  struct Entry {
    std::string identity;  // type and recipe, as text
    PackedWeight packed;
    std::vector<Part> parts;
  };
  void read_index();
  void check_weights(const PlanSet& plans) const;

  std::shared_ptr<const BundleFile> file_;
  Value meta_;
  BundleTarget target_;
  TokenizerSpec tokenizer_;
  EmbeddingSpec embedding_;
  PlanSet plans_;
  int64_t compiled_context_ = 0;
  std::string why_unreadable_;
  std::map<std::pair<std::string, std::string>, Entry, std::less<>> entries_;  // name and layout
};

// Writes a bundle: weights one after the other as they are packed, then everything else.
class BundleWriter {
 public:
  explicit BundleWriter(const std::filesystem::path& path);
  void add_weight(const WeightEntry& entry, const PackedWeight& packed);
  // `meta` needs backend, isa, packing and metadata.
  void finish(const Value& meta, std::string_view graph, const PlanSet& plans,
              const TokenizerSpec& tokenizer);
  uint64_t weight_bytes() const { return weight_bytes_; }

 private:
  BundleFileWriter file_;
  Value index_ = Value::array();
  uint64_t weight_bytes_ = 0;
};

}  // namespace tokamak
