#include "backend/cuda/executable.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "backend/cuda/memory_needs.h"
#include "base/error.h"
#include "plan/adapter.h"

namespace tokamak::cuda {
namespace {

// For comparisons: every step is launched kernel by kernel.
bool graphs_enabled() {
  const char* off = std::getenv("TOKAMAK_CUDA_GRAPHS");
  return !off || std::string_view(off) != "0";
}

// The device, if the model fits: known before the weights are read.
const Device& with_room(const Device& device, const PlanSet& plans, const LoadOptions& options) {
  check_memory(device, plans, options.blocks);
  return device;
}

}  // namespace

CudaExecutable::CudaExecutable(const PlanSet& plans, const WeightSource& weights,
                               const LoadOptions& options)
    : plans_(plans),
      profile_(options.profile),
      device_(0),
      kernels_(with_room(device_, plans_, options)),
      blas_(Blas::load()),
      weights_(plans_, weights, stream_, options.progress),
      kv_(plans_, options.blocks),
      binder_(plans_, options.blocks, options.max_rows),
      arena_(plans_.arena_bytes),
      scratch_(scratch_bytes(plans_)),
      kept_(kept_bytes(device_.multiprocessors())),
      last_tokens_(static_cast<size_t>(options.max_rows) * sizeof(int32_t)),
      own_launches_(kernels_),
      graphs_(graphs_enabled()),
      libraries_{
          blas_.get(),
          kernels_.has("decode_attention", "decode_attention_128") ? device_.multiprocessors() : 0,
          kept_.address(), kept_.address() + kCounters * sizeof(uint32_t)} {
  if (plans_.vocab > 0) {
    host_chooser_.emplace(plans_.vocab);
    if (int64_t rows = TableSampler::max_rows(plans_); rows > 0)
      table_sampler_.emplace(kernels_, plans_.vocab, rows);
    sampler_.emplace(plans_.vocab, options.max_rows,
                     [this](const SampleTable& table, SampleTokens& out) { choose(table, out); });
  }
  for (const SymbolDecl& s : plans_.symbols) symbols_.push_back(s.name);
  for (const Plan& plan : plans_.plans) prepared_.push_back(prepare(plan));
  make_launches();
  measure_products();
  input_at_.resize(plans_.inputs.size());
  view_.views.resize(plans_.groups.size());
  for (uint32_t g = 0; g < plans_.groups.size(); ++g) {
    const TableSize size = TableSize::of(plans_, g);
    tables_.push_back({Buffer(size.bytes()), size.rows, size.stride});
  }
  make_graphs();
  ledger_.weights = weights_.bytes();
  ledger_.kv = kv_.bytes();
  ledger_.arena = arena_.bytes();
  ledger_.scratch = scratch_.bytes() + kept_.bytes() + last_tokens_.bytes();
  for (const BlockTable& table : tables_) ledger_.scratch += table.memory.bytes();
  if (sampler_) ledger_.other = sampler_->bytes() + TokenChooser::bytes(plans_.vocab);
  if (table_sampler_) ledger_.other += table_sampler_->bytes();
  if (blas_) ledger_.other += blas_->bytes();
  if (layers_) ledger_.scratch += layers_->bytes();
  for (const auto& stream : streams_)
    if (stream) ledger_.other += stream->bytes();
  check(driver().stream_wait(nullptr), "clearing memory");
}

CudaExecutable::~CudaExecutable() {
  driver().stream_wait(stream_.get());  // for a step that was not collected; errors do not matter
}

CudaExecutable::Argument CudaExecutable::resolve(const CallArg& arg) const {
  Argument out{&arg, {}};
  for (const SymExpr& e : arg.dims) out.extents.emplace_back(e, symbols_);
  return out;
}

CudaExecutable::Prepared CudaExecutable::prepare(const Plan& plan) const {
  Prepared out;
  std::set<uint32_t> inputs, groups;
  for (const KernelCall& call : plan.calls) {
    if (call.region >= 0)
      fail(ErrorCode::kUnsupported, "{}: the cuda backend of this program runs no regions",
           call.label);
    Call& c = out.calls.emplace_back(
        Call{&call, &planned_kernel(plans_.kernels.at(call.kernel)), {}, {}});
    for (const CallArg& arg : call.in) {
      if (arg.kind == CallArg::Kind::kInput) inputs.insert(arg.index);
      if (arg.kind == CallArg::Kind::kView) groups.insert(arg.index);
      if (arg.kind == CallArg::Kind::kWeight && !plans_.weights.at(arg.index).layout.empty())
        fail(ErrorCode::kUnsupported, "{}: {} reads weight {} row-major, the plan has it in {}",
             call.label, c.kernel->desc.name, plans_.weights[arg.index].name,
             plans_.weights[arg.index].layout);
      c.in.push_back(resolve(arg));
    }
    for (const CallArg& arg : call.out) c.out.push_back(resolve(arg));
  }
  for (const PlanOutput& output : plan.outputs) {
    if (output.name == "logits" && output.arg.dtype == DType::kF32)
      out.logits = static_cast<int>(out.outputs.size());
    out.outputs.push_back(resolve(output.arg));
    out.kinds.push_back(output.name == "logits"       ? OutputKind::kLogits
                        : output.name == kLayerLogits ? OutputKind::kLayerLogits
                        : output.name == "hidden"     ? OutputKind::kHidden
                                                      : OutputKind::kOther);
    if (output.name == kLayerLogits && output.arg.dtype != DType::kF32)
      fail(ErrorCode::kUnsupported, "the logits of layers are not in f32");
  }
  if (groups.size() > kMostTables)
    fail(ErrorCode::kUnsupported, "plan {} reads {} groups of blocks; the cuda backend takes {}",
         plan_name(plan), groups.size(), kMostTables);
  out.inputs.assign(inputs.begin(), inputs.end());
  out.groups.assign(groups.begin(), groups.end());
  using Step = LayerLaunches::Step;
  for (auto [name, to] : {std::pair{"ids", &Step::ids}, std::pair{"pos", &Step::pos},
                          std::pair{"seq", &Step::seq}, std::pair{"slot", &Step::slot},
                          std::pair{"q_start", &Step::q_start}, std::pair{"kv_len", &Step::kv_len},
                          std::pair{"out_rows", &Step::out_rows}, std::pair{"mask", &Step::mask}})
    for (uint32_t i : out.inputs)
      if (plans_.inputs[i].name == name) out.step_inputs.push_back({to, i});
  for (const PlanLaunch& launch : plan.launches)
    out.launches.push_back(planned_launch(plans_, plan, launch));
  return out;
}

Ticket CudaExecutable::submit(const StepInputs& step) {
  InFlight& first = in_flight_[in_flight_[0].ticket == 0 ? 1 : 0];
  InFlight& free = in_flight_[&first == &in_flight_[0] ? 1 : 0];
  TK_CHECK(free.ticket == 0, "collect ticket {} first", std::min(first.ticket, free.ticket));
  step_ = &free;
  step_->ticket = next_++;
  step_->error = nullptr;
  step_->active = step_->follows = false;
  step_->masks.clear();
  try {
    device_.use();
    if (first.ticket != 0) {
      if (!may_follow(step)) {
        step_->waiting = step;
        return step_->ticket;
      }
      step_->follows = true;
      ++followed_steps_;
    }
    if (remake_graphs_ && first.ticket == 0) make_graphs();
    run(step);
  } catch (...) {
    fail_step();
  }
  return step_->ticket;
}

void CudaExecutable::run(const StepInputs& step) {
  step_->result.clear();
  for (size_t phase = 0; phase < phase_count(step); ++phase) run_phase(step, phase);
}

CudaExecutable::InFlight& CudaExecutable::find(Ticket ticket) {
  for (InFlight& step : in_flight_)
    if (ticket != 0 && step.ticket == ticket) return step;
  fail(ErrorCode::kInternal, "ticket {} is not in flight", ticket);
}

void CudaExecutable::collect(Ticket ticket, StepResult& out) {
  step_ = &find(ticket);
  TK_CHECK(other().ticket == 0 || other().ticket > ticket, "ticket {} was submitted after {}",
           ticket, other().ticket);
  step_->ticket = 0;
  std::exception_ptr error = std::exchange(step_->error, nullptr);
  try {
    device_.use();
    if (!error) {
      finish_phase();
      if (sampler_) {
        for (const auto& [output, allowed] : step_->masks) sampler_->set_mask(output, allowed);
        sampler_->complete(step_->result);
      }
      std::swap(out, step_->result);
    }
  } catch (...) {
    error = std::current_exception();
  }
  launch_waiting();
  if (error) std::rethrow_exception(error);
}

// The step that could not follow the one before, which is collected now.
void CudaExecutable::launch_waiting() {
  InFlight& next = other();
  if (next.ticket == 0 || !next.waiting) return;
  step_ = &next;
  const StepInputs inputs = *std::exchange(next.waiting, std::nullopt);
  try {
    run(inputs);
  } catch (...) {
    fail_step();
  }
}

// Records the current exception. Earlier launches may still use the pinned memory of the step.
void CudaExecutable::fail_step() {
  step_->error = std::current_exception();
  driver().stream_wait(stream_.get());  // its errors do not matter
}

// Masks are kept until the logits are there, so that a grammar works while the device does.
void CudaExecutable::set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) {
  InFlight& step = find(ticket);
  if (step.error || !sampler_) return;
  const std::vector<SampleRow>& samples = step.waiting ? step.waiting->samples : step.phase.samples;
  int64_t r = output - (step.waiting ? 0 : step.first_output);
  if (r < 0 || r >= std::ssize(samples) || !samples[static_cast<size_t>(r)].masked ||
      allowed.size() != mask_words(plans_.vocab))
    fail(ErrorCode::kInternal, "a mask of {} words for output {}, which is not masked or needs {}",
         allowed.size(), output, mask_words(plans_.vocab));
  step.masks.emplace_back(output, std::vector<uint32_t>(allowed.begin(), allowed.end()));
}

