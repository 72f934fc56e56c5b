// Which kernels run a step, and who chooses its tokens.
#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/executable.h"
#include "backend/cuda/launches.h"
#include "base/error.h"
#include "base/log.h"

namespace tokamak::cuda {
namespace {

constexpr size_t kExtraAlignment = 16;
constexpr size_t kFewSequences = 4;  // of a step in the persistent kernel, where layers take it too

size_t padded(size_t bytes) {
  return (bytes + kExtraAlignment - 1) / kExtraAlignment * kExtraAlignment;
}

bool is_causal(const StepInputs& in) {
  for (size_t b = 0; b + 1 < in.q_start.size(); ++b)
    for (int32_t row = in.q_start[b]; row < in.q_start[b + 1]; ++row)
      if (in.slot[static_cast<size_t>(row)] != in.kv_len[b] - (in.q_start[b + 1] - row))
        return false;
  return !in.q_start.empty();
}

// Whether each row sees those of its sequence up to itself, and no others.
bool is_causal_mask(const StepInputs& in) {
  for (size_t b = 0; b + 1 < in.q_start.size(); ++b) {
    const int32_t rows = in.q_start[b + 1] - in.q_start[b];
    if (rows > in.mask_width) return false;
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t* row = in.mask.data() + int64_t{in.q_start[b] + i} * in.mask_width;
      auto unset = [](int32_t seen) { return seen == 0; };
      if (std::any_of(row, row + i + 1, unset) || !std::all_of(row + i + 1, row + rows, unset))
        return false;
    }
  }
  return true;
}

}  // namespace

// The first of the plan's launches that takes the step. Profiled calls run one by one. The order of
// a plan for several batch sizes is that of the largest one; of few sequences the persistent kernel
// is faster than fused layers, of more it is slower.
void CudaExecutable::choose_path(uint32_t plan) {
  const StepInputs& phase = binder_.phase();
  const bool whole = &binder_.inputs() == &phase;  // without padding
  view_.causal = is_causal(binder_.inputs());
  view_.plain_mask = view_.causal && !binder_.inputs().mask.empty() && is_causal_mask(phase);
  step_->stream = nullptr;
  step_->layered = false;
  const LaunchKind last =
      phase.ids.size() <= kFewSequences ? LaunchKind::kLayers : LaunchKind::kStream;
  const bool several =
      most_of(plans_, plans_.plans[plan], "B") > static_cast<int64_t>(kFewSequences);
  for (bool of_last : {false, true})
    for (LaunchKind kind : prepared_[plan].launches) {
      if (profiled() || step_->stream || step_->layered) break;
      if ((several && kind == last) != of_last) continue;
      if (kind == LaunchKind::kLayers)
        step_->layered = layers_ && takes_layers(prepared_[plan]);
      else if (StreamDecoder* stream = streams_[static_cast<size_t>(kind)].get();
               stream && whole && left_ids_.empty() && takes_stream(*stream))
        step_->stream = stream;
    }
  step_->chooser = Chooser::kHost;
  if (!sampler_ || prepared_[plan].logits < 0) return;
  if (step_->stream && stream_can_sample(phase.samples, phase.pos))
    step_->chooser = Chooser::kStream;
  else if (device_can_sample(phase.samples))
    step_->chooser = Chooser::kSampleRows;
  else if (table_sampler_ && TableSampler::takes(phase.samples))
    step_->chooser = Chooser::kTable;
}

// What the plans name, made once for all of them. What this device cannot hold is left out with a
// warning: steps then run in what the plan names next.
void CudaExecutable::make_launches() {
  auto attempt = [](const char* name, auto&& make) {
    try {
      make();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kResourceExhausted && e.code() != ErrorCode::kUnsupported) throw;
      log::warn("the plans name {}, which cannot be used: {}", name, e.what());
    }
  };
  attempt("fused layers",
          [&] { layers_ = LayerLaunches::make(plans_, weights_, kv_, libraries_); });
  const StreamDecoder::Model model{device_, plans_, weights_, kv_, kernels_, stream_};
  for (LaunchKind kind : {LaunchKind::kStream, LaunchKind::kStreamFp8})
    attempt("the persistent decode kernel",
            [&] { streams_[static_cast<size_t>(kind)] = StreamDecoder::make(model, kind); });
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

