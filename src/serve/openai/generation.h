#pragma once
// One generation request from submission to the last byte: connects the engine's deltas, the
// client's connection and the answer format.
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/http/message.h"
#include "serve/openai/choice.h"
#include "serve/openai/prepare.h"
#include "serve/openai/request_log.h"
#include "serve/openai/shape.h"
#include "serve/worker_pool.h"

namespace tokamak::openai {

class Generation;

// The requests that run, so that they can be aborted. Thread-safe.
class RunningRequests {
 public:
  void add(const std::shared_ptr<Generation>& generation);
  void remove(const Generation& generation);
  // Aborts those with one of these ids, or all; only those of the tenant if there is one. Returns
  // how many.
  int64_t abort(const std::vector<std::string>& ids, bool all,
                const std::optional<std::string>& tenant);

 private:
  std::mutex mutex_;
  std::map<const Generation*, std::weak_ptr<Generation>> running_;
};

// Counters of all generations of a server; read from any thread.
struct GenerationStats {
  RunningRequests requests;
  std::atomic<int64_t> running{0}, finished{0}, cancelled{0}, failed{0};
  std::atomic<int64_t> prompt_tokens{0}, completion_tokens{0}, cached_tokens{0};
};

// A request that runs. Counted while the call that has it, and everything the call holds, exist.
struct RunningCount {
  explicit RunningCount(std::shared_ptr<GenerationStats> s) : stats(std::move(s)) {
    ++stats->running;
  }
  ~RunningCount() { --stats->running; }
  std::shared_ptr<GenerationStats> stats;
};

// Owner: itself, from start() until the answer is complete or the client has disconnected; the
// engine's sink holds only a weak reference, so that the engine never destroys it. Deltas arrive on
// the engine's thread, are queued, and are processed by one pool job at a time.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(http::ExchangePtr exchange, Prepared request, std::unique_ptr<Shape> shape,
             WorkerPool& pool, std::shared_ptr<GenerationStats> stats, RequestContext context = {});

  // Submits the prompts and starts the stream. Throws what Client::submit throws, after cancelling
  // what
  // was already submitted.
  void start();
  ~Generation() { stats_->requests.remove(*this); }

  // Ends the answer with an error. Any thread.
  void abort(const char* why, ErrorCode code);
  bool is(const std::string& id) const {
    return id == request_.params.request_id || id == shape_->id();
  }
  const std::string& tenant() const { return request_.params.tenant; }

 private:
  struct Part {  // one prompt
    RequestId id = 0;
    PromptScores scores;
  };
  struct Arrival {
    size_t part;
    Delta delta;
  };

  RequestSpec spec_of(const Prompt& prompt, const std::shared_ptr<const SampleSpec>& sample) const;
  void watch_client();
  void push(size_t part, Delta&& delta);  // engine thread
  void schedule();                        // any thread, holding the mutex
  void drain();                           // pool
  void handle(Arrival& arrival);
  void handle_choice(Choice& choice, Arrival& arrival);
  void report_progress(const Delta& delta);
  void complete();
  void keep_best();                    // of the choices of each prompt
  void break_off(const Delta& delta);  // the engine could not finish
  [[noreturn]] void refuse() const;    // rethrows submit's error as an ApiError
  void cancel_all();
  void add_headers(http::Headers& headers) const;
  Usage usage() const;
  void log_end(int status, const std::string& error, const Usage* total);

  RunningCount running_;        // first, so that it is destroyed last
  http::ExchangePtr exchange_;  // released when the answer is complete
  const Prepared request_;
  std::unique_ptr<Shape> shape_;
  WorkerPool& pool_;
  std::shared_ptr<GenerationStats> stats_;
  const RequestContext context_;
  std::atomic_flag logged_;

  std::mutex mutex_;  // guards the next six
  std::shared_ptr<Generation> self_;
  std::deque<Arrival> arrivals_;
  bool scheduled_ = true;  // a job runs or is posted; true until start() is done
  bool gone_ = false;      // the client has disconnected
  bool closed_ = false;    // the answer is complete
  std::vector<RequestId> submitted_;

  // Used only by the job.
  std::vector<Part> parts_;
  std::vector<Choice> choices_;
  std::vector<Piece> whole_;  // not streaming: everything so far
  std::string events_;        // streaming: framed, not yet passed to the connection
  int64_t cached_tokens_ = 0, drafted_ = 0, accepted_ = 0;
  Nanos first_token_ = 0;
  size_t open_choices_ = 0;
  bool over_ = false, shifted_ = false;
  bool progress_begun_ = false;
};

}  // namespace tokamak::openai
