#include "serve/fake_client.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"

namespace tokamak::testing {
namespace {

// The characters that byte-level vocabularies use for non-printable bytes.
std::string mapped_byte(int byte) {
  auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// The text after "[name" up to "]"; nullopt if the command is absent.
std::optional<std::string> order(const std::string& text, const std::string& name) {
  size_t begin = text.rfind("[" + name);
  if (begin == std::string::npos) return std::nullopt;
  size_t from = begin + 1 + name.size(), end = text.find(']', from);
  if (end == std::string::npos) return std::nullopt;
  if (from < end && text[from] == ' ') ++from;
  return text.substr(from, end - from);
}

int32_t allowed_token(TokenMask& mask, int32_t choice, const std::vector<int32_t>& answer,
                      int32_t wanted) {
  std::vector<uint32_t> allowed(static_cast<size_t>(mask_words(259)), 0);
  mask.allow(choice, answer, {}, allowed);
  auto has = [&](int32_t id) {
    return (allowed[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
  };
  for (int32_t id = 0; !has(wanted) && id < 259; ++id)
    if (has(id)) return id;
  return wanted;
}

constexpr const char* kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if think %}<think>\n{% endif %}";

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.pieces.push_back(mapped_byte(byte));
  Value byte_level = Value::object();
  byte_level.set("type", "ByteLevel");
  byte_level.set("add_prefix_space", false);
  byte_level.set("trim_offsets", false);
  byte_level.set("use_regex", false);
  spec.pre_tokenizer = byte_level;
  spec.decoder = byte_level;
  spec.chat_template = kTemplate;
  const char* names[] = {"<|im_start|>", "<|im_end|>", "<|bos|>"};
  for (int i = 0; i < 3; ++i) {
    AddedToken token;
    token.id = 256 + i;
    token.content = names[i];
    token.special = true;
    spec.added_tokens.push_back(token);
  }
  spec.eos_id = 257;
  spec.bos_id = 258;
  spec.eog_ids = {257};
  return std::make_shared<const Tokenizer>(std::move(spec));
}

ServedModel fake_model(std::shared_ptr<Client> client) {
  ServedModel model;
  model.name = "fake";
  model.aliases = {"fake/alias"};
  model.client = std::move(client);
  model.tokenizer = byte_tokenizer();
  model.chat_template = std::make_shared<const ChatTemplate>(ChatTemplate::parse(kTemplate));
  model.tool_format = find_tool_format("hermes");
  model.max_model_len = 4096;
  model.max_sequences = 4;
  model.created = 1700000000;
  model.facts = {"gguf", "llama", "Q4_0", 134515008, 576, 30};
  return model;
}

FakeClient::FakeClient() : thread_([this] { loop(); }) {}

FakeClient::~FakeClient() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

RequestId FakeClient::submit(RequestSpec spec, Sink sink) {
  auto job = std::make_shared<Job>();
  std::string text;
  job->hash = spec.sample ? spec.sample->seed : 0;
  for (int32_t id : spec.prompt) {
    if (id < 256) text += static_cast<char>(id);
    job->hash = philox(job->hash, static_cast<uint64_t>(id), 1)[0];
  }
  if (order(text, "full")) fail(ErrorCode::kResourceExhausted, "the queue is full");
  if (order(text, "never")) fail(ErrorCode::kOutOfRange, "it needs more KV blocks than exist");
  job->busy = order(text, "busy").has_value();
  if (auto say = order(text, "say")) {
    job->scripted = true;
    for (unsigned char byte : *say) job->script.push_back(byte);
  }
  if (auto whole = order(text, "text")) {
    std::string written = text.substr(text.find(']', text.rfind("[text")) + 1);
    std::string rest = whole->starts_with(written) ? whole->substr(written.size()) : "?\n";
    job->scripted = true;
    for (unsigned char byte : rest) job->script.push_back(byte);
  }
  if (auto slow = order(text, "slow")) job->delay = std::atoi(slow->c_str()) * kMillisecond;
  if (auto burst = order(text, "burst")) job->burst = std::max(1, std::atoi(burst->c_str()));
  if (auto cached = order(text, "cached")) job->cached = std::atoi(cached->c_str());
  job->obey = order(text, "obey").has_value();
  job->hold = order(text, "hold").has_value();
  job->error = order(text, "error").has_value();
  job->nan = order(text, "nan").has_value();
  job->choices.resize(static_cast<size_t>(spec.n));
  job->arrived = SteadyClock().now();
  job->due = job->arrived + job->delay;
  job->sink = std::move(sink);
  ++submitted;
  std::lock_guard lock(mutex_);
  last_spec_ = spec;
  job->spec = std::move(spec);
  RequestId id = next_++;
  jobs_[id] = std::move(job);
  wake_.notify_all();
  return id;
}

void FakeClient::cancel(RequestId id) {
  std::lock_guard lock(mutex_);
  auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second->cancel) return;
  found->second->cancel = true;
  ++cancelled;
  wake_.notify_all();
}

void FakeClient::stop_at(RequestId id, int32_t choice, int32_t position) {
  std::lock_guard lock(mutex_);
  ++stopped;
  last_stop_ = position;
  auto found = jobs_.find(id);
  if (found != jobs_.end()) found->second->choices.at(static_cast<size_t>(choice)).done = true;
  wake_.notify_all();
}

EngineInfo FakeClient::info() const {
  EngineInfo info;
  info.model = "fake";
  info.vocab = 259;
  info.max_model_len = 4096;
  info.retry_after = retry_after;
  return info;
}

EngineStats FakeClient::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.running = static_cast<int64_t>(jobs_.size());
  stats.kv_blocks_total = 64;
  stats.kv_block_size = 16;
  stats.kv_tokens = 1024;
  stats.kv_blocks_used = std::min<int64_t>(64, stats.running * 16);
  stats.kv_blocks_free = 64 - stats.kv_blocks_used;
  return stats;
}

PrefixTree FakeClient::prefix_tree(int64_t) {
  auto node = [](int32_t parent, const std::string& text, int64_t first) {
    PrefixTreeNode out;
    out.parent = parent;
    out.ids.assign(text.begin(), text.end());
    out.first = first;
    out.blocks = std::ssize(text) / 16;
    return out;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(tree_ms));
  PrefixTree tree;
  tree.unit = 16;
  tree.nodes = {node(-1, "", 0),
                node(0, "You are helpful and always short", 0),
                node(1, "A first question", 32),
                node(1, "Another question, which is long.", 32),
                node(-1, "", 0),
                node(4, "A secret prompt.", 0)};
  tree.nodes[0].salt = "first-key";
  tree.nodes[4].salt = "second-key\nsalt";
  tree.nodes[1].references = 2;
  tree.nodes[2].references = tree.nodes[3].references = 1;
  tree.nodes[3].producing = true;
  tree.nodes[5].cached = tree.nodes[5].blocks;
  tree.nodes[5].ended_since = 7;
  return tree;
}

// Two threads and three calls; the second thread has no part of the last one.
bool FakeClient::trace_step(bool prompts, int, TraceSink sink) {
  std::this_thread::sleep_for(std::chrono::milliseconds(tree_ms));
  StepTrace trace;
  trace.function = prompts ? "step" : "decode";
  trace.tokens = prompts ? 64 : 1;
  trace.sequences = 1;
  trace.nanos = 100'000;
  trace.calls = {
      {"layer.0.matmul", "matmul"}, {"layer.0.attention", "attention"}, {"head", "matmul"}};
  trace.threads = {{{0, 0, 1'000, 30'000}, {1, 0, 32'000, 50'000}, {2, 0, 55'000, 98'000}},
                   {{0, 0, 2'000, 20'000}, {1, 0, 32'000, 54'000}}};
  sink(std::move(trace));
  return true;
}

void FakeClient::count(Job& job, Nanos now, const Delta& delta) {
  ++stats_.steps;
  stats_.tokens_emitted += static_cast<int64_t>(delta.ids.size());
  stats_.prefix_hits += delta.cached_tokens;
  if (!delta.ids.empty()) {
    if (job.last == 0) {
      stats_.ttft_seconds.add(seconds(now - job.arrived));
      stats_.prompt_tokens += static_cast<int64_t>(job.spec.prompt.size());
      stats_.prefix_queries += static_cast<int64_t>(job.spec.prompt.size());
      stats_.prompt_length.add(static_cast<double>(job.spec.prompt.size()));
    } else {
      stats_.itl_seconds.add(seconds(now - job.last), delta.ids.size());
    }
    job.last = now;
  }
  if (delta.finish == Finish::kNone) return;
  ++stats_.finished[static_cast<size_t>(delta.finish)];
  stats_.e2e_seconds.add(seconds(now - job.arrived));
}

int64_t FakeClient::running() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(jobs_.size());
}

