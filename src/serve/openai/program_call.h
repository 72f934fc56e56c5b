#pragma once
// POST /v1/programs: one program from its start to the answer (docs/programs.md).
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "serve/http/message.h"
#include "serve/openai/generation.h"
#include "serve/openai/request_log.h"
#include "serve/program/run.h"
#include "serve/served_model.h"
#include "serve/worker_pool.h"

namespace tokamak::openai {

// Programs that wait for the results of calls, until their time is over. Used by any thread.
class PausedPrograms {
 public:
  struct Entry {
    std::unique_ptr<program::Run> run;
    std::string model, tenant;
  };
  // Throws ApiError(429) if too many wait.
  void put(const std::string& id, Entry entry);
  // Throws ApiError(404) if there is no such program of the tenant.
  Entry take(const std::string& id, const std::string& tenant);
  void put_back(const std::string& id, Entry entry);  // after take()
  void clear();

 private:
  void drop_old();

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

struct ProgramRequest {
  std::shared_ptr<const program::Program> program;
  program::Host host;
  std::string model;
  bool stream = false;
  std::string id, tenant;
  std::unique_ptr<program::Run> run = nullptr;  // that goes on; null: a new one
  std::shared_ptr<PausedPrograms> paused;
};

// Owner: itself, from start() until the answer is sent or the client has disconnected; the engine
// holds only a weak reference. Runs in turns on a pool, a few dozen statements each.
class ProgramCall : public std::enable_shared_from_this<ProgramCall> {
 public:
  ProgramCall(http::ExchangePtr exchange, ProgramRequest request, WorkerPool& pool,
              std::shared_ptr<GenerationStats> stats, RequestContext context);
  void start();

 private:
  void wake();  // any thread
  void turn();  // pool
  void send_events();
  void complete();
  void pause();
  void answer(Value answer);
  void fail_with(const std::exception& error);
  void close();
  void log_end(int status, const std::string& error) const;

  RunningCount running_;  // first, so that it is destroyed last
  http::ExchangePtr exchange_;
  ProgramRequest request_;
  WorkerPool& pool_;
  std::shared_ptr<GenerationStats> stats_;
  const RequestContext context_;

  std::mutex mutex_;  // guards the next four
  std::shared_ptr<ProgramCall> self_;
  bool scheduled_ = false, woken_ = false;
  const char* ended_ = nullptr;  // why it must not go on

  // Used only by the job.
  std::unique_ptr<program::Run> run_;
  bool streaming_ = false;
};

}  // namespace tokamak::openai
