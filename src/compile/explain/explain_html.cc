#include "base/error.h"
#include "base/json.h"
#include "compile/explain/explain.h"
#include "compile/explain/page_data.h"

namespace tokamak {
namespace {

void put(std::string& page, std::string_view mark, std::string_view text) {
  size_t at = page.find(mark);
  TK_CHECK(at != std::string::npos, "the page has no {}", mark);
  page.replace(at, mark.size(), text);
}

// JSON inside a <script>: a string in it must not close the element.
std::string script_json(const Value& value) {
  std::string out;
  for (char c : dump_json(value)) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string explain_html(const Value& report) {
  std::string page(explain_page::kReportHtml);
  put(page, "/*STYLE*/", explain_page::kReportCss);
  put(page, "/*SCRIPT*/",
      std::string(explain_page::kReportJs) + std::string(explain_page::kPicturesJs));
  put(page, "/*DATA*/", script_json(report));
  return page;
}

}  // namespace tokamak
