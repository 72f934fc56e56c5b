#pragma once
// Questions about indexed documents: passages are found, and a chat model answers from them.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/router.h"
#include "serve/openai/api.h"

namespace tokamak::openai {

struct RagSource {
  std::string file, text;
  int64_t line = 0;
  double score = 0;
};

// The passages that fit a question best, best first. Called on workers, also at the same time.
using FindPassages =
    std::function<std::vector<RagSource>(const std::string& question, int64_t top)>;

std::string rag_prompt(std::string_view question, const std::vector<RagSource>& sources);
Value rag_sources_value(const std::vector<RagSource>& sources);

// POST /v1/rag/query, and GET /v1/rag with `about` the index. Without `find` there is no index: the
// first says so, the second has no passages.
void add_rag_routes(Api& api, http::Router& router, Value about, FindPassages find);

}  // namespace tokamak::openai
