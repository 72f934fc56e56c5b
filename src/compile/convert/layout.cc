#include "compile/convert/layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "backend/common/weights.h"
#include "base/error.h"
#include "compile/convert/describe.h"
#include "compile/import/families.h"
#include "compile/import/gguf_config.h"
#include "compile/import/hf_weights.h"
#include "tensor/block_formats.h"
#include "tensor/recipe_run.h"

namespace tokamak {
namespace {

using Kind = RecipeStep::Kind;

const Family& family_of(const ModelConfig& c) {
  const Family* family = find_family(c.architecture);
  if (!family)
    fail(ErrorCode::kUnsupported, "models of the family {} cannot be converted between formats",
         c.architecture);
  return *family;
}

// The shape before `steps`, which give `dims`.
std::vector<int64_t> shape_before(const std::vector<RecipeStep>& steps, std::vector<int64_t> dims) {
  for (size_t i = steps.size(); i-- > 0;) {
    const RecipeStep& step = steps[i];
    if (step.kind == Kind::kTranspose) {
      std::swap(dims[dims.size() - 2], dims.back());
    } else if (step.kind == Kind::kSliceRows) {
      dims[0] = step.dims.empty() ? step.b : dims[0] / (step.b - step.a) * step.dims[0];
    } else if (step.kind == Kind::kReshape && dims.size() == 3) {
      dims = {dims[0] * dims[1], dims[2]};
    }
  }
  return dims;
}

// Collects tensors; parts of one tensor are added one after the other.
class Layout {
 public:
  void add(const std::string& name, std::vector<int64_t> dims, FilePart part) {
    auto [at, fresh] = index_.try_emplace(name, tensors_.size());
    if (fresh) tensors_.push_back({name, dims, {}});
    FileTensor& tensor = tensors_[at->second];
    for (size_t i = 0; i < dims.size(); ++i) tensor.dims[i] = std::max(tensor.dims[i], dims[i]);
    tensor.parts.push_back(std::move(part));
  }
  std::vector<FileTensor> take() { return std::move(tensors_); }

