#include "backend/ref/ref_executable.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "tensor/block_formats.h"
#include "tensor/plane.h"

namespace tokamak {
namespace {

bool is_direct(DType dtype) { return dtype == DType::kF32 || dtype == DType::kI32; }

int64_t elements_of(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

}  // namespace

Ticket RefExecutable::submit(const StepInputs& step) {
  TK_CHECK(pending_ == 0, "one step at a time: collect ticket {} first", pending_);
  error_ = nullptr;
  pending_ = next_++;
  auto start = std::chrono::steady_clock::now();
  try {
    run(step, result_);
  } catch (...) {
    error_ = std::current_exception();
  }
  result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return pending_;
}

void RefExecutable::collect(Ticket ticket, StepResult& out) {
  TK_CHECK(ticket == pending_ && ticket != 0, "ticket {} is not in flight", ticket);
  pending_ = 0;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (sampler_) sampler_->complete(result_);
  std::swap(out, result_);
}

void RefExecutable::set_mask(Ticket ticket, int32_t output, std::span<const uint32_t> allowed) {
  TK_CHECK(ticket == pending_ && ticket != 0, "ticket {} is not in flight", ticket);
  if (!error_ && sampler_) sampler_->set_mask(output, allowed);
}

int32_t RefExecutable::drafted(Ticket ticket, int32_t output) {
  TK_CHECK(ticket == pending_ && ticket != 0, "ticket {} is not in flight", ticket);
  return error_ ? 0 : std::max(0, result_.ids.at(static_cast<size_t>(output)));
}

void RefExecutable::run(const StepInputs& step, StepResult& out) {
  out.clear();
  for (size_t phase = 0; phase < phase_count(step); ++phase) run_phase(step, phase, out);
}

void RefExecutable::run_phase(const StepInputs& step, size_t phase, StepResult& out) {
  auto index = static_cast<size_t>(binder_.bind(step, phase));
  if (phase == 0) {
    copy_blocks(step);
    move_slots(step);
    if (sampler_) sampler_->begin(step);
  }
  if (sampler_) sampler_->resolve(binder_.ids(), out);
  LoadedPlan& plan = loaded_[index];
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    bool timed = profile_ && profile_->on;
    Nanos begin = timed ? SteadyClock().now() : 0;
    run_call(plan.calls[i], binder_.inputs());
    if (timed)
      profile_->spans.push_back(
          {static_cast<uint32_t>(index), static_cast<uint32_t>(i), begin, SteadyClock().now()});
  }
  const auto& samples = binder_.phase().samples;
  bool hidden = std::any_of(samples.begin(), samples.end(), wants_hidden);
  finish_phase(plan, plans_.plans[index], hidden || step.return_logits, out);
}

void RefExecutable::run_sample(const SampleTable& table, SampleTokens& out) {
  auto index = static_cast<size_t>(select_sample_plan(plans_, table, sample_symbols_));
  sample_arena_.resize(std::max(sample_arena_.size(), size_t{plans_.plans[index].arena_bytes}));
  struct Reset {
    const SampleTable*& table;
    ~Reset() { table = nullptr; }
  } reset{sampling_ = &table};
  LoadedPlan& plan = loaded_[index];
  for (Call& call : plan.calls) run_call(call, binder_.inputs());
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    bind_dims(plan.outputs[i]);
    out.set(plans_.plans[index].outputs[i].name, arena_at(plan.outputs[i]),
            elements_of(plan.outputs[i].dims));
  }
}

