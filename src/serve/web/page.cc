#include "serve/web/page.h"

#include <string_view>

#include "serve/web/page_data.h"

namespace tokamak::web {
namespace {

// The page loads nothing from other origins and has no inline scripts; the browser enforces this.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void add_file(http::Router& router, const char* path, const char* type, std::string_view data) {
  router.add("GET", path, [type, data](http::ExchangePtr exchange) {
    http::Response response;
    response.content_type = type;
    response.body = data;
    response.headers = {{"Cache-Control", "no-cache"},
                        {"Content-Security-Policy", kPolicy},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"}};
    exchange->respond(std::move(response));
  });
}

}  // namespace

void add_page(http::Router& router) {
  add_file(router, "/", "text/html; charset=utf-8", kIndexHtml);
  add_file(router, "/index.html", "text/html; charset=utf-8", kIndexHtml);
  add_file(router, "/web/chat.js", "text/javascript; charset=utf-8", kChatJs);
  add_file(router, "/web/chats.js", "text/javascript; charset=utf-8", kChatsJs);
  add_file(router, "/web/markdown.js", "text/javascript; charset=utf-8", kMarkdownJs);
  add_file(router, "/web/panel.js", "text/javascript; charset=utf-8", kPanelJs);
  add_file(router, "/web/style.css", "text/css; charset=utf-8", kStyleCss);
  add_file(router, "/favicon.ico", "image/svg+xml", kIconSvg);
}

}  // namespace tokamak::web
