#include "apps/step_driver.h"

#include <algorithm>
#include <deque>

namespace tokamak {

StepDriver::StepDriver(Executable& executable, const PlanSet& plans, int64_t batch, int64_t length,
                       int in_flight)
    : executable_(executable),
      plans_(plans),
      batch_(batch),
      length_(length),
      in_flight_(std::min(in_flight, executable.max_in_flight())) {
  SampleSpec spec;
  spec.temperature = 0;
  greedy_ = std::make_shared<SampleSpec>(spec);
  step_.tables.resize(plans.groups.size());
}

std::vector<int64_t> StepDriver::blocks_needed(const PlanSet& plans, int64_t batch,
                                               int64_t length) {
  std::vector<int64_t> blocks;
  for (const GroupEntry& g : plans.groups)
    blocks.push_back(batch * ((length + g.block_size - 1) / g.block_size));
  return blocks;
}

void StepDriver::add_sequence(int64_t b, int64_t tokens) {
  auto row = static_cast<int32_t>(b);
  auto index = static_cast<int32_t>(step_.kv_len.size());
  if (step_.q_start.empty()) step_.q_start.push_back(0);
  for (int64_t i = 0; i < tokens; ++i) {
    auto at = static_cast<int32_t>(filled_ + i);
    step_.ids.push_back(
        static_cast<int32_t>((b * 7919 + int64_t{at} * 104729 + 11) % plans_.vocab));
    step_.pos.push_back(at);
    step_.slot.push_back(at);
    step_.seq.push_back(index);
  }
  step_.q_start.push_back(static_cast<int32_t>(step_.ids.size()));
  step_.kv_len.push_back(static_cast<int32_t>(filled_ + tokens));
  step_.row.push_back(row);
  for (size_t g = 0; g < plans_.groups.size(); ++g) {
    int64_t per_sequence =
        (length_ + plans_.groups[g].block_size - 1) / plans_.groups[g].block_size;
    step_.tables[g].stride = static_cast<int32_t>(per_sequence);
    for (int64_t i = 0; i < per_sequence; ++i)
      step_.tables[g].blocks.push_back(static_cast<int32_t>(b * per_sequence + i));
  }
  step_.out_rows.push_back(static_cast<int32_t>(step_.ids.size()) - 1);
  SampleRow s;
  s.position = static_cast<int32_t>(filled_ + tokens);
  s.spec = greedy_;
  step_.samples.push_back(std::move(s));
}

void StepDriver::run() {
  executable_.collect(executable_.submit(step_), result_);
  step_.clear();
}

// A step always asks for one row of logits per sequence, as the engine's last chunk does.
void StepDriver::prefill(int64_t tokens, int64_t max_tokens) {
  int64_t chunk = std::max<int64_t>(1, max_tokens / batch_);
  for (int64_t done = 0; done < tokens;) {
    int64_t now = std::min(chunk, tokens - done);
    for (int64_t b = 0; b < batch_; ++b) add_sequence(b, now);
    run();
    filled_ += now;
    done += now;
  }
}

void StepDriver::decode(int64_t steps) {
  std::deque<Ticket> tickets;
  auto collect = [&] {
    executable_.collect(tickets.front(), result_);
    tickets.pop_front();
  };
  for (int64_t s = 0; s < steps; ++s) {
    step_.function = "decode";
    for (int64_t b = 0; b < batch_; ++b) {
      add_sequence(b, 1);
      if (in_flight_ > 1) step_.ids.back() = last_id_of_row(static_cast<int32_t>(b));
    }
    tickets.push_back(executable_.submit(step_));
    step_.clear();
    filled_ += 1;
    if (std::ssize(tickets) == in_flight_) collect();
  }
  while (!tickets.empty()) collect();
}

}  // namespace tokamak