void RefExecutable::finish_phase(LoadedPlan& plan, const Plan& entry, bool want_hidden,
                                 StepResult& out) {
  const StepInputs& phase = binder_.phase();
  auto rows = static_cast<int64_t>(phase.out_rows.size()),
       padded = static_cast<int64_t>(binder_.inputs().out_rows.size());
  SamplePhase place{phase, binder_.ids(), binder_.first_output(), binder_.first_sequence()};
  const float* logits = output(plan, entry, "logits", plans_.vocab, padded);
  if (logits && phase.return_logits)
    out.logits.insert(out.logits.end(), logits, logits + rows * plans_.vocab);
  if (logits && sampler_)
    sampler_->finish(place, logits, out, layer_logits(plan, entry));
  else
    Sampler::skip(place, out);
  const float* hidden =
      want_hidden ? output(plan, entry, "hidden", plans_.hidden, padded) : nullptr;
  if (hidden) out.hidden.insert(out.hidden.end(), hidden, hidden + rows * plans_.hidden);
  for (size_t i = 0; i < entry.outputs.size(); ++i)
    if (const std::string& name = entry.outputs[i].name;
        name != "logits" && name != "hidden" && name != kLayerLogits)
      out.outputs.push_back(named_output(name, plan.outputs[i]));
}

// The values of a result of the plan; nullptr when the plan has none of that name.
const float* RefExecutable::output(LoadedPlan& plan, const Plan& entry, std::string_view name,
                                   int64_t width, int64_t rows) {
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    if (entry.outputs[i].name != name) continue;
    Argument& argument = plan.outputs[i];
    bind_dims(argument);
    TK_CHECK(elements_of(argument.dims) == rows * width, "{} does not have {} rows of {}", name,
             rows, width);
    return bind(argument, binder_.inputs(), false).tensor.f;
  }
  return nullptr;
}

std::span<const float> RefExecutable::layer_logits(LoadedPlan& plan, const Plan& entry) {
  int64_t rows = 0;
  for (const SampleRow& row : binder_.phase().samples)
    rows += static_cast<int64_t>(layer_rows(row));
  if (rows == 0) return {};
  const float* logits = output(plan, entry, kLayerLogits, plans_.vocab, rows);
  return logits ? std::span(logits, static_cast<size_t>(rows * plans_.vocab))
                : std::span<const float>();
}

// Without the rows of padding.
StepTensor RefExecutable::named_output(const std::string& name, Argument& argument) {
  StepTensor out{name, argument.arg->dtype, {}, {}};
  TK_CHECK(argument.arg->kind == CallArg::Kind::kArena, "result {} is not in the arena", name);
  for (const CompiledExpr& extent : argument.extents)
    out.dims.push_back(extent.eval(binder_.own_symbols()));
  bind_dims(argument);
  const std::byte* data = arena_at(argument);
  out.bytes.assign(data, data + dtype_bytes(out.dtype, elements_of(out.dims)));
  return out;
}

void RefExecutable::copy_blocks(const StepInputs& step) {
  for (const BlockCopy& copy : step.copies)
    for (size_t s = 0; s < states_.size(); ++s) {
      if (plans_.states[s].group != copy.group) continue;
      int64_t size = plans_.groups[copy.group].block_rows();
      for (const auto& plane : states_[s].planes)
        std::memmove(plane.data + copy.to * size * plane.width,
                     plane.data + copy.from * size * plane.width,
                     static_cast<size_t>(size * plane.width) * sizeof(float));
    }
}

void RefExecutable::move_slots(const StepInputs& step) {
  for (const SlotMove& move : step.moves)
    for (size_t s = 0; s < states_.size(); ++s) {
      if (plans_.states[s].group != move.group) continue;
      for (const auto& plane : states_[s].planes)
        std::memmove(plane.data + move.to * plane.width, plane.data + move.from * plane.width,
                     static_cast<size_t>(plane.width) * sizeof(float));
    }
}

template <class F>
void RefExecutable::visit_blocks(uint32_t group, std::span<const int32_t> blocks, F&& visit) {
  int64_t size = plans_.groups[group].block_rows();
  for (int32_t block : blocks)
    for (size_t s = 0; s < states_.size(); ++s) {
      if (plans_.states[s].group != group) continue;
      for (const auto& plane : states_[s].planes)
        visit(reinterpret_cast<std::byte*>(plane.data + block * size * plane.width),
              static_cast<size_t>(size * plane.width) * sizeof(float));
    }
}

