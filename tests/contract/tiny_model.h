#pragma once
// A tiny model of tools/tiny_models.py behind the engine, for tests against transformers.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/value.h"
#include "compile/open_model.h"
#include "engine/simulator.h"

#ifndef TK_SEARCH_BACKENDS  // that DoLa and contrastive search are compared on
#define TK_SEARCH_BACKENDS "cpu", "ref"
#endif

namespace tokamak {

// Its requests run on the cpu backend, unless told otherwise, in virtual time.
struct TinyModel {
  explicit TinyModel(const std::string& name, CompileOptions compile = {},
                     const char* backend_name = "cpu") {
    std::string path = std::string(std::getenv("TOKAMAK_TINY_MODELS")) + "/" + name;
    BackendOptions options;
    options.threads = 2;
    backend = make_backend(backend_name, options);
    compile.activations = "f32";
    compile.kv_dtype = DType::kF32;
    compile.storage = "f32";
    compile.max_sequences = 16;
    source = compile_model(path, *backend, compile);
    config = default_engine_config(source->plans(), 64, 0);
    config.blocks = kv_blocks_for(source->plans(), 1024);
    config.max_num_seqs = 16;
    LoadOptions load;
    load.blocks = config.blocks;
    load.max_rows = config.max_num_seqs;
    executable = backend->load(source->plans(), source->weights(), load);
  }
  std::vector<Delta> run(const RequestSpec& spec) const { return run(std::vector{spec}); }
  // Requests 1, 2, ... arrive at the same time.
  std::vector<Delta> run(const std::vector<RequestSpec>& specs) const {
    EngineCore core(config);
    Simulator simulator(core, *executable, [](const StepInputs&) { return 1e-3; });
    for (size_t i = 0; i < specs.size(); ++i) simulator.at(0, Event::arrival(i + 1, specs[i]));
    std::vector<Delta> out;
    simulator.observe([&](Nanos, std::span<const Event>, Actions& actions) {
      for (const Delta& d : actions.deltas()) out.push_back(d);
    });
    simulator.run();
    preemptions = core.stats().preemptions;
    return out;
  }
  std::unique_ptr<Backend> backend;
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<Executable> executable;
  EngineConfig config;
  mutable int64_t preemptions = 0;  // of the last run
};

// Whether the engine refuses a request with these settings.
inline bool refuses(const EngineConfig& config, RequestSpec spec, const SampleSpec& sample) {
  spec.sample = std::make_shared<const SampleSpec>(sample);
  try {
    check_request(config, spec);
    return false;
  } catch (const Error&) {
    return true;
  }
}

inline std::vector<int32_t> ids_of(const Value& list) {
  std::vector<int32_t> ids;
  for (const Value& id : list.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

}  // namespace tokamak
