#include "text/index/vector_index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'T', 'K', 'V', 'E', 'C', 'T', 'O', 'R'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kAlignment = 64, kCodeAlignment = 16;
constexpr int64_t kFlatEntries = 20000;  // up to here comparing all codes is fast enough
constexpr int64_t kMostDimensions = 1 << 16, kMostEntries = int64_t{1} << 30;

// Little-endian, as every number in the file. What follows it: scales, codes, vectors, offsets and
// links of the graph, offsets of the texts, texts, description (JSON), each aligned to 64 bytes.
struct Header {
  char magic[8];
  uint32_t version, dimensions;
  uint64_t count, links, text_bytes, meta_bytes;
  int32_t entry;
  uint32_t unused;
  uint64_t sum_low, sum_high;  // of the file with zeros here
};
static_assert(sizeof(Header) == 72);
static_assert(std::endian::native == std::endian::little);

int64_t aligned(int64_t n, int64_t to = kAlignment) { return (n + to - 1) / to * to; }

// Where the parts are. Sizes come from the header: checked before they are added up.
struct Layout {
  int64_t scales, codes, floats, offsets, links, text_offsets, texts, meta, end, stride;

  explicit Layout(const Header& h) {
    auto n = static_cast<int64_t>(h.count), d = int64_t{h.dimensions};
    stride = aligned(d, kCodeAlignment);
    int64_t at = aligned(sizeof(Header));
    auto take = [&](int64_t bytes) {
      int64_t begin = at;
      at = aligned(at + bytes);
      return begin;
    };
    scales = take(n * 4);
    codes = take(n * stride);
    floats = take(n * d * 4);
    offsets = take((n + 1) * 8);
    links = take(static_cast<int64_t>(h.links) * 4);
    text_offsets = take((n + 1) * 8);
    texts = take(static_cast<int64_t>(h.text_bytes));
    meta = take(static_cast<int64_t>(h.meta_bytes));
    end = at;
  }
};

// The largest value becomes 127.
float to_codes(std::span<const float> v, int8_t* codes) {
  float top = 0;
  for (float x : v) top = std::max(top, std::fabs(x));
  float scale = top > 0 ? top / 127.0f : 1.0f;
  for (size_t i = 0; i < v.size(); ++i) codes[i] = static_cast<int8_t>(std::lround(v[i] / scale));
  return scale;
}

float dot(std::span<const float> a, std::span<const float> b) {
  float lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= a.size(); i += 8)
    for (size_t k = 0; k < 8; ++k) lanes[k] += a[i + k] * b[i + k];
  float sum = 0;
  for (; i < a.size(); ++i) sum += a[i] * b[i];
  for (float lane : lanes) sum += lane;
  return sum;
}

void check_entries(const std::vector<IndexEntry>& entries) {
  if (std::ssize(entries) > kMostEntries)
    fail(ErrorCode::kInvalidArgument, "{} entries are too many for an index", entries.size());
  size_t dimensions = entries.empty() ? 0 : entries[0].vector.size();
  for (const IndexEntry& e : entries) {
    bool finite =
        std::all_of(e.vector.begin(), e.vector.end(), [](float x) { return std::isfinite(x); });
    if (e.vector.empty() || e.vector.size() != dimensions || !finite ||
        std::ssize(e.vector) > kMostDimensions)
      fail(ErrorCode::kInvalidArgument,
           "an index needs finite vectors of one size; one has {} numbers, the first {}",
           e.vector.size(), dimensions);
  }
}

Checksum sum_of(Header header, std::span<const std::byte> rest) {
  header.sum_low = header.sum_high = 0;
  Checksum a = checksum(std::as_bytes(std::span(&header, 1))), b = checksum(rest);
  return {a.low ^ b.low, a.high ^ b.high};
}

