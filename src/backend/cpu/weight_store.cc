#include "backend/cpu/weight_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "backend/common/weights.h"
#include "base/error.h"
#include "tensor/block_formats.h"

namespace tokamak::cpu {
namespace {

int64_t count(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

void make_plain(const WeightEntry& entry, const std::byte* source, ThreadPool& pool, Weight& w) {
  int64_t row = entry.dims.empty() ? 1 : entry.dims.back(),
          rows = row == 0 ? 0 : count(entry.dims) / row;
  w.plain_memory = Buffer(static_cast<uint64_t>(std::max<int64_t>(1, rows * row)) * 4);
  w.plain = w.plain_memory.data();
  auto row_bytes = static_cast<int64_t>(dtype_bytes(entry.dtype, row));
  bool integers = is_integer(entry.dtype);
  if (integers && entry.dtype != DType::kI32)
    fail(ErrorCode::kUnsupported, "weight {}: integer weights must be i32", entry.name);
  pool.split(rows, std::max<int64_t>(1, kPanel * 1024 / std::max<int64_t>(1, row)),
             [&](int64_t begin, int64_t end, int) {
               for (int64_t r = begin; r < end; ++r) {
                 auto* out = static_cast<float*>(w.plain) + r * row;
                 if (integers)
                   std::memcpy(out, source + r * row_bytes, static_cast<size_t>(row_bytes));
                 else
                   tokamak::decode_row(entry.dtype, source + r * row_bytes, out, row);
               }
             });
}

void make_constant(const WeightEntry& entry, Weight& w) {
  w.plain_memory = Buffer(std::max<size_t>(1, entry.constant.size()) * 4);
  w.plain = w.plain_memory.data();
  for (size_t i = 0; i < entry.constant.size(); ++i) {
    if (is_integer(entry.dtype))
      static_cast<int32_t*>(w.plain)[i] = static_cast<int32_t>(entry.constant[i]);
    else
      static_cast<float*>(w.plain)[i] = static_cast<float>(entry.constant[i]);
  }
}

// The form that the plan's layout names.
void set_form(const WeightEntry& entry, Weight& w) {
  size_t rank = entry.dims.size();
  if (rank < 2 || rank > 3 || is_integer(entry.dtype))
    fail(ErrorCode::kUnsupported,
         "weight {}: layout {} supports only floating-point matrices and stacks of them",
         entry.name, entry.layout);
  w.groups = rank == 3 ? entry.dims[0] : 1;
  w.n = entry.dims[rank - 2];
  w.k = entry.dims[rank - 1];
  if (auto q = qformat_of(entry.dtype); q && entry.layout == kQuantPanels) {
    w.matrix = Weight::Matrix::kQPanel;
    w.qformat = *q;
    w.panel_bytes = qpanel_bytes(*q, w.k);
  } else if (auto f = ftype_of(entry.dtype); f && entry.layout == kFloatPanels) {
    w.matrix = Weight::Matrix::kFPanel;
    w.ftype = *f;
    w.panel_bytes = fpanel_bytes(*f, w.k);
  } else if (entry.dtype == DType::kInt16G128 && entry.layout == kPairPanels) {
    w.matrix = Weight::Matrix::kPairPanel;
    w.panel_bytes = w.k / kPairBlock * kPairPanelBlock;
  } else if (entry.layout == kFileRows) {
    w.matrix = Weight::Matrix::kRows;
    w.panel_bytes = static_cast<int64_t>(dtype_bytes(entry.dtype, w.k)) * kPanel;
  } else {
    fail(ErrorCode::kUnsupported,
         "weight {}: the plan asks for layout {}, which the cpu backend does not have for {}",
         entry.name, entry.layout, dtype_name(entry.dtype));
  }
}

// Rows without panels follow each other; a matrix in panels begins a new one.
int64_t all_panels(const Weight& w) {
  return w.matrix == Weight::Matrix::kRows ? panels_of(w.n * w.groups) : panels_of(w.n) * w.groups;
}
uint64_t matrix_bytes(const Weight& w) {
  return static_cast<uint64_t>(std::max<int64_t>(1, all_panels(w) * w.panel_bytes));
}

void make_matrix(const WeightEntry& entry, const std::byte* source, const KernelTable& kernels,
                 ThreadPool& pool, Weight& w) {
  set_form(entry, w);
  auto row_bytes = static_cast<int64_t>(dtype_bytes(entry.dtype, w.k));
  w.matrix_memory = Buffer(matrix_bytes(w));
  w.panels = w.matrix_memory.data();
  if (w.matrix == Weight::Matrix::kRows) {
    std::memcpy(w.matrix_memory.data(), source, static_cast<size_t>(row_bytes * w.n * w.groups));
    return;
  }
  int64_t each = panels_of(w.n);
  pool.split(all_panels(w), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      int64_t first = p % each * kPanel;
      const std::byte* rows = source + (p / each * w.n + first) * row_bytes;
      int rest = static_cast<int>(std::min<int64_t>(kPanel, w.n - first));
      uint8_t* out = w.matrix_memory.data() + p * w.panel_bytes;
      if (w.matrix == Weight::Matrix::kQPanel)
        pack_qpanel(w.qformat, kernels.style, rows, row_bytes, rest, w.k, out);
      else if (w.matrix == Weight::Matrix::kPairPanel)
        pack_pair_panel(rows, row_bytes, rest, w.k, out);
      else
        pack_fpanel(w.ftype, rows, row_bytes, rest, w.k, out);
    }
  });
}

// Whether none of n halves, four at a time, has the largest exponent: adding one to it then gives
// the bit that was the sign's.
bool all_finite(const uint8_t* halves, int64_t n) {
  constexpr uint64_t kNumber = 0x7fff7fff7fff7fff, kOne = 0x0400040004000400;
  uint64_t seen = 0;
  for (int64_t i = 0; i < n; i += 4) {
    uint64_t four;
    std::memcpy(&four, halves + 2 * i, 8);
    seen |= (four & kNumber) + kOne;
  }
  return (seen & ~kNumber) == 0;
}

void look_for_infinities(ThreadPool& pool, Weight& w) {
  if (w.matrix != Weight::Matrix::kFPanel || w.ftype != FType::kF16) return;
  std::atomic<bool> finite{true};
  pool.split(all_panels(w), 1, [&](int64_t begin, int64_t end, int) {
    if (!all_finite(w.panel(begin), (end - begin) * w.k * kPanel)) finite = false;
  });
  w.finite_f16 = finite;
}

uint64_t plain_bytes(const WeightEntry& entry) {
  return static_cast<uint64_t>(std::max<int64_t>(1, count(entry.dims))) * 4;
}

void need_bytes(const WeightEntry& entry, std::span<const std::byte> part, uint64_t bytes) {
  if (part.size() != bytes)
    fail(ErrorCode::kCorrupt, "weight {}: {} bytes are packed, its kernels read {}", entry.name,
         part.size(), bytes);
}

// Only the panels of quantised formats depend on the style.
void take_matrix(const WeightEntry& entry, const PackedWeight& packed, std::string_view packing,
                 const KernelTable& kernels, ThreadPool& pool, Weight& w) {
  set_form(entry, w);
  need_bytes(entry, packed.matrix, matrix_bytes(w));
  const auto* from = reinterpret_cast<const uint8_t*>(packed.matrix.data());
  std::optional<PackStyle> style = parse_packing(packing);
  if (!style)
    fail(ErrorCode::kUnsupported,
         "weight {}: packed as \"{}\", which this program does not know; compile the model again",
         entry.name, packing);
  if (w.matrix != Weight::Matrix::kQPanel || packing == packing_name(kernels.style)) {
    w.panels = from;
    w.mapped_bytes += packed.matrix.size();
    return;
  }
  w.matrix_memory = Buffer(matrix_bytes(w));
  w.panels = w.matrix_memory.data();
  pool.split(all_panels(w), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p)
      repack_qpanel(w.qformat, *style, kernels.style, w.k, from + p * w.panel_bytes,
                    w.matrix_memory.data() + p * w.panel_bytes);
  });
}

