#include "compile/import/gguf_writer.h"

#include <cstring>

#include "base/error.h"
#include "base/new_file.h"
#include "compile/import/gguf_parser.h"

namespace tokamak {
namespace {

template <class T>
void put(std::string& out, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  out.append(raw, sizeof(T));
}

void put_string(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out += text;
}

size_t padding(size_t size, size_t alignment) { return (alignment - size % alignment) % alignment; }

}  // namespace

void GgufWriter::begin(std::string_view key, uint32_t type) {
  put_string(meta_, key);
  put<uint32_t>(meta_, type);
  ++meta_count_;
}

void GgufWriter::set_string(std::string_view key, std::string_view value) {
  begin(key, static_cast<uint32_t>(GgufType::kString));
  put_string(meta_, value);
}
void GgufWriter::set_u32(std::string_view key, uint32_t value) {
  begin(key, static_cast<uint32_t>(GgufType::kU32));
  put(meta_, value);
}
void GgufWriter::set_i32(std::string_view key, int32_t value) {
  begin(key, static_cast<uint32_t>(GgufType::kI32));
  put(meta_, value);
}
void GgufWriter::set_u64(std::string_view key, uint64_t value) {
  begin(key, static_cast<uint32_t>(GgufType::kU64));
  put(meta_, value);
}
void GgufWriter::set_f32(std::string_view key, float value) {
  begin(key, static_cast<uint32_t>(GgufType::kF32));
  put(meta_, value);
}
void GgufWriter::set_bool(std::string_view key, bool value) {
  begin(key, static_cast<uint32_t>(GgufType::kBool));
  put<uint8_t>(meta_, value);
}

void GgufWriter::set_strings(std::string_view key, std::span<const std::string> values) {
  begin(key, static_cast<uint32_t>(GgufType::kArray));
  put(meta_, static_cast<uint32_t>(GgufType::kString));
  put<uint64_t>(meta_, values.size());
  for (const std::string& v : values) put_string(meta_, v);
}
void GgufWriter::set_floats(std::string_view key, std::span<const float> values) {
  begin(key, static_cast<uint32_t>(GgufType::kArray));
  put(meta_, static_cast<uint32_t>(GgufType::kF32));
  put<uint64_t>(meta_, values.size());
  for (float v : values) put(meta_, v);
}
void GgufWriter::set_i32s(std::string_view key, std::span<const int32_t> values) {
  begin(key, static_cast<uint32_t>(GgufType::kArray));
  put(meta_, static_cast<uint32_t>(GgufType::kI32));
  put<uint64_t>(meta_, values.size());
  for (int32_t v : values) put(meta_, v);
}
void GgufWriter::set_bools(std::string_view key, const std::vector<bool>& values) {
  begin(key, static_cast<uint32_t>(GgufType::kArray));
  put(meta_, static_cast<uint32_t>(GgufType::kBool));
  put<uint64_t>(meta_, values.size());
  for (bool v : values) put<uint8_t>(meta_, v);
}

void GgufWriter::set_raw(std::string_view key, std::span<const std::byte> entry) {
  put_string(meta_, key);
  meta_.append(reinterpret_cast<const char*>(entry.data()), entry.size());
  ++meta_count_;
}

void GgufWriter::set_alignment(uint32_t alignment) {
  alignment_ = alignment;
  set_u32("general.alignment", alignment);
}

void GgufWriter::add_tensor(std::string name, DType dtype, std::vector<int64_t> dims,
                            Produce produce) {
  TK_CHECK(dtype_info(dtype).gguf_id >= 0, "{} has no GGUF type", dtype_name(dtype));
  TK_CHECK(dims.size() <= 4 && !dims.empty(), "tensor {}", name);
  size_t bytes = dtype_bytes(dtype, dims.back());
  for (size_t i = 0; i + 1 < dims.size(); ++i) bytes *= static_cast<size_t>(dims[i]);
  tensors_.push_back({std::move(name), dtype, std::move(dims), bytes, std::move(produce)});
}
void GgufWriter::add_tensor(std::string name, DType dtype, std::vector<int64_t> dims,
                            std::vector<std::byte> bytes) {
  add_tensor(std::move(name), dtype, std::move(dims), [bytes = std::move(bytes)] { return bytes; });
}
void GgufWriter::add_f32(std::string name, std::vector<int64_t> dims,
                         std::span<const float> values) {
  std::vector<std::byte> bytes(values.size_bytes());
  std::memcpy(bytes.data(), values.data(), bytes.size());
  add_tensor(std::move(name), DType::kF32, std::move(dims), std::move(bytes));
}

std::string GgufWriter::header() const {
  std::string out = "GGUF";
  put<uint32_t>(out, 3);
  put<uint64_t>(out, tensors_.size());
  put<uint64_t>(out, meta_count_);
  out += meta_;
  uint64_t offset = 0;
  for (const Tensor& t : tensors_) {
    put_string(out, t.name);
    put<uint32_t>(out, static_cast<uint32_t>(t.dims.size()));
    for (size_t i = t.dims.size(); i-- > 0;) put<uint64_t>(out, static_cast<uint64_t>(t.dims[i]));
    put<uint32_t>(out, static_cast<uint32_t>(dtype_info(t.dtype).gguf_id));
    put<uint64_t>(out, offset);
    offset += t.bytes + padding(t.bytes, alignment_);
  }
  out.append(padding(out.size(), alignment_), '\0');
  return out;
}

void GgufWriter::emit(const Sink& sink) const {
  std::string head = header();
  sink(std::as_bytes(std::span(head)));
  std::vector<std::byte> zeros(alignment_);
  for (const Tensor& t : tensors_) {
    std::vector<std::byte> bytes = t.produce();
    TK_CHECK(bytes.size() == t.bytes, "tensor {} has {} bytes, its shape needs {}", t.name,
             bytes.size(), t.bytes);
    sink(bytes);
    sink(std::span(zeros).first(padding(t.bytes, alignment_)));
  }
}

std::vector<std::byte> GgufWriter::to_bytes() const {
  std::vector<std::byte> out;
  emit(
      [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
  return out;
}

void GgufWriter::write(const std::filesystem::path& path,
                       const std::function<void(const std::filesystem::path&)>& check) const {
  NewFile file(path);
  emit([&](std::span<const std::byte> bytes) { file.write(bytes); });
  if (check) check(file.readable_path());
  file.commit();
}

}  // namespace tokamak