std::vector<std::byte> index_bytes(const std::vector<IndexEntry>& entries, const Value& meta) {
  auto count = static_cast<int32_t>(entries.size());
  auto vector = [&](int32_t i) -> const std::vector<float>& {
    return entries[static_cast<size_t>(i)].vector;
  };
  HnswGraph graph =
      build_hnsw(count, [&](int32_t a, int32_t b) { return dot(vector(a), vector(b)); });
  std::string text, json = dump_json(meta);
  std::vector<uint64_t> text_offsets = {0};
  for (const IndexEntry& e : entries) {
    text += e.text;
    text_offsets.push_back(text.size());
  }
  Header h = {};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.dimensions = count > 0 ? static_cast<uint32_t>(vector(0).size()) : 0;
  h.count = static_cast<uint64_t>(count);
  h.links = graph.links.size();
  h.text_bytes = text.size();
  h.meta_bytes = json.size();
  h.entry = graph.entry;
  Layout at(h);
  std::vector<std::byte> file(static_cast<size_t>(at.end));
  auto put = [&](int64_t offset, const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(file.data() + offset, data, bytes);
  };
  for (int32_t i = 0; i < count; ++i) {
    auto* codes = reinterpret_cast<int8_t*>(file.data() + at.codes + i * at.stride);
    float scale = to_codes(vector(i), codes);
    put(at.scales + int64_t{i} * 4, &scale, 4);
    put(at.floats + int64_t{i} * h.dimensions * 4, vector(i).data(), vector(i).size() * 4);
  }
  put(at.offsets, graph.offsets.data(), graph.offsets.size() * 8);
  put(at.links, graph.links.data(), graph.links.size() * 4);
  put(at.text_offsets, text_offsets.data(), text_offsets.size() * 8);
  put(at.texts, text.data(), text.size());
  put(at.meta, json.data(), json.size());
  Checksum sum = sum_of(h, std::span(file).subspan(sizeof(Header)));
  h.sum_low = sum.low;
  h.sum_high = sum.high;
  put(0, &h, sizeof h);
  return file;
}

[[noreturn]] void damaged(const fs::path& path, const char* why) {
  fail(ErrorCode::kCorrupt, "{} is not an index that this program can read: {}; make it again",
       path.string(), why);
}

Header read_header(const fs::path& path, std::span<const std::byte> bytes) {
  Header h;
  if (bytes.size() < sizeof h) damaged(path, "it is too short");
  std::memcpy(&h, bytes.data(), sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) damaged(path, "it does not begin like one");
  if (h.version != kVersion) damaged(path, "it has another version");
  auto size = static_cast<uint64_t>(bytes.size());
  if (h.count > size || h.links > size || h.text_bytes > size || h.meta_bytes > size ||
      h.dimensions > kMostDimensions || h.count * h.dimensions > size)
    damaged(path, "it is shorter than it says");
  if (Layout(h).end != std::ssize(bytes)) damaged(path, "it has another length than it says");
  if (sum_of(h, bytes.subspan(sizeof h)) != Checksum{h.sum_low, h.sum_high})
    damaged(path, "its checksum differs");
  return h;
}

}  // namespace

void write_vector_index(const fs::path& path, const std::vector<IndexEntry>& entries,
                        const Value& meta) {
  check_entries(entries);
  std::vector<std::byte> file = index_bytes(entries, meta);
  replace_file(path, {reinterpret_cast<const char*>(file.data()), file.size()});
}

