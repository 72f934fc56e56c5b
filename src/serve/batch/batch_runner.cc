#include "serve/batch/batch_runner.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <set>
#include <tuple>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/http/turn.h"
#include "serve/openai/shape.h"

namespace tokamak::openai {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryPause{1000};  // after "too many requests"

// The custom ids of the results in a file. What a crash left of an unfinished line is removed.
std::set<std::string> results_in(const fs::path& path) {
  std::set<std::string> ids;
  if (!fs::exists(path)) return ids;
  std::string text = read_text_file(path);
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Value line = parse_json(std::string_view(text).substr(begin, end - begin), path.string());
    ids.insert(line.at("custom_id").as_string());
  }
  if (begin < text.size()) fs::resize_file(path, begin);
  return ids;
}

Value parsed_or_text(const std::string& body) {
  try {
    return parse_json(body);
  } catch (const Error&) {
    return Value(body);
  }
}

}  // namespace

// All but `id` and `requests` is protected by the runner's mutex.
struct BatchRunner::Work {
  std::string id;
  std::vector<BatchRequest> requests;
  std::deque<size_t> waiting;
  std::map<size_t, std::shared_ptr<http::Turn>> running;
  std::ofstream output, errors;
  steady_clock::time_point pause_until{};
  std::string failure;  // a result could not be written

  void write(std::ofstream& file, const std::string& line) {
    file << line << std::flush;
    if (!file) fail(ErrorCode::kUnavailable, "a result could not be written; is the disk full?");
  }
};

BatchRunner::BatchRunner(RunnerOptions options, FileStore& files, http::Router router)
    : options_(std::move(options)), files_(files), router_(std::move(router)) {
  fs::create_directories(options_.folder);
  load();
  thread_ = std::thread([this] { loop(); });
}

BatchRunner::~BatchRunner() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

fs::path BatchRunner::part(const std::string& id, const char* suffix) const {
  return options_.folder / (id + suffix);
}

void BatchRunner::load() {
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    if (entry.path().extension() != ".json") continue;
    try {
      Batch batch =
          Batch::from_record(parse_json(read_text_file(entry.path()), entry.path().string()));
      if (entry.path().stem() != batch.id)
        fail(ErrorCode::kInvalidArgument, "it is the record of {}", batch.id);
      batches_[batch.id] = std::move(batch);
    } catch (const std::exception& e) {
      log::warn("{}: not listed: {}", entry.path().string(), e.what());
    }
  }
}

void BatchRunner::store(const std::string& id) {
  replace_file(part(id, ".json"), dump_json(batch(id).record()));
}

Batch BatchRunner::add(Batch batch) {
  std::lock_guard lock(mutex_);
  std::string id = batch.id;
  for (const auto& [other, earlier] : batches_)
    batch.order = std::max(batch.order, earlier.order + 1);
  batches_[id] = std::move(batch);
  try {
    store(id);
  } catch (...) {
    batches_.erase(id);
    throw;
  }
  changed_.notify_all();
  return batches_[id];
}

std::optional<Batch> BatchRunner::find(const std::string& owner, const std::string& id) const {
  std::lock_guard lock(mutex_);
  auto it = batches_.find(id);
  if (it == batches_.end() || it->second.owner != owner) return std::nullopt;
  return it->second;
}

std::vector<Batch> BatchRunner::list(const std::string& owner) const {
  std::vector<Batch> out;
  std::lock_guard lock(mutex_);
  for (const auto& [id, batch] : batches_)
    if (batch.owner == owner) out.push_back(batch);
  std::sort(out.begin(), out.end(), [](const Batch& a, const Batch& b) {
    return std::tie(b.created, b.order, b.id) < std::tie(a.created, a.order, a.id);
  });
  return out;
}

std::optional<Batch> BatchRunner::cancel(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  auto it = batches_.find(id);
  if (it == batches_.end() || it->second.owner != owner) return std::nullopt;
  if (it->second.status <= BatchStatus::kInProgress) {
    it->second.enter(BatchStatus::kCancelling, unix_seconds());
    store(id);
    changed_.notify_all();
  }
  return it->second;
}

bool BatchRunner::uses(const std::string& file) const {
  std::lock_guard lock(mutex_);
  return std::any_of(batches_.begin(), batches_.end(), [&](const auto& entry) {
    return entry.second.input_file == file && !is_final(entry.second.status);
  });
}

