#include "serve/openai/api_keys.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/file.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

constexpr Nanos kMinute = 60 * kSecond;

// Constant time, so that the duration does not reveal the key.
bool same_key(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  return difference == 0 && !b.empty();
}

void read_limit(const std::string& path, int number, const std::string& word, ApiKey& key) {
  size_t equal = word.find('=');
  std::string_view name = std::string_view(word).substr(0, equal);
  int64_t value = -1;
  if (equal != std::string::npos) {
    const char *begin = word.data() + equal + 1, *end = word.data() + word.size();
    auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stop != end) value = -1;
  }
  if (value < 1 || (name != "running" && name != "per-minute"))
    fail(ErrorCode::kInvalidArgument,
         "{}, line {}: after the key only running=N and per-minute=N are allowed, N at least 1",
         path, number);
  (name == "running" ? key.max_running : key.per_minute) = value;
}

}  // namespace

std::vector<ApiKey> read_key_file(const std::string& path) {
  std::string text = read_text_file(path);
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // that editors put before UTF-8
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
  std::istringstream lines(text);
  std::vector<ApiKey> keys;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    ApiKey key;
    if (!(words >> key.key) || key.key[0] == '#') continue;
    for (std::string word; words >> word;) read_limit(path, number, word, key);
    for (const ApiKey& other : keys)
      if (other.key == key.key)
        fail(ErrorCode::kInvalidArgument, "{}, line {}: the key stands in the file twice", path,
             number);
    keys.push_back(std::move(key));
  }
  if (keys.empty()) fail(ErrorCode::kInvalidArgument, "{} contains no keys", path);
  return keys;
}

const ApiKey* ApiKeys::find(std::string_view given) const {
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_)
    if (same_key(given, key.key)) found = &key;
  return found;
}

std::shared_ptr<Admission> ApiKeys::admit(std::string_view given, Nanos now) {
  const ApiKey* key = find(given);
  if (key == nullptr || (key->max_running == 0 && key->per_minute == 0)) return nullptr;
  std::lock_guard lock(mutex_);
  auto& use = uses_[key];
  if (use == nullptr) use = std::make_shared<Use>();
  if (key->max_running > 0 && use->running >= key->max_running)
    throw ApiError(429,
                   fmt::format("This key may run at most {} requests at once.", key->max_running),
                   "", "rate_limit_exceeded")
        .with_retry_after(1);
  while (!use->started.empty() && use->started.front() <= now - kMinute) use->started.pop_front();
  if (key->per_minute > 0 && static_cast<int64_t>(use->started.size()) >= key->per_minute)
    throw ApiError(429, fmt::format("This key may start {} requests per minute.", key->per_minute),
                   "", "rate_limit_exceeded")
        .with_retry_after(seconds(use->started.front() + kMinute - now));
  if (key->per_minute > 0) use->started.push_back(now);
  ++use->running;
  return std::make_shared<Admission>(*this, use, now);
}

Admission::~Admission() {
  std::lock_guard lock(keys_.mutex_);
  --use_->running;
  auto started = std::find(use_->started.begin(), use_->started.end(), start_);
  if (!accepted_ && started != use_->started.end()) use_->started.erase(started);
}

}  // namespace tokamak::openai
