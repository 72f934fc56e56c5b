#include "engine/draft/pattern_drafter.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace tokamak {
namespace {

constexpr char kMagic[] = "TKDRAFT1";
constexpr size_t kHeader = 8 + 3 * sizeof(uint64_t);
constexpr int kMostFollowers = 64;  // different tokens that are counted

void put(std::string& out, const void* data, size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

}  // namespace

void PatternFile::write(const std::filesystem::path& path, std::span<const int32_t> ids,
                        uint64_t vocab, uint64_t fingerprint) {
  std::vector<uint32_t> starts(ids.size());
  std::iota(starts.begin(), starts.end(), 0u);
  std::sort(starts.begin(), starts.end(), [&](uint32_t a, uint32_t b) {
    for (uint32_t d = 0; d < kSortedDepth; ++d) {
      int32_t x = a + d < ids.size() ? ids[a + d] : -1, y = b + d < ids.size() ? ids[b + d] : -1;
      if (x != y) return x < y;
      if (x < 0) break;  // texts do not continue in the next one
    }
    return a < b;
  });
  std::string out;
  out.reserve(kHeader + ids.size() * 8);
  uint64_t numbers[] = {ids.size(), vocab, fingerprint};
  put(out, kMagic, 8);
  put(out, numbers, sizeof(numbers));
  put(out, ids.data(), ids.size_bytes());
  put(out, starts.data(), starts.size() * sizeof(uint32_t));
  replace_file(path, out);  // a server may have the old one mapped
}

std::shared_ptr<const PatternFile> PatternFile::open(const std::filesystem::path& path) {
  auto out = std::make_shared<PatternFile>();
  out->file_ = MappedFile::open(path);
  std::span<const std::byte> bytes = out->file_->bytes();
  if (bytes.size() < kHeader || std::memcmp(bytes.data(), kMagic, 8) != 0)
    fail(ErrorCode::kCorrupt, "{} is not a pattern library; build one with tokamak draft build",
         path.string());
  uint64_t numbers[3];
  std::memcpy(numbers, bytes.data() + 8, sizeof(numbers));
  const uint64_t tokens = numbers[0], vocab = numbers[1], fingerprint = numbers[2];
  if (tokens > (bytes.size() - kHeader) / 8 || bytes.size() != kHeader + tokens * 8)
    fail(ErrorCode::kCorrupt, "{}: {} bytes do not hold {} tokens", path.string(), bytes.size(),
         tokens);
  out->fingerprint_ = fingerprint;
  const std::byte* data = bytes.data() + kHeader;
  out->ids_ = {reinterpret_cast<const int32_t*>(data), tokens};
  out->starts_ = {reinterpret_cast<const uint32_t*>(data + tokens * 4), tokens};
  auto bad_id = [&](int32_t id) { return id < -1 || (id >= 0 && uint64_t(id) >= vocab); };
  if (std::any_of(out->ids_.begin(), out->ids_.end(), bad_id) ||
      std::any_of(out->starts_.begin(), out->starts_.end(),
                  [&](uint32_t start) { return start >= tokens; }))
    fail(ErrorCode::kCorrupt, "{} is damaged: build it again", path.string());
  return out;
}

int32_t PatternFile::at(size_t start, int32_t depth) const {
  size_t index = size_t{starts_[start]} + static_cast<size_t>(depth);
  return index < ids_.size() ? ids_[index] : -1;
}

PatternFile::Range PatternFile::find(std::span<const int32_t> prefix) const {
  Range range{0, starts_.size()};
  for (int32_t d = 0; d < std::ssize(prefix) && range.size() > 0; ++d) {
    int32_t id = prefix[static_cast<size_t>(d)];
    // The first entry whose token is not less than `id`, or greater than it.
    auto bound = [&](size_t low, size_t high, bool greater) {
      while (low < high) {
        size_t middle = low + (high - low) / 2;
        int32_t x = at(middle, d);
        if (x < id || (greater && x == id))
          low = middle + 1;
        else
          high = middle;
      }
      return low;
    };
    size_t first = bound(range.first, range.end, false);
    range = {first, bound(first, range.end, true)};
  }
  return range;
}

std::pair<int32_t, PatternFile::Range> PatternFile::likeliest(Range range, int32_t depth) const {
  std::pair<int32_t, Range> best{-1, {}};
  if (depth >= kSortedDepth) return best;
  size_t first = range.first;
  for (int n = 0; first < range.end && n < kMostFollowers; ++n) {
    int32_t id = at(first, depth);
    size_t low = first + 1, high = range.end;  // the end of the run of this token
    while (low < high) {
      size_t middle = low + (high - low) / 2;
      if (at(middle, depth) == id)
        low = middle + 1;
      else
        high = middle;
    }
    if (id >= 0 && low - first > best.second.size()) best = {id, {first, low}};
    first = low;
  }
  return best;
}

void PatternDrafter::propose(std::span<DraftRequest> requests) {
  own_->propose(requests);
  for (DraftRequest& r : requests) {
    if (!r.tokens.empty()) continue;
    // If a suffix occurs, all shorter ones do.
    auto most = static_cast<int32_t>(std::min<size_t>(r.ids.size(), size_t(options_.longest)));
    int32_t found = 0, missing = most + 1;
    PatternFile::Range range;
    while (missing - found > 1) {
      int32_t length = found + (missing - found) / 2;
      PatternFile::Range here = file_->find(r.ids.last(static_cast<size_t>(length)));
      (here.size() > 0 ? found : missing) = length;
      if (here.size() > 0) range = here;
    }
    if (found < options_.shortest) continue;
    r.strength = match_strength(found);
    double chance = 1;
    for (int32_t k = 0; k < r.most; ++k) {
      auto [id, next] = file_->likeliest(range, found + k);
      if (id < 0) break;
      chance *= static_cast<double>(next.size()) / static_cast<double>(range.size());
      if (chance < options_.min_share) break;
      r.tokens.push_back({id, k - 1});
      range = next;
    }
  }
}

}  // namespace tokamak
