#pragma once
// For server tests: an engine that follows commands in the prompt, and a tokenizer whose tokens are
// bytes.
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/served_model.h"

namespace tokamak::testing {

// 256 byte tokens, then <|im_start|> = 256, <|im_end|> = 257 (end of text), <|bos|> = 258 (never
// added automatically).
std::shared_ptr<const Tokenizer> byte_tokenizer();

// Commands may appear anywhere in the prompt; without one the answer is letters derived from a hash
// of prompt, seed and position.
//   [say TEXT]  answer TEXT, then end        [slow MS]  wait before each token
//   [burst N]   N tokens per delta           [hold]     no token until cancelled
//   [error]     fail after two tokens        [full]     submit throws "queue full"
//   [nan]       log-probability -infinity    [cached N] claim N prompt tokens were cached
//   [text TEXT] the rest of TEXT, where what follows the command begins it; otherwise "?\n"
//   [obey]      a token that the request's mask forbids becomes the first one that it allows
//   [never]     submit throws "never fits"   [busy]     the queue turns out full after submit
// In a scored prompt, "+" has the log-probability -0.5 and other tokens have -1.5.
// An expired deadline ends a request, as in a real engine.
// Owner: the test; one engine thread, like a real engine.
class FakeClient final : public Client {
 public:
  FakeClient();
  ~FakeClient() override;

  RequestId submit(RequestSpec spec, Sink sink) override;
  void cancel(RequestId id) override;
  void stop_at(RequestId id, int32_t choice, int32_t position) override;
  EngineInfo info() const override;
  EngineStats stats() const override;
  EngineMemory memory() const override { return {1000, 200, 30, 4, 5}; }
  // The same for all: a prefix with two continuations, and one of another salt.
  PrefixTree prefix_tree(int64_t most) override;
  bool trace_step(bool prompts, int skip, TraceSink sink) override;
  std::atomic<double> retry_after{1};
  std::atomic<int64_t> tree_ms{0};  // prefix_tree and trace_step take as long

  std::atomic<int64_t> submitted{0}, cancelled{0}, stopped{0}, finished{0}, tokens{0};
  int64_t running() const;
  RequestSpec last_spec() const;
  int32_t last_stop_position() const { return last_stop_; }

 private:
  struct Choice {
    int32_t position = 0;
    std::vector<int32_t> answer;  // of [obey]
    bool done = false;
  };
  struct Job {
    RequestSpec spec;
    Sink sink;
    std::vector<int32_t> script;  // of [say]; empty: hash letters
    bool scripted = false, hold = false, error = false, nan = false, first = true, cancel = false;
    bool busy = false, obey = false;
    int32_t burst = 1, cached = 0;
    Nanos delay = 0, due = 0, arrived = 0, last = 0;
    uint64_t hash = 0;
    std::vector<Choice> choices;
  };
  void loop();
  void step(RequestId id, Job& job, Nanos now, std::vector<Delta>& out);
  void count(Job& job, Nanos now, const Delta& delta);
  Delta advance(RequestId id, Job& job, int32_t choice);
  int32_t token_of(const Job& job, int32_t choice, int32_t position) const;
  void add_token(const Job& job, int32_t id, Delta& delta) const;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<RequestId, std::shared_ptr<Job>> jobs_;
  RequestSpec last_spec_;
  EngineStats stats_;
  std::atomic<int32_t> last_stop_{-1};
  RequestId next_ = 1;
  bool stopping_ = false;
  std::thread thread_;
};

// "fake", with a ChatML template and 4096 tokens of context.
ServedModel fake_model(std::shared_ptr<Client> client);

}  // namespace tokamak::testing
