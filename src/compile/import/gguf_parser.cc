#include "compile/import/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "base/error.h"

namespace tokamak {
namespace {

constexpr uint32_t kMaxDims = 4;

struct TypeInfo {
  const char* name;
  size_t bytes;
};
constexpr TypeInfo kTypes[kGgufTypeCount] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}};

// What a file that people try is instead, and what would help.
struct Signature {
  std::string_view bytes;
  std::string_view means;
};
constexpr Signature kSignatures[] = {
    {"lmgg", "a GGML file of before 2023: get the model as GGUF"},
    {"fmgg", "a GGML file of before 2023: get the model as GGUF"},
    {"tjgg", "a GGML file of before 2023: get the model as GGUF"},
    {"PK\x03\x04",
     "a PyTorch checkpoint or another zip file: save the model with save_pretrained() as "
     "safetensors and name the folder"},
    {"\x80\x02",
     "a Python pickle: save the model with save_pretrained() as safetensors and name the "
     "folder"},
    {"\x89HDF", "an HDF5 file (Keras): save the model as safetensors and name the folder"},
    {"\x08\x07\x12", "an ONNX model: use the safetensors it was exported from"},
    {"\x08\x08\x12", "an ONNX model: use the safetensors it was exported from"},
    {"\x1f\x8b", "a gzip archive: unpack it first"},
    {"version https://git-lfs", "a pointer of Git LFS, not the model: run git lfs pull"},
    {"<!DOCTYPE", "a web page, not a model: download the file itself"},
    {"<html", "a web page, not a model: download the file itself"},
};

std::string other_format(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Signature& s : kSignatures)
    if (text.starts_with(s.bytes)) return fmt::format("; it is {}", s.means);
  return "";
}

}  // namespace

const char* gguf_type_name(uint32_t type) {
  return type < kGgufTypeCount ? kTypes[type].name : "?";
}
size_t gguf_type_bytes(uint32_t type) { return type < kGgufTypeCount ? kTypes[type].bytes : 0; }

void GgufParser::need(uint64_t n, std::string_view what) const {
  if (n > left())
    fail(ErrorCode::kCorrupt, "{}: truncated at byte {}: {} needs {} bytes, {} are left", name_,
         bytes_.size(), what, n, left());
}

template <class T>
T GgufParser::read(std::string_view what) {
  need(sizeof(T), what);
  T value;
  std::memcpy(&value, bytes_.data() + at_, sizeof(T));
  at_ += sizeof(T);
  return value;
}

uint64_t GgufParser::length(std::string_view what) {
  return version_ == 1 ? read<uint32_t>(what) : read<uint64_t>(what);
}

std::string_view GgufParser::string(std::string_view what) {
  uint64_t size = length(what);
  need(size, what);
  std::string_view text(reinterpret_cast<const char*>(bytes_.data() + at_), size);
  at_ += size;
  return text;
}

GgufParser::Split GgufParser::add_part(GgufFile& file, GgufFile::Part part,
                                       const std::string& name) {
  GgufParser parser(file, part.bytes, name);
  bool first_part = file.parts_.empty();
  size_t first_tensor = file.tensors_.size();
  file.parts_.push_back(std::move(part));
  parser.header();
  parser.metadata(first_part);
  if (first_part) {
    file.version_ = parser.version_;
    file.alignment_ = parser.alignment_;
  }
  parser.tensor_list();
  parser.place_tensors(first_tensor);
  parser.check_overlap(first_tensor);
  return parser.split_;
}

void GgufParser::header() {
  if (left() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0)
    fail(ErrorCode::kCorrupt, "{}: not a GGUF file (it does not start with \"GGUF\"){}", name_,
         other_format(bytes_));
  at_ = 4;
  version_ = read<uint32_t>("the version");
  if (version_ == 0x01000000 || version_ == 0x02000000 || version_ == 0x03000000)
    fail(ErrorCode::kUnsupported, "{}: a big-endian GGUF file; convert it to little endian first",
         name_);
  if (version_ < 1 || version_ > 3)
    fail(ErrorCode::kUnsupported, "{}: GGUF version {}; this build reads versions 1 to 3", name_,
         version_);
  tensor_count_ = length("the number of tensors");
  meta_count_ = length("the number of metadata entries");
  // The smallest possible entries; a larger count is invalid and is rejected before anything is
  // read.
  if (meta_count_ > left() / 9 || tensor_count_ > left() / 20)
    fail(ErrorCode::kCorrupt,
         "{}: the header claims {} metadata entries and {} tensors, the file has {} bytes", name_,
         meta_count_, tensor_count_, bytes_.size());
}