RequestSpec FakeClient::last_spec() const {
  std::lock_guard lock(mutex_);
  return last_spec_;
}

int32_t FakeClient::token_of(const Job& job, int32_t choice, int32_t position) const {
  if (job.scripted)
    return position < static_cast<int32_t>(job.script.size()) ? job.script[position] : 257;
  uint32_t bits =
      philox(job.hash, static_cast<uint64_t>(choice), static_cast<uint64_t>(position))[0];
  return bits % 7 == 0 ? ' ' : static_cast<int32_t>('a' + bits % 26);
}

void FakeClient::add_token(const Job& job, int32_t id, Delta& delta) const {
  delta.ids.push_back(id);
  int32_t top = job.spec.sample ? job.spec.sample->top_logprobs : -1;
  if (top < 0) return;
  float logprob = job.nan ? -std::numeric_limits<float>::infinity() : -0.5f;
  delta.logprobs.push_back(logprob);
  std::vector<TokenLogprob> best;
  for (int32_t i = 0; i < top; ++i)
    best.push_back({(id + i) % 256, logprob - static_cast<float>(i)});
  delta.top.push_back(std::move(best));
}

Delta FakeClient::advance(RequestId id, Job& job, int32_t index) {
  Choice& choice = job.choices[static_cast<size_t>(index)];
  Delta delta;
  delta.request = id;
  delta.choice = index;
  delta.position = choice.position;
  if (std::exchange(job.first, false)) {
    delta.cached_tokens = job.cached;
    if (job.spec.progress) {
      delta.prompt_done = static_cast<int32_t>(job.spec.prompt.size());
      delta.prompt_cached = job.cached;
    }
    if (job.spec.score_prompt) {
      const std::vector<int32_t>& prompt = job.spec.prompt;
      for (size_t i = static_cast<size_t>(job.spec.score_from); i < prompt.size(); ++i)
        delta.prompt_logprobs.push_back(prompt[i] == '+' ? -0.5f : -1.5f);
      if (job.spec.sample && job.spec.sample->top_logprobs > 0)
        delta.prompt_top.assign(delta.prompt_logprobs.size(), {{'a', -1.0f}});
    }
  }
  for (int32_t i = 0; i < job.burst && delta.finish == Finish::kNone; ++i) {
    int32_t token = token_of(job, index, choice.position);
    if (job.obey && job.spec.mask != nullptr) {
      token = allowed_token(*job.spec.mask, index, choice.answer, token);
      choice.answer.push_back(token);
    }
    const auto& stops = job.spec.stop_ids;
    if (choice.position >= job.spec.max_tokens) {
      delta.finish = Finish::kLength;
    } else if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      delta.finish = Finish::kStop;
      delta.stop_id = token;
    } else if (job.error && choice.position == 2) {
      delta.finish = Finish::kError;
      delta.error = "the fake engine was told to fail";
    } else {
      add_token(job, token, delta);
      ++choice.position;
      ++tokens;
      if (choice.position >= job.spec.max_tokens) delta.finish = Finish::kLength;
    }
  }
  choice.done = delta.finish != Finish::kNone;
  return delta;
}

