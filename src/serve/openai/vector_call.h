#pragma once
// One request for vectors (embeddings, scores, labels) from submission to the answer: several
// texts, one response.
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/http/message.h"
#include "serve/openai/generation.h"
#include "serve/openai/request_log.h"
#include "serve/served_model.h"
#include "serve/worker_pool.h"
#include "text/embedding.h"

namespace tokamak::openai {

struct VectorRequest {
  std::shared_ptr<const ServedModel> model;
  std::vector<EmbeddingInput> inputs;
  std::string param;  // the field they come from
  int32_t priority = 0;
  std::string cache_salt, tenant;
  double timeout_seconds = 0;
  bool per_token = false;  // a vector of each token instead
  int64_t tokens() const;  // of all inputs
  // The body of the answer. Called once, on a worker, with a vector per input.
  std::function<std::string(std::vector<std::vector<float>> vectors)> answer;
};

// Owner: itself, from start() until the answer is sent or the client has disconnected; the engine's
// sinks hold only a weak reference, so that the engine never destroys it.
class VectorCall : public std::enable_shared_from_this<VectorCall> {
 public:
  VectorCall(http::ExchangePtr exchange, VectorRequest request, WorkerPool& pool,
             std::shared_ptr<GenerationStats> stats, RequestContext context);

  // Throws what Client::submit throws, after cancelling what was already submitted.
  void start();

 private:
  void watch_client();
  void submit(size_t index);
  void take(size_t index, Delta&& delta);  // engine thread
  void complete();                         // worker
  void fail_with(Delta delta);             // worker
  void cancel_all();
  void respond(http::Response response, const std::string& error);

  RunningCount running_;  // first, so that it is destroyed last
  http::ExchangePtr exchange_;
  VectorRequest request_;
  WorkerPool& pool_;
  std::shared_ptr<GenerationStats> stats_;
  const RequestContext context_;

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<VectorCall> self_;
  std::vector<RequestId> submitted_;
  std::vector<std::vector<float>> vectors_;
  size_t open_ = 0;
  int64_t cached_tokens_ = 0;
  bool ended_ = false;
};

}  // namespace tokamak::openai
