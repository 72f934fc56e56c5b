#include "backend/cuda/table_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cuda/device_sampler.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

static_assert(kSampleTargetNone == kTargetNone && kTargetChoose == -1);

constexpr size_t kTableAlignment = 16, kFirstTableBytes = size_t{1} << 16;

// True if the buffer was replaced by a larger one.
template <class B>
bool reserve(B& buffer, size_t bytes) {
  if (buffer.bytes() >= bytes) return false;
  size_t to = std::max(buffer.bytes() * 2, kFirstTableBytes);
  while (to < bytes) to *= 2;
  buffer = B();
  buffer = B(to);
  return true;
}

bool takes_row(const SampleRow& s) {
  if (!s.spec) return true;
  const SampleSpec& spec = *s.spec;
  auto usable = [](const auto& bias) { return bias.second < INFINITY; };  // nor NaN
  return device_has_filters(spec) &&
         std::all_of(spec.logit_bias.begin(), spec.logit_bias.end(), usable);
}

// Parts of one buffer, each aligned.
struct Parts {
  size_t bytes = 0;
  size_t take(size_t count, size_t element) {
    const size_t at = bytes;
    bytes += (count * element + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
    return at;
  }
};

}  // namespace

TableSampler::TableSampler(const KernelLibrary& kernels, int64_t vocab, int64_t max_rows)
    : launch_(kernels),
      vocab_(vocab),
      max_rows_(static_cast<size_t>(max_rows)),
      edited_(max_rows_ * static_cast<size_t>(vocab) * sizeof(float)) {}

bool TableSampler::takes(std::span<const SampleRow> samples) {
  return !samples.empty() && std::all_of(samples.begin(), samples.end(), takes_row);
}

// The tokens of the history, each once.
void TableSampler::count_history(const SampleArgs& args, int64_t row, SampleTableRow& to) {
  to.first_count = static_cast<int32_t>(counts_.size());
  if (to.repetition != 1.0f || to.presence != 0 || to.frequency != 0) {
    place_.resize(static_cast<size_t>(vocab_));
    const int32_t begin = args.history_start[row], end = args.history_start[row + 1];
    const int32_t prompt = args.keys[row * kSampleKeys + kKeyPrompt];
    for (int32_t i = begin; i < end; ++i) {
      int32_t& place = place_[static_cast<size_t>(args.history[i])];
      if (place == 0) {
        counts_.push_back({args.history[i], 0});
        place = static_cast<int32_t>(counts_.size());
      }
      if (i - begin >= prompt) counts_[static_cast<size_t>(place - 1)].generated += 1;
    }
    for (int32_t i = begin; i < end; ++i) place_[static_cast<size_t>(args.history[i])] = 0;
  }
  to.counts = static_cast<int32_t>(counts_.size()) - to.first_count;
}

void TableSampler::add_row(const SampleArgs& args, int64_t row, TokenChooser& host) {
  const float* p = args.params + row * kSampleParams;
  const int32_t* k = args.keys + row * kSampleKeys;
  SampleTableRow& to = rows_.emplace_back();
  to.choice.seed = uint64_t{static_cast<uint32_t>(k[kKeySeedHigh])} << 32 |
                   static_cast<uint32_t>(k[kKeySeedLow]);
  to.choice.temperature = p[kParamTemperature];
  to.choice.top_p = p[kParamTopP];
  to.choice.log_min_p = log_min_p(p[kParamMinP]);
  to.choice.top_k = static_cast<int32_t>(std::max(0.0f, p[kParamTopK]));
  to.choice.choice = k[kKeyChoice];
  to.choice.position = k[kKeyPosition];
  to.repetition = p[kParamRepetition];
  to.presence = p[kParamPresence];
  to.frequency = p[kParamFrequency];
  to.mask = k[kKeyMask];
  to.target = k[kKeyTarget];
  to.tops = k[kKeyTops];
  count_history(args, row, to);
  to.first_bias = static_cast<int32_t>(biases_.size());
  for (const TokenChooser::Repeat& r : host.repeats(args, row))
    biases_.push_back({r.id, -r.penalty});
  for (int32_t i = args.bias_start[row]; i < args.bias_start[row + 1]; ++i)
    biases_.push_back({args.bias_ids[i], args.bias_values[i]});
  std::stable_sort(biases_.begin() + to.first_bias, biases_.end(),
                   [](const SampleBias& a, const SampleBias& b) { return a.token < b.token; });
  to.biases = static_cast<int32_t>(biases_.size()) - to.first_bias;
}

