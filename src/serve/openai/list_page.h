#pragma once
// Lists in pages, as OpenAI's clients walk them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/value.h"
#include "serve/http/message.h"

namespace tokamak::openai {

// The items [begin, end) of a page.
struct PageRange {
  size_t begin, end;
};
// ?limit= items after the one whose id is ?after=. Without a limit: `usual` of them. Throws an
// ApiError for a limit above `most` and for an id that is not in the list.
PageRange page_range(const std::vector<std::string>& ids, const http::Request& request,
                     int64_t usual, int64_t most);
// `data`: the items of the page, each with an id.
Value list_page(Value::Array data, bool has_more);

}  // namespace tokamak::openai
