#include "serve/openai/metrics.h"

#include <sys/resource.h>

#include <algorithm>

#include "serve/openai/prometheus.h"
#include "serve/process_memory.h"

namespace tokamak::openai {
namespace {

using Type = PrometheusText::Type;

// One table per kind: our name, then the vLLM name ("": none).
struct IntegerRow {
  const char *name, *vllm, *help;
  int64_t EngineStats::*value;
};
struct HistogramRow {
  const char *name, *vllm, *help;
  Histogram EngineStats::*value;
};

constexpr IntegerRow kGauges[] = {
    {"requests_running", "num_requests_running", "Sequences being computed.",
     &EngineStats::running},
    {"requests_waiting", "num_requests_waiting", "Sequences waiting to start.",
     &EngineStats::waiting},
    {"kv_blocks", "", "Blocks of the KV cache.", &EngineStats::kv_blocks_total},
    {"kv_blocks_used", "", "KV blocks held by running sequences.", &EngineStats::kv_blocks_used},
    {"kv_blocks_cached", "", "KV blocks that hold reusable prefixes and are not in use.",
     &EngineStats::kv_blocks_cached},
    {"kv_blocks_free", "", "Free KV blocks.", &EngineStats::kv_blocks_free},
    {"step_token_budget", "", "Token budget of the next step.", &EngineStats::token_budget},
    {"adapter_slots", "", "Adapters that can run at the same time.", &EngineStats::adapter_slots},
};

constexpr IntegerRow kCounters[] = {
    {"steps_total", "", "Steps submitted to the device.", &EngineStats::steps},
    {"steps_failed_total", "", "Steps that failed and were repeated.", &EngineStats::failed_steps},
    {"steps_over_limit_total", "",
     "Steps predicted to exceed their limit, so that prompts make progress.",
     &EngineStats::steps_over_limit},
    {"scheduled_tokens_total", "", "Tokens computed in prompts and answers.",
     &EngineStats::tokens_scheduled},
    {"prefill_tokens_total", "",
     "Prompt tokens computed, including recomputation after preemption.",
     &EngineStats::prefill_tokens},
    {"prompt_tokens_total", "prompt_tokens_total", "Prompt tokens of sequences that started.",
     &EngineStats::prompt_tokens},
    {"generation_tokens_total", "generation_tokens_total", "Answer tokens delivered.",
     &EngineStats::tokens_emitted},
    {"discarded_tokens_total", "", "Sampled tokens that were discarded.",
     &EngineStats::tokens_discarded},
    {"preemptions_total", "num_preemptions_total", "Sequences preempted for their KV blocks.",
     &EngineStats::preemptions},
    {"prefix_query_tokens_total", "prefix_cache_queries_total",
     "Prompt tokens looked up in the prefix cache.", &EngineStats::prefix_queries},
    {"prefix_hit_tokens_total", "prefix_cache_hits_total",
     "Prompt tokens found in the prefix cache.", &EngineStats::prefix_hits},
    {"kv_blocks_evicted_total", "", "Cached KV blocks evicted.", &EngineStats::blocks_evicted},
    {"adapter_loads_total", "", "Adapters put into a slot.", &EngineStats::adapter_loads},
    {"kv_blocks_copied_total", "", "KV blocks copied because they were partially shared.",
     &EngineStats::blocks_copied},
    {"drafts_total", "spec_decode_num_drafts_total", "Proposals of drafted tokens verified.",
     &EngineStats::drafts},
    {"draft_tokens_total", "spec_decode_num_draft_tokens_total", "Drafted tokens verified.",
     &EngineStats::draft_tokens},
    {"draft_accepted_tokens_total", "spec_decode_num_accepted_tokens_total",
     "Drafted tokens accepted.", &EngineStats::draft_accepted},
    {"draft_fallbacks_total", "",
     "Times that drafting for a sequence was paused because it did not pay.",
     &EngineStats::draft_fallbacks},
    {"jump_forwards_total", "", "Runs of tokens that a grammar forced, appended without steps.",
     &EngineStats::jumps},
    {"jump_forward_tokens_total", "", "Their tokens: steps saved.", &EngineStats::jump_tokens},
    {"context_shifts_total", "", "Times that a full context was shifted.",
     &EngineStats::context_shifts},
    {"context_shift_tokens_total", "", "Tokens that shifts dropped from the context.",
     &EngineStats::shifted_tokens},
    {"requests_rejected_total", "", "Requests rejected: queue full, or too large to ever fit.",
     &EngineStats::requests_rejected},
};

constexpr HistogramRow kHistograms[] = {
    {"time_to_first_token_seconds", "time_to_first_token_seconds",
     "Time from arrival to the first token.", &EngineStats::ttft_seconds},
    {"time_per_output_token_seconds", "request_time_per_output_token_seconds",
     "Mean time per token after the first, one sample per answer.", &EngineStats::tpot_seconds},
    {"inter_token_latency_seconds", "inter_token_latency_seconds",
     "Time between two tokens of an answer.", &EngineStats::itl_seconds},
    {"queue_time_seconds", "request_queue_time_seconds", "Time from arrival to the first step.",
     &EngineStats::queue_seconds},
    {"prefill_time_seconds", "request_prefill_time_seconds",
     "Time from the first step to the first token.", &EngineStats::prefill_seconds},
    {"decode_time_seconds", "request_decode_time_seconds", "Time from the first token to the last.",
     &EngineStats::decode_seconds},
    {"inference_time_seconds", "request_inference_time_seconds",
     "Time from the first step to the last token.", &EngineStats::inference_seconds},
    {"e2e_latency_seconds", "e2e_request_latency_seconds", "Time from arrival to the end.",
     &EngineStats::e2e_seconds},
    {"prompt_length_tokens", "request_prompt_tokens", "Prompt length in tokens.",
     &EngineStats::prompt_length},
    {"answer_length_tokens", "request_generation_tokens", "Answer length in tokens.",
     &EngineStats::answer_length},
    {"longest_answer_tokens", "request_max_num_generation_tokens",
     "Length in tokens of the longest answer of a request.", &EngineStats::longest_answer},
    {"request_max_tokens", "request_params_max_tokens", "max_tokens of requests.",
     &EngineStats::asked_tokens},
    {"request_choices", "request_params_n", "n of requests.", &EngineStats::asked_choices},
    {"step_seconds", "", "Duration of steps.", &EngineStats::step_seconds},
    {"step_tokens", "iteration_tokens_total", "Tokens per step.", &EngineStats::step_tokens},
    {"step_sequences", "", "Sequences per step.", &EngineStats::step_sequences},
    {"step_limit_ratio", "",
     "Duration of steps with prompts and decodes, divided by the limit (--tpot-target).",
     &EngineStats::step_limit_ratio},
};

double kv_usage(const EngineStats& s) {
  if (s.kv_blocks_total <= 0) return 0;
  return static_cast<double>(s.kv_blocks_used) / static_cast<double>(s.kv_blocks_total);
}

// Our names, or vLLM's.
class EngineFamilies {
 public:
  EngineFamilies(PrometheusText& out, const std::vector<ModelMetrics>& models, bool vllm)
      : out_(out), models_(models), vllm_(vllm) {
    for (const ModelMetrics& m : models) {
      std::string labels;
      add_label(labels, "model_name", m.model);
      if (vllm) add_label(labels, "engine", "0");
      labels_.push_back(std::move(labels));
    }
  }

