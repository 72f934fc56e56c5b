#pragma once
// Vectors with a text each, in one file: int8 codes for the search, float32 vectors for the final
// order, a graph for large sets, the texts, and a description. The file is mapped, and checked when
// it is opened.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/value.h"
#include "text/index/hnsw.h"

namespace tokamak {

struct IndexEntry {
  std::vector<float> vector;  // of length 1
  std::string text;           // what is stored with it: any bytes
};

// Writes the index of entries that all have the same number of dimensions, replacing a file of that
// name. Throws Error(kInvalidArgument / kUnavailable).
void write_vector_index(const std::filesystem::path& path, const std::vector<IndexEntry>& entries,
                        const Value& meta);

// Owner: the caller. Immutable; any thread. Opening reads the file once.
class VectorIndex {
 public:
  // Throws Error(kNotFound / kCorrupt).
  static std::shared_ptr<const VectorIndex> open(const std::filesystem::path& path);

  int64_t size() const { return count_; }
  int64_t dimensions() const { return dimensions_; }
  const Value& meta() const { return meta_; }
  std::string_view text(int64_t i) const;
  std::span<const float> vector(int64_t i) const;

  struct Hit {
    int64_t index;
    float score;  // dot product: the cosine, as vectors have length 1
  };
  enum class Search { kAuto, kFlat, kGraph };
  // The k nearest entries, best first. kAuto: all codes are compared in small indexes, the graph is
  // walked in large ones.
  std::vector<Hit> search(std::span<const float> query, int64_t k,
                          Search how = Search::kAuto) const;

 private:
  VectorIndex() = default;
  std::vector<Scored> flat(std::span<const int8_t> query, int64_t width) const;
  float code_score(std::span<const int8_t> query, int64_t i) const;

  std::shared_ptr<const MappedFile> file_;
  int64_t count_ = 0, dimensions_ = 0, stride_ = 0;
  std::span<const float> scales_, floats_;
  std::span<const int8_t> codes_;  // [count, stride]
  HnswView graph_;
  std::span<const uint64_t> text_offsets_;
  std::string_view texts_;
  Value meta_;
};

}  // namespace tokamak
