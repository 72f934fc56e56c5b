#include "compile/import/gguf_file.h"

#include <cstring>

#include "base/error.h"
#include "compile/import/gguf_parser.h"

namespace tokamak {
namespace {

// "model-00001-of-00003.gguf" -> "model"; empty if the name has another form or another total.
std::string split_stem(const std::string& file_name, int64_t count) {
  std::string tail = fmt::format("-of-{:05}.gguf", count);
  size_t number = 6;  // "-00001"
  if (file_name.size() <= tail.size() + number || !file_name.ends_with(tail)) return "";
  size_t at = file_name.size() - tail.size() - number;
  if (file_name[at] != '-') return "";
  return file_name.substr(0, at);
}

// Ids of removed types, for a helpful message.
std::string about_unknown_type(uint32_t id) {
  const char* old = id == 4    ? "q4_2"
                    : id == 5  ? "q4_3"
                    : id == 31 ? "q4_0_4_4"
                    : id == 32 ? "q4_0_4_8"
                    : id == 33 ? "q4_0_8_8"
                    : id == 36 ? "iq4_nl_4_4"
                    : id == 37 ? "iq4_nl_4_8"
                    : id == 38 ? "iq4_nl_8_8"
                               : nullptr;
  if (!old) return ", which is unknown";
  return fmt::format(
      " ({}), which was removed from the format; use a file quantised by newer tools", old);
}

template <class T, class Out>
void append_as(std::span<const std::byte> bytes, std::vector<Out>& out) {
  out.resize(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<Out>(value);
  }
}

}  // namespace

std::shared_ptr<const GgufFile> GgufFile::parse(std::span<const std::byte> bytes,
                                                std::string name) {
  std::shared_ptr<GgufFile> file(new GgufFile());
  file->name_ = std::move(name);
  GgufParser::add_part(*file, {nullptr, bytes}, file->name_);
  return file;
}

std::shared_ptr<const GgufFile> GgufFile::open(const std::filesystem::path& path) {
  std::shared_ptr<GgufFile> file(new GgufFile());
  file->name_ = path.string();
  auto add = [&](const std::filesystem::path& part) {
    auto mapped = MappedFile::open(part);
    auto bytes = mapped->bytes();
    return GgufParser::add_part(*file, {std::move(mapped), bytes}, part.string());
  };
  GgufParser::Split first = add(path);
  if (first.count <= 1) return file;

  std::string stem = split_stem(path.filename().string(), first.count);
  if (stem.empty())
    fail(ErrorCode::kInvalidArgument,
         "{}: one of {} split files, but its name does not end in -00001-of-{:05}.gguf, so the "
         "others cannot be found",
         path.string(), first.count, first.count);
  auto part_path = [&](int64_t i) {
    return path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, first.count);
  };
  if (first.number != 0)
    fail(ErrorCode::kInvalidArgument, "{}: part {} of {}; open the first part, {}", path.string(),
         first.number + 1, first.count, part_path(0).string());
  for (int64_t i = 1; i < first.count; ++i) {
    std::error_code ec;
    if (!std::filesystem::exists(part_path(i), ec))
      fail(ErrorCode::kNotFound, "{}: part {} of {} is missing: {}", path.string(), i + 1,
           first.count, part_path(i).string());
    GgufParser::Split split = add(part_path(i));
    if (split.number != i || split.count != first.count)
      fail(ErrorCode::kCorrupt, "{}: claims to be part {} of {}, expected {} of {}",
           part_path(i).string(), split.number + 1, split.count, i + 1, first.count);
  }
  int64_t expected =
      file->get_int("split.tensors.count", static_cast<int64_t>(file->tensors_.size()));
  if (expected != static_cast<int64_t>(file->tensors_.size()))
    fail(ErrorCode::kCorrupt, "{}: the parts contain {} tensors, but split.tensors.count is {}",
         path.string(), file->tensors_.size(), expected);
  return file;
}

const TensorView* GgufFile::find(std::string_view name) const {
  auto it = tensor_index_.find(name);
  if (it == tensor_index_.end()) return nullptr;
  const GgufTensor& tensor = tensors_[it->second];
  if (!tensor.view)
    fail(ErrorCode::kUnsupported, "{}: tensor {} has type id {}{}", name_, name, tensor.type_id,
         about_unknown_type(tensor.type_id));
  return tensor.view;
}

std::vector<std::string> GgufFile::names() const {
  std::vector<std::string> out;
  for (const GgufTensor& t : tensors_) out.push_back(t.name);
  return out;
}

const Value* GgufFile::meta(std::string_view key) const {
  auto it = scalars_.find(key);
  return it == scalars_.end() ? nullptr : &it->second;
}

const GgufFile::ArrayMeta* GgufFile::array(std::string_view key) const {
  auto it = arrays_.find(key);
  if (it != arrays_.end()) return &it->second;
  if (meta(key)) fail(ErrorCode::kCorrupt, "{}: metadata {} is not an array", name_, key);
  return nullptr;
}