void GgufParser::metadata(bool keep) {
  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < meta_count_; ++i) {
    std::string_view view = string("a metadata key");
    if (!seen.insert(view).second)
      fail(ErrorCode::kCorrupt, "{}: metadata key {} appears twice", name_, view);
    std::string key(view);
    uint64_t start = at_;
    auto type = read<uint32_t>(key);
    if (type == static_cast<uint32_t>(GgufType::kArray)) {
      array_value(key, keep);
      if (keep) file_.raw_[key] = bytes_.subspan(start, at_ - start);
      continue;
    }
    Value value = scalar(type, key);
    if (keep) file_.raw_[key] = bytes_.subspan(start, at_ - start);
    if (key == "general.alignment") {
      if (!value.is_int() || value.as_int() < 8 || value.as_int() > 1 << 20 ||
          !std::has_single_bit(static_cast<uint64_t>(value.as_int())))
        fail(ErrorCode::kCorrupt, "{}: general.alignment is not a power of two from 8 to 1048576",
             name_);
      alignment_ = static_cast<uint64_t>(value.as_int());
    }
    if ((key == "split.no" || key == "split.count") && value.is_int())
      (key == "split.no" ? split_.number : split_.count) = value.as_int();
    if (!keep) continue;
    file_.meta_order_.push_back(key);
    file_.scalars_.emplace(std::move(key), std::move(value));
  }
}

void GgufParser::array_value(const std::string& key, bool keep) {
  auto type = read<uint32_t>(key);
  uint64_t count = length(key);
  uint64_t start = at_;
  skip_values(type, count, key, 0);
  if (!keep) return;
  file_.meta_order_.push_back(key);
  file_.arrays_.emplace(key, GgufFile::ArrayMeta{type, count, bytes_.subspan(start, at_ - start)});
}

// Skips `count` values to find what follows them, and checks that they lie inside the file.
void GgufParser::skip_values(uint32_t type, uint64_t count, const std::string& key, int depth) {
  constexpr int kMaxDepth = 8;
  if (type == static_cast<uint32_t>(GgufType::kString)) {
    for (uint64_t i = 0; i < count; ++i) string(key);
  } else if (type == static_cast<uint32_t>(GgufType::kArray)) {
    if (depth == kMaxDepth)
      fail(ErrorCode::kCorrupt, "{}: metadata {} nests arrays {} deep", name_, key, depth + 1);
    for (uint64_t i = 0; i < count; ++i) {
      auto inner = read<uint32_t>(key);
      skip_values(inner, length(key), key, depth + 1);
    }
  } else if (size_t bytes = gguf_type_bytes(type)) {
    if (count > left() / bytes)
      fail(ErrorCode::kCorrupt, "{}: metadata {} claims {} values of {}, {} bytes are left", name_,
           key, count, gguf_type_name(type), left());
    at_ += count * bytes;
  } else {
    fail(ErrorCode::kCorrupt, "{}: metadata {} is an array of the unknown type {}", name_, key,
         type);
  }
}

Value GgufParser::scalar(uint32_t type, const std::string& key) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::kU8:
      return Value(int64_t{read<uint8_t>(key)});
    case GgufType::kI8:
      return Value(int64_t{read<int8_t>(key)});
    case GgufType::kU16:
      return Value(int64_t{read<uint16_t>(key)});
    case GgufType::kI16:
      return Value(int64_t{read<int16_t>(key)});
    case GgufType::kU32:
      return Value(int64_t{read<uint32_t>(key)});
    case GgufType::kI32:
      return Value(int64_t{read<int32_t>(key)});
    case GgufType::kI64:
      return Value(read<int64_t>(key));
    case GgufType::kU64: {
      auto v = read<uint64_t>(key);
      return v <= INT64_MAX ? Value(static_cast<int64_t>(v)) : Value(static_cast<double>(v));
    }
    case GgufType::kF32:
      return Value(double{read<float>(key)});
    case GgufType::kF64:
      return Value(read<double>(key));
    case GgufType::kBool:
      return Value(read<uint8_t>(key) != 0);
    case GgufType::kString:
      return Value(string(key));
    default:
      fail(ErrorCode::kCorrupt, "{}: metadata {} has the unknown type {}", name_, key, type);
  }
}