std::shared_ptr<const VectorIndex> VectorIndex::open(const fs::path& path) {
  auto file = MappedFile::open(path);
  std::span<const std::byte> bytes = file->bytes();
  Header h = read_header(path, bytes);
  Layout at(h);
  std::shared_ptr<VectorIndex> index(new VectorIndex);
  auto part = [&]<class T>(int64_t offset, uint64_t n, T) {
    return std::span(reinterpret_cast<const T*>(bytes.data() + offset), static_cast<size_t>(n));
  };
  index->count_ = static_cast<int64_t>(h.count);
  index->dimensions_ = h.dimensions;
  index->stride_ = at.stride;
  index->scales_ = part(at.scales, h.count, float{});
  index->codes_ = part(at.codes, h.count * static_cast<uint64_t>(at.stride), int8_t{});
  index->floats_ = part(at.floats, h.count * h.dimensions, float{});
  index->graph_ = {part(at.offsets, h.count + 1, uint64_t{}), part(at.links, h.links, int32_t{}),
                   h.entry};
  index->text_offsets_ = part(at.text_offsets, h.count + 1, uint64_t{});
  index->texts_ = {reinterpret_cast<const char*>(bytes.data()) + at.texts,
                   static_cast<size_t>(h.text_bytes)};
  const auto& offsets = index->text_offsets_;
  if (offsets[0] != 0 || offsets.back() != h.text_bytes ||
      !std::is_sorted(offsets.begin(), offsets.end()))
    damaged(path, "its texts overlap");
  if (!hnsw_is_valid(index->graph_)) damaged(path, "its graph is broken");
  try {
    index->meta_ = parse_json(
        {reinterpret_cast<const char*>(bytes.data()) + at.meta, static_cast<size_t>(h.meta_bytes)},
        "description");
  } catch (const Error&) {
    damaged(path, "its description is not JSON");
  }
  index->file_ = std::move(file);
  return index;
}

std::string_view VectorIndex::text(int64_t i) const {
  auto at = static_cast<size_t>(i);
  return texts_.substr(text_offsets_[at], text_offsets_[at + 1] - text_offsets_[at]);
}

std::span<const float> VectorIndex::vector(int64_t i) const {
  return floats_.subspan(static_cast<size_t>(i * dimensions_), static_cast<size_t>(dimensions_));
}

float VectorIndex::code_score(std::span<const int8_t> query, int64_t i) const {
  const int8_t* code = codes_.data() + i * stride_;
  int32_t sum = 0;
  for (int64_t k = 0; k < stride_; ++k) sum += query[static_cast<size_t>(k)] * code[k];
  return static_cast<float>(sum) * scales_[static_cast<size_t>(i)];
}

std::vector<Scored> VectorIndex::flat(std::span<const int8_t> query, int64_t width) const {
  std::vector<Scored> all(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i)
    all[static_cast<size_t>(i)] = {code_score(query, i), static_cast<int32_t>(i)};
  auto middle = all.begin() + std::min<int64_t>(width, count_);
  std::partial_sort(all.begin(), middle, all.end(), std::greater<>());
  all.erase(middle, all.end());
  return all;
}

std::vector<VectorIndex::Hit> VectorIndex::search(std::span<const float> query, int64_t k,
                                                  Search how) const {
  if (std::ssize(query) != dimensions_ && count_ > 0)
    fail(ErrorCode::kInvalidArgument, "a query of {} numbers for an index of {}", query.size(),
         dimensions_);
  if (count_ == 0 || k <= 0) return {};
  std::vector<int8_t> codes(static_cast<size_t>(stride_));
  to_codes(query, codes.data());
  int64_t width = std::min(count_, std::max<int64_t>(4 * k, 32));
  bool walk = how == Search::kGraph || (how == Search::kAuto && count_ > kFlatEntries);
  std::vector<Scored> found =
      walk ? search_hnsw(graph_, static_cast<int32_t>(std::max<int64_t>(width, 128)),
                         [&](int32_t i) { return code_score(codes, i); })
           : flat(codes, width);
  std::vector<Hit> hits;  // in the order of the vectors themselves
  for (const auto& [score, i] : found) hits.push_back({i, dot(query, vector(i))});
  std::stable_sort(hits.begin(), hits.end(),
                   [](const Hit& a, const Hit& b) { return a.score > b.score; });
  hits.resize(static_cast<size_t>(std::min<int64_t>(k, std::ssize(hits))));
  return hits;
}

}  // namespace tokamak
