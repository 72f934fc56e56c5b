#include "compile/import/safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxTensorDims = 16;

struct NamedType {
  std::string_view name;
  std::optional<DType> dtype;
  uint32_t bytes;
};
constexpr NamedType kNamedTypes[] = {
    {"F64", DType::kF64, 8},      {"F32", DType::kF32, 4},        {"F16", DType::kF16, 2},
    {"BF16", DType::kBF16, 2},    {"F8_E4M3", DType::kF8E4M3, 1}, {"F8_E5M2", DType::kF8E5M2, 1},
    {"I64", DType::kI64, 8},      {"I32", DType::kI32, 4},        {"I16", DType::kI16, 2},
    {"I8", DType::kI8, 1},        {"U8", DType::kU8, 1},          {"BOOL", DType::kBool, 1},
    {"U16", std::nullopt, 2},     {"U32", std::nullopt, 4},       {"U64", std::nullopt, 8},
    {"F8_E8M0", std::nullopt, 1}, {"C64", std::nullopt, 8},
};

}  // namespace

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->name_ = path.string();
  file->file_ = MappedFile::open(path);
  file->read_header(file->file_->bytes());
  return file;
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes,
                                                              std::string name) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->name_ = std::move(name);
  file->read_header(bytes);
  return file;
}

void SafetensorsFile::read_header(std::span<const std::byte> bytes) {
  uint64_t size = 0;
  if (bytes.size() < 8)
    fail(ErrorCode::kCorrupt, "{}: not a safetensors file ({} bytes)", name_, bytes.size());
  std::memcpy(&size, bytes.data(), 8);
  if (size > kMaxHeader || size > bytes.size() - 8)
    fail(
        ErrorCode::kCorrupt,
        "{}: not a safetensors file, or truncated: the header would be {} bytes long, the file has "
        "{}",
        name_, size, bytes.size());
  std::string_view text(reinterpret_cast<const char*>(bytes.data() + 8), size);
  Value header;
  try {
    header = parse_json(text, "header", {.max_depth = 4, .unique_keys = true});
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "{}: {}", name_, e.what());
  }
  if (!header.is_object()) fail(ErrorCode::kCorrupt, "{}: the header is not an object", name_);
  std::span<const std::byte> data = bytes.subspan(8 + size);
  std::vector<Range> ranges;
  for (const auto& [tensor, entry] : header.as_object()) {
    if (tensor == "__metadata__") {
      if (!entry.is_object()) fail(ErrorCode::kCorrupt, "{}: __metadata__ is not an object", name_);
      metadata_ = entry;
    } else {
      ranges.push_back(add_entry(tensor, entry, data));
    }
  }
  check_layout(std::move(ranges), data.size());
}

SafetensorsFile::Range SafetensorsFile::add_entry(const std::string& tensor, const Value& entry,
                                                  std::span<const std::byte> data) {
  auto corrupt = [&](std::string_view why) {
    fail(ErrorCode::kCorrupt, "{}: tensor {} {}", name_, tensor, why);
  };
  const Value *type = entry.find("dtype"), *shape = entry.find("shape"),
              *offsets = entry.find("data_offsets");
  if (!type || !type->is_string() || !shape || !shape->is_array() || !offsets ||
      !offsets->is_array() || offsets->size() != 2 || shape->size() > kMaxTensorDims)
    corrupt("needs dtype, shape and data_offsets");
  int64_t range[2];
  for (int i = 0; i < 2; ++i) {
    const Value& v = offsets->as_array()[i];
    if (!v.is_int() || v.as_int() < 0 || static_cast<uint64_t>(v.as_int()) > data.size())
      corrupt(fmt::format("has a data offset outside the file's {} data bytes", data.size()));
    range[i] = v.as_int();
  }
  if (range[0] > range[1]) corrupt("ends before it begins");
  Entry out;
  uint64_t elements = 1;
  for (const Value& extent : shape->as_array()) {
    if (!extent.is_int() || extent.as_int() < 0 ||
        __builtin_mul_overflow(elements, static_cast<uint64_t>(extent.as_int()), &elements))
      corrupt("has an impossible shape");
    out.view.dims.push_back(extent.as_int());
  }
  const auto* known = std::find_if(std::begin(kNamedTypes), std::end(kNamedTypes),
                                   [&](const NamedType& t) { return t.name == type->as_string(); });
  auto length = static_cast<uint64_t>(range[1] - range[0]);
  if (known == std::end(kNamedTypes) || !known->dtype) out.unknown_type = type->as_string();
  if (known != std::end(kNamedTypes)) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(elements, uint64_t{known->bytes}, &bytes) || bytes != length)
      corrupt(fmt::format("has {} bytes, its shape and type {} need another number", length,
                          known->name));
    if (known->dtype) out.view.dtype = *known->dtype;
  }
  out.view.bytes = data.subspan(static_cast<size_t>(range[0]), length);
  auto placed = entries_.emplace(tensor, std::move(out)).first;
  order_.push_back(tensor);
  return {static_cast<uint64_t>(range[0]), static_cast<uint64_t>(range[1]), placed->first};
}

