// Routes for operators: forget cached prompts, abort requests.
#include "base/log.h"
#include "serve/openai/api.h"
#include "serve/openai/api_error.h"

namespace tokamak::openai {

// Cached prompts are found by their salt, so a new salt for everyone makes the old ones
// unreachable; their blocks are evicted when others need them.
std::string Api::salt_of(const std::string& tenant, const std::string& salt) const {
  std::string all = salt.empty() ? tenant : tenant.empty() ? salt : tenant + "\n" + salt;
  const uint64_t epoch = cache_epoch_;
  return epoch == 0 ? all : fmt::format("\n{}\n{}", epoch, all);
}

http::Response Api::reset_cache(const http::Request& request) {
  need_admin(request);
  log::info("the prefix cache was reset ({} times)", ++cache_epoch_);
  return http::json_response(Value::Object{{"success", true}});
}

// The answer is sent before the process is replaced, like all that run.
http::Response Api::restart(const http::Request& request) {
  need_admin(request);
  if (!options_.restart) throw ApiError(400, "This server cannot restart.", "", "not_supported");
  options_.restart();
  return http::json_response(Value::Object{{"success", true}});
}

// A client aborts requests of its own key; an administrator those of all.
http::Response Api::abort_requests(const http::Request& request, const Value& body) {
  Fields fields(body);
  std::optional<std::string> tenant;
  if (admin_.find(key_of(request)) == nullptr) tenant = tenant_of(request);
  std::vector<std::string> ids;
  for (const char* name : {"request_id", "rid"})
    if (auto id = fields.string(name); id && !id->empty()) ids.push_back(*id);
  if (const auto* list = fields.array("request_ids"))
    for (size_t i = 0; i < list->size(); ++i) {
      if (!(*list)[i].is_string())
        wrong_type(fmt::format("request_ids[{}]", i), "a string", (*list)[i]);
      ids.push_back((*list)[i].as_string());
    }
  const bool all = fields.boolean("abort_all").value_or(false);
  if (ids.empty() && !all)
    bad_request("request_ids", "missing_required_parameter",
                "Name the requests in 'request_ids', or set 'abort_all'.");
  const int64_t count = stats_->requests.abort(ids, all, tenant);
  return http::json_response(Value::Object{{"success", true}, {"aborted", count}});
}

void Api::add_operator_routes(http::Router& router) {
  using http::Request;
  router.add("POST", "/reset_prefix_cache",
             quick([this](const Request& request) { return reset_cache(request); }));
  router.add("POST", "/admin/restart",
             quick([this](const Request& request) { return restart(request); }));
  for (const char* path : {"/prefix_tree", "/prefix_tree/{model...}"})
    router.add("GET", path,
               on_worker([this](const Request& request) { return prefixes(request); }));
  router.add("GET", "/timeline/{function...}",
             on_worker([this](const Request& request) { return timeline(request.parameter); }));
  router.add("POST", "/abort_request",
             with_json([this](http::ExchangePtr exchange, const Value& body, uint64_t) {
               exchange->respond(abort_requests(exchange->request(), body));
             }));
}

}  // namespace tokamak::openai