void FakeClient::step(RequestId id, Job& job, Nanos now, std::vector<Delta>& out) {
  for (size_t c = 0; c < job.choices.size(); ++c) {
    if (job.choices[c].done) continue;
    if (job.cancel || job.busy || now >= job.spec.deadline) {
      Delta delta;
      delta.request = id;
      delta.choice = static_cast<int32_t>(c);
      delta.finish = job.cancel ? Finish::kCancelled : job.busy ? Finish::kError : Finish::kTimeout;
      if (job.busy) delta.error = "the queue is full";
      if (job.busy) delta.error_code = ErrorCode::kResourceExhausted;
      job.choices[c].done = true;
      out.push_back(std::move(delta));
    } else if (!job.hold) {
      out.push_back(advance(id, job, static_cast<int32_t>(c)));
    }
  }
}

void FakeClient::loop() {
  SteadyClock clock;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Nanos now = clock.now(), next = kNever;
    std::vector<std::pair<std::shared_ptr<Job>, std::vector<Delta>>> work;
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      auto& [id, job] = *it;
      if (job->cancel || job->due <= now || job->spec.deadline <= now) {
        work.emplace_back(job, std::vector<Delta>());
        step(id, *job, now, work.back().second);
        for (const Delta& delta : work.back().second) count(*job, now, delta);
        job->due = job->hold ? kNever : now + job->delay;
      }
      bool open = false;
      for (const Choice& choice : job->choices) open = open || !choice.done;
      next = std::min({next, job->due, job->spec.deadline});
      if (!open) ++finished;
      it = open ? std::next(it) : jobs_.erase(it);
    }
    lock.unlock();
    for (auto& [job, deltas] : work)
      for (Delta& delta : deltas) job->sink(std::move(delta));
    work.clear();
    lock.lock();
    if (stopping_) break;
    if (next == kNever && !jobs_.empty())
      wake_.wait_for(lock, std::chrono::milliseconds(20));  // held, or just cancelled
    else if (next == kNever)
      wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    else if (next > clock.now())
      wake_.wait_for(lock, std::chrono::nanoseconds(next - clock.now()));
  }
}

}  // namespace tokamak::testing
