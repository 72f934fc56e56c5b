#include "serve/openai/list_page.h"

#include <algorithm>
#include <charconv>

#include "serve/openai/api_error.h"

namespace tokamak::openai {

PageRange page_range(const std::vector<std::string>& ids, const http::Request& request,
                     int64_t usual, int64_t most) {
  const std::string after = request.query_value("after"), asked = request.query_value("limit");
  int64_t limit = usual;
  if (!asked.empty()) {
    auto [end, error] = std::from_chars(asked.data(), asked.data() + asked.size(), limit);
    if (error != std::errc{} || end != asked.data() + asked.size() || limit < 1 || limit > most)
      bad_request("limit", "invalid_value", "Invalid 'limit': expected a number from 1 to {}.",
                  most);
  }
  auto begin = ids.begin();
  if (!after.empty()) {
    begin = std::find(ids.begin(), ids.end(), after);
    if (begin == ids.end())
      bad_request("after", "invalid_value", "No such id in 'after': '{}'.", after);
    ++begin;
  }
  const auto first = static_cast<size_t>(begin - ids.begin());
  return {first, first + std::min(static_cast<size_t>(limit), ids.size() - first)};
}

Value list_page(Value::Array data, bool has_more) {
  Value page = Value::Object{{"object", "list"}};
  page.set("first_id", data.empty() ? Value() : data.front().at("id"));
  page.set("last_id", data.empty() ? Value() : data.back().at("id"));
  page.set("has_more", has_more);
  page.set("data", std::move(data));
  return page;
}

}  // namespace tokamak::openai