void GgufParser::tensor_list() {
  for (uint64_t i = 0; i < tensor_count_; ++i) {
    GgufTensor tensor = tensor_entry();
    tensor.part = file_.parts_.size() - 1;
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second)
      fail(ErrorCode::kCorrupt, "{}: tensor {} appears twice", name_, tensor.name);
    file_.tensors_.push_back(std::move(tensor));
  }
}

GgufTensor GgufParser::tensor_entry() {
  GgufTensor tensor;
  tensor.name = string("a tensor name");
  // Messages name tensors.
  if (std::any_of(tensor.name.begin(), tensor.name.end(), [](unsigned char c) { return c < ' '; }))
    fail(ErrorCode::kCorrupt, "{}: the name of tensor {} contains control characters", name_,
         file_.tensors_.size());
  auto dims = read<uint32_t>(tensor.name);
  if (dims > kMaxDims)
    fail(ErrorCode::kCorrupt, "{}: tensor {} has {} dimensions, at most {} are supported", name_,
         tensor.name, dims, kMaxDims);
  int64_t elements = 1;  // counts an extent of 0 as 1: the others must fit regardless
  for (uint32_t d = 0; d < dims; ++d) {
    uint64_t extent = length(tensor.name);
    if (extent > INT64_MAX ||
        __builtin_mul_overflow(elements, std::max<int64_t>(1, static_cast<int64_t>(extent)),
                               &elements))
      fail(ErrorCode::kCorrupt, "{}: tensor {} has the impossible extent {} in dimension {}", name_,
           tensor.name, extent, d);
    tensor.dims.insert(tensor.dims.begin(), static_cast<int64_t>(extent));
  }
  tensor.type_id = read<uint32_t>(tensor.name);
  tensor.offset = read<uint64_t>(tensor.name);
  return tensor;
}

void GgufParser::place_tensors(size_t first) {
  uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
  uint64_t size = start < bytes_.size() ? bytes_.size() - start : 0;
  for (size_t i = first; i < file_.tensors_.size(); ++i) {
    GgufTensor& t = file_.tensors_[i];
    if (t.offset % alignment_ != 0 || t.offset > size)
      fail(ErrorCode::kCorrupt, "{}: tensor {} lies at offset {} of {} data bytes (alignment {})",
           name_, t.name, t.offset, size, alignment_);
    std::optional<DType> dtype = dtype_from_gguf_id(t.type_id);
    if (!dtype) continue;  // `inspect` still shows it; using it fails
    const DTypeInfo& info = dtype_info(*dtype);
    auto view = std::make_unique<TensorView>();
    view->dtype = *dtype;
    view->dims = t.dims;
    int64_t row = t.dims.empty() ? 1 : t.dims.back();
    if (row % info.block_elements != 0)
      fail(ErrorCode::kCorrupt, "{}: tensor {} is {} with rows of {} values, not a multiple of {}",
           name_, t.name, info.name, row, info.block_elements);
    uint64_t bytes = 0;
    uint64_t blocks = static_cast<uint64_t>(view->elements()) / info.block_elements;
    if (__builtin_mul_overflow(blocks, uint64_t{info.block_bytes}, &bytes) ||
        bytes > size - t.offset)
      fail(ErrorCode::kCorrupt,
           "{}: tensor {} needs {} {} blocks from data offset {}, the file ends after {} bytes",
           name_, t.name, blocks, info.name, t.offset, size);
    view->bytes = bytes_.subspan(start + t.offset, bytes);
    t.view = view.get();
    file_.views_.push_back(std::move(view));
  }
}

void GgufParser::check_overlap(size_t first) const {
  std::vector<const GgufTensor*> order;
  for (size_t i = first; i < file_.tensors_.size(); ++i)
    if (file_.tensors_[i].view) order.push_back(&file_.tensors_[i]);
  // An empty tensor starts at the same offset as the next one, and precedes it.
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return std::pair(a->offset, a->view->bytes.size()) <
           std::pair(b->offset, b->view->bytes.size());
  });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->offset + order[i - 1]->view->bytes.size() > order[i]->offset)
      fail(ErrorCode::kCorrupt, "{}: tensors {} and {} overlap", name_, order[i - 1]->name,
           order[i]->name);
}

}  // namespace tokamak
