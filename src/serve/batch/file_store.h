#pragma once
// Files that clients upload and that batches produce, in a folder on disk.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value.h"

namespace tokamak::openai {

struct StoredFile {
  std::string id, name, purpose;
  std::string owner;  // see owner_of; only the client with the same key finds it
  int64_t bytes = 0, created = 0;
  int64_t expires = 0;  // seconds of Unix time; 0: never

  Value card() const;  // as the API shows it
};

// Who an API key is, in files: not the key itself. "" if no key is needed.
std::string owner_of(std::string_view api_key);

// Owner: the batch API. Thread-safe. A file is its content and a small JSON file beside it, which
// is written last: what a crash interrupts is not listed.
class FileStore {
 public:
  explicit FileStore(std::filesystem::path folder);

  StoredFile add(const std::string& owner, std::string name, std::string purpose,
                 std::string_view content, int64_t expires);
  // Takes over a file of the same file system. id: from new_id, so that a repetition after a crash
  // has the same effect.
  StoredFile adopt(const std::string& id, const std::string& owner, std::string name,
                   std::string purpose, const std::filesystem::path& from, int64_t expires);
  std::optional<StoredFile> find(const std::string& owner, const std::string& id) const;
  std::vector<StoredFile> list(const std::string& owner) const;  // newest first
  bool remove(const std::string& owner, const std::string& id);
  // Deletes files that have expired, except those in use. Cheap while there are none.
  void expire(int64_t now, const std::function<bool(const std::string& id)>& in_use);
  int64_t size() const;  // of all owners
  std::filesystem::path content_path(const std::string& id) const { return folder_ / id; }

 private:
  void keep(StoredFile file);
  void erase(const std::string& id);

  const std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile> files_;
  int64_t next_expiry_ = INT64_MAX;  // no file expires before
};

}  // namespace tokamak::openai
