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
  std::swap(out, result_);
}

void RefExecutable::run(const StepInputs& step, StepResult& out) {
  out.clear();
  auto index = static_cast<size_t>(binder_.bind(step));
  LoadedPlan& plan = loaded_[index];
  const Plan& entry = plans_.plans[index];
  copy_blocks(step);
  if (sampler_)
    sampler_->begin(step, ids_);
  else
    ids_.assign(step.ids.begin(), step.ids.end());
  const StepInputs& inputs = binder_.inputs();  // with rows of padding, whose id is 0
  ids_.resize(inputs.pos.size());
  no_adapter_.assign(ids_.size(), -1);
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    bool timed = profile_ && profile_->on;
    Nanos begin = timed ? SteadyClock().now() : 0;
    run_call(plan.calls[i], inputs);
    if (timed)
      profile_->spans.push_back(
          {static_cast<uint32_t>(index), static_cast<uint32_t>(i), begin, SteadyClock().now()});
  }

  if (const float* logits = output(plan, entry, "logits", inputs, plans_.vocab)) {
    if (sampler_) sampler_->finish(step, logits, out);
    if (step.return_logits)
      out.logits.assign(logits, logits + static_cast<int64_t>(step.out_rows.size()) * plans_.vocab);
  } else {
    out.ids.assign(step.out_rows.size(), -1);
    out.logprobs.assign(step.out_rows.size(), 0.0f);
    out.accepted.assign(step.kv_len.size(), 0);
    out.failed.assign(step.kv_len.size(), 0);
    for (const SampleRow& sample : step.samples)
      TK_CHECK(sample.mode == SampleRow::Mode::kHidden, "{} has no logits", entry.function);
  }
  bool wants_hidden = step.return_logits ||
                      std::any_of(step.samples.begin(), step.samples.end(), [](const SampleRow& s) {
                        return s.mode == SampleRow::Mode::kHidden;
                      });
  if (wants_hidden)
    if (const float* hidden = output(plan, entry, "hidden", inputs, plans_.hidden))
      out.hidden.assign(hidden,
                        hidden + static_cast<int64_t>(step.out_rows.size()) * plans_.hidden);
}

// The values of a result of the plan; nullptr if it has none of that name.
const float* RefExecutable::output(LoadedPlan& plan, const Plan& entry, std::string_view name,
                                   const StepInputs& step, int64_t width) {
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    if (entry.outputs[i].name != name) continue;
    Argument& argument = plan.outputs[i];
    bind_dims(argument);
    TK_CHECK(elements_of(argument.dims) == static_cast<int64_t>(step.out_rows.size()) * width,
             "{} does not have {} rows of {}", name, step.out_rows.size(), width);
    return bind(argument, step, false).tensor.f;
  }
  return nullptr;
}

void RefExecutable::copy_blocks(const StepInputs& step) {
  for (const BlockCopy& copy : step.copies)
    for (size_t s = 0; s < states_.size(); ++s) {
      if (plans_.states[s].group != copy.group) continue;
      int64_t size = plans_.groups[copy.group].block_size;
      for (const auto& plane : states_[s].planes)
        std::memmove(plane.data + copy.to * size * plane.width,
                     plane.data + copy.from * size * plane.width,
                     static_cast<size_t>(size * plane.width) * sizeof(float));
    }
}

void RefExecutable::bind_dims(Argument& argument) {
  for (size_t i = 0; i < argument.extents.size(); ++i) {
    argument.dims[i] = argument.extents[i].eval(binder_.symbols());
    TK_CHECK(argument.dims[i] >= 0);
  }
}

std::byte* RefExecutable::arena_at(const Argument& argument) {
  const CallArg& arg = *argument.arg;
  uint64_t bytes = dtype_bytes(arg.dtype, elements_of(argument.dims));
  TK_CHECK(arg.offset % alignof(float) == 0 && arg.offset <= plans_.arena_bytes &&
               bytes <= plans_.arena_bytes - arg.offset,
           "{} bytes at {} of an arena of {}", bytes, arg.offset, plans_.arena_bytes);
  memory_.arena_touched = std::max(memory_.arena_touched, arg.offset + bytes);
  return arena_.get() + arg.offset;
}

const std::vector<int32_t>& RefExecutable::step_input(const std::string& name,
                                                      const StepInputs& step) {
  if (name == "ids") return ids_;
  if (name == "pos") return step.pos;
  if (name == "seq") return step.seq;
  if (name == "slot") return step.slot;
  if (name == "q_start") return step.q_start;
  if (name == "kv_len") return step.kv_len;
  if (name == "out_rows") return step.out_rows;
  if (name == "adapter") return step.adapter.empty() ? no_adapter_ : step.adapter;
  if (name == "mask") return step.mask;
  fail(ErrorCode::kUnsupported, "a step has no input \"{}\"", name);
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
      const std::string& name = plans_.inputs[arg.index].name;
      const std::vector<int32_t>& values = step_input(name, step);
      if (static_cast<int64_t>(values.size()) != n || n == 0)
        fail(ErrorCode::kInternal, "step: {} has {} entries, the plan reads {}", name,
             values.size(), n);
      operand.tensor.i = const_cast<int32_t*>(values.data());  // inputs are only read
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
    if (call.op->writes_state) round_planes(plans_.states[call.out[0].arg->index], in, rounded);
    call.op->f32({in, out, call.call->attrs});
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{} ({})", e.what(), call.call->label));
  }
  store(call);
}

}  // namespace tokamak
