#include "serve/batch/batch_api.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/clock.h"
#include "base/file.h"
#include "serve/batch/multipart.h"
#include "serve/openai/api_error.h"
#include "serve/openai/fields.h"
#include "serve/openai/list_page.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEndpoints[] = {"/v1/chat/completions", "/v1/completions",
                                           "/v1/embeddings", "/v1/responses"};

// Creates the folder, which other users of the machine cannot read; the lock is held while the
// descriptor is open.
int lock_folder(const fs::path& folder) {
  std::error_code ec;
  if (fs::create_directories(folder, ec)) fs::permissions(folder, fs::perms::owner_all, ec);
  int fd = ::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0)
    fail(ErrorCode::kInvalidArgument, "--batch-dir {}: {}", folder.string(), std::strerror(errno));
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  ::close(fd);
  fail(ErrorCode::kUnavailable, "--batch-dir {}: another server uses this folder", folder.string());
}

RunnerOptions runner_options(const BatchOptions& options, const Api& api) {
  RunnerOptions out;
  out.folder = options.folder / "batches";
  out.concurrency = options.concurrency;
  out.retention = options.retention;
  out.max_batches = options.max_files;
  out.key_of_owner = [&api](const std::string& owner) -> std::optional<std::string> {
    const auto& keys = api.options().api_keys;
    if (keys.empty() && owner.empty()) return "";
    for (const ApiKey& key : keys)
      if (owner_of(key.key) == owner) return key.key;
    return std::nullopt;
  };
  return out;
}

[[noreturn]] void no_such(std::string_view what, const std::string& id) {
  throw ApiError(404, fmt::format("No such {}: '{}'.", what, id), "id", "not_found");
}

template <class Item>
http::Response page_of(const std::vector<Item>& items, const http::Request& request,
                       int64_t usual) {
  std::vector<std::string> ids;
  for (const Item& item : items) ids.push_back(item.id);
  const PageRange page = page_range(ids, request, usual, 10'000);
  Value::Array data;
  for (size_t i = page.begin; i < page.end; ++i) data.push_back(items[i].card());
  return http::json_response(list_page(std::move(data), page.end < items.size()));
}

constexpr int64_t kShortestLife = 3600, kLongestLife = 30 * 24 * 3600;  // as in the OpenAI API

// The seconds of an `expires_after`.
int64_t checked_lifetime(const std::string& param, const std::string& anchor, int64_t seconds) {
  if (anchor != "created_at")
    bad_request(param + "[anchor]", "invalid_value",
                "Invalid '{}[anchor]': only 'created_at' is available.", param);
  if (seconds < kShortestLife || seconds > kLongestLife)
    bad_request(param + "[seconds]", "invalid_value",
                "Invalid '{}[seconds]': expected {} to {}, an hour to 30 days.", param,
                kShortestLife, kLongestLife);
  return seconds;
}

// The lifetime in a form, where members of objects are named object[member]. 0: not given.
int64_t form_lifetime(const std::vector<FormPart>& parts) {
  std::string anchor;
  int64_t seconds = -1;
  bool given = false;
  for (const FormPart& part : parts) {
    if (part.name == "expires_after[anchor]") anchor = part.content;
    if (part.name == "expires_after[seconds]")
      std::from_chars(part.content.data(), part.content.data() + part.content.size(), seconds);
    given = given || part.name.starts_with("expires_after[");
  }
  return given ? checked_lifetime("expires_after", anchor, seconds) : 0;
}

Value checked_metadata(Fields& fields) {
  const Value* given = fields.find("metadata");
  if (given == nullptr) return Value();
  if (!given->is_object()) wrong_type("metadata", "an object", *given);
  if (given->size() > 16)
    bad_request("metadata", "invalid_value", "Invalid 'metadata': at most 16 keys.");
  for (const auto& [key, value] : given->as_object()) {
    if (!value.is_string()) wrong_type("metadata." + key, "a string", value);
    if (key.size() > 64 || value.size() > 512)
      bad_request("metadata." + key, "invalid_value",
                  "Invalid 'metadata': keys of up to 64 and values of up to 512 bytes.");
  }
  return *given;
}

}  // namespace

BatchApi::BatchApi(const BatchOptions& options, Api& api, http::Router router)
    : api_(api),
      options_(options),
      lock_(lock_folder(options.folder)),
      files_(options.folder / "files"),
      runner_(runner_options(options, api), files_, std::move(router)) {}

BatchApi::~BatchApi() { ::close(lock_); }

void BatchApi::expire() {
  const int64_t now = unix_seconds();
  runner_.expire(now);
  files_.expire(now, [this](const std::string& id) { return runner_.uses(id); });
}

void BatchApi::check_room() const {
  if (files_.size() >= options_.max_files)
    throw ApiError(429,
                   fmt::format("The server keeps {} files, as many as it may: delete some, or wait "
                               "until they expire.",
                               files_.size()),
                   "", "too_many_files");
}

http::Response BatchApi::upload(const Request& request) {
  expire();
  check_room();
  const FormPart *file = nullptr, *purpose = nullptr;
  std::vector<FormPart> parts = parse_multipart(request.header("content-type"), request.body);
  for (const FormPart& part : parts) {
    if (part.name == "file") file = &part;
    if (part.name == "purpose") purpose = &part;
  }
  if (file == nullptr) bad_request("file", "missing_required_parameter", "The form has no 'file'.");
  if (purpose == nullptr)
    bad_request("purpose", "missing_required_parameter", "The form has no 'purpose'.");
  if (purpose->content != "batch")
    bad_request("purpose", "invalid_value",
                "Invalid 'purpose': this server keeps files for 'batch' only.");
  std::string name = file->filename.empty() ? "upload.jsonl" : file->filename;
  const int64_t lifetime = form_lifetime(parts);
  const int64_t expires = unix_seconds() + (lifetime > 0 ? lifetime : options_.retention);
  return http::json_response(
      files_.add(owner(request), std::move(name), "batch", file->content, expires).card());
}

