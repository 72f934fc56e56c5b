#include "compile/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/channels.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "plan/bundle_file.h"
#include "plan/bundle_plans.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".plans", kTemporary = ".tmp";

// Held while the folder changes. Without the lock (another host's disk, no permission) the rename
// still keeps every entry whole.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : fd_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;

 private:
  int fd_;
};

struct FileState {
  fs::path path;
  uint64_t bytes;
  int64_t used;  // nanoseconds
};

std::vector<FileState> files_with(const fs::path& folder, std::string_view suffix) {
  std::vector<FileState> out;
  if (folder.empty()) return out;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (!it->path().filename().string().ends_with(suffix)) continue;
    struct stat st {};
    if (::stat(it->path().c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
    out.push_back({it->path(), static_cast<uint64_t>(st.st_size),
                   st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec});
  }
  return out;
}

// The plans of an entry; throws what BundleFile throws.
PlanSet read_entry(const fs::path& path, const std::string& key) {
  auto file = BundleFile::open(path);
  if (file->text("key") != key) file->damaged("it belongs to another key");
  PlanSet plans = parse_plans(file->section("plans"));
  check_plan_set(plans);
  return plans;
}

bool of_another_version(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  return error && error->code() == ErrorCode::kUnsupported;
}

// Why an entry cannot be used.
std::string unreadable(const fs::path& path, const std::exception& e) {
  return of_another_version(e)
             ? fmt::format("{} is of another version of this program", path.string())
             : e.what();
}

uint64_t parse_limit(const char* text) {
  std::string_view s = text;
  uint64_t value = 0;
  auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  std::string_view unit = s.substr(static_cast<size_t>(end - s.data()));
  int shift = unit.empty()                 ? 0
              : unit == "K" || unit == "k" ? 10
              : unit == "M" || unit == "m" ? 20
              : unit == "G" || unit == "g" ? 30
                                           : -1;
  if (error != std::errc() || shift < 0 || value > UINT64_MAX >> shift)
    fail(ErrorCode::kInvalidArgument,
         "TOKAMAK_CACHE_LIMIT=\"{}\" is not a number of bytes such as 64M or 1G", text);
  return value << shift;
}

}  // namespace

CompileCache CompileCache::from_environment() {
  auto variable = [](const char* name) -> const char* {
    const char* text = std::getenv(name);
    return text && *text ? text : nullptr;
  };
  const char* limit = variable("TOKAMAK_CACHE_LIMIT");
  uint64_t bytes = limit ? parse_limit(limit) : kDefaultLimit;
  if (const char* folder = variable("TOKAMAK_CACHE")) return CompileCache(folder, bytes);
  if (const char* xdg = variable("XDG_CACHE_HOME"))
    return CompileCache(fs::path(xdg) / "tokamak" / "compile", bytes);
  const char* home = variable("HOME");
  return CompileCache(home ? fs::path(home) / ".cache" / "tokamak" / "compile" : fs::path(), bytes);
}

CompileCache::CompileCache(fs::path folder, uint64_t limit)
    : folder_(std::move(folder)), limit_(limit) {
  if (!folder_.empty()) remove_orphaned_temporaries(folder_);
}

fs::path CompileCache::path_of(const std::string& key) const {
  return folder_ / (key + std::string(kSuffix));
}

fs::path CompileCache::machine_file(std::string_view backend) const {
  return folder_.empty() ? fs::path() : folder_ / fmt::format("machine-{}.json", backend);
}

std::optional<PlanSet> CompileCache::load(const std::string& key) const {
  fs::path path = path_of(key);
  if (folder_.empty() || ::access(path.c_str(), F_OK) != 0) return std::nullopt;
  try {
    PlanSet plans = read_entry(path, key);
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used now; a disk that refuses is fine
    return plans;
  } catch (const std::exception& e) {
    log::warn("compile cache: {}; compiling the model again", unreadable(path, e));
    ::unlink(path.c_str());
    return std::nullopt;
  }
}

