#include "compile/adapters.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "backend/common/weights.h"
#include "base/error.h"
#include "base/log.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

// Zeros that cost no memory until they are written, which they never are.
class ZeroPages {
 public:
  explicit ZeroPages(uint64_t bytes) : bytes_(std::max<uint64_t>(bytes, 1)) {
    data_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED)
      fail(ErrorCode::kResourceExhausted, "cannot reserve {} bytes for adapters", bytes_);
  }
  ~ZeroPages() { munmap(data_, bytes_); }
  ZeroPages(const ZeroPages&) = delete;
  ZeroPages& operator=(const ZeroPages&) = delete;
  std::span<const std::byte> first(uint64_t bytes) const {
    return {static_cast<const std::byte*>(data_), bytes};
  }

 private:
  uint64_t bytes_;
  void* data_;
};

// row += b a, with b one row of the adapter.
void add_change(const AdapterTarget& t, int64_t row, float* values) {
  for (int64_t r = 0; r < t.rank; ++r) {
    float factor = t.b[static_cast<size_t>(row * t.rank + r)];
    const float* a = t.a.data() + r * t.columns;
    for (int64_t c = 0; c < t.columns; ++c) values[c] += factor * a[c];
  }
}

// DoRA: the changed row gets the length that the adapter has for it.
void set_length(float length, std::span<float> row) {
  double sum = 0;
  for (float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
  double factor = sum > 0 ? static_cast<double>(length) / std::sqrt(sum) : 0;
  for (float& x : row) x = static_cast<float>(static_cast<double>(x) * factor);
}

std::vector<std::byte> merged_bytes(const TensorView& from, const AdapterTarget& t) {
  std::vector<std::byte> out(from.bytes.size());
  std::vector<float> row(static_cast<size_t>(t.columns));
  auto row_bytes = static_cast<int64_t>(dtype_bytes(from.dtype, t.columns));
  for (int64_t i = 0; i < t.rows; ++i) {
    decode_row(from.dtype, from.bytes.data() + i * row_bytes, row.data(), t.columns);
    add_change(t, i, row.data());
    if (!t.magnitude.empty()) set_length(t.magnitude[static_cast<size_t>(i)], row);
    encode_row(from.dtype, row.data(), out.data() + i * row_bytes, t.columns);
  }
  return out;
}

// A model's tensors, weights with an adapter merged in, and zeros for slots. Merged weights are
// computed when they are first asked for. Thread-safe.
class AdaptedWeights final : public WeightSource {
 public:
  explicit AdaptedWeights(std::shared_ptr<const WeightSource> base) : base_(std::move(base)) {}

  const TensorView* find(std::string_view name) const override {
    if (auto slot = slots_.find(name); slot != slots_.end()) return &slot->second;
    if (auto saved = saved_.find(name); saved != saved_.end())
      return saved->second.first->find(saved->second.second);
    auto it = merged_.find(name);
    if (it == merged_.end()) return base_->find(name);
    std::lock_guard lock(mutex_);
    Merged& m = it->second;
    if (m.bytes.empty()) {
      LoadedTensor loaded = load_weight(m.entry, *base_);
      m.bytes = merged_bytes(loaded.view, m.target);
      m.view = {m.entry.dtype, m.entry.dims, m.bytes};
    }
    return &m.view;
  }
  std::vector<std::string> names() const override { return base_->names(); }
  const PackedWeight* packed(std::string_view name, std::string_view layout) const override {
    return base_->packed(name, layout);
  }
  std::string_view packing() const override { return base_->packing(); }

  void merge(const std::string& source, WeightEntry entry, AdapterTarget target) {
    merged_.emplace(source, Merged{std::move(entry), std::move(target), {}, {}});
  }
  // A tensor of another file under a name of its own.
  void add(const std::string& source, std::shared_ptr<const WeightSource> file,
           const std::string& tensor) {
    saved_.emplace(source, std::pair(std::move(file), tensor));
  }
  void add_slots(const std::string& name, std::vector<int64_t> dims) {
    slots_.emplace(name, TensorView{DType::kF32, std::move(dims), {}});
  }
  void make_zeros() {
    uint64_t most = 0;
    for (const auto& [name, view] : slots_)
      most = std::max(most, static_cast<uint64_t>(view.elements()) * sizeof(float));
    zeros_ = std::make_unique<ZeroPages>(most);
    for (auto& [name, view] : slots_)
      view.bytes = zeros_->first(static_cast<uint64_t>(view.elements()) * sizeof(float));
  }
  void release() const {
    std::lock_guard lock(mutex_);
    for (auto& [name, m] : merged_) std::vector<std::byte>().swap(m.bytes);
    release_merged(*base_);
  }

 private:
  struct Merged {
    WeightEntry entry;  // without the adapter
    AdapterTarget target;
    TensorView view;
    std::vector<std::byte> bytes;
  };
  std::shared_ptr<const WeightSource> base_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Merged, std::less<>> merged_;
  std::map<std::string, std::pair<std::shared_ptr<const WeightSource>, std::string>, std::less<>>
      saved_;
  std::map<std::string, TensorView, std::less<>> slots_;
  std::unique_ptr<ZeroPages> zeros_;
};

void merge_adapter(ImportedModel& model, const std::string& path, size_t number) {
  ImportedAdapter adapter = import_adapter(path, model.config);
  auto weights = std::make_shared<AdaptedWeights>(model.weights);
  for (AdapterTarget& target : adapter.targets) {
    ModelConfig::Weight& weight = model.config.weights.at(target.weight);
    if (is_block_type(weight.dtype) || !dtype_info(weight.dtype).is_float)
      fail(ErrorCode::kUnsupported,
           "{}: {} is quantised ({}), and merging would quantise it again; use --lora-modules "
           "instead of --merge-adapter, or a model in f32, f16 or bf16",
           path, target.weight, dtype_name(weight.dtype));
    std::string source = fmt::format("merged.{}.{}", number, target.weight);
    WeightEntry entry{target.weight, weight.dtype, weight.dims, weight.recipe, {}, {}};
    weights->merge(source, std::move(entry), std::move(target));
    weight.recipe = {{source}, {}};
  }
  for (const AdapterReplacement& r : adapter.replaced) {
    add_weight(model.config, *adapter.file, path, r.slot, {r.tensor}, r.steps);
    std::string source = fmt::format("saved.{}.{}", number, r.tensor);
    model.config.weights.at(r.slot.name()).recipe.sources = {source};
    weights->add(source, adapter.file, r.tensor);
    if (r.slot.stem == "output") model.config.tied_embeddings = false;
  }
  log::info("{} is merged: {} matrices, rank {}, {} whole weights", path, adapter.targets.size(),
            adapter.rank, adapter.replaced.size());
  model.weights = std::move(weights);
}

}  // namespace

