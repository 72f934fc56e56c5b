// A step on the device: inputs in, launches, results out.
#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/executable.h"
#include "backend/cuda/memory_needs.h"
#include "base/clock.h"
#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak::cuda {
namespace {

constexpr size_t kInputAlignment = 16;
constexpr size_t kFirstBytes = size_t{1} << 20;  // of staging buffers
constexpr size_t kMaxShapes = 32;                // of those made in steps, kept per plan
constexpr int64_t kCaptureAfter = 2;             // runs of the same shape
constexpr int64_t kMostCaptured =
    256;  // sequences: launching a larger step takes no time beside it
constexpr int64_t kUsualContext = 8192;  // of plans that do not say

template <class B>
void grow(B& buffer, size_t bytes) {
  if (buffer.bytes() >= bytes) return;
  size_t to = std::max(buffer.bytes() * 2, kFirstBytes);
  while (to < bytes) to *= 2;
  buffer = B();
  buffer = B(to);
}

int32_t pieces(size_t bytes) { return static_cast<int32_t>(bytes / sizeof(StagedPiece)); }

size_t staged_bytes(size_t bytes) {
  return (bytes + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
}

}  // namespace

void CudaExecutable::run_phase(const StepInputs& step, size_t phase) {
  finish_phase();  // of the phase before, whose tokens this one may use
  auto plan = static_cast<uint32_t>(binder_.bind(step, phase));
  Prepared& p = prepared_[plan];
  if (phase == 0) {
    if (sampler_ && !step_->follows) sampler_->begin(step);
    kv_.copy_blocks(step.copies, stream_);
    kv_.move_slots(step.moves, kernels_, stream_);
  }
  const bool on_device = sampler_ && resolve_ids(step);
  choose_path(plan);
  step_->begin.record(stream_);
  place_inputs(p);
  stage_inputs(p, on_device);
  if (step_->stream)
    launch_stream(p);
  else
    launch(p, plan);
  if (step_->chooser == Chooser::kSampleRows && (step_->stream || profiled())) {
    own_launches_.clear();
    add_sampling(p, own_launches_);
    own_launches_.run(stream_);
  }
  fetch(p);
  step_->end.record(stream_);
  keep_phase(plan);
}

// Launches know addresses on the device: after these change, all of them are made again.
void CudaExecutable::forget_launches() {
  stream_.wait();  // for the other step
  for (Prepared& p : prepared_) p.shapes.clear();
  remake_graphs_ = true;
}

// Room for the tables of a step: more than there is only if a sequence is longer than the plans
// say.
void CudaExecutable::reserve_tables(const StepInputs& in) {
  for (size_t g = 0; g < tables_.size(); ++g) {
    BlockTable& table = tables_[g];
    const int64_t stride = g < in.tables.size() ? in.tables[g].stride : 0;
    if (table.rows >= in.sequences() && table.stride >= stride) continue;
    forget_launches();
    const TableSize size{std::max(table.rows, in.sequences()),
                         padded_stride(std::max<int64_t>(table.stride, stride))};
    table = {};
    table = {Buffer(size.bytes()), size.rows, size.stride};
    check(driver().stream_wait(nullptr), "clearing memory");
  }
}

// A table in pinned memory at `at`, and where it goes. Its end.
size_t CudaExecutable::place_table(uint32_t group, size_t at) {
  const StepInputs& in = binder_.inputs();
  const StepInputs::Table& table = in.tables[group];
  const BlockTable& to = tables_[group];
  const auto rows = static_cast<size_t>(in.sequences()), width = static_cast<size_t>(table.stride);
  const size_t row_bytes = staged_bytes(width * sizeof(int32_t));
  StagedTable& staged = staging_.table[staging_.tables++];
  staged = {to.memory.as<StagedPiece>(), pieces(at), pieces(rows * row_bytes), pieces(row_bytes),
            pieces(static_cast<size_t>(to.stride) * sizeof(int32_t))};
  for (size_t b = 0; b < rows; ++b) {
    auto* row = reinterpret_cast<int32_t*>(step_->staged.data() + at + b * row_bytes);
    const size_t from = b * width;  // rows of padding have no table
    const size_t used = from + width <= table.blocks.size() ? width : 0;
    std::copy_n(table.blocks.begin() + static_cast<ptrdiff_t>(used ? from : 0), used, row);
    std::fill(row + used, row + row_bytes / sizeof(int32_t), -1);
  }
  view_.views[group] = {to.memory.as<const int32_t>(), to.stride, kv_.block_size(group)};
  return at + rows * row_bytes;
}

// Packs what the plan reads into pinned memory: inputs, what sampling needs, block tables.
void CudaExecutable::place_inputs(const Prepared& p) {
  const StepInputs& in = binder_.inputs();
  reserve_tables(in);
  size_t total = extra_bytes(), of_tables = 0;
  for (uint32_t i : p.inputs) {
    InputView v = binder_.input(i);
    total += staged_bytes(dtype_bytes(v.dtype, v.elements));
  }
  for (uint32_t g : p.groups)
    of_tables += static_cast<size_t>(in.sequences()) *
                 staged_bytes(static_cast<size_t>(in.tables[g].stride) * sizeof(int32_t));
  grow(step_->staged, total + of_tables);
  if (inputs_.bytes() < total) {
    forget_launches();
    grow(inputs_, total);
    check(driver().stream_wait(nullptr), "clearing memory");
  }
  size_t at = 0;
  for (uint32_t i : p.inputs) {
    InputView v = binder_.input(i);
    const size_t bytes = dtype_bytes(v.dtype, v.elements);
    if (bytes > 0) std::memcpy(step_->staged.data() + at, v.data, bytes);
    input_at_[i] = inputs_.address() + at;
    at += staged_bytes(bytes);
  }
  at = stage_extras(at);
  staging_ = {};
  staging_.plain = pieces(at);
  for (uint32_t g : p.groups) at = place_table(g, at);
  staging_.pieces = pieces(at);
  int32_t longest = 0;
  for (int32_t n : in.kv_len) longest = std::max(longest, n);
  auto segments = static_cast<uint64_t>((longest + kSegment - 1) / kSegment);
  view_.segments = static_cast<int64_t>(std::bit_ceil(std::max<uint64_t>(1, segments)));
}

// Launches the kernel that copies what was placed.
void CudaExecutable::stage_inputs(const Prepared& p, bool ids_on_device) {
  if (staging_.pieces == 0) return;
  staging_.from = reinterpret_cast<const StagedPiece*>(step_->staged.data());
  staging_.to = inputs_.as<StagedPiece>();
  staging_.last = last_tokens_.as<int32_t>();
  if (ids_on_device) {
    const DeviceAddress ids = step_of(p).ids;
    TK_CHECK(ids, "a plan without ids");
    staging_.first_id = static_cast<int32_t>((ids - inputs_.address()) / sizeof(int32_t));
    staging_.ids = static_cast<int32_t>(binder_.ids().size());
  }
  own_launches_.clear();
  own_launches_.add("sample", "stage_inputs",
                    {(staging_.pieces + kStageThreads - 1) / kStageThreads}, kStageThreads,
                    staging_);
  own_launches_.run(stream_);
}

Tensor CudaExecutable::tensor_of(const Argument& argument, std::span<const int64_t> symbols) const {
  const CallArg& arg = *argument.arg;
  Tensor t;
  t.dtype = arg.dtype;
  t.index = arg.index;
  for (const CompiledExpr& e : argument.extents) t.dims.push_back(e.eval(symbols));
  switch (arg.kind) {
    case CallArg::Kind::kArena: {
      size_t bytes = dtype_bytes(t.dtype, t.elements());
      TK_CHECK(arg.offset <= arena_.bytes() && bytes <= arena_.bytes() - arg.offset,
               "{} bytes at {} of an arena of {}", bytes, arg.offset, arena_.bytes());
      t.address = arena_.address() + arg.offset;
      break;
    }
    case CallArg::Kind::kWeight:
      t.address = weights_.address(arg.index);
      break;
    case CallArg::Kind::kInput:
      t.address = input_at_.at(arg.index);
      break;
    case CallArg::Kind::kState:
    case CallArg::Kind::kView:
      break;
  }
  return t;
}

CudaExecutable::Shaped& CudaExecutable::shape(Prepared& p) {
  std::span<const int64_t> symbols = binder_.symbols();
  const bool samples = step_->chooser == Chooser::kSampleRows;
  key_.assign(symbols.begin(), symbols.end());
  for (int64_t part : {int64_t{view_.causal}, int64_t{view_.plain_mask}, int64_t{step_->layered},
                       samples ? std::ssize(binder_.inputs().out_rows) : -1})
    key_.push_back(part);
  key_.push_back(0);  // launches for any number of segments, or for that of the step
  for (int64_t segments : {int64_t{0}, view_.segments}) {
    key_.back() = segments;
    if (auto it = p.shapes.find(key_); it != p.shapes.end()) return *it->second;
  }
  forget_shape(p);
  auto made = std::make_unique<Shaped>(kernels_);
  if (step_->layered) {
    layers_->emit(step_of(p), view_, {scratch_.address(), scratch_.bytes()}, made->launches);
  } else {
    for (const Call& c : p.calls) {
      CallSite site{*c.call,   {}, {}, kv_, view_, {scratch_.address(), scratch_.bytes()},
                    libraries_};
      for (const Argument& a : c.in) site.in.push_back(tensor_of(a, symbols));
      for (const Argument& a : c.out) site.out.push_back(tensor_of(a, symbols));
      c.kernel->emit(site, made->launches);
      made->launches.next_call();
    }
  }
  if (samples) add_sampling(p, made->launches);
  if (!made->launches.depends_on_segments()) key_.back() = 0;
  return *(p.shapes[key_] = std::move(made));
}

// The shape that has not run for the longest time, where there are too many.
void CudaExecutable::forget_shape(Prepared& p) {
  auto oldest = p.shapes.end();
  size_t count = 0;
  for (auto it = p.shapes.begin(); it != p.shapes.end(); ++it) {
    if (it->second->of_load) continue;
    ++count;
    if (oldest == p.shapes.end() || it->second->last_run < oldest->second->last_run) oldest = it;
  }
  if (count >= kMaxShapes) p.shapes.erase(oldest);
}

// The graphs of decode steps that fused layers take, for each size that steps are padded to.
void CudaExecutable::make_graphs() {
  remake_graphs_ = false;
  if (!graphs_ || !layers_) return;
  for (uint32_t i = 0; i < prepared_.size(); ++i) {
    if (plans_.plans[i].function != "decode") continue;
    for (const GuardRange& b : plans_.plans[i].guard) {
      if (b.symbol != "B" || b.pad == 0 || b.multiple <= 1) continue;
      const int64_t first = (b.lo + b.multiple - 1) / b.multiple * b.multiple;
      for (int64_t n = first; n <= std::min(b.hi, kMostCaptured); n += b.multiple)
        for (Chooser chooser : {Chooser::kSampleRows, Chooser::kTable}) make_graph(i, n, chooser);
    }
  }
}

void CudaExecutable::make_graph(uint32_t plan, int64_t sequences, Chooser chooser) {
  Prepared& p = prepared_[plan];
  binder_.bind_padding(plan, sequences);
  choose_path(plan);
  if (!step_->layered || (chooser == Chooser::kSampleRows && !sampler_)) return;
  step_->chooser = chooser;
  place_inputs(p);
  Shaped& s = shape(p);
  s.of_load = true;
  s.graph = std::make_unique<StepGraph>(s.launches, stream_);
}

void CudaExecutable::launch(Prepared& p, uint32_t plan) {
  Shaped& s = shape(p);
  s.last_run = ++runs_;
  ++s.runs;
  layered_steps_ += step_->layered;
  if (profiled()) {
    stream_.wait();
    for (uint32_t i = 0; i < p.calls.size(); ++i) {
      Nanos from = SteadyClock().now();
      s.launches.run_call(stream_, i);
      stream_.wait();
      profile_->spans.push_back({plan, i, from, SteadyClock().now()});
    }
    return;
  }
  if (graphs_ && !s.graph && s.runs >= kCaptureAfter) {
    s.graph = std::make_unique<StepGraph>(s.launches, stream_);
    ++binder_.stats().captures;
  }
  if (!s.graph) return s.launches.run(stream_);
  s.graph->run(stream_);
  ++binder_.stats().graphs;
}

// Copies the results that the host reads, without the rows of padding.
void CudaExecutable::fetch(const Prepared& p) {
  const StepInputs& phase = binder_.phase();
  bool hidden = std::any_of(phase.samples.begin(), phase.samples.end(), wants_hidden);
  step_->fetched.clear();
  size_t at = 0;
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    if (p.kinds[i] == OutputKind::kHidden && !hidden) continue;
    Tensor t = tensor_of(p.outputs[i], binder_.own_symbols());
    const bool late = p.kinds[i] == OutputKind::kLogits && step_->chooser != Chooser::kHost &&
                      !phase.return_logits;
    if (late)
      step_->late = {i, at, t.elements()};
    else
      step_->fetched.push_back({i, at, t.elements()});
    at += staged_bytes(dtype_bytes(t.dtype, t.elements()));
  }
  const size_t rows = phase.samples.size();
  step_->states_at = at;
  if (step_->stream) at += staged_bytes(rows * sizeof(DecodeState));
  grow(step_->values, at);
  if (step_->stream)
    stream_.copy_out(step_->values.data() + step_->states_at, states_, rows * sizeof(DecodeState));
  for (const Fetched& f : step_->fetched) {
    Tensor t = tensor_of(p.outputs[f.output], binder_.own_symbols());
    size_t bytes = dtype_bytes(t.dtype, f.elements);
    if (bytes > 0) stream_.copy_out(step_->values.data() + f.at, t.address, bytes);
  }
}