void CompileCache::store(const std::string& key, const PlanSet& plans) const {
  if (folder_.empty()) return;
  try {
    std::error_code ec;
    fs::create_directories(folder_, ec);
    if (ec) fail(ErrorCode::kUnavailable, "cannot create {}: {}", folder_.string(), ec.message());
    FolderLock lock(folder_);
    BundleFileWriter writer(path_of(key));
    writer.add_section("key", key);
    Value about = Value::Object{{"model", plans.model}, {"backend", plans.backend}};
    writer.add_section("about", dump_json(about));
    writer.add_section("plans", serialize_plans(plans));
    writer.finish();
    evict(path_of(key));
  } catch (const std::exception& e) {
    log::warn("compile cache: {} (everything works, but the next start compiles again)", e.what());
  }
}

// The lock is held. `keep` was used just now.
void CompileCache::evict(const fs::path& keep) const {
  std::error_code ec;
  std::vector<FileState> files = files_with(folder_, kSuffix);
  std::sort(files.begin(), files.end(),
            [](const FileState& a, const FileState& b) { return a.used < b.used; });
  uint64_t total = 0;
  for (const FileState& f : files) total += f.bytes;
  for (const FileState& f : files) {
    if (total <= limit_) break;
    if (f.path == keep) continue;
    if (fs::remove(f.path, ec)) total -= f.bytes;
  }
}

PlanSet CompileCache::get(const std::string& key, const std::function<PlanSet()>& make) const {
  if (std::optional<PlanSet> plans = load(key)) {
    if (log::channel_enabled("recompiles"))
      log::channel("recompiles",
                   fmt::format("plans of {} come from the compile cache ({})", plans->model, key));
    return std::move(*plans);
  }
  PlanSet plans = make();
  store(key, plans);
  return plans;
}

std::vector<CacheEntry> CompileCache::entries(bool verify) const {
  std::vector<FileState> files = files_with(folder_, kSuffix);
  std::sort(files.begin(), files.end(),
            [](const FileState& a, const FileState& b) { return a.used > b.used; });
  std::vector<CacheEntry> out;
  for (const FileState& f : files) {
    CacheEntry entry;
    entry.key = f.path.stem().string();
    entry.bytes = f.bytes;
    entry.used = f.used / 1'000'000'000;
    try {
      auto file = BundleFile::open(f.path);
      Value about = parse_json(file->text("about"), "about");
      entry.model = about.get_string("model", "");
      entry.backend = about.get_string("backend", "");
      if (verify) read_entry(f.path, entry.key);
    } catch (const std::exception& e) {
      entry.error = unreadable(f.path, e);
      entry.other_version = of_another_version(e);
    }
    out.push_back(std::move(entry));
  }
  return out;
}

size_t CompileCache::remove_damaged() const {
  size_t removed = 0;
  std::error_code ec;
  for (const CacheEntry& e : entries(true))
    if (e.damaged()) removed += fs::remove(path_of(e.key), ec);
  return removed;
}

size_t CompileCache::clear() const {
  std::error_code ec;
  if (folder_.empty() || !fs::exists(folder_, ec)) return 0;
  FolderLock lock(folder_);
  size_t removed = 0;
  for (std::string_view suffix : {kSuffix, kTemporary})
    for (const FileState& f : files_with(folder_, suffix)) {
      if (!fs::remove(f.path, ec) && ec)
        fail(ErrorCode::kUnavailable, "cannot remove {}: {}", f.path.string(), ec.message());
      removed += suffix == kSuffix;
    }
  return removed;
}

PlanSet compile_cached(Module& module, const ModelConfig& config, const Backend& backend,
                       const CompileOptions& options, const CompileCache* cache) {
  auto compile = [&] { return compile_module(module, config, backend, options); };
  bool watched =
      options.dump || options.fusion || options.after_pass || !options.dump_after.empty();
  if (!cache || watched) return compile();
  return cache->get(compile_key(module, config, backend, options), compile);
}

}  // namespace tokamak