bool CudaExecutable::takes_stream(const StreamDecoder& decoder) const {
  const StepInputs& phase = binder_.phase();
  return phase.samples.size() == phase.ids.size() && decoder.takes(phase) &&
         (phase.mask.empty() || view_.plain_mask) &&
         std::none_of(phase.samples.begin(), phase.samples.end(), wants_hidden);
}

bool CudaExecutable::takes_layers(const Prepared& p) const {
  const StepInputs& in = binder_.inputs();
  const std::vector<SampleRow>& samples = binder_.phase().samples;
  auto reads = [&](DeviceAddress LayerLaunches::Step::*input) {
    return std::any_of(p.step_inputs.begin(), p.step_inputs.end(),
                       [&](const StepInput& i) { return i.to == input; });
  };
  using Step = LayerLaunches::Step;
  for (auto input :
       {&Step::ids, &Step::pos, &Step::seq, &Step::slot, &Step::q_start, &Step::kv_len})
    if (!reads(input)) return false;
  return p.logits >= 0 && layers_->takes(in.tokens()) && view_.causal && !in.ids.empty() &&
         !in.out_rows.empty() && (in.mask.empty() || reads(&Step::mask)) &&
         (reads(&Step::out_rows) || in.out_rows.size() == in.ids.size()) &&
         std::none_of(samples.begin(), samples.end(), wants_hidden);
}

LayerLaunches::Step CudaExecutable::step_of(const Prepared& p) const {
  const StepInputs& in = binder_.inputs();
  LayerLaunches::Step step;
  step.tokens = in.tokens();
  step.sequences = in.sequences();
  step.outputs = std::ssize(in.out_rows);
  step.logits = logits_of(p);
  step.mask_width = in.mask_width;
  for (const StepInput& i : p.step_inputs) step.*i.to = input_at_[i.input];
  return step;
}

// States of the persistent kernel; parameters of sample_rows, where its tokens go, peaks.
size_t CudaExecutable::extra_bytes() const {
  const size_t rows = binder_.inputs().out_rows.size();
  size_t total = 0;
  if (step_->stream) total += padded(rows * sizeof(DecodeState));
  if (step_->chooser == Chooser::kSampleRows)
    total += padded(rows * sizeof(SampleRowParams)) + padded(sizeof(int32_t*)) +
             padded(rows * kSampleParts * sizeof(SamplePeak));
  return total;
}

// The end of what is copied to the device.
size_t CudaExecutable::stage_extras(size_t at) {
  const StepInputs& phase = binder_.phase();
  const size_t rows = binder_.inputs().out_rows.size();  // with padding
  auto place = [&](size_t bytes) {
    size_t here = at;
    at += padded(bytes);
    return here;
  };
  if (step_->stream) {
    size_t here = place(rows * sizeof(DecodeState));
    step_->stream->make_states(binder_.ids(), phase.pos,
                               reinterpret_cast<DecodeState*>(step_->staged.data() + here));
    states_ = inputs_.address() + here;
  }
  if (step_->chooser != Chooser::kSampleRows) return at;
  size_t here = place(rows * sizeof(SampleRowParams));
  for (size_t r = 0; r < rows; ++r) {
    SampleRowParams params{};
    params.row = kSamplePadding;
    if (r < phase.samples.size()) {
      params = sample_params(phase.samples[r]);
      params.row =
          phase.row[static_cast<size_t>(phase.seq[static_cast<size_t>(phase.out_rows[r])])];
    }
    std::memcpy(step_->staged.data() + here + r * sizeof params, &params, sizeof params);
  }
  sampling_ = inputs_.address() + here;
  here = place(sizeof(int32_t*));
  if (step_->tokens.bytes() < rows * sizeof(int32_t))
    step_->tokens = PinnedBuffer(std::bit_ceil(rows) * sizeof(int32_t));
  const auto* tokens = reinterpret_cast<int32_t*>(step_->tokens.data());
  std::memcpy(step_->staged.data() + here, &tokens, sizeof tokens);
  host_tokens_ = inputs_.address() + here;
  peaks_ = inputs_.address() + at;
  return at;
}

