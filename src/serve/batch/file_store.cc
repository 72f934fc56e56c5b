#include "serve/batch/file_store.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

namespace fs = std::filesystem;

StoredFile read_card(const Value& value) {
  StoredFile file;
  file.id = value.at("id").as_string();
  file.name = value.at("filename").as_string();
  file.purpose = value.at("purpose").as_string();
  file.owner = value.at("owner").as_string();
  file.bytes = value.at("bytes").as_int();
  file.created = value.at("created_at").as_int();
  if (const Value* expires = value.find("expires_at")) file.expires = expires->as_int();
  return file;
}

}  // namespace

std::string owner_of(std::string_view api_key) {
  return api_key.empty() ? "" : sha256_hex(api_key);
}

Value StoredFile::card() const {
  Value value = Value::object();
  value.set("id", id);
  value.set("object", "file");
  value.set("bytes", bytes);
  value.set("created_at", created);
  if (expires > 0) value.set("expires_at", expires);
  value.set("filename", name);
  value.set("purpose", purpose);
  value.set("status", "processed");
  return value;
}

FileStore::FileStore(fs::path folder) : folder_(std::move(folder)) {
  fs::create_directories(folder_);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() != ".json") continue;
    try {
      StoredFile file = read_card(parse_json(read_text_file(entry.path()), entry.path().string()));
      if (entry.path().stem() != file.id || !fs::is_regular_file(folder_ / file.id))
        fail(ErrorCode::kInvalidArgument, "its content is missing");
      if (file.expires > 0) next_expiry_ = std::min(next_expiry_, file.expires);
      files_[file.id] = std::move(file);
    } catch (const std::exception& e) {
      log::warn("{}: not listed: {}", entry.path().string(), e.what());
    }
  }
}

void FileStore::keep(StoredFile file) {
  Value value = file.card();
  value.set("owner", file.owner);
  replace_file(folder_ / (file.id + ".json"), dump_json(value));
  std::lock_guard lock(mutex_);
  if (file.expires > 0) next_expiry_ = std::min(next_expiry_, file.expires);
  files_[file.id] = std::move(file);
}

StoredFile FileStore::add(const std::string& owner, std::string name, std::string purpose,
                          std::string_view content, int64_t expires) {
  StoredFile file{new_id("file-"),
                  std::move(name),
                  std::move(purpose),
                  owner,
                  static_cast<int64_t>(content.size()),
                  unix_seconds(),
                  expires};
  replace_file(content_path(file.id), content);
  keep(file);
  return file;
}

StoredFile FileStore::adopt(const std::string& id, const std::string& owner, std::string name,
                            std::string purpose, const fs::path& from, int64_t expires) {
  if (fs::exists(from)) fs::rename(from, content_path(id));
  StoredFile file{id,
                  std::move(name),
                  std::move(purpose),
                  owner,
                  static_cast<int64_t>(fs::file_size(content_path(id))),
                  unix_seconds(),
                  expires};
  keep(file);
  return file;
}

std::optional<StoredFile> FileStore::find(const std::string& owner, const std::string& id) const {
  std::lock_guard lock(mutex_);
  auto it = files_.find(id);
  if (it == files_.end() || it->second.owner != owner) return std::nullopt;
  return it->second;
}

std::vector<StoredFile> FileStore::list(const std::string& owner) const {
  std::vector<StoredFile> out;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_)
      if (file.owner == owner) out.push_back(file);
  }
  std::sort(out.begin(), out.end(), [](const StoredFile& a, const StoredFile& b) {
    return std::tie(b.created, b.id) < std::tie(a.created, a.id);
  });
  return out;
}

bool FileStore::remove(const std::string& owner, const std::string& id) {
  if (!find(owner, id)) return false;
  erase(id);
  return true;
}

void FileStore::erase(const std::string& id) {
  {
    std::lock_guard lock(mutex_);
    files_.erase(id);
  }
  std::error_code ignored;
  fs::remove(folder_ / (id + ".json"), ignored);
  fs::remove(content_path(id), ignored);
}

void FileStore::expire(int64_t now, const std::function<bool(const std::string& id)>& in_use) {
  std::vector<std::string> expired;
  {
    std::lock_guard lock(mutex_);
    if (now < next_expiry_) return;
    next_expiry_ = INT64_MAX;
    for (const auto& [id, file] : files_) {
      if (file.expires == 0) continue;
      if (file.expires <= now)
        expired.push_back(id);
      else
        next_expiry_ = std::min(next_expiry_, file.expires);
    }
  }
  for (const std::string& id : expired) {
    if (!in_use(id)) {
      erase(id);
      continue;
    }
    std::lock_guard lock(mutex_);
    next_expiry_ = now;  // looked at again by the next call
  }
}

int64_t FileStore::size() const {
  std::lock_guard lock(mutex_);
  return std::ssize(files_);
}

}  // namespace tokamak::openai