uint64_t RefExecutable::block_bytes(uint32_t group) const {
  TK_CHECK(group < plans_.groups.size(), "group {} of {}", group, plans_.groups.size());
  int64_t elements = 0;
  for (size_t s = 0; s < states_.size(); ++s)
    for (const auto& plane : states_[s].planes)
      if (plans_.states[s].group == group) elements += plane.width;
  return static_cast<uint64_t>(elements * plans_.groups[group].block_rows()) * sizeof(float);
}

// Steps run in submit(), so transfers can be done at once.
Ticket RefExecutable::read_blocks(uint32_t group, std::span<const int32_t> blocks,
                                  std::span<std::byte> bytes) {
  binder_.checker().check_blocks(group, blocks, bytes.size(), block_bytes(group));
  std::byte* to = bytes.data();
  visit_blocks(group, blocks, [&](const std::byte* data, size_t n) {
    std::memcpy(to, data, n);
    to += n;
  });
  return next_++;
}

Ticket RefExecutable::write_blocks(uint32_t group, std::span<const int32_t> blocks,
                                   std::span<const std::byte> bytes) {
  binder_.checker().check_blocks(group, blocks, bytes.size(), block_bytes(group));
  const std::byte* from = bytes.data();
  visit_blocks(group, blocks, [&](std::byte* data, size_t n) {
    std::memcpy(data, from, n);
    from += n;
  });
  return next_++;
}

void RefExecutable::wait(Ticket ticket) {
  TK_CHECK(ticket < next_, "ticket {} was not given out", ticket);
}

void RefExecutable::bind_dims(Argument& argument) {
  for (size_t i = 0; i < argument.extents.size(); ++i) {
    argument.dims[i] = argument.extents[i].eval(sampling_ ? sample_symbols_ : binder_.symbols());
    TK_CHECK(argument.dims[i] >= 0);
  }
}

std::byte* RefExecutable::arena_at(const Argument& argument) {
  const CallArg& arg = *argument.arg;
  uint64_t bytes = dtype_bytes(arg.dtype, elements_of(argument.dims));
  uint64_t size = sampling_ ? sample_arena_.size() : plans_.arena_bytes;
  TK_CHECK(arg.offset % alignof(float) == 0 && arg.offset <= size && bytes <= size - arg.offset,
           "{} bytes at {} of an arena of {}", bytes, arg.offset, size);
  if (sampling_) return sample_arena_.data() + arg.offset;
  memory_.arena_touched = std::max(memory_.arena_touched, arg.offset + bytes);
  return arena_.get() + arg.offset;
}