http::Response BatchApi::list_files(const Request& request) {
  expire();
  std::vector<StoredFile> files = files_.list(owner(request));
  if (std::string purpose = request.query_value("purpose"); !purpose.empty())
    std::erase_if(files, [&](const StoredFile& file) { return file.purpose != purpose; });
  return page_of(files, request, 10'000);
}

http::Response BatchApi::file(const Request& request) const {
  auto found = files_.find(owner(request), request.parameter);
  if (!found) no_such("file", request.parameter);
  return http::json_response(found->card());
}

http::Response BatchApi::content(const Request& request) const {
  auto found = files_.find(owner(request), request.parameter);
  if (!found) no_such("file", request.parameter);
  Response response;
  response.content_type = "application/jsonl";
  response.body = read_text_file(files_.content_path(found->id));
  return response;
}

http::Response BatchApi::remove_file(const Request& request) {
  const std::string& id = request.parameter;
  if (!files_.find(owner(request), id))
    no_such("file", id);  // does not reveal whether another client has it
  if (runner_.uses(id))
    throw ApiError(409, "The file is the input of a batch that has not ended.", "id",
                   "file_in_use");
  if (!files_.remove(owner(request), id)) no_such("file", id);
  return http::json_response(Value::Object{{"id", id}, {"object", "file"}, {"deleted", true}});
}

http::Response BatchApi::create(const Request& request, const Value& body) {
  expire();
  check_room();  // for the results
  Fields fields(body);
  Batch batch;
  batch.id = new_id("batch_");
  batch.owner = owner(request);
  batch.input_file = fields.require_string("input_file_id");
  batch.endpoint = fields.require_string("endpoint");
  batch.completion_window = fields.require_string("completion_window");
  batch.metadata = checked_metadata(fields);
  if (const Value* life = fields.find("output_expires_after")) {
    Fields inner(*life, "output_expires_after");
    batch.output_lifetime = checked_lifetime("output_expires_after", inner.require_string("anchor"),
                                             inner.integer("seconds", 0, INT64_MAX).value_or(-1));
  }
  if (std::find(std::begin(kEndpoints), std::end(kEndpoints), batch.endpoint) ==
      std::end(kEndpoints))
    bad_request("endpoint", "invalid_value", "Invalid 'endpoint': expected one of {}.",
                fmt::join(kEndpoints, ", "));
  auto window = window_seconds(batch.completion_window);
  if (!window)
    bad_request("completion_window", "invalid_value",
                "Invalid 'completion_window': expected a time such as 24h.");
  if (!files_.find(batch.owner, batch.input_file)) no_such("file", batch.input_file);
  batch.created = unix_seconds();
  batch.expires = batch.created + *window;
  batch.output_file = new_id("file-");
  batch.error_file = new_id("file-");
  return http::json_response(runner_.add(std::move(batch)).card());
}

http::Response BatchApi::list_batches(const Request& request) {
  expire();
  return page_of(runner_.list(owner(request)), request, 20);
}

http::Response BatchApi::get_batch(const Request& request) const {
  auto found = runner_.find(owner(request), request.parameter);
  if (!found) no_such("batch", request.parameter);
  return http::json_response(found->card());
}

http::Response BatchApi::cancel(const Request& request) {
  auto found = runner_.cancel(owner(request), request.parameter);
  if (!found) no_such("batch", request.parameter);
  return http::json_response(found->card());
}

void BatchApi::add_routes(http::Router& router) {
  auto add = [&](const char* method, const char* path,
                 Response (BatchApi::*answer)(const Request&)) {
    router.add(method, path, api_.on_worker([this, answer](const Request& request) {
      return (this->*answer)(request);
    }));
  };
  auto read = [&](const char* path, Response (BatchApi::*answer)(const Request&) const) {
    router.add("GET", path, api_.on_worker([this, answer](const Request& request) {
      return (this->*answer)(request);
    }));
  };
  add("POST", "/v1/files", &BatchApi::upload);
  add("GET", "/v1/files", &BatchApi::list_files);
  read("/v1/files/{id...}/content", &BatchApi::content);
  read("/v1/files/{id...}", &BatchApi::file);
  add("DELETE", "/v1/files/{id...}", &BatchApi::remove_file);
  router.add("POST", "/v1/batches",
             api_.with_json([this](const http::ExchangePtr& exchange, const Value& body, uint64_t) {
               exchange->respond(create(exchange->request(), body));
             }));
  add("GET", "/v1/batches", &BatchApi::list_batches);
  read("/v1/batches/{id...}", &BatchApi::get_batch);
  add("POST", "/v1/batches/{id...}/cancel", &BatchApi::cancel);
}

void explain_missing_batches(Api& api, http::Router& router) {
  for (const char* path : {"/v1/files", "/v1/batches"})
    for (const char* method : {"GET", "POST"})
      router.add(method, path, api.quick([](const http::Request&) -> http::Response {
        throw ApiError(404,
                       "Files and batches need a folder: start the server with --batch-dir DIR.");
      }));
}

}  // namespace tokamak::openai