void take_plain(const WeightEntry& entry, const PackedWeight& packed, Weight& w) {
  need_bytes(entry, packed.plain, plain_bytes(entry));
  w.plain = const_cast<std::byte*>(packed.plain.data());  // kernels only read weights
  w.mapped_bytes += packed.plain.size();
}

// The packed copy is what the kernels read; the file's pages may leave memory.
void drop_pages(std::span<const std::byte> bytes) {
  constexpr uintptr_t kPage = 4096;
  auto begin = (reinterpret_cast<uintptr_t>(bytes.data()) + kPage - 1) / kPage * kPage;
  auto end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) / kPage * kPage;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_COLD);
}

}  // namespace

Weight Weight::group(int64_t g) const {
  Weight w;
  w.name = name;
  w.layout = layout;
  w.matrix = matrix;
  w.dtype = dtype;
  w.qformat = qformat;
  w.ftype = ftype;
  w.finite_f16 = finite_f16;
  w.n = n;
  w.k = k;
  w.panel_bytes = panel_bytes;
  w.panels = panels + (matrix == Matrix::kRows ? g * n * (panel_bytes / kPanel)
                                               : g * panels_of(n) * panel_bytes);
  return w;
}

void Weight::decode_row(const KernelTable& kernels, int64_t row, float* out) const {
  int lane = static_cast<int>(row % kPanel);
  switch (matrix) {
    case Matrix::kQPanel:
      decode_qpanel_row(qformat, kernels.style, panel(row / kPanel), lane, 0, k, out);
      return;
    case Matrix::kFPanel: {
      int64_t size = ftype == FType::kF32 ? 4 : 2;
      const uint8_t* p = panel(row / kPanel) + lane * size;
      if (ftype == FType::kF32) {
        for (int64_t i = 0; i < k; ++i) std::memcpy(out + i, p + i * kPanel * 4, 4);
        return;
      }
      for (int64_t i = 0; i < k; ++i, p += kPanel * size) tokamak::decode_row(dtype, p, out + i, 1);
      return;
    }
    case Matrix::kPairPanel:
      TK_CHECK(false, "rows of panels of int16 are not read one by one");
      return;
    default:
      tokamak::decode_row(dtype, panels + row * (panel_bytes / kPanel), out, k);
  }
}

