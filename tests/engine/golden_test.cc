// Golden schedules: tests/golden/sched/*.trace. Arrivals in, the batch of every step out. A step
// takes one millisecond. TOKAMAK_UPDATE_GOLDEN=1 updates the files.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "engine/draft/exit_drafter.h"
#include "tests/engine/draft_tree.h"
#include "tests/engine/test_run.h"

namespace tokamak {
namespace {

using Fields = std::map<std::string, std::string>;

Fields fields(std::istringstream& line) {
  Fields out;
  for (std::string word; line >> word;) {
    size_t at = word.find('=');
    if (at == std::string::npos) throw std::runtime_error("not key=value: " + word);
    out[word.substr(0, at)] = word.substr(at + 1);
  }
  return out;
}

int64_t get(const Fields& f, const std::string& key, int64_t fallback) {
  auto it = f.find(key);
  return it == f.end() ? fallback : std::stoll(it->second);
}

std::string text_of(const Fields& f, const std::string& key, const char* fallback) {
  auto it = f.find(key);
  return it == f.end() ? fallback : it->second;
}

struct Trace {
  Fields config;
  struct Line {
    int64_t at;
    std::string what;
    RequestId id;
    Fields fields;
  };
  std::vector<Line> lines;
};

Trace parse(const std::string& text) {
  Trace t;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    if (!(words >> first) || first[0] == '#') continue;
    if (first == "config") {
      t.config = fields(words);
    } else if (first == "at") {
      Trace::Line l;
      words >> l.at >> l.what >> l.id;
      l.fields = fields(words);
      t.lines.push_back(std::move(l));
    } else {
      throw std::runtime_error("unknown line: " + line);
    }
  }
  return t;
}

// "3 ms  step    1[12]>  2[0..8)": request 1 feeds slot 12 and chooses a token, request 2 feeds
// eight. "2.1": its second choice. "copy": number of blocks that are copied before the step. "|"
// separates phases, "d" marks a drafted token.
std::string describe(Nanos now, const StepInputs& in, const EngineCore& core) {
  std::string out = fmt::format("{:3} ms  {:7}", now / kMillisecond, in.function);
  int32_t phase_end = in.phases.empty() ? 0 : in.phases[0].sequences;
  for (size_t b = 0, phase = 0; b < in.kv_len.size(); ++b) {
    if (!in.phases.empty() && static_cast<int32_t>(b) == phase_end) {
      out += "  |";
      phase_end += in.phases[++phase].sequences;
    }
    int32_t from = in.slot[static_cast<size_t>(in.q_start[b])], to = in.kv_len[b];
    const Sequence* seq = core.sequence_in_row(in.row[b]);
    out += fmt::format("  {}", seq->request->id);
    if (seq->request->spec.n > 1) out += fmt::format(".{}", seq->choice);
    out += to - from == 1 ? fmt::format("[{}]", from) : fmt::format("[{}..{})", from, to);
    for (size_t r = 0; r < in.out_rows.size(); ++r) {
      bool mine = in.out_rows[r] >= in.q_start[b] && in.out_rows[r] < in.q_start[b + 1];
      if (mine && in.samples[r].mode == SampleRow::Mode::kSample) out += '>';
      if (mine && in.samples[r].mode == SampleRow::Mode::kScore) out += 's';
      if (mine && in.samples[r].mode == SampleRow::Mode::kDraft) out += 'd';
    }
  }
  if (!in.copies.empty()) out += fmt::format("  copy {}", in.copies.size());
  return out + "\n";
}

// All prompt tokens are the request's id, except the first `shared` ones.
RequestSpec request_of(RequestId id, const Fields& f) {
  RequestSpec spec;
  spec.prompt.assign(static_cast<size_t>(get(f, "prompt", 1)), static_cast<int32_t>(id));
  std::fill_n(spec.prompt.begin(), get(f, "shared", 0), 900);
  spec.max_tokens = static_cast<int32_t>(get(f, "max", 4));
  spec.n = static_cast<int32_t>(get(f, "n", 1));
  spec.score_prompt = get(f, "score", 0) != 0;
  spec.priority = static_cast<int32_t>(get(f, "priority", 0));
  spec.tenant = text_of(f, "tenant", "");
  spec.cache_salt = text_of(f, "salt", "");
  spec.cache_priority = static_cast<int32_t>(get(f, "keep", 0));
  spec.draft_tokens = static_cast<int32_t>(get(f, "drafts", -1));
  if (get(f, "deadline", 0) > 0) spec.deadline = get(f, "deadline", 0) * kMillisecond;
  if (get(f, "queue_deadline", 0) > 0)
    spec.queue_deadline = get(f, "queue_deadline", 0) * kMillisecond;
  return spec;
}

class Golden {
 public:
  explicit Golden(const Trace& t) : plans_(fake_plan_set(1000, get(t.config, "window", 24))) {
    EngineConfig c = default_engine_config(plans_, get(t.config, "max_model_len", 512));
    c.max_num_seqs = get(t.config, "seqs", c.max_num_seqs);
    c.max_batched_tokens = get(t.config, "tokens", c.max_batched_tokens);
    c.max_out_rows = get(t.config, "rows", c.max_out_rows);
    c.max_in_flight = static_cast<int>(get(t.config, "in_flight", 1));
    c.max_queue = get(t.config, "max_queue", c.max_queue);
    c.blocks = kv_blocks_for(plans_, get(t.config, "kv_tokens", 512));
    c.policy = parse_sched_policy(text_of(t.config, "scheduler", "fcfs"));
    c.kv_policy = parse_kv_policy(text_of(t.config, "kv_policy", "max-utilization"));
    c.batching = parse_batching(text_of(t.config, "batching", "continuous"));
    c.prefix_cache = get(t.config, "prefix_cache", 1) != 0;
    c.chunked_prefill = get(t.config, "chunked", 1) != 0;
    c.starvation_bound = static_cast<int>(get(t.config, "starvation", c.starvation_bound));
    NullOptions o;
    o.shadow = true;
    o.max_in_flight = c.max_in_flight;
    o.fail_every = get(t.config, "fail_every", 0);
    if (int64_t wrong = get(t.config, "wrong_draft_every", 0); wrong > 0) {
      c.draft_tokens = static_cast<int32_t>(get(t.config, "drafts", 3));
      drafter_ = std::make_unique<OracleDrafter>(
          [model = null_model(plans_, o)](const DraftRequest& r, int32_t n) {
            return model.continuation(r.ids, n);
          },
          plans_.vocab, wrong);
    }
    if (get(t.config, "exits", 0) != 0) {
      c.exits = true;
      c.draft_tokens = static_cast<int32_t>(get(t.config, "drafts", 3));
      drafter_ = std::make_unique<ExitDrafter>();
    }
    run_ = std::make_unique<TestRun>(plans_, c, o, drafter_.get());
    run_->fixed_step_seconds = 1e-3;
  }