void BatchRunner::expire(int64_t now) {
  std::lock_guard lock(mutex_);
  std::vector<const Batch*> ended;
  for (const auto& [id, batch] : batches_)
    if (is_final(batch.status)) ended.push_back(&batch);
  std::sort(ended.begin(), ended.end(), [](const Batch* a, const Batch* b) {
    return std::tuple(a->changed(), a->order) < std::tuple(b->changed(), b->order);
  });
  int64_t surplus = std::ssize(ended) - options_.max_batches;
  for (const Batch* batch : ended) {
    if (surplus-- <= 0 && batch->changed() + options_.retention > now) break;
    const std::string id = batch->id;
    std::error_code ignored;
    fs::remove(part(id, ".json"), ignored);
    batches_.erase(id);
  }
}

// The oldest batch that has not ended.
std::optional<std::string> BatchRunner::next() const {
  const Batch* best = nullptr;
  for (const auto& [id, batch] : batches_)
    if (!is_final(batch.status) &&
        (best == nullptr ||
         std::tie(batch.created, batch.order, id) < std::tie(best->created, best->order, best->id)))
      best = &batch;
  return best == nullptr ? std::nullopt : std::optional(best->id);
}

void BatchRunner::loop() {
  while (true) {
    auto work = std::make_shared<Work>();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || next(); });
      if (stopping_) return;
      work->id = *next();
    }
    try {
      run(work);
    } catch (const std::exception& e) {
      log::error("{}: {}", work->id, e.what());
      give_up(*work, e.what());
    }
  }
}

// The batch fails; the results that it has are kept, unless they are what cannot be written.
void BatchRunner::give_up(Work& work, std::string_view why) {
  {
    std::lock_guard lock(mutex_);
    Batch& failed = batch(work.id);
    failed.errors = Value::Array{Value::Object{
        {"code", "server_error"}, {"line", Value()}, {"message", why}, {"param", Value()}}};
    failed.ending = BatchStatus::kFailed;
  }
  try {
    finish(work);
  } catch (const std::exception& e) {
    log::error("{}: {}", work.id, e.what());
    std::lock_guard lock(mutex_);
    batch(work.id).enter(BatchStatus::kFailed, unix_seconds());
  }
}

void BatchRunner::run(const std::shared_ptr<Work>& work) {
  std::unique_lock lock(mutex_);
  Batch state = batch(work->id);
  lock.unlock();
  if (state.status != BatchStatus::kFinalizing) {
    Value errors;
    work->requests = parse_batch_input(read_text_file(files_.content_path(state.input_file)),
                                       state.endpoint, errors);
    if (!errors.is_null()) {
      lock.lock();
      batch(work->id).errors = std::move(errors);
      batch(work->id).enter(BatchStatus::kFailed, unix_seconds());
      return store(work->id);
    }
    start(*work);
    if (!send_all(work)) return;  // the server stops: the next run goes on
  }
  finish(*work);
}

// Opens the files of results; requests with a result are not sent again.
void BatchRunner::start(Work& work) {
  auto answered = results_in(part(work.id, ".output")),
       failed = results_in(part(work.id, ".errors"));
  std::lock_guard lock(mutex_);
  work.output.open(part(work.id, ".output"), std::ios::app | std::ios::binary);
  work.errors.open(part(work.id, ".errors"), std::ios::app | std::ios::binary);
  for (size_t i = 0; i < work.requests.size(); ++i)
    if (const std::string& id = work.requests[i].custom_id;
        !answered.count(id) && !failed.count(id))
      work.waiting.push_back(i);
  Batch& state = batch(work.id);
  state.total = static_cast<int64_t>(work.requests.size());
  state.completed = static_cast<int64_t>(answered.size());
  state.failed = static_cast<int64_t>(failed.size());
  if (state.status == BatchStatus::kValidating)
    state.enter(BatchStatus::kInProgress, unix_seconds());
  store(work.id);
}

bool BatchRunner::send_all(const std::shared_ptr<Work>& work) {
  std::unique_lock lock(mutex_);
  Batch& state = batch(work->id);
  std::optional<std::string> key = options_.key_of_owner(state.owner);
  const char* why = nullptr;
  while (why == nullptr && !(work->waiting.empty() && work->running.empty())) {
    auto now = steady_clock::now();
    if (stopping_ || !work->failure.empty()) {
      recall(*work, lock);
      if (stopping_) return false;
      fail(ErrorCode::kUnavailable, "{}", work->failure);
    }
    if (state.status == BatchStatus::kCancelling) {
      state.ending = BatchStatus::kCancelled;
      why = "batch_cancelled";
    } else if (unix_seconds() >= state.expires) {
      state.ending = BatchStatus::kExpired;
      why = "batch_expired";
    } else if (!key) {
      state.ending = BatchStatus::kFailed;
      why = "invalid_api_key";
    } else if (!work->waiting.empty() && now >= work->pause_until &&
               work->running.size() < static_cast<size_t>(options_.concurrency)) {
      send(work, *key, lock);
    } else {
      changed_.wait_for(lock, kRetryPause);
    }
  }
  if (why == nullptr) return true;
  recall(*work, lock);
  for (size_t index : work->waiting) {
    work->write(work->errors, not_sent_line(work->requests[index].custom_id, why,
                                            "The batch ended before this request was answered."));
    ++state.failed;
  }
  return true;
}