// The format requires contiguous data without overlap, so a corrupt offset is always detected.
void SafetensorsFile::check_layout(std::vector<Range> ranges, uint64_t size) const {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Range& r : ranges) {
    if (r.begin != at)
      fail(ErrorCode::kCorrupt, "{}: tensor {} begins at data byte {}, expected {}", name_,
           r.tensor, r.begin, at);
    at = r.end;
  }
  if (at != size)
    fail(ErrorCode::kCorrupt, "{}: the tensors end at data byte {}, the file has {}", name_, at,
         size);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  auto it = entries_.find(name);
  if (it == entries_.end()) return nullptr;
  if (!it->second.unknown_type.empty())
    fail(ErrorCode::kUnsupported, "{}: tensor {} has the unknown type {}", name_, name,
         it->second.unknown_type);
  return &it->second.view;
}

std::shared_ptr<const SafetensorsFolder> SafetensorsFolder::open(
    const std::filesystem::path& folder, const std::vector<std::string>& inner) {
  std::shared_ptr<SafetensorsFolder> out(new SafetensorsFolder());
  out->open_files(folder);
  for (const std::string& name : inner)
    out->inner_.emplace_back(name + "/",
                             SafetensorsFile::open(folder / name / "model.safetensors"));
  return out;
}

void SafetensorsFolder::open_files(const std::filesystem::path& folder) {
  std::filesystem::path single = folder / "model.safetensors",
                        index = folder / "model.safetensors.index.json";
  std::error_code ec;
  if (std::filesystem::exists(single, ec)) {
    files_.push_back(SafetensorsFile::open(single));
    return;
  }
  if (std::filesystem::is_regular_file(index, ec)) return open_shards(index);
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec))
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (found.empty() && std::filesystem::exists(folder / name, ec))
      fail(ErrorCode::kUnsupported,
           "{}: {} is a Python pickle, which is not read; transformers saves the model as "
           "safetensors: save_pretrained(\"{}\")",
           folder.string(), name, folder.string());
  if (found.empty())
    fail(ErrorCode::kNotFound,
         "{}: no weights here; expected model.safetensors or model.safetensors.index.json",
         folder.string());
  if (found.size() > 1)
    fail(ErrorCode::kNotFound, "{}: {} safetensors files but no model.safetensors.index.json",
         folder.string(), found.size());
  files_.push_back(SafetensorsFile::open(found[0]));
}

void SafetensorsFolder::open_shards(const std::filesystem::path& index) {
  Value json;
  std::string text = read_text_file(index, kMaxHeader);
  try {
    json = parse_json(text, index.string(), {.max_depth = 16, .unique_keys = true});
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "{}", e.what());
  }
  const Value* map = json.find("weight_map");
  if (!map || !map->is_object())
    fail(ErrorCode::kCorrupt, "{}: weight_map is missing", index.string());
  std::map<std::string, size_t> opened;
  for (const auto& [tensor, where] : map->as_object()) {
    std::string file = where.is_string() ? where.as_string() : "";
    // Shards must be in the folder of the index; other paths are rejected.
    if (file.empty() || file.find('/') != std::string::npos || file == "..")
      fail(ErrorCode::kCorrupt, "{}: tensor {} is in \"{}\", which is not a file name",
           index.string(), tensor, file);
    auto [it, fresh] = opened.emplace(file, files_.size());
    if (fresh) {
      std::filesystem::path path = index.parent_path() / file;
      std::error_code ec;
      if (!std::filesystem::exists(path, ec))
        fail(ErrorCode::kNotFound, "{}: shard {} is missing (it contains {})", index.string(), file,
             tensor);
      files_.push_back(SafetensorsFile::open(path));
    }
    if (!files_[it->second]->has(tensor))
      fail(ErrorCode::kCorrupt, "{}: tensor {} is not in {}", index.string(), tensor, file);
    shard_of_.emplace(tensor, it->second);
  }
  if (files_.empty()) fail(ErrorCode::kCorrupt, "{}: weight_map is empty", index.string());
}

const TensorView* SafetensorsFolder::find(std::string_view name) const {
  for (const auto& [prefix, file] : inner_)
    if (name.starts_with(prefix)) return file->find(name.substr(prefix.size()));
  if (shard_of_.empty()) return files_[0]->find(name);
  auto it = shard_of_.find(name);
  return it == shard_of_.end() ? nullptr : files_[it->second]->find(name);
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> out;
  for (const auto& file : files_)
    for (const std::string& name : file->names())
      if (shard_of_.empty() || shard_of_.contains(name)) out.push_back(name);
  for (const auto& [prefix, file] : inner_)
    for (const std::string& name : file->names()) out.push_back(prefix + name);
  return out;
}

}  // namespace tokamak