  std::string play(const Trace& t) {
    for (const Trace::Line& l : t.lines) {
      Nanos at = l.at * kMillisecond;
      if (l.what == "request") {
        run_->arrive(at, l.id, request_of(l.id, l.fields));
      } else if (l.what == "cancel") {
        run_->simulator.at(at, Event::cancel(l.id));
      } else if (l.what == "stop") {
        run_->simulator.at(
            at, Event::stop_at(l.id, 0, static_cast<int32_t>(get(l.fields, "position", 0))));
      } else {
        throw std::runtime_error("unknown event " + l.what);
      }
    }
    std::string out;
    run_->on_advance = [&](Nanos now, std::span<const Event>, Actions& a) {
      for (const Delta& d : a.deltas())
        if (d.finish != Finish::kNone)
          out += fmt::format("{:3} ms  end of {}{}: {} after {}{}\n", now / kMillisecond, d.request,
                             d.choice > 0 ? fmt::format(".{}", d.choice) : "",
                             finish_name(d.finish), d.position + static_cast<int32_t>(d.ids.size()),
                             d.error.empty() ? "" : " (" + d.error + ")");
      for (const SubmitAction& s : a.submits) out += describe(now, *s.inputs, run_->core);
    };
    run_->run();
    return out;
  }

 private:
  PlanSet plans_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<TestRun> run_;
};

TEST(Golden, Schedules) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TK_GOLDEN_DIR) + "/sched"))
    if (entry.path().extension() == ".trace") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename().string());
    std::string text = read_text_file(file);
    size_t cut = text.find("---\n");
    std::string head = text.substr(0, cut);
    Trace trace = parse(head);
    std::string got = Golden(trace).play(trace);
    if (std::getenv("TOKAMAK_UPDATE_GOLDEN") != nullptr) {
      write_text_file(file, head + "---\n" + got);
      continue;
    }
    ASSERT_NE(cut, std::string::npos) << "no expected schedule";
    EXPECT_EQ(got, text.substr(cut + 4));
  }
}

}  // namespace
}  // namespace tokamak
