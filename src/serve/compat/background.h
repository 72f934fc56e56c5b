#pragma once
// Answers of the Responses API that the client does not wait for (`background`): the store has them
// from the beginning, and clients ask for them by their ids.
#include <memory>
#include <string>

#include "serve/compat/dialect.h"
#include "serve/compat/response_store.h"

namespace tokamak::openai {

// Owner: the request, which has no connection. The finished answer is stored by its shape.
class BackgroundAnswer : public std::enable_shared_from_this<BackgroundAnswer> {
 public:
  // entry.events: set if the client reads a stream.
  BackgroundAnswer(Api& api, std::shared_ptr<ResponseStore> store, std::string tenant,
                   std::string id, ResponseStore::Entry entry);
  Detached detach(const Shape& shape);
  void start();  // it is no longer queued
  void fail(const std::string& why);

 private:
  Api& api_;
  std::shared_ptr<ResponseStore> store_;
  std::string tenant_, id_;
  ResponseStore::Entry entry_;
};

// The response, or with ?stream=true its events. Throws ApiError.
void send_response(Api& api, ResponseStore& store, const http::ExchangePtr& exchange);
// The response after it was cancelled, or as it ended before. Throws ApiError.
Value cancel_response(Api& api, ResponseStore& store, const http::Request& request);
[[noreturn]] void response_not_found(const std::string& id);

}  // namespace tokamak::openai
