#pragma once
// An HTTP client for load tests: one request per connection, the response as a stream of
// server-sent events.
#include <functional>
#include <string>
#include <string_view>

#include "serve/http/post.h"

namespace tokamak {

using http::Url;
// The address of a server, with or without /v1 at its end. Throws Error(kInvalidArgument).
Url parse_server_url(const std::string& text);

// POSTs `body` and calls on_event for the data of each event, on this thread. Returns the HTTP
// status; if that is not 200, `error` gets the body. Throws Error(kUnavailable) when the
// connection fails or ends too early.
int post_events(const Url& url, const std::string& path, const std::string& api_key,
                const std::string& body, const std::function<void(std::string_view)>& on_event,
                std::string& error);

std::string get_text(const Url& url, const std::string& path, const std::string& api_key);

}  // namespace tokamak
