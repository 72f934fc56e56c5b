#include "serve/compat/background.h"

#include <utility>

#include "base/json.h"
#include "serve/http/turn.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {
namespace {

void follow_events(Api& api, const std::string& tenant, const std::string& id, EventLog& events,
                   const http::ExchangePtr& client, int64_t from) {
  events.follow(client, from);
  client->on_stop([&api, tenant, id] { api.abort(tenant, id); });  // its last event tells why
}

}  // namespace

BackgroundAnswer::BackgroundAnswer(Api& api, std::shared_ptr<ResponseStore> store,
                                   std::string tenant, std::string id, ResponseStore::Entry entry)
    : api_(api),
      store_(std::move(store)),
      tenant_(std::move(tenant)),
      id_(std::move(id)),
      entry_(std::move(entry)) {
  entry_.running = true;
}

Detached BackgroundAnswer::detach(const Shape& shape) {
  entry_.response = shape.queued();
  store_->put(tenant_, id_, entry_);
  http::Turn::Traits traits;
  traits.answer = [own = shared_from_this()](const http::Response& answer) {
    if (answer.status == 200) return;  // stored already
    own->fail(parse_json(answer.body).at("error").get_string("message", ""));
  };
  if (entry_.events != nullptr)
    traits.pieces = [log = entry_.events](std::string_view bytes, bool end) {
      log->add(bytes, end);
    };
  auto turn = std::make_shared<http::Turn>(http::Request{}, std::move(traits), [] {});
  auto accepted = [own = shared_from_this()](const http::ExchangePtr& client) {
    if (own->entry_.events != nullptr)
      follow_events(own->api_, own->tenant_, own->id_, *own->entry_.events, client, 0);
    else
      client->respond(http::json_response(own->entry_.response));
  };
  auto refused = [turn, own = shared_from_this()] {
    turn->set_gone();
    own->store_->remove(own->tenant_, own->id_);
  };
  return {std::make_shared<http::Exchange>(turn), accepted, refused};
}

void BackgroundAnswer::start() {
  ResponseStore::Entry entry = entry_;
  entry.response.set("status", "in_progress");
  store_->replace_running(tenant_, id_, std::move(entry));
}

void BackgroundAnswer::fail(const std::string& why) {
  ResponseStore::Entry failed = entry_;
  failed.running = false;
  failed.response.set("status", "failed");
  failed.response.set("error", Value::Object{{"code", "server_error"}, {"message", why}});
  store_->replace_running(tenant_, id_, std::move(failed));
}

void send_response(Api& api, ResponseStore& store, const http::ExchangePtr& exchange) {
  const http::Request& request = exchange->request();
  const std::string tenant = api.tenant_of(request), &id = request.parameter;
  auto entry = store.get(tenant, id);
  if (!entry) response_not_found(id);
  if (request.query_value("stream") != "true")
    return exchange->respond(http::json_response(entry->response));
  if (entry->events == nullptr)
    bad_request("stream", "invalid_value",
                "Only responses that were created with 'background' and 'stream' can be streamed "
                "again.");
  const std::string after = request.query_value("starting_after");
  if (after.size() > 9 || after.find_first_not_of("0123456789") != std::string::npos)
    bad_request("starting_after", "invalid_value",
                "Invalid 'starting_after': expected the sequence_number of an event.");
  follow_events(api, tenant, id, *entry->events, exchange,
                after.empty() ? 0 : std::stoi(after) + 1);
}

Value cancel_response(Api& api, ResponseStore& store, const http::Request& request) {
  const std::string tenant = api.tenant_of(request), &id = request.parameter;
  auto entry = store.get(tenant, id);
  if (!entry) response_not_found(id);
  if (!entry->background)
    throw ApiError(400, "Cannot cancel a response that was not created with 'background'.", "id",
                   "invalid_value");
  if (!entry->running) return entry->response;
  entry->running = false;
  entry->response.set("status", "cancelled");
  if (store.replace_running(tenant, id, *entry)) {
    api.abort(tenant, id);
  } else if (entry = store.get(tenant, id); !entry) {  // it ended, or was deleted, just now
    response_not_found(id);
  }
  return entry->response;
}

void response_not_found(const std::string& id) {
  throw ApiError(404, fmt::format("Response with id '{}' not found.", id.substr(0, 64)), "id",
                 "response_not_found");
}

}  // namespace tokamak::openai