void BatchRunner::send(const std::shared_ptr<Work>& work, const std::string& key,
                       std::unique_lock<std::mutex>& lock) {
  size_t index = work->waiting.front();
  work->waiting.pop_front();
  http::Request request;
  request.method = "POST";
  request.path = batch(work->id).endpoint;
  request.remote = "batch";
  request.body = work->requests[index].body;
  request.headers = {{"content-type", "application/json"}};
  if (!key.empty()) request.headers.emplace_back("authorization", "Bearer " + key);
  http::Turn::Traits traits;
  traits.answer = [this, work, index](const http::Response& response) {
    received(*work, index, response);
  };
  auto turn = std::make_shared<http::Turn>(std::move(request), std::move(traits), [] {});
  work->running[index] = turn;
  lock.unlock();
  auto exchange = std::make_shared<http::Exchange>(turn);
  try {
    http::Router::Match match = router_.find("POST", turn->request().path);
    if (match.handler == nullptr) fail(ErrorCode::kInvalidArgument, "no such endpoint");
    (*match.handler)(exchange);
  } catch (const std::exception& e) {
    exchange->respond(http::error_response(500, e.what()));
  }
  exchange.reset();
  lock.lock();
}

// On any thread.
void BatchRunner::received(Work& work, size_t index, const http::Response& response) {
  bool good = response.status < 400;
  bool again = response.status == 429 || response.status == 503;
  std::string line = again ? ""
                           : result_line(work.requests[index].custom_id, response.status,
                                         parsed_or_text(response.body));
  std::lock_guard lock(mutex_);
  work.running.erase(index);
  if (again) {
    work.waiting.push_back(index);
    work.pause_until = steady_clock::now() + kRetryPause;
  } else {
    try {
      work.write(good ? work.output : work.errors, line);
      ++(good ? batch(work.id).completed : batch(work.id).failed);
    } catch (const std::exception& e) {
      work.failure = e.what();
    }
  }
  changed_.notify_all();
}

// Cancels the requests in progress; afterwards they wait to be sent again. Those whose answer is
// just being delivered are waited for.
void BatchRunner::recall(Work& work, std::unique_lock<std::mutex>& lock) {
  auto running = work.running;
  lock.unlock();
  std::vector<size_t> recalled;
  std::string ignored;
  for (auto& [index, turn] : running) {
    turn->set_gone();
    if (!turn->take(ignored).done) recalled.push_back(index);
  }
  lock.lock();
  for (size_t index : recalled) {
    work.running.erase(index);
    work.waiting.push_front(index);
  }
  changed_.wait(lock, [&] { return work.running.empty(); });
}

// Each step can be repeated if a crash interrupts the rest.
void BatchRunner::finish(Work& work) {
  Batch state;
  {
    std::lock_guard lock(mutex_);
    work.output.close();
    work.errors.close();
    Batch& live = batch(work.id);
    if (live.status != BatchStatus::kFinalizing)
      live.enter(BatchStatus::kFinalizing, unix_seconds());
    store(work.id);
    state = live;
  }
  auto adopt = [&](const char* suffix, const std::string& id, const char* name) {
    fs::path from = part(work.id, suffix);
    if (fs::exists(from) && fs::file_size(from) == 0) fs::remove(from);
    if (!fs::exists(from) && !fs::exists(files_.content_path(id))) return false;
    const int64_t lifetime = state.output_lifetime > 0 ? state.output_lifetime : options_.retention;
    files_.adopt(id, state.owner, work.id + name, "batch_output", from, unix_seconds() + lifetime);
    return true;
  };
  bool output = adopt(".output", state.output_file, "_output.jsonl");
  bool errors = adopt(".errors", state.error_file, "_error.jsonl");
  std::lock_guard lock(mutex_);
  Batch& live = batch(work.id);
  live.has_output = output;
  live.has_errors = errors;
  live.enter(live.ending, unix_seconds());
  store(work.id);
  log::info("{}: {} of {} requests answered, {} failed", live.id, live.completed, live.total,
            live.failed);
}

}  // namespace tokamak::openai
