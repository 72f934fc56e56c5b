// llama.cpp's /slots: the text of a slot, saved to a file, restored from it, or forgotten.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/file.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/sha256.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"
#include "serve/openai/fields.h"

namespace tokamak::openai {
namespace {

constexpr std::string_view kMagic = "TKSLOT1\n";
constexpr size_t kMaxHead = 4096;

// A name without a path: letters, digits and a few signs, and no dot at the beginning.
std::filesystem::path file_of(const Api& api, const std::string& name) {
  auto usable = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == ' ';
  };
  bool good = !name.empty() && name.size() <= 200 && name[0] != '.' && name[0] != ' ';
  for (char c : name) good = good && usable(static_cast<unsigned char>(c));
  if (!good)
    bad_request("filename", "invalid_value",
                "Invalid 'filename': use up to 200 letters, digits, spaces and . _ -, no path.");
  return std::filesystem::path(api.options().slot_folder) / name;
}

// Requests with the same key and salt may restore it. The key itself is not written.
uint64_t write_file(const std::filesystem::path& path, const std::string& layout,
                    const std::string& salt, const SavedPrefix& saved) {
  NewFile file(path);
  Value head = Value::Object{{"layout", layout},
                             {"owner", sha256_hex(salt)},
                             {"tokens", std::ssize(saved.ids)},
                             {"checksum", checksum(saved.blocks).hex()}};
  std::string text = std::string(kMagic) + dump_json(head) + "\n";
  file.write(std::as_bytes(std::span(text)));
  file.write(std::as_bytes(std::span(saved.ids)));
  file.write(saved.blocks);
  file.commit();
  return file.size();
}

SavedPrefix read_file(const std::filesystem::path& path, const std::string& layout,
                      const std::string& salt, int64_t vocab, uint64_t& size) {
  auto wrong = [&](const char* why) {
    bad_request("filename", "invalid_value", "'{}' {}.", path.filename().string(), why);
  };
  if (!std::filesystem::is_regular_file(path))
    throw ApiError(404, fmt::format("There is no file '{}'.", path.filename().string()), "filename",
                   "not_found");
  auto file = MappedFile::open(path);
  std::span<const std::byte> bytes = file->bytes();
  size = bytes.size();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  size_t end = text.substr(0, kMaxHead).find('\n', kMagic.size());
  if (!text.starts_with(kMagic) || end == text.npos) wrong("is not a saved slot");
  Value head;
  try {
    head = parse_json(text.substr(kMagic.size(), end - kMagic.size()));
  } catch (const Error&) {
    wrong("is not a saved slot");
  }
  if (head.get_string("layout", "") != layout) wrong("was saved with another model or build");
  if (head.get_string("owner", "") != sha256_hex(salt)) wrong("was saved with another key or salt");
  int64_t tokens = head.get_int("tokens", 0);
  bytes = bytes.subspan(end + 1);
  if (tokens < 1 || static_cast<uint64_t>(tokens) > bytes.size() / sizeof(int32_t))
    wrong("is not complete");
  SavedPrefix saved;
  saved.ids.resize(static_cast<size_t>(tokens));
  std::memcpy(saved.ids.data(), bytes.data(), saved.ids.size() * sizeof(int32_t));
  bytes = bytes.subspan(saved.ids.size() * sizeof(int32_t));
  saved.blocks.assign(bytes.begin(), bytes.end());
  if (checksum(saved.blocks).hex() != head.get_string("checksum", "")) wrong("is corrupt");
  for (int32_t id : saved.ids)
    if (id < 0 || id >= vocab) wrong("is corrupt");
  return saved;
}

http::Response slot_action(const Api& api, const http::Request& request) {
  const std::string action = request.query_value("action");
  const Value body = request.body.empty() ? Value::object() : parse_any_body(request);
  if (!body.is_object()) wrong_type("body", "an object", body);
  const auto model = api.model_of(body);
  Fields fields(body);
  const auto& digits = request.parameter;
  const bool number = digits.size() < 7 && digits.find_first_not_of("0123456789") == digits.npos;
  if (!number || std::stoll(digits) >= model->max_sequences)
    throw ApiError(404, fmt::format("There is no slot '{}'.", digits.substr(0, 64)), "id",
                   "not_found");
  const auto slot = static_cast<int32_t>(std::stoi(digits));
  const std::string salt =
      api.salt_of(api.tenant_of(request), fields.string("cache_salt").value_or(""));
  Value out = Value::Object{{"id_slot", slot}};
  if (action == "erase") {
    out.set("n_erased", model->client->erase_slot(slot, salt));
    return http::json_response(out);
  }
  if (action != "save" && action != "restore")
    bad_request("action", "invalid_value", "Invalid 'action': use save, restore or erase.");
  if (api.options().slot_folder.empty())
    throw ApiError(400, "Start the server with --slot-save-path to save and restore slots.", "",
                   "not_supported");
  const std::string& name = fields.require_string("filename");
  const std::filesystem::path path = file_of(api, name);
  const auto begin = std::chrono::steady_clock::now();
  out.set("filename", name);
  if (action == "save") {
    SavedPrefix saved = model->client->save_slot(slot, salt);
    if (saved.ids.empty())
      throw ApiError(404, fmt::format("Nothing of slot {} is cached in whole blocks.", slot), "id",
                     "not_found");
    out.set("n_saved", std::ssize(saved.ids));
    out.set("n_written",
            static_cast<int64_t>(write_file(path, model->client->kv_layout(), salt, saved)));
  } else {
    uint64_t size = 0;
    SavedPrefix saved =
        read_file(path, model->client->kv_layout(), salt, model->tokenizer->vocab_size(), size);
    try {
      model->client->restore_slot(slot, salt, saved);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      bad_request("filename", "invalid_value", "'{}' is corrupt: {}.", name, error.what());
    }
    out.set("n_restored", std::ssize(saved.ids));
    out.set("n_read", static_cast<int64_t>(size));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  out.set("timings", Value::Object{{action + "_ms", 1000 * took.count()}});
  return http::json_response(out);
}

}  // namespace

void add_slot_routes(Api& api, http::Router& router) {
  router.add("POST", "/slots/{id...}", api.on_worker([&api](const http::Request& request) {
    return slot_action(api, request);
  }));
}

}  // namespace tokamak::openai