  void write() {
    for (const IntegerRow& row : kGauges) integers(row, Type::kGauge);
    begin("kv_usage_ratio", "kv_cache_usage_perc", Type::kGauge, "Fraction of KV blocks in use.");
    each([&](const ModelMetrics& m, const std::string& l) { out_.sample(l, kv_usage(m.stats)); });
    for (const IntegerRow& row : kCounters) integers(row, Type::kCounter);
    accepted_positions();
    finished();
    for (const HistogramRow& row : kHistograms)
      if (begin(row.name, row.vllm, Type::kHistogram, row.help))
        each([&](const ModelMetrics& m, const std::string& l) {
          out_.histogram(l, m.stats.*row.value);
        });
    if (vllm_) only_vllm();
    if (vllm_) adapters();
  }

 private:
  // Metrics that vLLM's dashboards use and that have no direct equivalent here.
  void only_vllm() {
    begin("", "num_requests_waiting_by_reason", Type::kGauge, "Sequences waiting for capacity.");
    each([&](const ModelMetrics& m, std::string l) {
      std::string other = l;
      add_label(l, "reason", "capacity");
      out_.sample(l, m.stats.waiting);
      add_label(other, "reason", "deferred");
      out_.sample(other, int64_t{0});
    });
    begin("", "prompt_tokens_cached_total", Type::kCounter, "Prompt tokens found in the cache.");
    each([&](const ModelMetrics& m, const std::string& l) { out_.sample(l, m.stats.prefix_hits); });
    begin("", "cache_config_info", Type::kGauge, "The KV cache; always 1.");
    each([&](const ModelMetrics& m, std::string l) {
      const EngineStats& s = m.stats;
      int64_t length = std::max<int64_t>(1, m.max_model_len);
      add_label(l, "block_size", fmt::format("{}", s.kv_block_size));
      add_label(l, "num_gpu_blocks", fmt::format("{}", s.kv_blocks_total));
      add_label(l, "kv_cache_size_tokens", fmt::format("{}", s.kv_tokens));
      add_label(
          l, "kv_cache_max_concurrency",
          fmt::format("{:.2f}", static_cast<double>(s.kv_tokens) / static_cast<double>(length)));
      out_.sample(l, int64_t{1});
    });
  }

