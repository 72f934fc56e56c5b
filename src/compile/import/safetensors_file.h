#pragma once
// Safetensors files, single and sharded, read through memory mappings.
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/value.h"
#include "plan/weight_source.h"

namespace tokamak {

// Owns the mapping; views live as long as it does. Immutable after opening, any thread may read.
// Opening parses and fully validates the header: afterwards every view lies inside the mapping.
// Tensors may be unaligned for their type: copy elements, do not dereference pointers to them.
class SafetensorsFile final : public WeightSource {
 public:
  static std::shared_ptr<const SafetensorsFile> open(const std::filesystem::path& path);
  // The same for bytes in memory (tests, fuzzers); `bytes` must outlive the result.
  static std::shared_ptr<const SafetensorsFile> parse(std::span<const std::byte> bytes,
                                                      std::string name);

  // find fails (kUnsupported) if the tensor exists but has an unknown type.
  const TensorView* find(std::string_view name) const override;
  std::vector<std::string> names() const override { return order_; }
  bool has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  const Value& metadata() const { return metadata_; }  // "__metadata__": strings
  const std::string& name() const { return name_; }

 private:
  struct Entry {
    TensorView view;
    std::string unknown_type;  // not empty: an unknown type
  };
  struct Range {
    uint64_t begin, end;
    std::string_view tensor;
  };
  SafetensorsFile() = default;
  void read_header(std::span<const std::byte> bytes);
  Range add_entry(const std::string& name, const Value& entry, std::span<const std::byte> data);
  void check_layout(std::vector<Range> ranges, uint64_t size) const;

  std::string name_;
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> order_;
  Value metadata_ = Value::object();
};

// The tensors of a folder: model.safetensors, the shards listed in model.safetensors.index.json, or
// the only .safetensors file. Tensors of other folders in it are named "2_Dense/linear.weight".
class SafetensorsFolder final : public WeightSource {
 public:
  static std::shared_ptr<const SafetensorsFolder> open(const std::filesystem::path& folder,
                                                       const std::vector<std::string>& inner = {});
  const TensorView* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  size_t file_count() const { return files_.size(); }

 private:
  void open_files(const std::filesystem::path& folder);
  void open_shards(const std::filesystem::path& index);
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, size_t, std::less<>> shard_of_;  // empty: one file
  std::vector<std::pair<std::string, std::shared_ptr<const SafetensorsFile>>> inner_;
};

}  // namespace tokamak
