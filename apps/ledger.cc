#include "apps/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "serve/process_memory.h"

namespace tokamak {
namespace {

std::string mebibytes(uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

void print_memory(const char* name, uint64_t bytes, const std::string& note = "") {
  fmt::print("  {:<10} {:>12}  {}\n", name, mebibytes(bytes), note);
}

}  // namespace

void print_ledger(const std::vector<LoadedModel>& models) {
  ProcessMemory process = process_memory();
  uint64_t all = 0, untouched = 0, on_heap = 0;
  for (const LoadedModel& model : models) {
    EngineMemory m = model.engine->memory();
    const EngineConfig& config = model.engine->config();
    fmt::print("memory of {}:\n", model.name);
    print_memory("weights", m.weights,
                 m.mapped > 0 ? mebibytes(m.mapped) + " of it mapped from the bundle" : "");
    std::string blocks;
    for (size_t g = 0; g < config.blocks.size(); ++g) {
      const GroupEntry& group = config.groups[g];
      if (g > 0) blocks += ", ";
      blocks += group.per_sequence()
                    ? fmt::format("states of {} sequences", config.blocks[g])
                    : fmt::format("{} blocks of {} tokens{}", config.blocks[g], group.block_size,
                                  group.window > 0 ? " (window)" : "");
    }
    print_memory("KV", m.kv, blocks);
    print_memory("arena", m.arena);
    print_memory("scratch", m.scratch);
    print_memory("other", m.other);
    uint64_t draft = model.drafter ? model.drafter->memory_bytes() : 0;
    if (draft > 0) print_memory("draft", draft, "the draft model, with its KV");
    print_memory("total", m.total() + draft);
    all += m.total() + draft;
    untouched += m.untouched;
    on_heap += m.other;
  }
  process.heap -= std::min(process.heap, on_heap);
  fmt::print("memory of the process:\n");
  print_memory("program", process.program, "code and data of the program and its libraries");
  print_memory("heap", process.heap, "tokenizers, plans, requests");
  print_memory("stacks", process.stacks);
  all += process.program + process.heap + process.stacks;
  print_memory("total", all, "with all models");
  if (uint64_t resident = resident_bytes(); resident > 0)
    fmt::print("resident now: {}; {} are reserved, and resident when they are used\n",
               mebibytes(resident), mebibytes(untouched));
}

}  // namespace tokamak