  // The value is the time, as in vLLM: the sample with the largest one is the current one.
  void adapters() {
    if (std::none_of(models_.begin(), models_.end(),
                     [](const ModelMetrics& m) { return m.stats.adapter_slots > 0; }))
      return;
    begin("", "lora_requests_info", Type::kGauge, "Adapters of running and waiting requests.");
    for (const ModelMetrics& m : models_) {
      if (m.stats.adapter_slots == 0) continue;
      std::string l;
      add_label(l, "max_lora", fmt::format("{}", m.stats.adapter_slots));
      add_label(l, "running_lora_adapters", m.stats.running_adapters);
      add_label(l, "waiting_lora_adapters", m.stats.waiting_adapters);
      out_.sample(l, unix_seconds());
    }
  }

  bool begin(std::string_view name, std::string_view vllm, Type type, std::string_view help) {
    if (vllm_ && vllm.empty()) return false;
    out_.family(vllm_ ? fmt::format("vllm:{}", vllm) : fmt::format("tokamak_{}", name), type, help);
    return true;
  }

  template <class F>
  void each(F f) {
    for (size_t i = 0; i < models_.size(); ++i) f(models_[i], labels_[i]);
  }

  void integers(const IntegerRow& row, Type type) {
    if (begin(row.name, row.vllm, type, row.help))
      each(
          [&](const ModelMetrics& m, const std::string& l) { out_.sample(l, m.stats.*row.value); });
  }

  void accepted_positions() {
    begin("draft_accepted_tokens_per_position_total",
          "spec_decode_num_accepted_tokens_per_pos_total", Type::kCounter,
          "Drafted tokens accepted, by position in the proposal.");
    each([&](const ModelMetrics& m, const std::string& l) {
      for (int32_t i = 0; i < std::min(m.stats.draft_limit, EngineStats::kDraftPositions); ++i) {
        std::string labels = l;
        add_label(labels, "position", fmt::format("{}", i));
        out_.sample(labels, m.stats.draft_accepted_at[static_cast<size_t>(i)]);
      }
    });
  }

  void finished() {
    begin("answers_finished_total", "request_success_total", Type::kCounter,
          "Answers (choices) by finish reason.");
    each([&](const ModelMetrics& m, const std::string& l) {
      auto one = [&](const char* reason, int64_t value) {
        std::string labels = l;
        add_label(labels, vllm_ ? "finished_reason" : "reason", reason);
        out_.sample(labels, value);
      };
      auto count = [&](Finish f) { return m.stats.finished[static_cast<size_t>(f)]; };
      one("stop", count(Finish::kStop));
      one("length", count(Finish::kLength));
      if (vllm_) {
        one("abort", count(Finish::kCancelled) + count(Finish::kTimeout));
      } else {
        one("cancelled", count(Finish::kCancelled));
        one("timeout", count(Finish::kTimeout));
      }
      one("error", count(Finish::kError));
    });
  }