// All phases but the last are complete when submit() returns, unless the step waits.
int32_t CudaExecutable::drafted(Ticket ticket, int32_t output) {
  InFlight& step = find(ticket);
  TK_CHECK(!step.waiting, "ticket {} waits for an earlier one", ticket);
  return step.error ? 0 : std::max(0, step.result.ids.at(static_cast<size_t>(output)));
}

void CudaExecutable::set_adapter(int32_t slot, const WeightSource& tensors) {
  device_.use();
  std::vector<float> stage;
  for (uint32_t i = 0; i < plans_.weights.size(); ++i) {
    const WeightEntry& entry = plans_.weights[i];
    if (!is_adapter_weight(entry)) continue;
    TK_CHECK(slot >= 0 && slot < entry.dims[0] && entry.dtype == DType::kF32, "slot {} of {}", slot,
             entry.dims[0]);
    const int64_t rows = entry.dims[1], columns = entry.dims[2];
    stage.assign(static_cast<size_t>(rows * columns), 0.0f);
    const TensorView* from = tensors.find(entry.name);
    if (from && (from->dtype != DType::kF32 || from->dims.size() != 2 || from->dims[0] > rows ||
                 from->dims[1] > columns))
      fail(ErrorCode::kInvalidArgument, "adapter: matrix {} does not fit a slot of {} x {}",
           entry.name, rows, columns);
    for (int64_t r = 0; from && r < from->dims[0]; ++r)
      std::memcpy(stage.data() + r * columns,
                  from->bytes.data() + static_cast<size_t>(r * from->dims[1]) * sizeof(float),
                  static_cast<size_t>(from->dims[1]) * sizeof(float));
    const size_t bytes = stage.size() * sizeof(float);
    stream_.copy_in(weights_.address(i) + static_cast<size_t>(slot) * bytes, stage.data(), bytes);
    stream_.wait();  // the staged matrix is used again
  }
}

Ticket CudaExecutable::read_blocks(uint32_t group, std::span<const int32_t> blocks,
                                   std::span<std::byte> bytes) {
  binder_.checker().check_blocks(group, blocks, bytes.size(), kv_.block_bytes(group));
  device_.use();
  kv_.read_blocks(group, blocks, bytes.data(), stream_);
  return next_++;
}

Ticket CudaExecutable::write_blocks(uint32_t group, std::span<const int32_t> blocks,
                                    std::span<const std::byte> bytes) {
  binder_.checker().check_blocks(group, blocks, bytes.size(), kv_.block_bytes(group));
  device_.use();
  kv_.write_blocks(group, blocks, bytes.data(), stream_);
  return next_++;
}

void CudaExecutable::wait(Ticket ticket) {
  TK_CHECK(ticket < next_, "ticket {} was not given out", ticket);
  device_.use();
  stream_.wait();
}

}  // namespace tokamak::cuda
