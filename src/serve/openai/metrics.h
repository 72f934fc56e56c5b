#pragma once
// What GET /metrics says: the engines' counters, the front end's, and the process's.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/stats.h"
#include "serve/http/server.h"
#include "serve/openai/generation.h"

namespace tokamak::openai {

struct MetricsOptions {
  std::string version;
  bool vllm_names = false;  // the same numbers once more under the names vLLM's dashboards read
  int64_t start_time = 0;   // unix seconds
};

struct ModelMetrics {
  std::string model;
  int64_t max_model_len = 0;
  EngineStats stats;
  EngineMemory memory;
};

// Prometheus text. http may be nullptr. Reading changes nothing.
std::string metrics_text(const MetricsOptions& options, const std::vector<ModelMetrics>& models,
                         const GenerationStats& answers, const http::ServerStats* http);

uint64_t resident_bytes();  // of this process; 0 where the system does not tell

}  // namespace tokamak::openai