 private:
  std::vector<FileTensor> tensors_;
  std::map<std::string, size_t> index_;
};

// gpt-oss, Llama 4 and Granite have gate and up of all experts in one tensor.
std::vector<int64_t> stacked_dims(const ModelConfig& c, const WeightSlot& slot) {
  int64_t count = c.experts.count, ffn = c.experts.ffn;
  bool down = slot.stem == "ffn_down_exps";
  if (slot.suffix == "bias") return {count, down ? c.hidden : 2 * ffn};
  if (c.architecture.starts_with("granite"))
    return down ? std::vector{count, c.hidden, ffn} : std::vector{count, 2 * ffn, c.hidden};
  return down ? std::vector{count, ffn, c.hidden} : std::vector{count, c.hidden, 2 * ffn};
}

int64_t product(std::span<const int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// Whether steps split rows of the tensor.
bool moves_elements(const FilePart& part, const FileTensor& tensor) {
  return part.order.columns ||
         std::any_of(part.steps.begin(), part.steps.end(), [&](const RecipeStep& s) {
           return s.kind == Kind::kTranspose ||
                  (s.kind == Kind::kReshape && s.dims.back() != tensor.dims.back());
         });
}
double added(const FilePart& part) {
  double sum = 0;
  for (const RecipeStep& s : part.steps)
    if (s.kind == Kind::kAddScalar) sum += s.value;
  return sum;
}

// The places of units after the heads took their order; `columns` is the length of a row.
std::vector<int64_t> in_order(const HeadOrder& order, std::vector<int64_t> at, int64_t columns) {
  if (order.groups == 0) return at;
  auto place = [&](int64_t n) {
    int64_t m = n - order.first, head = m / order.width;
    if (m < 0) return n;
    int64_t moved = head % order.share * order.groups + head / order.share;
    return order.first + moved * order.width + m % order.width;
  };
  std::vector<int64_t> out(at.size());
  for (size_t i = 0; i < at.size(); ++i) {
    auto n = static_cast<int64_t>(i);
    int64_t row = n / columns, column = n % columns;
    int64_t from = order.columns ? row * columns + place(column) : place(row) * columns + column;
    out[i] = at[static_cast<size_t>(from)];
  }
  return out;
}

// For each unit of the weight (an element, or a row of `row` elements) its place in the tensor:
// the steps applied to the numbers of the tensor's units.
std::vector<int64_t> places(const FilePart& part, std::vector<int64_t> dims, bool rows) {
  if (rows) dims.back() = 1;
  std::vector<int64_t> at(static_cast<size_t>(product(dims)));
  std::iota(at.begin(), at.end(), 0);
  for (const RecipeStep& step : part.steps) {
    if (step.kind == Kind::kReshape) {
      dims = step.dims;
      if (rows) dims.back() = 1;
      continue;
    }
    if (step.kind == Kind::kAddScalar) continue;
    RecipeMove move = plan_move(part.weight, step, dims);
    std::vector<int64_t> moved(static_cast<size_t>(product(move.dims)));
    each_move(step, dims, [&](int64_t to, int64_t from, int64_t count) {
      std::copy_n(at.begin() + from * move.unit, count * move.unit, moved.begin() + to * move.unit);
    });
    at = std::move(moved);
    dims = std::move(move.dims);
  }
  return at;
}

LoadedTensor load_named(const std::string& name, const ModelConfig& c, const WeightSource& source) {
  auto found = c.weights.find(name);
  TK_CHECK(found != c.weights.end(), "no weight {}", name);
  const ModelConfig::Weight& w = found->second;
  return load_weight({name, w.dtype, w.dims, w.recipe, {}, {}}, source);
}

// The weight that says how the columns of a matrix were sorted (GPTQ with desc_act); empty: none.
std::string order_of(const std::string& weight, const ModelConfig& c) {
  std::string name = weight.substr(0, weight.rfind('.')) + ".order";
  return c.weights.contains(name) ? name : "";
}

// The matrix as f32, each column where it was before they were sorted.
LoadedTensor unsorted(const LoadedTensor& sorted, const TensorView& order) {
  int64_t columns = sorted.view.dims.back(), rows = sorted.view.elements() / columns;
  const auto* place = reinterpret_cast<const int32_t*>(order.bytes.data());
  LoadedTensor out;
  out.owned.resize(static_cast<size_t>(rows * columns) * sizeof(float));
  auto* to = reinterpret_cast<float*>(out.owned.data());
  std::vector<float> row(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r, to += columns) {
    decode_row(sorted.view.dtype,
               sorted.view.bytes.data() + dtype_bytes(sorted.view.dtype, r * columns), row.data(),
               columns);
    for (int64_t i = 0; i < columns; ++i) to[place[i]] = row[static_cast<size_t>(i)];
  }
  out.view = {DType::kF32, sorted.view.dims, out.owned};
  return out;
}

LoadedTensor load_part(const FilePart& part, const ModelConfig& c, const WeightSource& source) {
  LoadedTensor loaded = load_named(part.weight, c, source);
  std::string order = order_of(part.weight, c);
  return order.empty() ? std::move(loaded) : unsorted(loaded, load_named(order, c, source).view);
}

// Copies a weight to its places in the tensor.
void scatter(const FilePart& part, const FileTensor& tensor, const TensorView& view, FileBytes& out,
             bool by_rows) {
  int64_t unit = by_rows ? tensor.dims.back() : 1;
  int64_t columns = by_rows || view.dims.size() < 2 ? 1 : view.dims.back();
  std::vector<int64_t> at = in_order(part.order, places(part, tensor.dims, by_rows), columns);
  size_t bytes = dtype_bytes(out.dtype, unit), from = dtype_bytes(view.dtype, unit);
  const std::byte* first =
      view.bytes.data() + dtype_bytes(view.dtype, part.first_row * view.dims.back());
  double less = added(part);
  std::vector<float> values(static_cast<size_t>(unit));
  for (size_t i = 0; i < at.size(); ++i) {
    std::byte* to = out.owned.data() + static_cast<size_t>(at[i]) * bytes;
    if (out.dtype == view.dtype && less == 0 && part.factor == 1 && part.decays == Decays::kSame) {
      std::memcpy(to, first + i * from, bytes);
      continue;
    }
    decode_row(view.dtype, first + i * from, values.data(), unit);
    for (float& v : values)
      v = part.decays == Decays::kFromLog ? -std::exp(v)
          : part.decays == Decays::kToLog ? std::log(-v)
                                          : static_cast<float>((double{v} - less) * part.factor);
    std::memcpy(to, values.data(), bytes);
  }
}

}  // namespace

namespace {

// GGUF has the tensors of encoders under the names that weights have here, q, k and v of Nomic's in
// one.
std::vector<FileTensor> encoder_layout(const ModelConfig& c) {
  if (gguf_encoder(c.architecture).empty())
    fail(ErrorCode::kUnsupported, "GGUF has no layout for models of the family {}", c.architecture);
  bool fused = c.architecture == "nomic-bert";
  Layout layout;
  for (const auto& [name, w] : c.weights) {
    std::vector<RecipeStep> steps;
    std::string tensor = name;
    for (const char* stem : {"attn_q", "attn_k", "attn_v"})
      if (size_t at = name.find(fmt::format(".{}.", stem)); fused && at != name.npos) {
        FusedRows rows = fused_rows(c, stem);
        steps.push_back(slice_rows(rows.begin, rows.end));
        tensor = name.substr(0, at) + ".attn_qkv." + name.substr(name.rfind('.') + 1);
      }
    std::vector<int64_t> dims = w.dims;
    if (!steps.empty()) dims[0] = fused_rows(c, "attn_q").total;
    layout.add(tensor, std::move(dims), {name, 0, std::move(steps)});
  }
  return layout.take();
}

// Gemma 3n has embeddings of layers for texts only: the ids of images and sounds take those of
// token 0. GGUF has a row for each token.
void add_layer_embeddings(const ModelConfig& c, const WeightSlot& slot, Layout& layout) {
  std::vector<int64_t> dims = {c.vocab, slot.dims[1]};
  layout.add(slot.name(), dims, {slot.name(), 0, {slice_rows(0, c.altup.vocab)}});
  for (int64_t row = c.altup.vocab; row < c.vocab; ++row)
    layout.add(slot.name(), dims, {slot.name(), 0, {slice_rows(row, row + 1)}});
}

HeadOrder head_order(const ModelConfig& c, const WeightSlot& slot) {
  const RecurrentConfig& r = c.recurrent;
  if (!c.architecture.starts_with("qwen35") || r.tiled || r.heads == r.groups) return {};
  auto is_one_of = [&](std::initializer_list<std::string_view> stems) {
    return std::find(stems.begin(), stems.end(), slot.stem) != stems.end();
  };
  HeadOrder order{r.groups, r.heads / r.groups, r.head_dim, 0, slot.stem == "ssm_out"};
  if (is_one_of({"ssm_rate", "ssm_step", "ssm_dt", "ssm_a"}))
    order.width = 1;
  else if (slot.stem == "ssm_conv1d")
    order.first = 2 * r.groups * r.state;
  else if (!is_one_of({"ssm_v", "ssm_gate", "ssm_out"}))
    return {};
  return order;
}

// Jais: GGUF has the factors of embeddings and logits in its tables.
bool scales_tables(const ModelConfig& c) { return c.architecture == "jais"; }

// What GGUF has in its weights: the factors of a product's input and of its result, which a bias is
// part of.
double block_factor(const ModelConfig& c, const WeightSlot& slot) {
  const bool bias = slot.suffix == "bias";
  const bool scaled = c.recurrent.beside || scales_tables(c);
  if (!scaled || (slot.suffix != "weight" && !bias)) return 1;
  const BlockScales& s = c.block_scales;
  struct Factors {
    std::string_view stem;
    double input, result;
  };
  const Factors factors[] = {
      {"attn_q", s.attention_in, 1},
      {"attn_k", s.attention_in, s.key},
      {"attn_v", s.attention_in, 1},
      {"attn_output", 1, s.attention_out},
      {"ffn_gate", 1, s.gate},
      {"ffn_down", 1, s.down},
      {"ssm_gate", s.ssm_in, s.ssm_gate},
      {"ssm_step", s.ssm_in, s.ssm_step},
      {"ssm_out", 1, s.ssm_out},
      {"token_embd", 1, c.embedding_scale},
      {"output", 1, c.logit_scale},
  };
  for (const Factors& f : factors)
    if (slot.stem == f.stem) return bias ? f.result : f.input * f.result;
  return 1;
}

// What enters the state space: three parts, each with its factor.
void add_inputs(const ModelConfig& c, const WeightSlot& slot, const std::string& tensor,
                Layout& layout) {
  const RecurrentConfig& r = c.recurrent;
  const BlockScales& s = c.block_scales;
  int64_t vectors = r.groups * r.state, row = 0;
  for (auto [rows, factor] :
       {std::pair{r.inner(), s.ssm_x}, {vectors, s.ssm_b}, {vectors, s.ssm_c}}) {
    int64_t at = r.inner() + row;  // after the gate
    layout.add(
        tensor, {at + rows, c.hidden},
        {slot.name(), row, {slice_rows(at, at + rows)}, Decays::kSame, {}, factor * s.ssm_in});
    row += rows;
  }
}

}  // namespace

std::vector<FileTensor> gguf_layout(const ModelConfig& c) {
  for (size_t i = 0; i < c.dense.size(); ++i)
    if (c.weights.contains(dense_stem(i) + ".bias"))
      fail(ErrorCode::kUnsupported, "GGUF has no biases of the layers after the pooling");
  if (c.embedding.encoder && !find_family(c.architecture)) return encoder_layout(c);
  const Family& family = family_of(c);
  if (!family.in_gguf)
    fail(ErrorCode::kUnsupported, "GGUF has no layout for models of the family {}", c.architecture);
  const RecurrentConfig& r = c.recurrent;
  if (r.norm_groups != r.groups && r.heads > 0 && !r.delta && !r.beside)
    fail(ErrorCode::kUnsupported,
         "Mamba-2 with {} groups cannot be converted to GGUF: it normalises each group separately, "
         "a folder all of them together",
         r.groups);
  Layout layout;
  for (const WeightSlot& slot : weight_slots(c)) {
    WeightPlace place = gguf_place(family, c, slot);
    std::erase_if(place.steps, [](const RecipeStep& s) { return s.kind == Kind::kCast; });
    std::vector<int64_t> dims = shape_before(place.steps, slot.dims);
    if (altup_part(slot.stem).index >= 0) dims = {c.altup.copies - 1, c.hidden, c.hidden};
    if (slot.stem == "per_layer_token_embd" && c.altup.vocab < c.vocab) {
      add_layer_embeddings(c, slot, layout);
      continue;
    }
    if (r.heads > 0 && !r.delta && r.step_rank == 0 &&
        (slot.stem == "ssm_a" || slot.stem == "ssm_d"))
      dims.push_back(1);
    if (c.head_qk_norm && (slot.stem == "attn_q_norm" || slot.stem == "attn_k_norm"))
      dims = {dims[0] / c.head_dim, c.head_dim};
    if (r.heads > 0 && !r.delta && slot.stem == "ssm_norm") dims = {r.groups, dims[0] / r.groups};
    Decays decays = r.decay_log && slot.stem == "ssm_a" ? Decays::kFromLog : Decays::kSame;
    if (r.beside && slot.stem == "ssm_xbc") {
      add_inputs(c, slot, place.tensor, layout);
      continue;
    }
    layout.add(place.tensor, dims,
               {slot.name(), 0, place.steps, decays, head_order(c, slot), block_factor(c, slot)});
    const bool apart = r.beside || scales_tables(c);  // the tables differ in their factors
    if (apart && c.tied_embeddings && slot.stem == "token_embd")
      layout.add("output.weight", dims, {slot.name(), 0, {}, Decays::kSame, {}, c.logit_scale});
  }
  return layout.take();
}

ModelConfig gguf_form(const ModelConfig& c) {
  ModelConfig out = c;
  RecurrentConfig& r = out.recurrent;
  if (c.architecture.starts_with("qwen35")) r.tiled = r.heads != r.groups;
  // Transformers alone limits time steps from below; GGUF and llama.cpp have no such limit.
  if (c.architecture.starts_with("nemotron_h")) r.step_low = 0;
  if (r.beside) {
    out.block_scales = {};
    out.embedding_scale = out.logit_scale = 1;
    out.tied_embeddings = false;
    if (r.norm_groups == 0) r.gated_norm = true;
  }
  if (scales_tables(c)) {
    out.embedding_scale = out.logit_scale = 1;
    out.tied_embeddings = false;
  }
  return out;
}

std::vector<FileTensor> hf_layout(const ModelConfig& c) {
  const Family& family = family_of(c);
  const std::string prefix = family.conv1d || family.architecture == "exaone" ? "transformer."
                             : family.recurrent                               ? "backbone."
                                                                              : "model.";
  const RecurrentConfig& r = c.recurrent;
  if (family.recurrent && r.norm_groups != 1)
    fail(ErrorCode::kUnsupported,
         "Mamba-2 with {} groups cannot be converted to a folder: GGUF normalises each group for "
         "itself, a folder all of them together",
         r.groups);
  Layout layout;
  for (const WeightSlot& slot : weight_slots(c)) {
    WeightPlace place = hf_place(family, c, slot);
    std::erase_if(place.steps, [](const RecipeStep& s) { return s.kind == Kind::kCast; });
    // The head is beside the model, not inside it.
    std::string name = slot.stem == "output" ? place.tensor : prefix + place.tensor;
    size_t at = name.find("{}");
    if (at != std::string::npos) {
      for (int64_t e = 0; e < slot.dims[0]; ++e)
        layout.add(name.substr(0, at) + std::to_string(e) + name.substr(at + 2),
                   {slot.dims[1], slot.dims[2]}, {slot.name(), e * slot.dims[1], {}});
      continue;
    }
    bool stacked = is_stacked(family, slot);
    std::vector<int64_t> dims =
        stacked ? stacked_dims(c, slot) : shape_before(place.steps, slot.dims);
    if (slot.stem == "ssm_conv1d" && dims.size() == 2) dims.insert(dims.begin() + 1, 1);
    bool log = slot.stem == "ssm_a" && !r.decay_log;
    layout.add(name, std::move(dims),
               {slot.name(), 0, std::move(place.steps), log ? Decays::kToLog : Decays::kSame});
  }
  return layout.take();
}

FileBytes assemble(const FileTensor& tensor, const ModelConfig& c, const WeightSource& source) {
  FileBytes out;
  bool by_rows = tensor.dims.size() > 1, plain = tensor.parts.size() == 1;
  std::set<DType> types;
  for (const FilePart& part : tensor.parts) {
    by_rows = by_rows && !moves_elements(part, tensor);
    bool same = part.decays == Decays::kSame && part.order.groups == 0 && part.factor == 1;
    plain = plain && part.steps.empty() && same;
    bool as_f32 = added(part) != 0 || part.decays != Decays::kSame || part.factor != 1 ||
                  !order_of(part.weight, c).empty();
    types.insert(as_f32 ? DType::kF32 : c.weights.at(part.weight).dtype);
  }
  bool blocks = std::any_of(types.begin(), types.end(), is_block_type);
  out.dtype = types.size() == 1 && (by_rows || plain || !blocks) ? *types.begin() : DType::kF32;
  size_t size = dtype_bytes(out.dtype, product(tensor.dims));
  if (plain) {
    LoadedTensor loaded = load_part(tensor.parts[0], c, source);
    int64_t from = tensor.parts[0].first_row * loaded.view.dims.back();
    out.bytes = loaded.view.bytes.subspan(dtype_bytes(out.dtype, from), size);
    out.owned = std::move(loaded.owned);
    return out;
  }
  out.owned.resize(size);
  for (const FilePart& part : tensor.parts) {
    LoadedTensor loaded = load_part(part, c, source);
    if (!by_rows &&
        is_block_type(loaded.view.dtype)) {  // elements of blocks have no bytes of their own
      std::vector<std::byte> wide(static_cast<size_t>(loaded.view.elements()) * sizeof(float));
      decode_row(loaded.view.dtype, loaded.view.bytes.data(), reinterpret_cast<float*>(wide.data()),
                 loaded.view.elements());
      loaded.owned = std::move(wide);
      loaded.view = {DType::kF32, loaded.view.dims, loaded.owned};
    }
    scatter(part, tensor, loaded.view, out, by_rows);
  }
  out.bytes = out.owned;
  return out;
}

}  // namespace tokamak
