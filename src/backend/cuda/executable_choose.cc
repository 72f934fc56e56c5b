// Which kernels run a step, and who chooses its tokens.
#include <algorithm>
#include <cstring>

#include "backend/cuda/executable.h"
#include "base/error.h"
#include "base/log.h"

namespace tokamak::cuda {
namespace {

constexpr size_t kExtraAlignment = 16;

size_t padded(size_t bytes) {
  return (bytes + kExtraAlignment - 1) / kExtraAlignment * kExtraAlignment;
}

bool is_hidden(const SampleRow& s) { return s.mode == SampleRow::Mode::kHidden; }

}  // namespace

void CudaExecutable::choose_path(uint32_t plan) {
  const StepInputs& phase = binder_.phase();
  const bool whole = &binder_.inputs() == &phase;  // without padding
  const bool profiled = profile_ && profile_->on;
  launched_.streamed = decoder_ && whole && !profiled && prepared_[plan].decode &&
                       phase.samples.size() == phase.ids.size() && decoder_->takes(phase) &&
                       std::none_of(phase.samples.begin(), phase.samples.end(), is_hidden);
  launched_.chooser = Chooser::kHost;
  if (!sampler_ || !whole) return;
  if (launched_.streamed && stream_can_sample(phase.samples, phase.pos))
    launched_.chooser = Chooser::kStream;
  else if (device_can_sample(phase.samples) && prepared_[plan].logits >= 0)
    launched_.chooser = Chooser::kSampleRows;
}

// The functions "step" and "decode" of one decoder. Calls that are profiled run one by one.
void CudaExecutable::make_layers() {
  if (profile_) return;
  try {
    layers_ = LayerLaunches::make(plans_, weights_, kv_, libraries_);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kResourceExhausted) throw;
    log::info("layers run op by op: {}", e.what());
  }
}

// Products of the fused layers or, without them, of the calls, by the library's fastest algorithms.
void CudaExecutable::measure_products() {
  if (!blas_) return;
  std::vector<BlasProduct> products;
  if (layers_) products = layers_->products();
  for (const Prepared& p : prepared_)
    for (const Call& c : p.calls) {
      if (layers_ || c.call->op != "linear" || c.in.size() != 2) continue;
      const CallArg &x = *c.in[0].arg, &w = *c.in[1].arg;
      if (w.kind != CallArg::Kind::kWeight || x.dtype != w.dtype) continue;
      const WeightEntry& entry = plans_.weights.at(w.index);
      BlasProduct product;
      product.w = weights_.address(w.index);
      product.rows = c.in[0].arg->dims[0].upper(plans_.symbols);
      product.n = entry.dims.at(0);
      product.k = entry.dims.at(1);
      product.type = w.dtype;
      product.out = c.call->out[0].dtype;
      products.push_back(product);
    }
  try {
    for (const BlasProduct& p : products) blas_->measure(p, stream_);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kResourceExhausted) throw;
    log::info("products are not measured: {}", e.what());
  }
}

bool CudaExecutable::takes_layers(const Prepared& p) const {
  const StepInputs& in = binder_.inputs();
  const std::vector<SampleRow>& samples = binder_.phase().samples;
  return layers_ && p.layered && view_.causal && !in.ids.empty() && !in.out_rows.empty() &&
         in.mask.empty() && &in == &binder_.phase() &&
         std::none_of(samples.begin(), samples.end(), is_hidden);
}

LayerLaunches::Step CudaExecutable::step_of(const Prepared& p) const {
  const StepInputs& in = binder_.inputs();
  LayerLaunches::Step step;
  step.tokens = in.tokens();
  step.sequences = in.sequences();
  step.outputs = std::ssize(in.out_rows);
  step.logits = logits_of(p);
  for (const StepInput& i : p.step_inputs) step.*i.to = input_at_[i.input];
  return step;
}

bool CudaExecutable::emit_layers(const Prepared& p, LaunchList& list) const {
  const LayerLaunches::Step step = step_of(p);
  if (!step.ids || !step.pos || !step.seq || !step.slot || !step.q_start || !step.kv_len ||
      !step.logits || (!step.out_rows && step.outputs != step.tokens))
    return false;
  layers_->emit(step, view_, {scratch_.address(), scratch_.bytes()}, list);
  return true;
}

// States of the persistent kernel, parameters and tokens of sample_rows.
size_t CudaExecutable::extra_bytes() const {
  const size_t rows = binder_.phase().samples.size();
  size_t total = 0;
  if (launched_.streamed) total += padded(rows * sizeof(DecodeState));
  if (launched_.chooser == Chooser::kSampleRows)
    total += padded(rows * sizeof(SampleRowParams)) + padded(rows * sizeof(int32_t));
  return total;
}

