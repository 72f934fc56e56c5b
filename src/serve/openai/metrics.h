#pragma once
// The text of GET /metrics: counters of the engines, the front end and the process.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/stats.h"
#include "serve/http/server.h"
#include "serve/openai/generation.h"

namespace tokamak::openai {

struct MetricsOptions {
  std::string version;
  bool vllm_names = false;   // also export the same numbers under vLLM's names
  bool llama_names = false;  // ... under llama.cpp's, for all models together
  int64_t start_time = 0;    // unix seconds
  const TraceExporter* traces = nullptr;
  bool open_metrics = false;  // the OpenMetrics format
};

struct ModelMetrics {
  std::string model;
  int64_t max_model_len = 0;
  EngineStats stats;
  EngineMemory memory;
};

// Prometheus text or OpenMetrics. http may be nullptr. Does not reset anything.
std::string metrics_text(const MetricsOptions& options, const std::vector<ModelMetrics>& models,
                         const GenerationStats& answers, const http::ServerStats* http);

}  // namespace tokamak::openai
