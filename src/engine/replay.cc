#include "engine/replay.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "backend/null/null_backend.h"
#include "base/error.h"
#include "engine/simulator.h"

namespace tokamak {
namespace {

PlanSet plans_of(const ReplayOptions& o, int64_t context) {
  PlanSet p;
  p.model = "replay";
  p.backend = "null";
  p.vocab = o.model.vocab;
  p.context = context;
  p.groups = {{"full", 0, o.model.block_size}};
  p.states = {
      {"kv",
       0,
       false,
       {{"kv", DType::kF16, {o.model.kv_bytes_per_token / 2}, o.model.kv_bytes_per_token}}}};
  WeightEntry weight;
  weight.dtype = DType::kF16;
  weight.dims = {static_cast<int64_t>(o.model.parameters)};
  p.weights.push_back(weight);
  return p;
}

std::vector<int32_t> prompt_of(const TraceRequest& r, size_t number, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(r.input));
  uint64_t block = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    size_t b = i / kTraceBlock;
    if (i % kTraceBlock == 0)
      block = b < r.block_ids.size() ? null_mix(1, static_cast<uint64_t>(r.block_ids[b]))
                                     : null_mix(2 + number, b);
    ids[i] = static_cast<int32_t>(null_mix(block, i % kTraceBlock) % static_cast<uint64_t>(vocab));
  }
  return ids;
}

// Share of tokens in whole blocks that an earlier request had after the same blocks.
double ideal_hits(const std::vector<TraceRequest>& trace) {
  std::unordered_set<uint64_t> seen;
  double hits = 0, all = 0;
  for (const TraceRequest& r : trace) {
    uint64_t chain = 0;
    bool known = true;
    int64_t tokens = 0;
    for (size_t b = 0; b < r.block_ids.size(); ++b) {
      chain = null_mix(chain, static_cast<uint64_t>(r.block_ids[b]));
      known = !seen.insert(chain).second && known;
      if (known) tokens = std::min<int64_t>(r.input, static_cast<int64_t>(b + 1) * kTraceBlock);
    }
    hits += static_cast<double>(tokens);
    all += static_cast<double>(r.input);
  }
  return all == 0 ? 0 : hits / all;
}

// Measures times as a client would.
class Clients {
 public:
  explicit Clients(size_t requests) : requests_(requests) {}
  void arrived(RequestId id, Nanos at) { requests_[id].arrival = at; }
  void take(Nanos now, const Actions& actions) {
    for (const Delta& d : actions.deltas()) {
      Stream& s = requests_[d.request];
      auto n = static_cast<int64_t>(d.ids.size());
      if (n > 0 && s.tokens == 0) {
        s.first = now;
        ttft.push_back(static_cast<float>(seconds(now - s.arrival)));
      } else if (n > 0) {
        itl.push_back(static_cast<float>(seconds(now - s.last)));
      }
      if (n > 0) s.last = now;
      s.tokens += n;
      output += n;
      if (d.finish == Finish::kNone) continue;
      failed += d.finish == Finish::kLength ? 0 : 1;
      e2e.push_back(static_cast<float>(seconds(now - s.arrival)));
      if (s.tokens > 1)
        tpot.push_back(static_cast<float>(seconds(s.last - s.first)) /
                       static_cast<float>(s.tokens - 1));
    }
  }
  std::vector<float> ttft, tpot, itl, e2e;
  int64_t failed = 0, output = 0;

 private:
  struct Stream {
    Nanos arrival = 0, first = 0, last = 0;
    int64_t tokens = 0;
  };
  std::vector<Stream> requests_;  // by id, which is the number in the trace
};

EngineConfig config_of(const ReplayOptions& options, const PlanSet& plans) {
  EngineConfig c = options.engine;
  c.model = plans.model;
  c.vocab = plans.vocab;
  c.groups = plans.groups;
  c.max_model_len = plans.context;
  c.blocks = kv_blocks_for(plans, options.kv_tokens);
  c.max_out_rows = std::max(c.max_out_rows, c.max_num_seqs);
  c.decode_batch = c.max_num_seqs;
  return c;
}

std::unique_ptr<Executable> executable_of(const ReplayOptions& options, const PlanSet& plans,
                                          const EngineConfig& config) {
  NullOptions null;
  null.machine = options.machine;
  null.max_in_flight = config.max_in_flight;
  null.check = options.check_steps;
  LoadOptions load;
  load.blocks = config.blocks;
  load.max_rows = config.max_num_seqs;
  return make_null_executable(plans, load, null);
}

int64_t longest(const std::vector<TraceRequest>& trace) {
  int64_t context = 1;
  for (const TraceRequest& r : trace) {
    if (r.input < 1 || r.output < 1)
      fail(ErrorCode::kInvalidArgument, "trace: a request of {} and {} tokens", r.input, r.output);
    context = std::max(context, r.input + r.output);
  }
  return context;
}

void fill(ReplayReport& report, Clients& clients, const EngineStats& s) {
  report.failed = clients.failed;
  report.output_tokens = clients.output;
  report.stats = s;
  report.hit_rate = s.prompt_tokens == 0
                        ? 0
                        : static_cast<double>(s.prefix_hits) / static_cast<double>(s.prompt_tokens);
  report.ttft = percentiles(clients.ttft);
  report.tpot = percentiles(clients.tpot);
  report.itl = percentiles(clients.itl);
  report.e2e = percentiles(clients.e2e);
  report.sequences_per_step = s.step_sequences.mean();
  report.tokens_per_step = s.step_tokens.mean();
}

}  // namespace

Percentiles percentiles(std::vector<float>& values) {
  Percentiles p;
  if (values.empty()) return p;
  std::sort(values.begin(), values.end());
  auto at = [&](double q) {
    auto n = static_cast<double>(values.size() - 1);
    return static_cast<double>(values[static_cast<size_t>(q * n + 0.5)]);
  };
  p = {at(0.5), at(0.9), at(0.99), at(1),
       std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size())};
  return p;
}

ReplayReport replay_trace(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  PlanSet plans = plans_of(options, longest(trace));
  EngineConfig config = config_of(options, plans);
  auto executable = executable_of(options, plans, config);
  EngineCore core(config);
  Roofline machine(plans, options.machine);
  ReplayReport report;
  Simulator simulator(core, *executable, [&](const StepInputs& in) {
    double s = machine.seconds(in);
    report.device_seconds += s;
    return s;
  });
  Clients clients(trace.size());
  Nanos first = trace.empty() ? 0 : trace.front().arrival;
  size_t next = 0;
  simulator.read([&](Nanos& time, Event& event) {
    if (next == trace.size()) return false;
    const TraceRequest& r = trace[next];
    time = static_cast<Nanos>(static_cast<double>(r.arrival - first) / options.speed);
    clients.arrived(next, time);
    RequestSpec spec;
    spec.prompt = prompt_of(r, next, plans.vocab);
    spec.max_tokens = static_cast<int32_t>(r.output);
    report.input_tokens += r.input;
    event = Event::arrival(next++, std::move(spec));
    return true;
  });
  simulator.observe(
      [&](Nanos now, std::span<const Event>, Actions& actions) { clients.take(now, actions); });
  simulator.run();
  report.requests = static_cast<int64_t>(trace.size());
  report.seconds = seconds(simulator.now());
  report.ideal_hit_rate = ideal_hits(trace);
  fill(report, clients, core.stats());
  return report;
}

}  // namespace tokamak