void CudaExecutable::stage_extras(size_t at) {
  const StepInputs& phase = binder_.phase();
  const size_t rows = phase.samples.size();
  auto place = [&](size_t bytes) {
    size_t here = at;
    at += padded(bytes);
    return here;
  };
  if (launched_.streamed) {
    size_t here = place(rows * sizeof(DecodeState));
    decoder_->make_states(binder_.ids(), phase.pos,
                          reinterpret_cast<DecodeState*>(staged_.data() + here));
    states_ = inputs_.address() + here;
  }
  if (launched_.chooser != Chooser::kSampleRows) return;
  size_t here = place(rows * sizeof(SampleRowParams));
  for (size_t r = 0; r < rows; ++r) {
    SampleRowParams params = sample_params(phase.samples[r]);
    std::memcpy(staged_.data() + here + r * sizeof params, &params, sizeof params);
  }
  sampling_ = inputs_.address() + here;
  here = place(rows * sizeof(int32_t));
  std::memset(staged_.data() + here, 0, rows * sizeof(int32_t));
  tokens_ = inputs_.address() + here;
}

DeviceAddress CudaExecutable::logits_of(const Prepared& p) const {
  if (p.logits < 0) return 0;
  return tensor_of(p.outputs[static_cast<size_t>(p.logits)], binder_.own_symbols()).address;
}

void CudaExecutable::launch_stream(const Prepared& p) {
  const StepInputs& phase = binder_.phase();
  stream_sampling_.clear();
  for (const SampleRow& sample : phase.samples)
    stream_sampling_.push_back(launched_.chooser == Chooser::kStream ? stream_params(sample)
                                                                     : DecodeSampling{});
  StreamDecoder::Batch batch;
  batch.sampling = stream_sampling_;
  batch.state = states_;
  const LayerLaunches::Step step = step_of(p);
  batch.ids = step.ids;
  batch.logits = step.logits;
  batch.view = view_.views.at(decoder_->group());
  decoder_->launch(stream_, batch);
  ++streamed_steps_;
}

void CudaExecutable::launch_sampling(const Prepared& p) {
  SampleLaunch args{};
  args.logits = reinterpret_cast<const float*>(logits_of(p));
  args.rows = reinterpret_cast<const SampleRowParams*>(sampling_);
  args.tokens = reinterpret_cast<int32_t*>(tokens_);
  args.vocab = static_cast<int32_t>(plans_.vocab);
  sample_launch_.clear();
  sample_launch_.add("sample", "sample_rows", {std::ssize(binder_.phase().samples)}, kSampleThreads,
                     args);
  sample_launch_.run(stream_);
}

// The tokens that the device has chosen; none where the host has to.
void CudaExecutable::take_tokens() {
  device_tokens_.clear();
  const size_t rows = launched_.phase.samples.size();
  const auto* states = reinterpret_cast<const DecodeState*>(fetched_.data() + launched_.states_at);
  if (launched_.streamed) decoder_->check_step(states[0]);
  if (launched_.chooser == Chooser::kStream) {
    for (size_t r = 0; r < rows; ++r)
      device_tokens_.push_back(states[r].chosen < 0 ? kTokenNotFinite : states[r].chosen);
    return;
  }
  if (launched_.chooser != Chooser::kSampleRows) return;
  const auto* tokens = reinterpret_cast<const int32_t*>(fetched_.data() + launched_.tokens_at);
  if (std::find(tokens, tokens + rows, kSampleOnHost) != tokens + rows) return fetch_logits();
  for (size_t r = 0; r < rows; ++r)
    device_tokens_.push_back(tokens[r] == kSampleFailed ? kTokenNotFinite : tokens[r]);
}

// After the step, where the device could not choose after all.
void CudaExecutable::fetch_logits() {
  if (launched_.phase.return_logits) return;
  const Fetched& late = launched_.late;
  Tensor t = tensor_of(prepared_[launched_.plan].outputs[late.output], launched_.symbols);
  check(
      driver().copy_out(fetched_.data() + late.at, t.address, dtype_bytes(t.dtype, late.elements)),
      "copying logits");
  launched_.fetched.push_back(late);
}

// The function "sample" for the Sampler.
void CudaExecutable::choose(const SampleTable& table, SampleTokens& out) {
  const auto rows = static_cast<size_t>(table.args().rows);
  const auto most = static_cast<size_t>(table.most_tops());
  out.ids.resize(rows);
  out.logprobs.assign(rows, 0);
  out.tops.assign(rows * most, -1);
  out.values.assign(rows * most, 0);
  for (size_t r = 0; r < rows; ++r) {
    if (!device_tokens_.empty()) {
      out.ids[r] = device_tokens_[r];
      continue;
    }
    const auto row = static_cast<int64_t>(r);
    out.ids[r] = host_chooser_->choose(table.args(), row);
    host_chooser_->report(table.args(), row, out.ids[r], table.ranks(), out.logprobs[r],
                          &out.tops[r * most], &out.values[r * most]);
  }
}

}  // namespace tokamak::cuda