DeviceAddress CudaExecutable::logits_of(const Prepared& p) const {
  if (p.logits < 0) return 0;
  return tensor_of(p.outputs[static_cast<size_t>(p.logits)], binder_.own_symbols()).address;
}

void CudaExecutable::launch_stream(const Prepared& p) {
  const StepInputs& phase = binder_.phase();
  stream_sampling_.clear();
  for (const SampleRow& sample : phase.samples)
    stream_sampling_.push_back(step_->chooser == Chooser::kStream ? stream_params(sample)
                                                                  : DecodeSampling{});
  StreamDecoder::Batch batch;
  batch.sampling = stream_sampling_;
  batch.state = states_;
  const LayerLaunches::Step step = step_of(p);
  batch.ids = step.ids;
  batch.logits = step.logits;
  batch.view = view_.views.at(step_->stream->group());
  step_->stream->launch(stream_, batch);
  ++streamed_steps_;
}

// Whether the step can be queued while another one runs: the device is certain to choose the tokens
// of that one, one for each sequence, and then needs its logits no more.
bool CudaExecutable::may_follow(const StepInputs& step) const {
  const InFlight& before = other();
  if (before.waiting || before.error || before.stream || before.chooser != Chooser::kSampleRows ||
      !before.active || before.phase.return_logits || phase_count(step) != 1 || profiled())
    return false;
  const StepInputs& phase = before.phase;
  for (size_t r = 1; r < phase.out_rows.size(); ++r)
    if (phase.seq[static_cast<size_t>(phase.out_rows[r])] <=
        phase.seq[static_cast<size_t>(phase.out_rows[r - 1])])
      return false;
  return std::all_of(phase.samples.begin(), phase.samples.end(), [&](const SampleRow& sample) {
    return sample.mode == SampleRow::Mode::kSample && sample.parent < 0 &&
           never_on_host(*sample.spec, plans_.vocab);
  });
}

// Replaces ids below zero; whether some are left to the device: they are those that the step in
// flight chooses.
bool CudaExecutable::resolve_ids(const StepInputs& step) {
  std::vector<int32_t>& ids = binder_.ids();
  left_ids_.clear();
  if (step_->follows) {
    constexpr int32_t kChosen = -1, kElsewhere = -2;  // where the last token of a row is
    last_ids_.assign(last_tokens_.bytes() / sizeof(int32_t), kElsewhere);
    auto last = [&](int32_t row) -> int32_t& { return last_ids_[static_cast<size_t>(row)]; };
    const StepInputs& before = other().phase;
    for (int32_t output : before.out_rows)
      last(before.row[static_cast<size_t>(before.seq[static_cast<size_t>(output)])]) = kChosen;
    for (const RowReset& reset : step.resets)
      last(reset.row) = reset.ids.empty() ? kElsewhere : reset.ids.back();
    for (size_t i = 0; i < ids.size(); ++i) {
      TK_CHECK(!is_output_id(ids[i]), "an id of an earlier phase in a step of one phase");
      const int32_t known = ids[i] < 0 ? last(row_of_id(ids[i])) : kElsewhere;
      if (known == kChosen) left_ids_.emplace_back(i, ids[i]);
      if (known != kElsewhere) ids[i] = std::max(0, known);
    }
  }
  sampler_->resolve(ids, step_->result);
  for (auto [i, id] : left_ids_) ids[i] = id;
  return !left_ids_.empty();
}