// What the sampler reads of the phase: the step is not used after submit.
void CudaExecutable::keep_phase(uint32_t plan) {
  const StepInputs& from = binder_.phase();
  StepInputs& to = step_->phase;
  keep_sample_inputs(from, to);
  to.return_logits = from.return_logits;
  if (step_->follows) to.resets = from.resets;  // taken when the tokens are chosen
  step_->ids.assign(binder_.ids().begin(), binder_.ids().end());
  step_->first_output = binder_.first_output();
  step_->first_sequence = binder_.first_sequence();
  step_->symbols.assign(binder_.own_symbols().begin(), binder_.own_symbols().end());
  step_->plan = plan;
  step_->active = true;
}

std::span<const float> CudaExecutable::floats(const Fetched& f, DType dtype) {
  const std::byte* data = step_->values.data() + f.at;
  auto n = static_cast<size_t>(f.elements);
  if (dtype == DType::kF32) return {reinterpret_cast<const float*>(data), n};
  converted_.resize(n);
  decode_row(dtype, data, converted_.data(), f.elements);
  return converted_;
}

// Waits for a launched phase and chooses its tokens.
void CudaExecutable::finish_phase() {
  if (!step_->active) return;
  step_->active = false;
  step_->end.wait();
  step_->result.seconds += step_->end.seconds_since(step_->begin);
  if (std::exchange(step_->follows, false)) {
    sampler_->begin(step_->phase);
    sampler_->resolve(step_->ids, step_->result);
  }
  take_tokens();
  const Plan& plan = plans_.plans[step_->plan];
  SamplePhase place{step_->phase, step_->ids, step_->first_output, step_->first_sequence};
  const bool on_device = !device_tokens_.empty() || step_->chooser == Chooser::kTable;
  bool has_logits = false;
  std::span<const float> layer_logits;
  for (const Fetched& f : step_->fetched)
    if (prepared_[step_->plan].kinds[f.output] == OutputKind::kLayerLogits)
      layer_logits = floats(f, DType::kF32);
  for (const Fetched& f : step_->fetched) {
    const PlanOutput& output = plan.outputs[f.output];
    const OutputKind kind = prepared_[step_->plan].kinds[f.output];
    if (kind == OutputKind::kLogits) {
      std::span<const float> logits = floats(f, output.arg.dtype);
      if (step_->phase.return_logits)
        step_->result.logits.insert(step_->result.logits.end(), logits.begin(), logits.end());
      if (!sampler_ || on_device) continue;
      has_logits = true;
      sampler_->finish(place, logits.data(), step_->result, layer_logits);
    } else if (kind == OutputKind::kHidden) {
      std::span<const float> hidden = floats(f, output.arg.dtype);
      step_->result.hidden.insert(step_->result.hidden.end(), hidden.begin(), hidden.end());
    } else if (kind == OutputKind::kOther) {
      StepTensor& out = step_->result.outputs.emplace_back();
      out.name = output.name;
      out.dtype = output.arg.dtype;
      for (const SymExpr& e : output.arg.dims)
        out.dims.push_back(CompiledExpr(e, symbols_).eval(step_->symbols));
      const std::byte* data = step_->values.data() + f.at;
      out.bytes.assign(data, data + dtype_bytes(out.dtype, f.elements));
    }
  }
  if (on_device)
    sampler_->finish(place, nullptr, step_->result);
  else if (!has_logits)
    Sampler::skip(place, step_->result);
}

}  // namespace tokamak::cuda