std::vector<std::pair<std::string_view, const Value*>> GgufFile::scalars_from(
    std::string_view prefix) const {
  std::vector<std::pair<std::string_view, const Value*>> out;
  for (auto it = scalars_.lower_bound(prefix);
       it != scalars_.end() && it->first.starts_with(prefix); ++it)
    out.emplace_back(it->first, &it->second);
  return out;
}

bool GgufFile::has(std::string_view key) const {
  return meta(key) || arrays_.find(key) != arrays_.end();
}

std::string GgufFile::get_string(std::string_view key, std::string_view fallback) const {
  const Value* v = meta(key);
  if (!v && !has(key)) return std::string(fallback);
  if (!v || !v->is_string())
    fail(ErrorCode::kCorrupt, "{}: metadata {} is not a string", name_, key);
  return v->as_string();
}

int64_t GgufFile::get_int(std::string_view key, int64_t fallback) const {
  const Value* v = meta(key);
  if (!v && !has(key)) return fallback;
  if (!v || !v->is_int())
    fail(ErrorCode::kCorrupt, "{}: metadata {} is not an integer", name_, key);
  return v->as_int();
}

double GgufFile::get_double(std::string_view key, double fallback) const {
  const Value* v = meta(key);
  if (!v && !has(key)) return fallback;
  if (!v || !v->is_number())
    fail(ErrorCode::kCorrupt, "{}: metadata {} is not a number", name_, key);
  return v->as_double();
}

bool GgufFile::get_bool(std::string_view key, bool fallback) const {
  const Value* v = meta(key);
  if (!v && !has(key)) return fallback;
  if (!v || !v->is_bool())
    fail(ErrorCode::kCorrupt, "{}: metadata {} is not true or false", name_, key);
  return v->as_bool();
}

std::vector<std::string_view> GgufFile::strings(std::string_view key) const {
  const ArrayMeta* a = array(key);
  if (!a) return {};
  if (a->element_type != static_cast<uint32_t>(GgufType::kString))
    fail(ErrorCode::kCorrupt, "{}: metadata {} is not an array of strings", name_, key);
  std::vector<std::string_view> out;
  out.reserve(
      a->count);  // every string was checked when the file was opened, so the count is correct
  const auto* p = reinterpret_cast<const char*>(a->bytes.data());
  for (uint64_t i = 0; i < a->count; ++i) {
    uint64_t size = 0;
    size_t prefix = version_ == 1 ? 4 : 8;
    std::memcpy(&size, p, prefix);
    out.emplace_back(p + prefix, size);
    p += prefix + size;
  }
  return out;
}

std::vector<float> GgufFile::floats(std::string_view key) const {
  std::vector<float> out;
  const ArrayMeta* a = array(key);
  if (!a) return out;
  switch (static_cast<GgufType>(a->element_type)) {
    case GgufType::kF32:
      append_as<float>(a->bytes, out);
      break;
    case GgufType::kF64:
      append_as<double>(a->bytes, out);
      break;
    default:
      fail(ErrorCode::kCorrupt, "{}: metadata {} is not an array of floats", name_, key);
  }
  return out;
}

std::vector<int64_t> GgufFile::ints(std::string_view key) const {
  std::vector<int64_t> out;
  const ArrayMeta* a = array(key);
  if (!a) return out;
  switch (static_cast<GgufType>(a->element_type)) {
    case GgufType::kBool:
    case GgufType::kU8:
      append_as<uint8_t>(a->bytes, out);
      break;
    case GgufType::kI8:
      append_as<int8_t>(a->bytes, out);
      break;
    case GgufType::kU16:
      append_as<uint16_t>(a->bytes, out);
      break;
    case GgufType::kI16:
      append_as<int16_t>(a->bytes, out);
      break;
    case GgufType::kU32:
      append_as<uint32_t>(a->bytes, out);
      break;
    case GgufType::kI32:
      append_as<int32_t>(a->bytes, out);
      break;
    case GgufType::kU64:
      append_as<uint64_t>(a->bytes, out);
      break;
    case GgufType::kI64:
      append_as<int64_t>(a->bytes, out);
      break;
    default:
      fail(ErrorCode::kCorrupt, "{}: metadata {} is not an array of integers", name_, key);
  }
  return out;
}

std::span<const std::byte> GgufFile::raw(std::string_view key) const {
  auto found = raw_.find(key);
  return found == raw_.end() ? std::span<const std::byte>() : found->second;
}

size_t GgufFile::array_size(std::string_view key) const {
  auto it = arrays_.find(key);
  return it == arrays_.end() ? 0 : it->second.count;
}

Value GgufFile::metadata() const {
  Value out = Value::object();
  for (const std::string& key : meta_order_) {
    if (const Value* v = meta(key)) {
      out.as_object().emplace_back(key, *v);
      continue;
    }
    const ArrayMeta& a = arrays_.find(key)->second;
    Value::Object summary{{"array", gguf_type_name(a.element_type)},
                          {"length", static_cast<int64_t>(a.count)}};
    out.as_object().emplace_back(key, Value(std::move(summary)));
  }
  return out;
}

uint64_t GgufFile::data_bytes() const {
  uint64_t total = 0;
  for (const auto& view : views_) total += view->bytes.size();
  return total;
}

}  // namespace tokamak
