// tokamak cache: lists, checks and clears the compile cache.
#include <ctime>

#include "apps/verbs.h"
#include "base/error.h"
#include "base/json.h"
#include "compile/cache.h"

namespace tokamak {
namespace {

std::string day_and_time(int64_t unix_seconds) {
  std::time_t t = static_cast<std::time_t>(unix_seconds);
  std::tm tm{};
  gmtime_r(&t, &tm);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &tm);
  return text;
}

Value entries_value(const CompileCache& cache, const std::vector<CacheEntry>& entries) {
  Value list = Value::array();
  uint64_t bytes = 0;
  for (const CacheEntry& e : entries) {
    bytes += e.bytes;
    Value row = Value::Object{{"key", e.key},
                              {"model", e.model},
                              {"backend", e.backend},
                              {"bytes", e.bytes},
                              {"used", e.used}};
    row.set("error", e.error.empty() ? Value() : Value(e.error));
    row.set("other_version", e.other_version);
    list.push(std::move(row));
  }
  return Value::Object{{"folder", cache.folder().string()},
                       {"bytes", bytes},
                       {"limit_bytes", cache.limit()},
                       {"entries", std::move(list)}};
}

void list_entries(bool json) {
  CompileCache cache = CompileCache::from_environment();
  std::vector<CacheEntry> entries = cache.entries();
  Value v = entries_value(cache, entries);
  if (json) {
    fmt::print("{}\n", dump_json(v, 2));
    return;
  }
  if (cache.folder().empty()) {
    fmt::print("no compile cache: neither TOKAMAK_CACHE nor HOME is set\n");
    return;
  }
  fmt::print("{}: {} entries, {:.1f} of {:.0f} MiB\n", cache.folder().string(), entries.size(),
             static_cast<double>(v.at("bytes").as_int()) / (1 << 20),
             static_cast<double>(cache.limit()) / (1 << 20));
  for (const CacheEntry& e : entries)
    fmt::print("  {}  {:>9} bytes  used {}  {}\n", e.key, e.bytes, day_and_time(e.used),
               e.damaged()       ? "damaged"
               : e.other_version ? "of another version"
                                 : fmt::format("{} on {}", e.model, e.backend));
}

void verify_entries(bool json, bool remove) {
  CompileCache cache = CompileCache::from_environment();
  std::vector<CacheEntry> entries = cache.entries(true);
  size_t damaged = 0, other_versions = 0;
  for (const CacheEntry& e : entries) {
    damaged += e.damaged();
    other_versions += e.other_version;
  }
  if (remove) cache.remove_damaged();
  if (json) {
    Value v = entries_value(cache, entries);
    v.set("damaged", uint64_t{damaged});
    v.set("other_versions", uint64_t{other_versions});
    fmt::print("{}\n", dump_json(v, 2));
  } else {
    for (const CacheEntry& e : entries)
      if (!e.error.empty()) fmt::print("{}\n", e.error);
    fmt::print("{} entries, {} damaged{}, {} of another version\n", entries.size(), damaged,
               remove && damaged > 0 ? " and removed" : "", other_versions);
  }
  if (damaged > 0 && !remove)
    fail(ErrorCode::kCorrupt,
         "{} of {} entries are damaged; tokamak cache verify --remove deletes them", damaged,
         entries.size());
}

void clear_entries(bool json) {
  CompileCache cache = CompileCache::from_environment();
  size_t removed = cache.clear();
  if (json)
    fmt::print("{}\n", dump_json(Value::Object{{"folder", cache.folder().string()},
                                               {"removed", uint64_t{removed}}}));
  else
    fmt::print("{}: {} entries removed\n", cache.folder().string(), removed);
}

}  // namespace

void add_cache_verb(CLI::App& app) {
  CLI::App* cache = app.add_subcommand("cache", "list, check or clear the compile cache");
  cache->require_subcommand(1);
  auto json = std::make_shared<bool>(false), remove = std::make_shared<bool>(false);
  auto add = [&](const char* name, const char* what) {
    CLI::App* verb = cache->add_subcommand(name, what);
    verb->add_flag("--json", *json, "print as JSON");
    verb->footer(fmt::format("Example:\n  tokamak cache {} --json", name));
    return verb;
  };
  add("ls", "list entries, most recently used first")->callback([json] { list_entries(*json); });
  CLI::App* verify = add("verify", "read and check every entry; exit code 1 if one is damaged");
  verify->add_flag("--remove", *remove, "remove damaged entries");
  verify->callback([json, remove] { verify_entries(*json, *remove); });
  add("clear", "remove every entry")->callback([json] { clear_entries(*json); });
  cache->footer(
      "Plans are kept in $TOKAMAK_CACHE or ~/.cache/tokamak/compile, at most $TOKAMAK_CACHE_LIMIT\n"
      "bytes (default 256M); the least recently used are removed first. A damaged entry, or\n"
      "one of another version of this program, is not used; the model is compiled again.\n\n"
      "Examples:\n  tokamak cache ls\n  tokamak cache verify\n  tokamak cache clear");
}

}  // namespace tokamak