// Packs the rows of the table and what they refer to into staged_.
TableSampler::Operands TableSampler::stage(const SampleArgs& args, TokenChooser& host) {
  rows_.clear();
  counts_.clear();
  biases_.clear();
  for (int64_t r = 0; r < args.rows; ++r) add_row(args, r, host);
  size_t masks = 0;
  for (const SampleTableRow& r : rows_) masks = std::max(masks, static_cast<size_t>(r.mask + 1));
  Parts parts;
  Operands at{};
  at.rows = parts.take(rows_.size(), sizeof(SampleTableRow));
  at.counts = parts.take(counts_.size(), sizeof(SampleCount));
  at.biases = parts.take(biases_.size(), sizeof(SampleBias));
  at.masks = parts.take(masks * mask_words(vocab_), sizeof(uint32_t));
  at.bytes = parts.bytes;
  reserve(staged_, at.bytes);
  auto put = [&](size_t to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(staged_.data() + to, from, bytes);
  };
  put(at.rows, rows_.data(), rows_.size() * sizeof(SampleTableRow));
  put(at.counts, counts_.data(), counts_.size() * sizeof(SampleCount));
  put(at.biases, biases_.data(), biases_.size() * sizeof(SampleBias));
  put(at.masks, args.masks, masks * mask_words(vocab_) * sizeof(uint32_t));
  return at;
}

void TableSampler::run(const DeviceStream& stream, DeviceAddress logits, const SampleTable& table,
                       TokenChooser& host, SampleTokens& out, std::vector<int64_t>& left) {
  const SampleArgs& args = table.args();
  const auto rows = static_cast<size_t>(args.rows), most = static_cast<size_t>(table.most_tops());
  const Operands in = stage(args, host);
  Parts results;
  const size_t ids_at = results.take(rows, 4), logprobs_at = results.take(rows, 4),
               tops_at = results.take(rows * most, 4), values_at = results.take(rows * most, 4);
  reserve(fetched_, results.bytes);
  TK_CHECK(rows <= max_rows_, "{} outputs of at most {}", rows, max_rows_);
  if (reserve(device_, in.bytes + results.bytes))
    check(driver().stream_wait(nullptr), "clearing memory");
  stream.copy_in(device_.address(), staged_.data(), in.bytes);
  SampleTableLaunch l{};
  l.logits = reinterpret_cast<const float*>(logits);
  l.edited = edited_.as<float>();
  l.rows = device_.as<SampleTableRow>(in.rows);
  l.counts = device_.as<SampleCount>(in.counts);
  l.biases = device_.as<SampleBias>(in.biases);
  l.masks = device_.as<uint32_t>(in.masks);
  l.tokens = device_.as<int32_t>(in.bytes + ids_at);
  l.logprobs = device_.as<float>(in.bytes + logprobs_at);
  l.tops = device_.as<int32_t>(in.bytes + tops_at);
  l.values = device_.as<float>(in.bytes + values_at);
  l.vocab = static_cast<int32_t>(vocab_);
  l.mask_words = static_cast<int32_t>(mask_words(vocab_));
  l.most_tops = static_cast<int32_t>(most);
  launch_.clear();
  launch_.add("sample", "sample_table", {args.rows}, kSampleThreads, l);
  launch_.run(stream);
  stream.copy_out(fetched_.data(), device_.address() + in.bytes, results.bytes);
  stream.wait();
  auto take = [&](auto& to, size_t at, size_t count) {
    to.resize(count);
    std::memcpy(to.data(), fetched_.data() + at, count * 4);
  };
  take(out.ids, ids_at, rows);
  take(out.logprobs, logprobs_at, rows);
  take(out.tops, tops_at, rows * most);
  take(out.values, values_at, rows * most);
  left.clear();
  for (size_t r = 0; r < rows; ++r) {
    if (out.ids[r] == kSampleOnHost || out.tops[r * most] == kSampleOnHost)
      left.push_back(static_cast<int64_t>(r));
    out.ids[r] = token_or_failure(out.ids[r]);
  }
}

int64_t TableSampler::max_rows(const PlanSet& plans) {
  for (const SymbolDecl& s : plans.symbols)
    if (s.name == "R" && plans.vocab > 0) return s.hi;
  return 0;
}

uint64_t TableSampler::bytes_for(const PlanSet& plans) {
  return static_cast<uint64_t>(max_rows(plans) * plans.vocab) * sizeof(float);
}

uint64_t TableSampler::bytes() const { return device_.bytes() + edited_.bytes(); }

}  // namespace tokamak::cuda
