#pragma once
// The flags of `tokamak serve`.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "api/resident.h"
#include "apps/model_flags.h"
#include "apps/rag_index.h"
#include "serve/batch/batch_api.h"
#include "serve/http/server.h"

namespace tokamak {

struct ServeFlags {
  OpenOptions model;
  std::vector<std::string> models;
  http::ServerOptions http;
  openai::BatchOptions batches;
  RagServeFlags rag;
  std::vector<std::string> api_keys, names;
  std::optional<uint64_t> seed;
  double request_timeout = 0, shutdown_timeout = 30, unload_idle = 0;
  std::optional<double> tpot_target_ms;  // default: by the pace of the streams
  ModelLimits limits;
  std::string slot_folder;
  std::string reasoning = "auto", reasoning_format = "auto";
  int32_t reasoning_budget = -1;
  int max_body_mb = 16;
  int64_t max_queue = 4096;
  bool no_prefix_cache = false, no_ui = false, context_shift = false;
  int32_t keep = 0;
  std::vector<std::string> lora_modules;
  std::string lora_dir, admin_key;
  GenerateOptions sampling;
  std::string scheduler = "fcfs", kv_policy = "max-utilization", metrics_compat, request_log,
              step_log, log_format = "text", lost_device = "restart", tool_format, key_file,
              trace_collector;
};

void add_serve_flags(CLI::App& verb, ServeFlags& flags);
// Refuses contradicting flags before anything is loaded. The flags must outlive the models.
void check_serve_flags(ServeFlags& flags);
// Models are loaded when they are needed.
bool on_demand(const ServeFlags& flags);

}  // namespace tokamak
