#pragma once
// Writes GGUF version 3 files.
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace tokamak {

// Collects metadata and tensor entries, then writes once. Tensor bytes are requested one tensor at
// a time while writing, so the whole model is never in memory. One thread.
class GgufWriter {
 public:
  using Produce = std::function<std::vector<std::byte>()>;

  void set_string(std::string_view key, std::string_view value);
  void set_u32(std::string_view key, uint32_t value);
  void set_i32(std::string_view key, int32_t value);
  void set_u64(std::string_view key, uint64_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_strings(std::string_view key, std::span<const std::string> values);
  void set_floats(std::string_view key, std::span<const float> values);
  void set_i32s(std::string_view key, std::span<const int32_t> values);
  void set_bools(std::string_view key, const std::vector<bool>& values);
  void set_raw(std::string_view key, std::span<const std::byte> entry);  // as GgufFile::raw
  void set_alignment(uint32_t alignment);                                // 32 unless set

  // dims outermost first. `produce` must return exactly the bytes of that type and shape.
  void add_tensor(std::string name, DType dtype, std::vector<int64_t> dims, Produce produce);
  void add_tensor(std::string name, DType dtype, std::vector<int64_t> dims,
                  std::vector<std::byte> bytes);
  void add_f32(std::string name, std::vector<int64_t> dims, std::span<const float> values);

  // Through a NewFile; `check` is given a path of the whole file before it takes its name.
  void write(const std::filesystem::path& path,
             const std::function<void(const std::filesystem::path&)>& check = {}) const;
  std::vector<std::byte> to_bytes() const;

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> dims;
    size_t bytes;
    Produce produce;
  };
  using Sink = std::function<void(std::span<const std::byte>)>;
  void begin(std::string_view key, uint32_t type);
  void emit(const Sink& sink) const;
  std::string header() const;

  std::string meta_;  // encoded entries
  uint64_t meta_count_ = 0;
  uint32_t alignment_ = 32;
  std::vector<Tensor> tensors_;
};

}  // namespace tokamak
