#pragma once
// GGUF files (versions 2 and 3, little endian), read through a memory mapping: metadata and
// tensors.
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

// A tensor as listed in the file, even if its type is unknown.
struct GgufTensor {
  std::string name;
  uint32_t type_id = 0;
  std::vector<int64_t> dims;         // outermost first, i.e. the reverse of the file's order
  uint64_t offset = 0;               // from the start of its part's data section
  size_t part = 0;                   // index of the split file that contains it
  const TensorView* view = nullptr;  // nullptr: the type id is unknown
};

// Owns the mapping(s); every view and string_view it returns lives as long as it does. Immutable
// after opening, so any thread may read. Opening takes one pass over the header; tensor data is not
// touched. A file is fully validated when opened: afterwards every view lies inside its mapping.
class GgufFile final : public WeightSource {
 public:
  // Opening the first part of a split file (-00001-of-0000N.gguf) opens all parts.
  static std::shared_ptr<const GgufFile> open(const std::filesystem::path& path);
  // The same for bytes in memory (tests, fuzzers); `bytes` must outlive the result. No split files.
  static std::shared_ptr<const GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  // Tensors. find fails (kUnsupported) if the tensor exists but has an unknown type.
  const TensorView* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  // Scalar metadata (bool, int, double or string); nullptr if absent or an array.
  const Value* meta(std::string_view key) const;
  bool has(std::string_view key) const;  // scalar or array
  // The scalars whose keys have this prefix, in key order.
  std::vector<std::pair<std::string_view, const Value*>> scalars_from(
      std::string_view prefix) const;
  // With a default for absent keys; a different type fails (kCorrupt), naming the key.
  std::string get_string(std::string_view key, std::string_view fallback) const;
  int64_t get_int(std::string_view key, int64_t fallback) const;
  double get_double(std::string_view key, double fallback) const;
  bool get_bool(std::string_view key, bool fallback) const;

  // Array metadata, directly from the mapping; empty if the key is absent, kCorrupt if it is not an
  // array of that
  // kind. ints accepts all integer types and bool; floats accepts f32 and f64.
  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<float> floats(std::string_view key) const;
  std::vector<int64_t> ints(std::string_view key) const;
  size_t array_size(std::string_view key) const;  // 0 if absent or scalar

  // Keys in file order, and an entry as it is stored after its key: type and value.
  const std::vector<std::string>& keys() const { return meta_order_; }
  std::span<const std::byte> raw(std::string_view key) const;

  // All scalars, and arrays as {"array": type name, "length": n}: for `inspect`.
  Value metadata() const;

  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  size_t part_count() const { return parts_.size(); }
  uint64_t data_bytes() const;                       // bytes of all tensors
  const std::string& name() const { return name_; }  // path or the name given to parse

 private:
  friend class GgufParser;
  struct ArrayMeta {
    uint32_t element_type = 0;
    uint64_t count = 0;
    std::span<const std::byte> bytes;
  };
  struct Part {
    std::shared_ptr<const MappedFile> file;  // empty if parsed from memory
    std::span<const std::byte> bytes;
  };
  const ArrayMeta* array(std::string_view key) const;

  GgufFile() = default;
  std::string name_;
  std::vector<Part> parts_;
  std::vector<std::string> meta_order_;
  std::map<std::string, std::span<const std::byte>, std::less<>> raw_;
  std::map<std::string, Value, std::less<>> scalars_;
  std::map<std::string, ArrayMeta, std::less<>> arrays_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
  std::vector<std::unique_ptr<TensorView>> views_;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
};

}  // namespace tokamak