void CudaExecutable::add_sampling(const Prepared& p, LaunchList& list) const {
  SampleLaunch args{};
  args.logits = reinterpret_cast<const float*>(logits_of(p));
  args.rows = reinterpret_cast<const SampleRowParams*>(sampling_);
  args.host_tokens = reinterpret_cast<int32_t* const*>(host_tokens_);
  args.vocab = static_cast<int32_t>(plans_.vocab);
  args.peaks = reinterpret_cast<SamplePeak*>(peaks_);
  args.last = last_tokens_.as<int32_t>();
  const int64_t rows = std::ssize(binder_.inputs().out_rows);
  list.add_overlapped("sample", "sample_peaks", {kSampleParts, rows}, kPeakThreads, args);
  list.add_overlapped("sample", "sample_rows", {rows}, kSampleThreads, args);
}

// The tokens that the device has chosen; none where the host has to.
void CudaExecutable::take_tokens() {
  device_tokens_.clear();
  const size_t rows = step_->phase.samples.size();
  const auto* states =
      reinterpret_cast<const DecodeState*>(step_->values.data() + step_->states_at);
  if (step_->stream) step_->stream->check_step(states[0]);
  if (step_->chooser == Chooser::kStream) {
    for (size_t r = 0; r < rows; ++r)
      device_tokens_.push_back(states[r].chosen < 0 ? kTokenNotFinite : states[r].chosen);
    return;
  }
  if (step_->chooser != Chooser::kSampleRows) return;
  const auto* tokens = reinterpret_cast<const int32_t*>(step_->tokens.data());
  if (std::find(tokens, tokens + rows, kSampleOnHost) != tokens + rows) return fetch_logits();
  for (size_t r = 0; r < rows; ++r) device_tokens_.push_back(token_or_failure(tokens[r]));
}

// After the step, where the device could not choose after all.
void CudaExecutable::fetch_logits() {
  if (step_->phase.return_logits) return;
  const Fetched& late = step_->late;
  Tensor t = tensor_of(prepared_[step_->plan].outputs[late.output], step_->symbols);
  check(driver().copy_out(step_->values.data() + late.at, t.address,
                          dtype_bytes(t.dtype, late.elements)),
        "copying logits");
  step_->fetched.push_back(late);
}

const float* CudaExecutable::host_logits() {
  if (!step_->phase.return_logits) fetch_logits();
  for (const Fetched& f : step_->fetched)
    if (prepared_[step_->plan].kinds[f.output] == OutputKind::kLogits)
      return reinterpret_cast<const float*>(step_->values.data() + f.at);
  TK_CHECK(false, "no logits were fetched");
  return nullptr;
}

void CudaExecutable::choose_on_host(SampleArgs args, const SampleTable& table, int64_t row,
                                    SampleTokens& out) {
  const auto r = static_cast<size_t>(row), most = static_cast<size_t>(table.most_tops());
  out.ids[r] = host_chooser_->choose(args, row);
  host_chooser_->report(args, row, out.ids[r], table.ranks(), out.logprobs[r], &out.tops[r * most],
                        &out.values[r * most]);
  ++host_rows_;
}

// The function "sample" for the Sampler.
void CudaExecutable::choose(const SampleTable& table, SampleTokens& out) {
  SampleArgs args = table.args();
  const auto rows = static_cast<size_t>(args.rows);
  const auto most = static_cast<size_t>(table.most_tops());
  if (step_->chooser == Chooser::kTable) {
    const uint64_t before = table_sampler_->bytes();
    table_sampler_->run(stream_, logits_of(prepared_[step_->plan]), table, *host_chooser_, out,
                        left_rows_);
    ledger_.other += table_sampler_->bytes() - before;
    if (left_rows_.empty()) return;
    args.logits = host_logits();
    for (int64_t row : left_rows_) choose_on_host(args, table, row, out);
    return;
  }
  out.ids.resize(rows);
  out.logprobs.assign(rows, 0);
  out.tops.assign(rows * most, -1);
  out.values.assign(rows * most, 0);
  for (size_t r = 0; r < rows; ++r)
    if (!device_tokens_.empty())
      out.ids[r] = device_tokens_[r];
    else
      choose_on_host(args, table, static_cast<int64_t>(r), out);
}

}  // namespace tokamak::cuda