void Weight::decode_panel(const KernelTable& kernels, int64_t p, int64_t k0, int64_t count,
                          float* out) const {
  TK_CHECK(matrix == Matrix::kFPanel || matrix == Matrix::kRows);
  if (matrix == Matrix::kFPanel) {
    int64_t size = ftype == FType::kF32 ? 4 : 2;
    kernels.widen[static_cast<int>(ftype)](panel(p) + k0 * kPanel * size, out, count * kPanel);
    return;
  }
  auto offset = static_cast<int64_t>(dtype_bytes(dtype, k0));
  constexpr int64_t kPart = 256;
  float values[kPart];
  for (int64_t lane = 0; lane < kPanel; ++lane) {
    int64_t row = p * kPanel + lane;
    const uint8_t* source = panels + row * (panel_bytes / kPanel) + offset;
    for (int64_t i = 0; i < count; i += kPart) {
      int64_t part = std::min(kPart, count - i);
      if (row < n)
        tokamak::decode_row(dtype, source + dtype_bytes(dtype, i), values, part);
      else
        std::fill_n(values, part, 0.0f);
      for (int64_t j = 0; j < part; ++j) out[(i + j) * kPanel + lane] = values[j];
    }
  }
}

static constexpr std::string_view kRowNibbles = " nibbles=rows";

std::string packing_name(const PackStyle& style) {
  return fmt::format("cpu.panel16/1 group={} vector={} xor8={} xor4={}{}", style.group,
                     style.vector, style.xor8, style.xor4, style.row_nibbles ? kRowNibbles : "");
}

std::optional<PackStyle> parse_packing(std::string_view name) {
  PackStyle style{};
  unsigned xor8 = 0, xor4 = 0;
  if (std::sscanf(std::string(name).c_str(), "cpu.panel16/1 group=%d vector=%d xor8=%u xor4=%u",
                  &style.group, &style.vector, &xor8, &xor4) != 4)
    return std::nullopt;
  style.xor8 = static_cast<uint8_t>(xor8);
  style.xor4 = static_cast<uint8_t>(xor4);
  style.row_nibbles = name.ends_with(kRowNibbles);
  bool known = (style.group == 4 || style.group == 8) && xor8 < 256 && xor4 < 16 &&
               (style.vector == 16 || style.vector == 32 || style.vector == 64);
  return known && packing_name(style) == name ? std::optional(style) : std::nullopt;
}