  PrometheusText& out_;
  const std::vector<ModelMetrics>& models_;
  const bool vllm_;
  std::vector<std::string> labels_;
};

void write_memory(PrometheusText& out, const std::vector<ModelMetrics>& models) {
  out.family("tokamak_memory_bytes", Type::kGauge, "Memory allocated by the engine.");
  for (const ModelMetrics& m : models) {
    auto one = [&](const char* kind, uint64_t bytes) {
      std::string labels;
      add_label(labels, "model_name", m.model);
      add_label(labels, "kind", kind);
      out.sample(labels, static_cast<int64_t>(bytes));
    };
    one("weights", m.memory.weights);
    one("kv", m.memory.kv);
    one("arena", m.memory.arena);
    one("scratch", m.memory.scratch);
    one("other", m.memory.other);
  }
}

void write_parts_of_memory(PrometheusText& out, const std::vector<ModelMetrics>& models) {
  auto write = [&](const char* name, const char* help, uint64_t EngineMemory::*bytes) {
    out.family(name, Type::kGauge, help);
    for (const ModelMetrics& m : models) {
      std::string labels;
      add_label(labels, "model_name", m.model);
      out.sample(labels, static_cast<int64_t>(m.memory.*bytes));
    }
  };
  write("tokamak_memory_mapped_bytes",
        "Weight bytes mapped from a bundle file, shared with other processes.",
        &EngineMemory::mapped);
  write("tokamak_memory_untouched_bytes",
        "Of tokamak_memory_bytes: reserved, resident when it is used.", &EngineMemory::untouched);
}

// Which plans ran: buckets hit, fallbacks to a more general plan, padding rows.
void write_dispatch(PrometheusText& out, const std::vector<ModelMetrics>& models) {
  auto label = [](const ModelMetrics& m) {
    std::string labels;
    add_label(labels, "model_name", m.model);
    return labels;
  };
  out.family("tokamak_plan_steps_total", Type::kCounter, "Steps by plan.");
  for (const ModelMetrics& m : models) {
    const DispatchStats& d = m.stats.dispatch;
    for (size_t i = 0; d.names && i < d.names->size() && i < d.steps.size(); ++i) {
      std::string labels = label(m);
      add_label(labels, "plan", (*d.names)[i]);
      out.sample(labels, d.steps[i]);
    }
  }
  auto counter = [&](const char* name, const char* help, int64_t DispatchStats::*value) {
    out.family(name, Type::kCounter, help);
    for (const ModelMetrics& m : models) out.sample(label(m), m.stats.dispatch.*value);
  };
  counter("tokamak_plan_fallbacks_total",
          "Steps that fell back to a more general plan than their function or bucket.",
          &DispatchStats::fallbacks);
  counter("tokamak_plan_rows_total", "Rows computed, without padding.", &DispatchStats::rows);
  counter("tokamak_plan_padded_rows_total", "Padding rows computed.", &DispatchStats::padded_rows);
  counter("tokamak_graph_steps_total", "Steps that a GPU replayed as a graph.",
          &DispatchStats::graphs);
  counter("tokamak_graph_captures_total", "Graphs that were made during steps.",
          &DispatchStats::captures);
  counter("tokamak_compiles_total",
          "Plans compiled since the model was loaded; 0 unless other models were loaded later.",
          &DispatchStats::compiles);
}

void write_front(PrometheusText& out, const GenerationStats& answers,
                 const http::ServerStats* http) {
  out.family("tokamak_api_requests_running", Type::kGauge, "Requests in progress.");
  out.sample("", answers.running.load());
  out.family("tokamak_api_requests_total", Type::kCounter, "Generation requests by outcome.");
  out.sample("result=\"finished\"", answers.finished.load());
  out.sample("result=\"cancelled\"", answers.cancelled.load());
  out.sample("result=\"failed\"", answers.failed.load());
  if (http == nullptr) return;
  out.family("tokamak_http_connections_open", Type::kGauge, "Open connections.");
  out.sample("", http->connections.load());
  auto counter = [&](const char* name, const char* help, const std::atomic<int64_t>& value) {
    out.family(name, Type::kCounter, help);
    out.sample("", value.load());
  };
  counter("tokamak_http_connections_total", "Connections accepted.", http->accepted);
  counter("tokamak_http_requests_total", "Requests read.", http->requests);
  counter("tokamak_http_rejected_total", "Requests rejected before they reached a route.",
          http->rejected);
  counter("tokamak_http_clients_gone_total",
          "Clients that disconnected before their answer was complete.", http->gone);
  counter("tokamak_http_timeouts_total", "Clients that sent or read too slowly.", http->timeouts);
}

void write_process(PrometheusText& out, const MetricsOptions& options,
                   const std::vector<ModelMetrics>& models) {
  std::string version;
  add_label(version, "version", options.version);
  out.family("tokamak_build_info", Type::kGauge, "Always 1.");
  out.sample(version, int64_t{1});
  out.family("tokamak_max_model_len", Type::kGauge,
             "Maximum tokens of prompt and answer together.");
  for (const ModelMetrics& m : models) {
    std::string labels;
    add_label(labels, "model_name", m.model);
    out.sample(labels, m.max_model_len);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto time = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  out.family("process_cpu_seconds_total", Type::kCounter, "CPU time, user and system.");
  out.sample("", time(usage.ru_utime) + time(usage.ru_stime));
  out.family("process_resident_memory_bytes", Type::kGauge, "Resident memory.");
  out.sample("", static_cast<int64_t>(resident_bytes()));
  ProcessMemory memory = process_memory();
  for (const ModelMetrics& m : models)  // counted there
    memory.heap -= std::min(memory.heap, m.memory.other);
  out.family("tokamak_process_memory_bytes", Type::kGauge,
             "Memory besides tokamak_memory_bytes: program and libraries, heap, stacks.");
  out.sample("kind=\"program\"", static_cast<int64_t>(memory.program));
  out.sample("kind=\"heap\"", static_cast<int64_t>(memory.heap));
  out.sample("kind=\"stacks\"", static_cast<int64_t>(memory.stacks));
  if (options.traces != nullptr) {
    out.family("tokamak_trace_spans_total", Type::kCounter, "Spans of requests, by what happened.");
    out.sample("result=\"sent\"", options.traces->sent());
    out.sample("result=\"discarded\"", options.traces->discarded());
  }
  out.family("process_start_time_seconds", Type::kGauge, "Start of the process, unix time.");
  out.sample("", options.start_time);
}

// llama.cpp's names; it has one model and no labels.
void write_llama_names(PrometheusText& out, const std::vector<ModelMetrics>& models) {
  auto sum = [&](auto get) {
    decltype(get(models[0].stats)) all{};
    for (const ModelMetrics& m : models) all += get(m.stats);
    return all;
  };
  auto total = [&](int64_t EngineStats::*value) {
    return sum([value](const EngineStats& s) { return s.*value; });
  };
  auto seconds = [&](Histogram EngineStats::*value) {
    return sum([value](const EngineStats& s) { return (s.*value).sum(); });
  };
  auto write = [&](const char* name, Type type, const char* help, auto value) {
    out.family(fmt::format("llamacpp:{}", name), type, help);
    out.sample("", value);
  };
  auto ratio = [](int64_t n, double t) { return t > 0 ? static_cast<double>(n) / t : 0.0; };
  if (models.empty()) return;
  const int64_t prompt = total(&EngineStats::prefill_tokens);
  const int64_t answer = total(&EngineStats::tokens_emitted);
  const double prompt_time = seconds(&EngineStats::prefill_seconds);
  const double answer_time = seconds(&EngineStats::decode_seconds);
  write("prompt_tokens_total", Type::kCounter, "Prompt tokens computed.", prompt);
  write("prompt_tokens_cached_total", Type::kCounter, "Prompt tokens found in the cache.",
        total(&EngineStats::prefix_hits));
  write("prompt_seconds_total", Type::kCounter, "Time in which prompts were computed.",
        prompt_time);
  write("prompt_tokens_seconds", Type::kGauge, "Mean prompt tokens per second.",
        ratio(prompt, prompt_time));
  write("tokens_predicted_total", Type::kCounter, "Answer tokens.", answer);
  write("tokens_predicted_seconds_total", Type::kCounter, "Time in which answers were computed.",
        answer_time);
  write("predicted_tokens_seconds", Type::kGauge, "Mean answer tokens per second of an answer.",
        ratio(answer, answer_time));
  write("requests_processing", Type::kGauge, "Sequences being computed.",
        total(&EngineStats::running));
  write("requests_deferred", Type::kGauge, "Sequences waiting to start.",
        total(&EngineStats::waiting));
  const int64_t steps = total(&EngineStats::steps);
  write("n_decode_total", Type::kCounter, "Steps.", steps);
  write("n_busy_slots_per_decode", Type::kGauge, "Mean sequences per step.",
        ratio(static_cast<int64_t>(seconds(&EngineStats::step_sequences)),
              static_cast<double>(steps)));
  write("spec_decode_num_drafts_total", Type::kCounter, "Proposals of drafted tokens verified.",
        total(&EngineStats::drafts));
  write("spec_decode_num_draft_tokens_total", Type::kCounter, "Drafted tokens verified.",
        total(&EngineStats::draft_tokens));
  write("spec_decode_num_accepted_tokens_total", Type::kCounter, "Drafted tokens accepted.",
        total(&EngineStats::draft_accepted));
}

}  // namespace

std::string metrics_text(const MetricsOptions& options, const std::vector<ModelMetrics>& models,
                         const GenerationStats& answers, const http::ServerStats* http) {
  PrometheusText out(options.open_metrics);
  EngineFamilies(out, models, false).write();
  write_memory(out, models);
  write_parts_of_memory(out, models);
  write_dispatch(out, models);
  write_front(out, answers, http);
  write_process(out, options, models);
  if (options.vllm_names) EngineFamilies(out, models, true).write();
  if (options.llama_names) write_llama_names(out, models);
  return out.take();
}

}  // namespace tokamak::openai
