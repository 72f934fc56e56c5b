#pragma once
// Runs batches in the background, one after the other, through the routes of the server.
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "serve/batch/batch.h"
#include "serve/batch/file_store.h"
#include "serve/http/router.h"

namespace tokamak::openai {

struct RunnerOptions {
  std::filesystem::path folder;  // of the batches' records and unfinished results
  int concurrency = 16;          // requests at once
  int64_t retention = 0;         // seconds after which ended batches and results are deleted
  int64_t max_batches = 10'000;  // ended batches that are kept
  // The key that requests of an owner are sent with; nullopt: the key is no longer valid.
  std::function<std::optional<std::string>(const std::string& owner)> key_of_owner;
};

// Owner: the batch API. Thread-safe. Every result is a line in a file before it counts, so that a
// batch goes on where it was after a crash: no request is answered twice or not at all.
class BatchRunner {
 public:
  // router: the routes that requests are sent to. Batches that an earlier run left go on.
  BatchRunner(RunnerOptions options, FileStore& files, http::Router router);
  ~BatchRunner();  // requests in progress are cancelled; the next run sends them again

  Batch add(Batch batch);
  std::optional<Batch> find(const std::string& owner, const std::string& id) const;
  std::vector<Batch> list(const std::string& owner) const;  // newest first
  // nullopt: no such batch. A batch that has ended stays as it is.
  std::optional<Batch> cancel(const std::string& owner, const std::string& id);
  bool uses(const std::string& file) const;  // as the input of a batch that has not ended
  // Forgets ended batches that are older than the retention time or too many.
  void expire(int64_t now);

 private:
  struct Work;  // the batch in progress
  void load();
  void loop();
  std::optional<std::string> next() const;
  void run(const std::shared_ptr<Work>& work);
  void start(Work& work);
  bool send_all(const std::shared_ptr<Work>& work);  // false: the server stops
  void send(const std::shared_ptr<Work>& work, const std::string& key,
            std::unique_lock<std::mutex>& lock);
  void received(Work& work, size_t index, const http::Response& response);
  void recall(Work& work, std::unique_lock<std::mutex>& lock);
  void finish(Work& work);
  void give_up(Work& work, std::string_view why);
  void store(const std::string& id);
  std::filesystem::path part(const std::string& id, const char* suffix) const;
  Batch& batch(const std::string& id) { return batches_.at(id); }

  const RunnerOptions options_;
  FileStore& files_;
  const http::Router router_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Batch> batches_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tokamak::openai
