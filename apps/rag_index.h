#pragma once
// An index of passages with the models that search it: `tokamak rag ask` and `serve --rag-index`.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/model_flags.h"
#include "serve/compat/rag.h"
#include "text/index/vector_index.h"

namespace tokamak {

inline constexpr const char* kRagIndexName = ".tokamak-index";

// The index file of a folder, or the file itself.
std::filesystem::path rag_index_path(const std::filesystem::path& folder);

// Any number of threads may search.
class RagIndex {
 public:
  // reranker: a cross-encoder that puts the passages in order; empty: none. Fails if the index was
  // made with another model.
  RagIndex(const std::filesystem::path& index, const OpenOptions& model,
           const std::string& reranker);
  std::vector<openai::RagSource> find(const std::string& question, int64_t top) const;
  const Value& meta() const { return index_->meta(); }

 private:
  std::shared_ptr<const VectorIndex> index_;
  Model model_;
  std::unique_ptr<Model> reranker_;
};

// --rag-index, --rag-model and --rag-reranker of serve.
struct RagServeFlags {
  std::string index, model, reranker;
};
void add_rag_flags(CLI::App& verb, RagServeFlags& flags);
void serve_rag(const RagServeFlags& flags, int threads, openai::Api& api, http::Router& router);

}  // namespace tokamak
