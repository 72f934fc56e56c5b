#include "serve/web/page.h"

#include <string>
#include <string_view>
#include <utility>

#include "serve/web/libs_data.h"
#include "serve/web/page_data.h"

namespace tokamak::web {
namespace {

// The page loads nothing from other origins and has no inline scripts; the browser enforces this.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; "
    "img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void add_file(http::Router& router, std::string path, const char* type, std::string_view data,
              bool compressed = false) {
  router.add("GET", std::move(path), [type, data, compressed](http::ExchangePtr exchange) {
    http::Response response;
    response.content_type = type;
    response.body = data;
    response.headers = {{"Cache-Control", "no-cache"},
                        {"Content-Security-Policy", kPolicy},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"}};
    if (compressed) response.headers.emplace_back("Content-Encoding", "gzip");
    exchange->respond(std::move(response));
  });
}

// "katex.min.js.gz" -> /web/lib/katex.min.js; the style sheet expects its fonts below it.
void add_library(http::Router& router, std::string name, std::string_view data) {
  bool compressed = name.ends_with(".gz");
  if (compressed) name.resize(name.size() - 3);
  bool font = name.ends_with(".woff2");
  const char* type = font                    ? "font/woff2"
                     : name.ends_with(".js") ? "text/javascript; charset=utf-8"
                                             : "text/css; charset=utf-8";
  add_file(router, (font ? "/web/lib/fonts/" : "/web/lib/") + name, type, data, compressed);
}

}  // namespace

void add_page(http::Router& router) {
  add_file(router, "/", "text/html; charset=utf-8", kIndexHtml);
  add_file(router, "/index.html", "text/html; charset=utf-8", kIndexHtml);
  const std::pair<const char*, std::string_view> scripts[] = {
      {"/web/chat.js", kChatJs},         {"/web/chats.js", kChatsJs},
      {"/web/decorate.js", kDecorateJs}, {"/web/graph.js", kGraphJs},
      {"/web/markdown.js", kMarkdownJs}, {"/web/metrics.js", kMetricsJs},
      {"/web/plan.js", kPlanJs},         {"/web/rag.js", kRagJs},
      {"/web/server.js", kServerJs},     {"/web/settings.js", kSettingsJs},
      {"/web/side.js", kSideJs},         {"/web/svg.js", kSvgJs},
      {"/web/threads.js", kThreadsJs},   {"/web/timeline.js", kTimelineJs},
      {"/web/tree.js", kTreeJs},         {"/web/view.js", kViewJs},
      {"/web/zoom.js", kZoomJs}};
  for (const auto& [path, text] : scripts)
    add_file(router, path, "text/javascript; charset=utf-8", text);
  for (const auto& [name, data] : libs::kFiles) add_library(router, std::string(name), data);
  add_file(router, "/web/style.css", "text/css; charset=utf-8", kStyleCss);
  add_file(router, "/favicon.ico", "image/svg+xml", kIconSvg);
}

}  // namespace tokamak::web
