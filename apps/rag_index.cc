#include "apps/rag_index.h"

#include <algorithm>

#include "apps/model_store.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace tokamak {
namespace {

const std::filesystem::path& existing(const std::filesystem::path& index) {
  if (!std::filesystem::exists(index))
    fail(ErrorCode::kNotFound, "{} does not exist; tokamak rag index makes it", index.string());
  return index;
}

std::unique_ptr<Model> open_reranker(const std::string& name, int threads) {
  if (name.empty()) return nullptr;
  OpenOptions options;
  options.model = find_model(name);
  options.threads = threads;
  return std::make_unique<Model>(open_with_progress(options));
}

}  // namespace

std::filesystem::path rag_index_path(const std::filesystem::path& folder) {
  return std::filesystem::is_directory(folder) ? folder / kRagIndexName : folder;
}

RagIndex::RagIndex(const std::filesystem::path& index, const OpenOptions& model,
                   const std::string& reranker)
    : index_(VectorIndex::open(existing(index))),
      model_(open_with_progress(model)),
      reranker_(open_reranker(reranker, model.threads)) {
  if (std::string made = index_->meta().get_string("model", ""); made != model_.info().name)
    fail(ErrorCode::kInvalidArgument, "{} was made with {}, not with {}", index.string(), made,
         model_.info().name);
}

std::vector<openai::RagSource> RagIndex::find(const std::string& question, int64_t top) const {
  EmbedOptions options;
  options.prompt = "query";
  options.truncate = true;
  options.normalize = true;
  std::vector<float> query = model_.embed_one(question, options);
  int64_t wanted = reranker_ ? std::max<int64_t>(4 * top, 20) : top;  // a reranker reads more
  std::vector<openai::RagSource> found;
  for (const VectorIndex::Hit& hit : index_->search(query, wanted)) {
    Value entry = parse_json(index_->text(hit.index), "passage");
    found.push_back({entry.at("file").as_string(), entry.at("text").as_string(),
                     entry.at("line").as_int(), double{hit.score}});
  }
  if (!reranker_) return found;
  std::vector<std::string> texts;
  for (const openai::RagSource& p : found) texts.push_back(p.text);
  std::vector<double> scores = reranker_->rerank(question, texts, {.truncate = true});
  for (size_t i = 0; i < found.size(); ++i) found[i].score = scores[i];
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.score > b.score; });
  found.resize(std::min(found.size(), static_cast<size_t>(top)));
  return found;
}

void add_rag_flags(CLI::App& verb, RagServeFlags& flags) {
  CLI::Option* index = verb.add_option(
      "--rag-index", flags.index,
      "answer questions about this folder, indexed by tokamak rag index: /v1/rag/query and a tab "
      "of the page");
  verb.add_option("--rag-model", flags.model, "the embedding model of the index")
      ->needs(index)
      ->transform(find_model);
  verb.add_option("--rag-reranker", flags.reranker, "a cross-encoder that orders the passages")
      ->needs(index)
      ->transform(find_model);
}

void serve_rag(const RagServeFlags& flags, int threads, openai::Api& api, http::Router& router) {
  if (flags.index.empty())
    return openai::add_rag_routes(api, router, Value::Object{{"files", 0}, {"passages", 0}}, {});
  if (flags.model.empty())
    fail(ErrorCode::kInvalidArgument,
         "--rag-index needs --rag-model, the embedding model that made the index");
  OpenOptions options;
  options.model = flags.model;
  options.threads = threads;
  auto index =
      std::make_shared<const RagIndex>(rag_index_path(flags.index), options, flags.reranker);
  openai::add_rag_routes(
      api, router, index->meta(),
      [index](const std::string& question, int64_t top) { return index->find(question, top); });
  log::info("{}: {} passages, /v1/rag/query", flags.index, index->meta().get_int("passages", 0));
}

}  // namespace tokamak
