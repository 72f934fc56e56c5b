#pragma once
// Fills a GgufFile in one pass over the header of a GGUF file. Lives for one call.
#include "compile/import/gguf_file.h"

namespace tokamak {

// Metadata value types, as numbered in the file.
enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
constexpr uint32_t kGgufTypeCount = 13;
const char* gguf_type_name(uint32_t type);
size_t gguf_type_bytes(uint32_t type);  // of one scalar; 0 for strings, arrays and unknown types

class GgufParser {
 public:
  // Adds the part to `file`: its metadata too if it is the first, otherwise only its tensors.
  // Returns {split.no,
  // split.count}; the count is 0 if the file is not split.
  struct Split {
    int64_t number = 0, count = 0;
  };
  static Split add_part(GgufFile& file, GgufFile::Part part, const std::string& name);

 private:
  GgufParser(GgufFile& file, std::span<const std::byte> bytes, const std::string& name)
      : file_(file), bytes_(bytes), name_(name) {}
  void header();
  void metadata(bool keep);
  void array_value(const std::string& key, bool keep);
  void skip_values(uint32_t type, uint64_t count, const std::string& key, int depth);
  Value scalar(uint32_t type, const std::string& key);
  void tensor_list();
  GgufTensor tensor_entry();
  void place_tensors(size_t first);
  void check_overlap(size_t first) const;

  uint64_t left() const { return bytes_.size() - at_; }
  void need(uint64_t n, std::string_view what) const;
  template <class T>
  T read(std::string_view what);
  uint64_t length(std::string_view what);  // u32 in version 1, u64 afterwards
  std::string_view string(std::string_view what);

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  const std::string& name_;
  uint64_t at_ = 0;
  uint32_t version_ = 0;
  uint64_t tensor_count_ = 0, meta_count_ = 0, alignment_ = 32;
  Split split_;
};

}  // namespace tokamak