bool has_adapter_slots(const ModelConfig& config, const std::string& prefix) {
  auto it = config.weights.find(prefix + ".weight");
  return prefix.starts_with("blk.") && it != config.weights.end() && it->second.dims.size() == 2;
}

void add_adapters(OpenedModel& opened, const CompileOptions& options) {
  ImportedModel& model = opened.model;
  for (size_t i = 0; i < options.merge_adapters.size(); ++i)
    merge_adapter(model, options.merge_adapters[i], i);
  if (options.adapter_slots == 0) return;
  if (model.config.embedding.encoder)
    fail(ErrorCode::kUnsupported, "{} is an encoder: adapters of encoders are not supported",
         model.path.string());
  auto weights = std::make_shared<AdaptedWeights>(model.weights);
  for (const auto& [name, weight] : model.config.weights) {
    constexpr std::string_view kSuffix = ".weight";
    if (!name.ends_with(kSuffix)) continue;
    std::string prefix = name.substr(0, name.size() - kSuffix.size());
    if (!has_adapter_slots(model.config, prefix)) continue;
    std::string slots = std::string(kAdapterWeights) + prefix;
    int64_t s = options.adapter_slots, r = options.adapter_rank;
    weights->add_slots(slots + ".a", {s, r, weight.dims[1]});
    weights->add_slots(slots + ".b", {s, weight.dims[0], r});
  }
  weights->make_zeros();
  model.weights = std::move(weights);
}

void release_merged(const WeightSource& weights) {
  if (const auto* adapted = dynamic_cast<const AdaptedWeights*>(&weights)) adapted->release();
}

std::shared_ptr<const Adapter> make_adapter(const std::string& name, const std::string& path,
                                            const ImportedAdapter& imported, int64_t most_rank) {
  if (imported.dora)
    fail(ErrorCode::kUnsupported,
         "{}: DoRA scales the rows of the model's own weights; merge the adapter with "
         "--merge-adapter",
         path);
  if (!imported.replaced.empty())
    fail(ErrorCode::kUnsupported,
         "{}: replaces {} (modules_to_save), which all requests share; merge the adapter with "
         "--merge-adapter",
         path, imported.replaced[0].slot.name());
  if (imported.rank > most_rank)
    fail(ErrorCode::kOutOfRange, "{}: the adapter has rank {}; start with --max-lora-rank {}", path,
         imported.rank, imported.rank);
  auto out = std::make_shared<Adapter>();
  out->id = next_adapter_id();
  out->name = name;
  out->rank = imported.rank;
  for (const AdapterTarget& t : imported.targets) {
    if (!t.weight.starts_with("blk."))
      fail(ErrorCode::kUnsupported,
           "{}: changes {}, which is shared by all requests; merge the adapter with "
           "--merge-adapter",
           path, t.weight);
    constexpr size_t kSuffix = std::string_view(".weight").size();
    std::string slots =
        std::string(kAdapterWeights) + t.weight.substr(0, t.weight.size() - kSuffix);
    out->tensors.add_f32(slots + ".a", {t.rank, t.columns}, t.a);
    out->tensors.add_f32(slots + ".b", {t.rows, t.rank}, t.b);
    out->bytes += (t.a.size() + t.b.size()) * sizeof(float);
  }
  return out;
}

}  // namespace tokamak
