#pragma once
// OpenAI's files and batches on local disk: /v1/files, /v1/batches.
#include <filesystem>

#include "serve/batch/batch_runner.h"
#include "serve/batch/file_store.h"
#include "serve/openai/api.h"

namespace tokamak::openai {

struct BatchOptions {
  std::filesystem::path folder;
  int concurrency = 16;                   // requests at once
  int64_t retention = 30 * 24 * 60 * 60;  // seconds after which files and ended batches expire
  int64_t max_files = 10'000;             // of all clients
};

// Owner: the program; destroyed before the Api, after the server has been stopped.
class BatchApi {
 public:
  // router: a copy of the routes that requests of a batch may use. Throws Error if the folder
  // cannot be used or another server uses it.
  BatchApi(const BatchOptions& options, Api& api, http::Router router);
  ~BatchApi();

  void add_routes(http::Router& router);

 private:
  using Request = http::Request;
  using Response = http::Response;
  std::string owner(const Request& request) const { return owner_of(api_.tenant_of(request)); }
  void expire();  // what is too old
  void check_room() const;
  Response upload(const Request& request);
  Response list_files(const Request& request);
  Response file(const Request& request) const;
  Response content(const Request& request) const;
  Response remove_file(const Request& request);
  Response create(const Request& request, const Value& body);
  Response list_batches(const Request& request);
  Response get_batch(const Request& request) const;
  Response cancel(const Request& request);

  Api& api_;
  const BatchOptions options_;
  int lock_ = -1;  // a file descriptor
  FileStore files_;
  BatchRunner runner_;
};

// For a server without a folder: its routes say what is missing.
void explain_missing_batches(Api& api, http::Router& router);

}  // namespace tokamak::openai