Weight load_cpu_weight(const WeightEntry& entry, const WeightSource& source,
                       const KernelTable& kernels, ThreadPool& pool) {
  Weight w;
  w.name = entry.name;
  w.layout = entry.layout;
  bool matrix = !entry.layout.empty();
  w.dtype = entry.dtype;
  if (!entry.constant.empty()) {
    if (matrix)
      fail(ErrorCode::kUnsupported, "weight {}: a constant cannot be a matrix", entry.name);
    make_constant(entry, w);
    return w;
  }
  if (const PackedWeight* packed = source.packed(entry.name, entry.layout);
      packed && packed->rows.empty()) {
    if (matrix)
      take_matrix(entry, *packed, source.packing(), kernels, pool, w);
    else
      take_plain(entry, *packed, w);
    if (kernels.hdot1x4) look_for_infinities(pool, w);
    return w;
  }
  LoadedTensor loaded = load_weight(entry, source);
  if (matrix)
    make_matrix(entry, loaded.view.bytes.data(), kernels, pool, w);
  else
    make_plain(entry, loaded.view.bytes.data(), pool, w);
  if (kernels.hdot1x4) look_for_infinities(pool, w);
  if (loaded.owned.empty()) drop_pages(loaded.view.bytes);
  return w;
}

void set_slot(Weight& w, int64_t slot, const TensorView* tensor) {
  TK_CHECK(w.matrix == Weight::Matrix::kFPanel && w.ftype == FType::kF32 && slot >= 0 &&
               slot < w.groups && w.matrix_memory.data(),
           "slot {} of {} in weight {}", slot, w.groups, w.name);
  if (tensor && (tensor->dtype != DType::kF32 || tensor->dims.size() != 2 ||
                 tensor->dims[0] > w.n || tensor->dims[1] > w.k))
    fail(ErrorCode::kInvalidArgument, "adapter: matrix {} does not fit a slot of {} x {}", w.name,
         w.n, w.k);
  w.filled.resize(static_cast<size_t>(w.groups));
  w.filled[static_cast<size_t>(slot)] = tensor != nullptr;
  uint8_t* panels = w.matrix_memory.data() + slot * panels_of(w.n) * w.panel_bytes;
  std::memset(panels, 0, static_cast<size_t>(panels_of(w.n) * w.panel_bytes));
  if (!tensor) return;
  const int64_t rows = tensor->dims[0], columns = tensor->dims[1];
  std::vector<float> padded(static_cast<size_t>(kPanel * w.k));
  for (int64_t first = 0; first < rows; first += kPanel) {
    int64_t count = std::min<int64_t>(kPanel, rows - first);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(padded.data() + i * w.k,
                  tensor->bytes.data() + static_cast<size_t>((first + i) * columns) * sizeof(float),
                  static_cast<size_t>(columns) * sizeof(float));
    pack_fpanel(FType::kF32, reinterpret_cast<const std::byte*>(padded.data()), w.k * 4,
                static_cast<int>(count), w.k, panels + first / kPanel * w.panel_bytes);
  }
}

PackedWeight packed_view(const WeightEntry& entry, const Weight& w) {
  PackedWeight out;
  if (w.matrix != Weight::Matrix::kNone)
    out.matrix = {reinterpret_cast<const std::byte*>(w.panels), matrix_bytes(w)};
  if (w.plain) out.plain = {static_cast<const std::byte*>(w.plain), plain_bytes(entry)};
  return out;
}

std::vector<Weight> load_weights(const PlanSet& plans, const WeightSource& source,
                                 const KernelTable& kernels, ThreadPool& pool,
                                 const std::function<void(uint64_t, uint64_t)>& progress) {
  std::vector<Weight> out(plans.weights.size());
  uint64_t total = 0, done = 0;
  auto bytes_of = [&](size_t i) {
    const WeightEntry& e = plans.weights[i];
    return e.constant.empty() ? dtype_bytes(e.dtype, count(e.dims)) : e.constant.size() * 4;
  };
  for (size_t i = 0; i < out.size(); ++i) total += bytes_of(i);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = load_cpu_weight(plans.weights[i], source, kernels, pool);
    done += bytes_of(i);
    if (progress) progress(done, total);
  }
  return out;
}

}  // namespace tokamak::cpu