// The interpreter's view of an argument. Values that are neither f32 nor i32 are decoded here; the
// meaning rounds results to the type of the output, and store() encodes them.
Operand<float> RefExecutable::bind(Argument& argument, const StepInputs& step, bool is_output) {
  const CallArg& arg = *argument.arg;
  Operand<float> operand;
  operand.tensor.dims = argument.dims;
  int64_t n = elements_of(argument.dims);
  switch (arg.kind) {
    case CallArg::Kind::kState:
      operand.state = states_[arg.index].ref();
      break;
    case CallArg::Kind::kView: {
      const StepInputs::Table& table = step.tables[arg.index];
      operand.view = {table.blocks.data(), table.stride, plans_.groups[arg.index].block_size};
      break;
    }
    case CallArg::Kind::kWeight: {
      Weight& weight = weights_[arg.index];
      TK_CHECK(static_cast<int64_t>(weight.f.size() + weight.i.size()) == n, "weight {}",
               plans_.weights[arg.index].name);
      operand.tensor.f = weight.f.empty() ? nullptr : weight.f.data();
      operand.tensor.i = weight.i.empty() ? nullptr : weight.i.data();
      break;
    }
    case CallArg::Kind::kInput: {
      InputView values =
          sampling_ ? sampling_->input(plans_.inputs[arg.index].name) : binder_.input(arg.index);
      if (values.elements != n || n == 0)
        fail(ErrorCode::kInternal, "step: {} has {} entries, the plan reads {}",
             plans_.inputs[arg.index].name, values.elements, n);
      void* data = const_cast<void*>(values.data);  // inputs are only read
      if (values.dtype == DType::kI32) {
        operand.tensor.i = static_cast<int32_t*>(data);
      } else if (values.dtype == DType::kF32) {
        operand.tensor.f = static_cast<float*>(data);
      } else {
        argument.converted.resize(static_cast<size_t>(n));
        decode_row(values.dtype, static_cast<const std::byte*>(values.data),
                   argument.converted.data(), n);
        operand.tensor.f = argument.converted.data();
      }
      break;
    }
    case CallArg::Kind::kArena: {
      std::byte* at = arena_at(argument);
      if (arg.dtype == DType::kI32) {
        operand.tensor.i = reinterpret_cast<int32_t*>(at);
      } else if (arg.dtype == DType::kF32) {
        operand.tensor.f = reinterpret_cast<float*>(at);
      } else {
        argument.converted.resize(static_cast<size_t>(n));
        if (!is_output) decode_row(arg.dtype, at, argument.converted.data(), n);
        operand.tensor.f = argument.converted.data();
        operand.tensor.storage = arg.dtype;
      }
      break;
    }
  }
  return operand;
}

// append stores values rounded to the plane's type.
void RefExecutable::round_planes(const StateEntry& state, std::span<Operand<float>> in,
                                 std::vector<std::vector<float>>& rounded) {
  constexpr size_t kFirstPlane = 4;
  rounded.resize(state.planes.size());
  for (size_t p = 0; p < state.planes.size(); ++p) {
    DType dtype = state.planes[p].dtype;
    if (dtype == DType::kF32) continue;
    TensorRef<float>& tensor = in[kFirstPlane + p].tensor;
    int64_t n = tensor.elements();
    if (tensor.f != rounded[p].data()) rounded[p].assign(tensor.f, tensor.f + n);
    const std::vector<int64_t>& dims = state.planes[p].dims;
    round_plane(dtype, dims.empty() ? 1 : dims.back(), rounded[p]);
    tensor.f = rounded[p].data();
  }
}

void RefExecutable::store(Call& call) {
  for (Argument& argument : call.out) {
    const CallArg& arg = *argument.arg;
    if (arg.kind != CallArg::Kind::kArena || is_direct(arg.dtype)) continue;
    encode_row(arg.dtype, argument.converted.data(), arena_at(argument),
               elements_of(argument.dims));
  }
}

void RefExecutable::run_call(Call& call, const StepInputs& step) {
  std::vector<Operand<float>> in, out;
  for (auto* list : {&call.in, &call.out})
    for (Argument& argument : *list) bind_dims(argument);
  for (Argument& argument : call.in) in.push_back(bind(argument, step, false));
  for (Argument& argument : call.out) out.push_back(bind(argument, step, true));
  try {
    if (call.region) return run_region(call, in, out);
    if (call.op->name == "quantize") {
      // Encoded from the values themselves: the scale of decoded values can differ in its last bit.
      const Argument& y = call.out[0];
      return encode_row(y.arg->dtype, in[0].tensor.f, arena_at(y), elements_of(y.dims));
    }
    std::vector<std::vector<float>> rounded;
    if (call.op->writes_state && !call.op->recurrent)
      round_planes(plans_.states[call.out[0].arg->index], in, rounded);
    call.op->f32({in, out, call.call->attrs});
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{} ({})", e.what(), call.call->label));
  }
  store(call);
}

}  // namespace tokamak
