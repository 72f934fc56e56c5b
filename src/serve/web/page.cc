#include "serve/web/page.h"

#include <string_view>
#include <utility>

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
  const std::pair<const char*, std::string_view> scripts[] = {
      {"/web/chat.js", kChatJs},         {"/web/chats.js", kChatsJs},
      {"/web/markdown.js", kMarkdownJs}, {"/web/metrics.js", kMetricsJs},
      {"/web/plan.js", kPlanJs},         {"/web/server.js", kServerJs},
      {"/web/settings.js", kSettingsJs}, {"/web/side.js", kSideJs},
      {"/web/view.js", kViewJs}};
  for (const auto& [path, text] : scripts)
    add_file(router, path, "text/javascript; charset=utf-8", text);
  add_file(router, "/web/style.css", "text/css; charset=utf-8", kStyleCss);
  add_file(router, "/favicon.ico", "image/svg+xml", kIconSvg);
}

}  // namespace tokamak::web
